"""RTE, Recognizing Textual Entailment: does the first text entail the second?"""

from .classification import Classification


class RTE(Classification):
    """``index, sentence1, sentence2, label``, test files without the label."""

    name = "rte"
    submission = "RTE.tsv"
    labels = ("entailment", "not_entailment")
    text_columns = ("sentence1", "sentence2")

    def parse(self, text: str) -> str:
        return super().parse("not_entailment" if text == "non-entailment" else text)  # as HANS has it
