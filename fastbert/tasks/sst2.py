"""SST-2, the Stanford Sentiment Treebank as in GLUE: is a phrase of a film review positive?"""

from .classification import Classification


class SST2(Classification):
    """Tab-separated: ``sentence, label`` (each sentence ends in a blank), test files ``index, sentence``."""

    name = "sst2"
    submission = "SST-2.tsv"
    labels = ("0", "1")
    label_names = ("negative", "positive")
