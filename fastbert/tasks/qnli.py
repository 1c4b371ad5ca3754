"""QNLI, SQuAD's questions as in GLUE: does a sentence contain the answer to a question?"""

from .classification import Classification


class QNLI(Classification):
    """``index, question, sentence, label``, test files without the label."""

    name = "qnli"
    submission = "QNLI.tsv"
    labels = ("entailment", "not_entailment")
    text_columns = ("question", "sentence")
