"""The reports under docs/studies are what today's code makes of their results, and docs/story.md quotes them rightly.

After a change of the page, ``python tests/study/test_committed_reports.py`` writes them again.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fastbert.study import page, spec

DOCS = Path(__file__).resolve().parents[2] / "docs"
REPORTS = sorted(path.parent for path in (DOCS / "studies").glob("*/results.json"))


def write(directory: Path) -> None:
    """The report of the results that are in a directory."""
    page.write(json.loads((directory / "results.json").read_text(encoding="utf-8")), directory)


def test_reports_are_of_our_studies():
    assert {path.name for path in REPORTS} <= set(spec.names())
    assert REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_report_is_what_its_results_make(report, tmp_path):
    shutil.copytree(report, tmp_path / "again")
    write(tmp_path / "again")
    for path in sorted(report.iterdir()):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(list((tmp_path / "again").iterdir())) == len(list(report.iterdir()))


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_report_is_of_three_seeds_and_of_a_commit(report):
    found = json.loads((report / "results.json").read_text(encoding="utf-8"))
    assert (found["scale"], found["seeds"]) == ("small", [0, 1, 2])
    assert re.fullmatch(r"[0-9a-f]{40}", found["measured"]["commit"])
    for row in found["rows"]:
        assert len(row["pretraining"]["losses"]) in (0, 3)  # static vectors predict nothing
        assert all(len(figure["values"]) == 3 for figure in row["figures"].values())


def test_a_report_speaks_of_the_papers_figures_where_it_has_some():
    for path in REPORTS:
        has = any("paper: " in line for line in (path / "report.md").read_text(encoding="utf-8").splitlines()[:12])
        said = "The paper's figures are of far longer pre-trainings" in (path / "report.md").read_text(encoding="utf-8")
        assert (path.name, said) == (path.name, has)


def test_the_story_quotes_the_reports():
    reports = "\n".join((path / "report.md").read_text(encoding="utf-8") for path in REPORTS)
    quoted = re.findall(r"\d+\.\d+ ± \d+\.\d+", (DOCS / "story.md").read_text(encoding="utf-8"))
    assert len(quoted) > 20
    assert [figure for figure in quoted if figure not in reports] == []


def test_the_story_quotes_the_curves():
    rows = json.loads((DOCS / "studies" / "table5" / "results.json").read_text(encoding="utf-8"))["rows"]
    curves = {row["row"]: {p["step"]: p for p in row["pretraining"]["curve"]} for row in rows}
    story = (DOCS / "story.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| ([\d,]+)(?: steps)? \| ([\d.*]+) \| ([\d.*]+) \|$", story, re.MULTILINE)
    assert len(quoted) == 7
    for steps, *figures in quoted:
        points = [curves[name][int(steps.replace(",", ""))] for name in ("no NSP", "LTR & no NSP")]
        under = [f"{point['unigram_entropy'] - point['mlm_loss']:.2f}" for point in points]
        assert (steps, *under) == (steps, *(figure.strip("*") for figure in figures))


def test_the_story_says_by_how_much_bert_leads_in_the_paper():
    rows = json.loads((DOCS / "studies" / "figure3" / "results.json").read_text(encoding="utf-8"))["rows"]
    papers = {row["row"]: {c: f["paper"] for c, f in row["figures"].items() if f["paper"] is not None} for row in rows}
    leads = [papers["BERT"][c] - papers[row][c] for row in ("GPT-style", "ELMo") for c in papers["BERT"]]
    # Of names, which are in the story's table too, the paper's table 1 has no figures.
    assert len(papers["BERT"]) == 4
    said = f"BERT leads in all four tasks of GLUE, by {min(leads):.0f} to {max(leads):.0f} points"
    assert said in (DOCS / "story.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    for report in REPORTS:
        write(report)
