"""QQP, Quora Question Pairs: do two questions ask the same?"""

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
