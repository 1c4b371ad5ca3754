"""`--dev-share`: the same rows each time, and nothing of one source on both sides."""

import json
from collections import Counter

import pytest

from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.base import Row
from fastbert.tasks.batching import hold_out

SST2 = registry.get("sst2")


def rows_of(texts) -> list[Row]:
    return [Row(str(i), (text,), "1") for i, text in enumerate(texts)]


def test_rows_are_held_out_the_same_way_each_time():
    rows = rows_of(f"text {i}" for i in range(50))
    kept, held = hold_out(rows, 0.2, SST2.sources)
    assert len(held) == 10
    assert sorted([*kept, *held], key=lambda row: int(row.id)) == rows
    assert [row.id for row in held] == sorted((row.id for row in held), key=int)
    assert hold_out(rows, 0.2, SST2.sources) == (kept, held)
    for share in (0.001, 1.0, -0.5, float("nan")):
        with pytest.raises(InputError, match="must leave rows on both sides"):
            hold_out(rows, share, SST2.sources)


def test_rows_without_a_title_are_no_copies_of_each_other():
    task = registry.get("text-classification")
    rows = [Row(str(i), ("", f"text {i // 2}"), "1") for i in range(40)]
    kept, held = hold_out(rows, 0.2, task.sources)
    assert len(held) == 8
    assert not {row.texts for row in kept} & {row.texts for row in held}


def write_squad(path, articles: int, paragraphs: int, questions: int) -> None:
    data = [
        {
            "title": "the same for all",
            "paragraphs": [
                {
                    "context": f"Article {a}, paragraph {p}.",
                    "qas": [
                        {"id": f"{a}-{p}-{q}", "question": "Which?", "answers": [{"text": str(a), "answer_start": 8}]}
                        for q in range(questions)
                    ],
                }
                for p in range(paragraphs)
            ],
        }
        for a in range(articles)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": data}))


def article(row: Row) -> str:
    return row.id.split("-")[0]


def context(row: Row) -> str:
    return row.texts[1]


def document(row) -> str:
    return row.texts[0]


def test_squads_articles_are_held_out_whole(tmp_path, caplog):
    write_squad(tmp_path / "train.json", 10, 4, 3)
    task = registry.get("squad1")
    kept, held = hold_out(task.read(tmp_path / "train.json"), 0.2, task.sources)
    assert (len(kept), len(held)) == (96, 24)
    assert not {article(row) for row in kept} & {article(row) for row in held}
    assert not caplog.messages


@pytest.mark.parametrize(("articles", "paragraphs", "name"), [(1, 20, context), (3, 8, context), (1, 2, None)])
def test_where_articles_are_too_few_paragraphs_are_held_out(tmp_path, caplog, articles, paragraphs, name):
    write_squad(tmp_path / "train.json", articles, paragraphs, 10)
    task = registry.get("squad1")
    kept, held = hold_out(task.read(tmp_path / "train.json"), 0.1, task.sources)
    assert abs(len(held) - articles * paragraphs) <= 5  # half a paragraph's questions
    told = f"dev_share: {articles} different sources or texts are too few to hold out 0.1 of them"
    assert told in caplog.messages[0]
    assert len(caplog.messages) == (1 if name else 2)
    if name:
        assert not {name(row) for row in kept} & {name(row) for row in held}


def test_articles_of_a_hubs_file_are_told_apart_by_their_titles(tmp_path):
    lines = [
        {"id": str(i), "title": f"T{i % 10}", "context": f"Context {i}.", "question": "What?", "answers": None}
        for i in range(100)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = registry.get("squad1")
    _, held = hold_out(task.read(tmp_path / "train.jsonl"), 0.1, task.sources)
    assert len(held) == 10
    assert len({int(row.id) % 10 for row in held}) == 1


def test_documents_of_tagged_sentences_are_held_out_whole(tmp_path):
    lines = []
    for a in range(20):
        lines += ["-DOCSTART- -X- O O", "", *(f"D{a} NNP I-NP I-PER\nword{s} NN O O\n" for s in range(5))]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    task = registry.get("ner")
    kept, held = hold_out(task.read(tmp_path / "train.txt"), 0.1, task.sources)
    assert (len(kept), len(held)) == (90, 10)
    assert not {document(row) for row in kept} & {document(row) for row in held}
    # Without documents it is sentences that are drawn, all copies of one together.
    rows = [Row(str(i), ("A", f"w{i % 50}"), ("O", "O")) for i in range(100)]
    kept, held = hold_out(rows, 0.1, task.sources)
    assert Counter(row.texts for row in held) == dict.fromkeys({row.texts for row in held}, 2)


@pytest.mark.parametrize("column", ["video-id", "source_id"])
def test_rows_of_one_video_are_held_out_together(tmp_path, column):
    if column == "video-id":
        header = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
        text = header + "".join(f"{i},v{i // 4},{i},s,sent {i},he,gold,a,b,c,d,0\n" for i in range(80))
        path = tmp_path / "train.csv"
    else:
        row = {"ctx_a": "a", "ctx_b": "he", "endings": list("abcd"), "label": 0}
        text = "".join(json.dumps({**row, "ctx_a": f"a {i}", "source_id": f"v{i // 4}"}) + "\n" for i in range(80))
        path = tmp_path / "train.jsonl"
    path.write_text(text)
    task = registry.get("swag")
    _, held = hold_out(task.read(path), 0.1, task.sources)
    assert len(held) == 8
    assert sorted(Counter(int(row.id) // 4 for row in held).values()) == [4, 4]


def test_pairs_with_one_first_text_and_copies_of_a_text_stay_together(tmp_path):
    lines = [f"premise {i // 3}\thypothesis {i}\tneutral\n" for i in range(90)]
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tgold_label\n" + "".join(lines))
    task = registry.get("mnli")
    _, held = hold_out(task.read(tmp_path / "train.tsv"), 0.1, task.sources)
    assert sorted(Counter(int(row.id) // 3 for row in held).values()) == [3, 3, 3]
    rows = rows_of([*"abcdefghij"] * 2)
    _, held = hold_out(rows, 0.1, SST2.sources)
    assert len(held) == 2
    assert held[0].texts == held[1].texts


def test_the_share_is_met_as_nearly_as_whole_sources_allow():
    sizes = [1, 30, 2, 40, 3, 24]
    rows = [Row(f"{n}-{i}", (f"{n}-{i}",), "1", source=f"s{n}") for n, size in enumerate(sizes) for i in range(size)]
    for share in (0.2, 0.3, 0.5, 0.9):
        kept, held = hold_out(rows, share, SST2.sources)
        assert not {row.source for row in kept} & {row.source for row in held}
        assert kept
        assert abs(len(held) - share * len(rows)) <= 20
    alike = [Row(f"{n}-{i}", (f"{n}-{i}",), "1", source=f"s{n}") for n in range(10) for i in range(10)]
    assert [len(hold_out(alike, share, SST2.sources)[1]) for share in (0.22, 0.28)] == [20, 30]
