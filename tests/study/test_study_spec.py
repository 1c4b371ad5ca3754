"""Studies as files: what they say, what they inherit, and every mistake in one sentence."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import study_runs
import yaml

from fastbert.errors import InputError
from fastbert.study import corpus, spec
from fastbert.tasks.config import RECIPES

# Devlin et al. 2019, table 8: shares of [MASK], same and random, and the three columns.
TABLE_8 = [
    ((80, 10, 10), (84.2, 95.4, 94.9)),
    ((100, 0, 0), (84.3, 94.9, 94.0)),
    ((80, 0, 20), (84.1, 95.2, 94.6)),
    ((80, 20, 0), (84.4, 95.2, 94.7)),
    ((0, 20, 80), (83.7, 94.8, 94.6)),
    ((0, 0, 100), (83.6, 94.9, 94.6)),
]


def study(tmp_path, changes=None, drop=(), **given) -> spec.Study:
    values = {**yaml.safe_load(study_runs.TINY), **(changes or {})}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in values.items() if name not in drop}))
    return spec.read(path, "smoke", **given)


@pytest.mark.parametrize("name", spec.names())
@pytest.mark.parametrize("scale", spec.SCALES)
def test_every_study_fits_together_at_every_scale(name, scale):
    found = spec.read(spec.find(name), scale)
    assert found.name == name
    assert found.title
    papers = {column for row in found.rows for column in row.paper}
    # A column that claims to stand beside one of the paper's finds figures there.
    assert {task.paper for task in found.tasks if task.paper} <= papers
    assert len(found.seeds) >= 2


def test_the_masks_of_table_8_are_the_papers():
    rows = spec.read(spec.find("table8"), "small").rows
    assert len(rows) == len(TABLE_8)
    for row, ((mask, same, random), figures) in zip(rows, TABLE_8, strict=True):
        assert row.pretrain["samples"]["mask_mix"] == [mask / 100, random / 100, same / 100], row.name
        assert tuple(row.paper.values()) == figures
        words = (f"{word} {share}" for word, share in (("MASK", mask), ("same", same), ("random", random)) if share)
        assert row.name == ", ".join(words)


def test_the_sizes_of_table_6_at_base_are_the_papers():
    rows = spec.read(spec.find("table6"), "base").rows
    sizes = [row.pretrain["model"] for row in rows]
    assert sizes == ["3x768x12", "6x768x3", "6x768x12", "base", "12x1024x16", "large"]


def test_tasks_at_base_have_the_papers_recipes():
    # Section 4.2; 5.3: "we include the maximal document context provided by the data".
    columns = {task.column: task for task in spec.read(spec.find("table5"), "base").tasks}
    squad = columns["squad1"].config(0)
    assert {name: getattr(squad, name) for name in RECIPES["squad1"]} == RECIPES["squad1"]
    study = spec.read(spec.find("table7"), "base")
    for row in study.rows:
        config = study.task_of(row, study.tasks[0]).config(0)
        assert (config.document_context, config.max_seqlen) == (True, 512), row.name


def test_a_value_may_depend_on_the_scale(tmp_path):
    changes = {"pretrain": {"steps": {"smoke": 3, "small": 30, "base": 300}}}
    assert study(tmp_path, changes).pretrain["steps"] == 3
    assert spec.read(tmp_path / "tiny.yaml", "small").pretrain["steps"] == 30


def test_rows_and_tasks_change_only_what_they_name(tmp_path):
    found = study(tmp_path)
    full, without, features = found.rows
    config = found.pretraining(full, 7, "data", "out")
    assert (config.seed, config.samples.seed, config.samples.nsp, config.samples.max_seqlen) == (7, 7, True, 32)
    config = found.pretraining(without, 7, "data", "out")
    assert (config.samples.nsp, config.samples.max_seqlen, config.steps) == (False, 32, 12)
    (task,) = found.tasks
    assert found.task_of(full, task).config(5).epochs == 2
    assert found.task_of(features, task).config(5).epochs == 1
    assert found.task_of(features, task).config(5).seed == 5
    # From defaults.yaml, since the file says nothing of it.
    assert task.metric == "f1"


def test_at_makes_a_row_of_every_share(tmp_path):
    found = study(tmp_path, {"at": [0.25, 1]})
    assert [(row.name, row.at) for row in found.rows[:2]] == [("full, 25 %", 0.25), ("full, 100 %", 1.0)]
    assert len(found.rows) == 6


def test_the_command_line_wins(tmp_path):
    found = study(tmp_path, seeds=(5,), corpus=("books.txt",), data_dir="there")
    assert (found.seeds, found.corpus, found.data_dir) == ((5,), ("books.txt",), "there")


ROW = {"name": "full"}
NER = {"task": "ner"}


@pytest.mark.parametrize(
    ("changes", "drop", "sentence"),
    [
        ({"rwos": []}, (), "unknown key rwos"),
        ({}, ("rows",), "expected rows, a list of mappings each with a name, got None"),
        ({}, ("tasks",), "expected tasks"),
        ({"rows": [ROW, ROW]}, (), "expected rows of different names, got full twice"),
        ({"rows": [{**ROW, "pretrain": {"steeps": 3}}]}, (), "row 'full': unknown option steeps"),
        ({"rows": [{**ROW, "pretrain": {"seed": 3}}]}, (), "seed is the study's own to decide"),
        ({"rows": [{**ROW, "pretrain": {"steps": "many"}}]}, (), "steps must be"),
        ({"rows": [{**ROW, "paper": {"A": "good"}}]}, (), "expected numbers in paper"),
        ({"rows": [{**ROW, "task": {"colour": 3}}]}, (), "unknown option colour"),
        ({"tasks": {"x": {"dev": "a"}}}, (), "task x: expected train"),
        ({"tasks": {"x": {"train": "a"}}}, (), "expected either dev or dev_share, got neither"),
        (
            {"tasks": {"x": {"train": "a", "dev": "b", "dev_share": 0.1}}},
            (),
            "expected either dev or dev_share, got both",
        ),
        ({"seeds": [1, 1]}, (), "expected seeds, a list of different whole numbers"),
        ({"at": [2]}, (), "expected at, a list of shares"),
        ({"at": [True]}, (), "expected at, a list of shares"),
        ({"heldout": 0}, (), "heldout is a share"),
        ({"heldout": "some"}, (), "heldout must be a number"),
        ({"vocab_size": "big"}, (), "vocab_size must be a whole number"),
        ({"lowercase": "maybe"}, (), "lowercase must be true or false"),
        ({"pretrain": 5}, (), "pretrain must be a mapping, got 5"),
        ({"pretrain": {"steps": 4, "samples": 5}}, (), "expected samples in pretrain, a mapping of options, got 5"),
        ({"corpus": 5}, (), "expected corpus, builtin or text files, got 5"),
        ({"corpus": []}, (), "expected corpus, builtin or text files"),
        ({"name": "../other"}, (), "expected no path and 100 characters at most, got '../other'"),
        ({"name": ".."}, (), "expected no path and 100 characters at most, got '..'"),
        ({"name": "a\0b"}, (), "expected no path and 100 characters at most, got 'a"),
        ({"name": "n" * 300}, (), "expected no path and 100 characters at most, got 'nnn"),
        ({"seeds": [-1]}, (), "expected seeds, a list of different whole numbers"),
        ({"seeds": [1 << 64]}, (), "expected seeds, a list of different whole numbers"),
        ({"rows": [{**ROW, "pretrain": {"betas": [2, 3]}}]}, (), "row 'full': betas must be two numbers"),
        ({"rows": [{**ROW, "task": {"finetune": {"seed": 3}}}]}, (), "seed is the study's own to decide"),
        (
            {"rows": [{**ROW, "task": {"finetune": {"max_seqlen": 0}}}]},
            (),
            "task ner: max_seqlen must be at least 3, got 0",
        ),
        ({"tasks": [{"ner": {}}]}, (), "expected tasks"),
        ({"rows": [{**ROW, "keep": 0.5}]}, (), "expected keep, a list"),
        ({"rows": [{**ROW, "paper": 5}]}, (), "expected keep, a list, and paper, a mapping"),
        ({"rows": [{**ROW, "task": {"column": "x"}}]}, (), "those of the whole column"),
        ({"rows": [{**ROW, "task": {"metric": "x"}}]}, (), "those of the whole column"),
        ({"rows": [{**ROW, "task": {"dev_share": 0.5}}]}, (), "row 'full', task: expected either dev or dev_share"),
        ({"rows": [{**ROW, "task": {"train_rows": 0}}]}, (), "train_rows must be at least 1, or null, got 0"),
        ({"rows": [{**ROW, "task": {"feature_units": -4}}]}, (), "feature_units must be at least 1"),
        ({"rows": [{**ROW, "task": {"dropout": 2}}]}, (), "dropout must be at least 0 and below 1, got 2"),
        ({"pretrain": {"steps": {"small": 4}}}, (), "expected a value for the scale smoke, got only small"),
        ({"tasks": {"x": {"task": {"ner": 1}}}}, (), "task x: task must be a text, got {'ner': 1}"),
        ({"rows": [{**ROW, "paper": {"B": float("nan")}}]}, (), "expected numbers in paper, got {'B': nan}"),
        ({"rows": [{**ROW, "paper": {"B": True}}]}, (), "expected numbers in paper, got {'B': True}"),
        ({"rows": [{**ROW, "paper": {"SST2": 90}}]}, (), "a column that rows have figures of (SST2), got 'B'"),
        ({"rows": [{"name": "two\nlines"}]}, (), "expected name, a line of text, got 'two\\nlines'"),
        ({"rows": [{"name": ""}]}, (), "expected name, a line of text, got ''"),
        ({"rows": [{"name": None}]}, (), "expected name, a line of text, got None"),
        ({"tasks": ["ner", "ner"]}, (), "expected tasks of different names, got ner twice"),
        ({"perplexity": "LM", "tasks": {"held-out perplexity": NER}}, (), "got held-out perplexity twice"),
        ({"tasks": {"two\nlines": NER}}, (), "tasks: expected column, a line of text, got 'two\\nlines'"),
        ({"tasks": {"": NER}}, (), "expected column, a line of text, got ''"),
        ({"tasks": {None: NER}}, (), "expected column, a line of text, got None"),
        ({"rows": [{**ROW, "at": float("nan")}]}, (), "row 'full': expected at, a share of the pre-training up to 1"),
        ({"at": [0.5, 1], "rows": [{**ROW, "at": 0.5}]}, (), "row 'full': expected at of the row, or of the study"),
        ({"at": [0.5], "rows": [{**ROW, "at": 1}]}, (), "row 'full': expected at of the row, or of the study"),
        (
            {"perplexity": "LM", "pretrain": {"steps": 4, "samples": {"mlm_probability": 0.0, "nsp": True}}},
            (),
            "row 'full': a model that predicts no words has no perplexity",
        ),
        ({"corpus": ["builtin", "mine.txt"]}, (), "expected corpus, builtin alone or text files, got both"),
        (
            {"rows": [{**ROW, "task": {"features": "last", "finetune": {"lr": 1e-2}}}]},
            (),
            "row 'full', task: expected feature_finetune, since features are in every column, got finetune",
        ),
        (
            {"rows": [{**ROW, "task": {"feature_finetune": {"lr": 1e-2}}}]},
            (),
            "row 'full', task: expected finetune, since features are in no column, got feature_finetune",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, changes, drop, sentence):
    with pytest.raises(InputError) as error:
        study(tmp_path, changes, drop)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_row_may_have_the_recipes_of_both_kinds_of_columns(tmp_path):
    both = {"finetune": {"epochs": 4}, "feature_finetune": {"epochs": 5}}
    changes = {"tasks": {"ner": {}, "on features": {**NER, "features": "last"}}, "rows": [{**ROW, "task": both}]}
    found = study(tmp_path, changes)
    assert [found.task_of(found.rows[0], task).config(0).epochs for task in found.tasks] == [4, 5]


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    files = study_runs.write_files(tmp_path / "files")
    here = {"data_dir": "~/files", "corpus": "~/files/corpus.txt"}
    found = study(tmp_path, {**here, "rows": [{**ROW, "pretrain": {"model": "~/model"}}]})
    assert found.file("tags.txt") == files / "tags.txt"
    assert dataclasses.replace(found, data_dir="elsewhere").file("~/files/tags.txt") == files / "tags.txt"
    assert found.pretraining(found.rows[0], 0, "data", "out").model == str(tmp_path / "model")
    absolute = dataclasses.replace(found, corpus=(str(files / "corpus.txt"),))
    assert corpus.prepared(found, tmp_path / "cache") == corpus.prepared(absolute, tmp_path / "cache")
    assert found.corpus == ("~/files/corpus.txt",), "the report has what the file says"


def test_a_column_of_the_papers_may_stay_where_no_row_has_figures(tmp_path):
    assert study(tmp_path, {"rows": [ROW]}).tasks[0].paper == "B"


def test_no_such_study_names_the_known():
    with pytest.raises(InputError, match=r"no study is called 'table9'; there are .*table5.*, or any file"):
        spec.find("table9")


@pytest.mark.parametrize("scale", spec.SCALES)
def test_the_study_in_the_docs_predicts_what_its_rows_are_called(scale, tmp_path):
    docs = Path(__file__).resolve().parents[2] / "docs" / "studies.md"
    (text,) = re.findall(r"```yaml\n(.*?)```", docs.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "question.yaml").write_text(text, encoding="utf-8")
    found = spec.read(tmp_path / "question.yaml", scale)
    shares = {row.name: found.pretraining(row, 0, "", "").samples.mlm_probability for row in found.rows}
    assert shares == {"15 %": 0.15, "30 %": 0.3, "50 %": 0.5}
