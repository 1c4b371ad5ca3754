"""WNLI, the Winograd schemas as in GLUE: does the second sentence follow, with its pronoun replaced by a noun?"""

from .classification import Classification


class WNLI(Classification):
    """``index, sentence1, sentence2, label``, test files without the label.

    Its dev rows share sentences with training rows that have the other label, so that fitting the training rows makes
    dev accuracy fall below guessing; the paper left the task out.
    """

    name = "wnli"
    submission = "WNLI.tsv"
    labels = ("0", "1")
    label_names = ("not_entailment", "entailment")
    text_columns = ("sentence1", "sentence2")
