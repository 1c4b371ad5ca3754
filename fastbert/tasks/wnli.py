"""WNLI, the Winograd schemas as in GLUE: does the second sentence follow, with its pronoun replaced by a noun?"""

from .classification import Classification


class WNLI(Classification):
    """``index, sentence1, sentence2, label``, test files without the label.

    Its dev rows share sentences with training rows of the opposite label, so a model that fits the training rows falls
    below guessing on the dev rows; the paper left the task out.
    """

    name = "wnli"
    submission = "WNLI.tsv"
    labels = ("0", "1")
    label_names = ("not_entailment", "entailment")
    text_columns = ("sentence1", "sentence2")
