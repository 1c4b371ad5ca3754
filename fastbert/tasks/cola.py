"""CoLA, the Corpus of Linguistic Acceptability: is a sentence good English?"""

from .classification import Classification


class CoLA(Classification):
    """Training and dev files have no header: ``source, label, mark, sentence``; test files have ``index, sentence``."""

    name = "cola"
    submission = "CoLA.tsv"
    metrics = ("matthews", "accuracy")
    labels = ("0", "1")
    label_names = ("unacceptable", "acceptable")
    bare_columns = ("source", "label", "mark", "sentence")
