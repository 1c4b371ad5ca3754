"""GLUE's files as published, in small: headers and columns are the real ones, rows are made up for the tests.

Each entry: the bytes of a labelled file, the rows it holds; the bytes of a test file, the rows it holds.
"""

from fastbert.tasks.base import Row

MNLI_COLUMNS = (
    b"index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    b"sentence2_parse\tsentence1\tsentence2"
)
MNLI_FILLER = b"\t31193\t31193n\tgovernment\t( ( a ) b )\t( c )\t(ROOT (S a))\t(ROOT c)\t"
VOTES = b"\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n"

LABELLED = {
    # No header; the third column is a star, or empty.
    "cola": (
        b'gj04\t1\t\tHe said "no".\nc-05\t0\t*\tThey it\'s caf\xc3\xa9 went. \n',
        [Row("0", ('He said "no".',), "1"), Row("1", ("They it's café went.",), "0")],
    ),
    # Each sentence ends in a blank.
    "sst2": (
        b'sentence\tlabel\na " fine film \t1\ndull \t0\n',
        [Row("0", ('a " fine film',), "1"), Row("1", ("dull",), "0")],
    ),
    # Byte-order mark, CRLF, quotes that do not close.
    "mrpc": (
        b"\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        b'1\t702876\t702977\t"He left, she said.\tHe "left".\r\n0\t2\t3\t\'a\t"b"\r\n',
        [Row("0", ('"He left, she said.', 'He "left".'), "1"), Row("1", ("'a", '"b"'), "0")],
    ),
    "stsb": (
        b"index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        b"0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000\n"
        b"4\tmain-news\theadlines\t2015\t12\tnone\tnone\t\"A\tB's\t0.25\n",
        [Row("0", ("A plane.", "An air plane."), 5.0), Row("4", ('"A', "B's"), 0.25)],
    ),
    "qqp": (
        b"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        b'133273\t213221\t213222\tWhat is "x"?\tWhat\'s x?\t1\n402555\t1\t2\tWhy? \t"How\xe2\x80\xa8so?\t0\n',
        [Row("133273", ('What is "x"?', "What's x?"), "1"), Row("402555", ("Why?", '"How\u2028so?'), "0")],
    ),
    "mnli": (
        MNLI_COLUMNS + b"\tlabel1\tgold_label\n"
        b"0" + MNLI_FILLER + b'"A" b.\tC.\tneutral\tneutral\n1' + MNLI_FILLER + b"D\tE\tentailment\tcontradiction\n",
        [Row("0", ('"A" b.', "C."), "neutral"), Row("1", ("D", "E"), "contradiction")],
    ),
    "qnli": (
        b"index\tquestion\tsentence\tlabel\n"
        b'0\tWhen did "it" start?\tIn 1755.\tentailment\n1\tWho?\tNo\tnot_entailment\n',
        [Row("0", ('When did "it" start?', "In 1755."), "entailment"), Row("1", ("Who?", "No"), "not_entailment")],
    ),
    "rte": (
        b"index\tsentence1\tsentence2\tlabel\n0\tA long text. \tIt is.\tnot_entailment\n1\tB\tC\tentailment\n",
        [Row("0", ("A long text.", "It is."), "not_entailment"), Row("1", ("B", "C"), "entailment")],
    ),
    "wnli": (
        b"index\tsentence1\tsentence2\tlabel\n0\tI stuck a pin in it.\tThe pin had a hole.\t1\n1\tA\tB\t0\n",
        [Row("0", ("I stuck a pin in it.", "The pin had a hole."), "1"), Row("1", ("A", "B"), "0")],
    ),
}

# Test files number their rows themselves and have no label; CoLA's and MRPC's columns differ from the labelled ones.
UNLABELLED = {
    "cola": (b'index\tsentence\n0\tBill left.\n1\tLeft "who"?\n', [("Bill left.",), ('Left "who"?',)]),
    "sst2": (b'index\tsentence\n0\tuneasy mishmash \n1\t"a\n', [("uneasy mishmash",), ('"a',)]),
    "mrpc": (
        b'\xef\xbb\xbfindex\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n0\t1\t2\tA.\tB.\r\n1\t3\t4\tC\t"D\r\n',
        [("A.", "B."), ("C", '"D')],
    ),
    "stsb": (
        b"index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        b"0\tg\tf\t2017\t5\tnone\tnone\tA\tB\n1\tg\tf\t2017\t6\tnone\tnone\tC\tD\n",
        [("A", "B"), ("C", "D")],
    ),
    # Half a pair may be missing where every row must be answered.
    "qqp": (b"id\tquestion1\tquestion2\n0\tWhy?\tWhat?\n1\tHow?\t\n", [("Why?", "What?"), ("How?", "")]),
    "mnli": (
        MNLI_COLUMNS + b"\n0" + MNLI_FILLER + b"A\tB\n1" + MNLI_FILLER + b"C\tD\n",
        [("A", "B"), ("C", "D")],
    ),
    "qnli": (b"index\tquestion\tsentence\n0\tWho?\tHe.\n1\tWhy?\tSo.\n", [("Who?", "He."), ("Why?", "So.")]),
    "rte": (b"index\tsentence1\tsentence2\n0\tA\tB\n1\tC\tD\n", [("A", "B"), ("C", "D")]),
    "wnli": (b"index\tsentence1\tsentence2\n0\tA\tB\n1\tC\tD\n", [("A", "B"), ("C", "D")]),
}

# GLUE's names of the files, and two predictions as they stand there.
SUBMISSIONS = {
    "cola": ("CoLA.tsv", ["0", "1"], "0\t0\n1\t1\n"),
    "sst2": ("SST-2.tsv", ["1", "0"], "0\t1\n1\t0\n"),
    "mrpc": ("MRPC.tsv", ["1", "1"], "0\t1\n1\t1\n"),
    "stsb": ("STS-B.tsv", [0.0, 3.25], "0\t0.0\n1\t3.25\n"),
    "qqp": ("QQP.tsv", ["0", "1"], "0\t0\n1\t1\n"),
    "mnli": ("MNLI-m.tsv", ["contradiction", "neutral"], "0\tcontradiction\n1\tneutral\n"),
    "qnli": ("QNLI.tsv", ["not_entailment", "entailment"], "0\tnot_entailment\n1\tentailment\n"),
    "rte": ("RTE.tsv", ["entailment", "not_entailment"], "0\tentailment\n1\tnot_entailment\n"),
    "wnli": ("WNLI.tsv", ["0", "1"], "0\t0\n1\t1\n"),
}

# A label that the task does not have, in the first labelled row.
WRONG_LABEL = {
    "cola": (b"\t1\t", b"\tx\t", 1, "the label to be one of 0, 1, got 'x'"),
    "sst2": (b"\t1", b"\t5", 2, "the label to be one of 0, 1, got '5'"),
    "mrpc": (b"1\t702", b"\t702", 2, "the label to be one of 0, 1, got ''"),
    "stsb": (b"5.000", b"5.1", 2, "a number from 0 to 5, got '5.1'"),
    "qqp": (b"\t1\n", b"\t2\n", 2, "the label to be one of 0, 1, got '2'"),
    "mnli": (b"neutral\n", b"-\n", 2, "a label that most annotators chose, got '-'"),
    "qnli": (b"\tentailment", b"\tyes", 2, "the label to be one of entailment, not_entailment, got 'yes'"),
    "rte": (b"\tnot_entailment", b"\tunknown", 2, "the label to be one of entailment, not_entailment, got 'unknown'"),
    "wnli": (b"\t1", b"\t-1", 2, "the label to be one of 0, 1, got '-1'"),
}
