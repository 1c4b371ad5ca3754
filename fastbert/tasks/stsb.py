"""STS-B, the Semantic Textual Similarity Benchmark: how alike in meaning are two sentences, from 0 to 5?"""

from .regression import Regression


class STSB(Regression):
    """GLUE's files have a header, with ``score`` last; the benchmark's own have none, are tab-separated though named
    .csv, and some of their rows go on with notes on licences."""

    name = "stsb"
    submission = "STS-B.tsv"
    text_columns = ("sentence1", "sentence2")
    similarity = True
    label_column = "score"
    bare_columns = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
    extra_columns = True
    low, high = 0.0, 5.0
