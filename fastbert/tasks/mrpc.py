"""MRPC, the Microsoft Research Paraphrase Corpus: do two sentences mean the same?"""

from .classification import Classification


class MRPC(Classification):
    """Microsoft's own files and GLUE's, with byte-order mark and CRLF: ``Quality, #1 ID, #2 ID, #1 String, #2 String``;
    GLUE's test file has ``index`` instead of Quality."""

    name = "mrpc"
    submission = "MRPC.tsv"
    metrics = ("accuracy", "f1")
    labels = ("0", "1")
    label_names = ("not_equivalent", "equivalent")
    text_columns = ("#1 String", "#2 String")
    similarity = True
    label_column = "Quality"
