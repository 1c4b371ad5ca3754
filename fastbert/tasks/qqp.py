"""QQP, Quora Question Pairs: do two questions ask the same?"""

from collections.abc import Sequence

from .classification import Classification


class QQP(Classification):
    """``id, qid1, qid2, question1, question2, is_duplicate``, test files ``id, question1, question2``."""

    name = "qqp"
    submission = "QQP.tsv"
    metrics = ("accuracy", "f1")
    labels = ("0", "1")
    label_names = ("not_duplicate", "duplicate")
    text_columns = ("question1", "question2")
    similarity = True
    label_column = "is_duplicate"
    id_column = "id"

    def check_texts(self, texts: Sequence[str], labelled: bool) -> None:
        # Quora's own set has a few questions without text; their pairs have labels, and other loaders keep them.
        super().check_texts(texts, labelled=False)
