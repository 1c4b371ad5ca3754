"""report.html of runs, read back as a reader would: figures, options that differ, every curve's points."""

from __future__ import annotations

import math
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pretraining_runs as runs
import pytest

from fastbert import svg
from fastbert.cli.main import main
from fastbert.train.config import PretrainConfig
from fastbert.train.console import Console
from fastbert.train.metrics import to_line
from fastbert.train.phase_options import Phase
from fastbert.train.pretrain import pretrain
from fastbert.train.run_report import Run, figures, read_runs, write_report

_SVG = "{http://www.w3.org/2000/svg}"


def charts(page: str) -> dict[str, ElementTree.Element]:
    """The page's charts by their titles; parsed, so that a broken one is seen."""
    found = [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.S)]
    return {chart.find(f"{_SVG}title").text: chart for chart in found}


def curves(chart: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The points of its lines, in the picture's units."""
    texts = [line.get("points") for line in chart.iter(f"{_SVG}polyline")]
    return [[tuple(map(float, point.split(","))) for point in text.split()] for text in texts]


class Links(HTMLParser):
    """Everything that a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.found += [v for name, v in attributes if name in ("src", "href") and not v.startswith("data:")]
        assert tag != "script"


def row(kind: str, step: int, **values) -> dict:
    return {"kind": kind, "step": step, **values}


def made(tmp_path, name: str, rows: list[dict], **options):
    """A run directory with these rows."""
    directory = tmp_path / name
    directory.mkdir()
    (directory / "config.yaml").write_text(PretrainConfig(data="D", out=str(directory), **options).to_yaml())
    (directory / "metrics.jsonl").write_text("".join(map(to_line, rows)))
    return directory


@pytest.fixture
def two(tmp_path):
    first = [
        row("train", n, mlm_loss=8.0 - n, seconds=2.0, data_seconds=0.5, mfu=n / 10, tokens_per_second=100.0 * n)
        for n in range(1, 4)
    ] + [row("heldout", 3, mlm_loss=4.0, mlm_acc=0.25, nsp_acc=0.5, nsp_loss=0.5, unigram_entropy=6.0)]  # fmt: skip
    second = [row("train", n, mlm_loss=math.nan if n == 2 else 9.0 - n, grad_norm=10.0**n) for n in range(1, 5)]
    return [
        made(tmp_path, "a", first, lr=1e-3, steps=3),
        made(tmp_path, "b", second, steps=4, optimizer="lamb", phases=(Phase(share=1.0, max_seqlen=64),)),
    ]


def test_figures_are_those_of_the_rows(two):
    a, b = (figures(run) for run in read_runs(two))
    assert a["steps"] == 3
    assert a["training minutes"] == pytest.approx(0.1)
    assert a["held-out masked-LM loss (nats)"] == 4.0
    assert a["held-out masked-LM accuracy (%)"] == 25.0
    assert a["tokens a second (median)"] == 200.0
    assert a["MFU (median, %)"] == pytest.approx(20.0)
    assert a["time in data (%)"] == 25.0
    assert (b["optimiser"], b["last training loss (nats)"]) == ("lamb", 5.0)
    assert "held-out masked-LM loss (nats)" not in b


def test_the_loss_is_that_of_the_training_and_nothing_predicted_is_no_loss(tmp_path, capsys):
    """Pairs can be trained on alone: then there are no words to predict, and no loss of them."""
    heldout = row("heldout", 1, mlm_loss=0.0, mlm_acc=0.0, unigram_entropy=0.0, targets=0, nsp_acc=0.75, nsp_loss=0.5)
    made(tmp_path, "pairs", [row("train", 1, loss=0.69, mlm_loss=0.0, nsp_loss=0.69), heldout])
    [found] = map(figures, read_runs([tmp_path / "pairs"]))
    assert found["last training loss (nats)"] == 0.69
    assert found["held-out next-sentence accuracy (%)"] == 75.0
    assert not [name for name in found if "masked-LM" in name or "entropy" in name]
    Console(quiet=False).heldout(1, heldout)
    shown = capsys.readouterr().out
    assert "held out at step 1: no words to predict, nsp accuracy 75.0 %" in shown
    Console(quiet=False).heldout(1, {**heldout, "targets": 7, "mlm_loss": 2.0})
    assert "mlm loss 2.0000" in capsys.readouterr().out


def test_the_best_is_one_of_the_last_phase(tmp_path):
    rows = [
        row("heldout", step, mlm_loss=loss, mlm_acc=0.1, phase=phase)
        for step, loss, phase in ((1, 2.0, "short"), (2, 5.0, "long"), (3, 4.0, "long"), (4, math.nan, "long"))
    ]
    (run,) = read_runs([made(tmp_path, "a", rows)])
    assert (figures(run)["best held-out step"], figures(run)["held-out masked-LM loss (nats)"]) == (3, 4.0)


def test_a_log_edited_by_hand(tmp_path, capsys, caplog):
    """What is no row any more is told and left out, and figures that a row lacks are not shown."""
    rows = [row("heldout", 1, mlm_acc=0.5), row("heldout", 2, mlm_loss=4.0)]
    rows = [row("train", 1, mlm_loss=5.0, seconds=2.0, tokens_per_second=12345.6), *rows]
    run = made(tmp_path, "a", rows)
    edits = {
        '{"step": 2, "kind": "train"': "got Expecting",
        "[]": "got list",
        '{"step": 2}': "got one without its kind",
        '{"kind": "heldout", "step": "2"}': "got '2' as its step",
        '{"kind": "heldout", "step": 2, "mlm_loss": "low"}': "got 'low' as its mlm_loss",
        '{"kind": "train", "step": 2, "forward_seconds": null}': "got None as its forward_seconds",
        '{"kind": "train", "step": 2, "lr": 1e308}': "got 1e+308 as its lr",
        '{"kind": "train", "step": 2, "lr": -1e308}': "got -1e+308 as its lr",
        '{"kind": "train", "step": 1%s}' % ("0" * 400): "got 1000000000",
    }
    with open(run / "metrics.jsonl", "a") as file:
        file.write("\n".join([*edits, to_line(row("train", 3, mlm_loss=3.0, seconds=4.0)), '{"kind": "tr']))
    assert main(["report", str(run)]) == 0
    for number, (told, said) in enumerate(zip(caplog.messages, edits.values(), strict=True), 4):
        assert told.startswith(f"{run / 'metrics.jsonl'}, line {number} is left out: expected a row of metrics, {said}")
    shown = capsys.readouterr().out
    assert re.search(r"training minutes +0\.1\n", shown)
    assert re.search(r"held-out masked-LM loss \(nats\) +4\n", shown)
    assert re.search(r"tokens a second \(median\) +12,346\n", shown)
    assert "accuracy" not in shown


def test_runs_side_by_side(two, tmp_path, capsys):
    out = tmp_path / "compare.html"
    assert main(["report", *map(str, two), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert str(out) in told
    page = out.read_text()
    for text in (told, page):
        for wanted in ("optimizer", "lamb", "max_seqlen", "held-out masked-LM loss (nats)"):
            assert wanted in text
    assert "weight_decay" not in told, "what is the same is not told"
    links = Links()
    links.feed(page)
    assert links.found == [], "the page needs nothing else"
    found = charts(page)
    loss = curves(found["masked-LM cross-entropy (nats)"])
    # Run a's training and held-out lines, and b's training without the step whose loss was not finite.
    assert [len(line) for line in loss] == [3, 1, 3]
    assert len(curves(found["norm of the gradient"])) == 1
    assert "share of the time of steps (%)" in found


def test_points_are_where_their_numbers_are(two):
    """Linear on a linear axis; equal factors are equal distances on a logarithmic one."""
    page = write_report(read_runs(two), two[0] / "report.html").read_text()
    line, *_ = curves(charts(page)["masked-LM cross-entropy (nats)"])
    assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.2)
    assert line[1][1] - line[0][1] == pytest.approx(line[2][1] - line[1][1], abs=0.2)
    assert line[1][1] > line[0][1], "a smaller loss is lower in the picture"
    (norms,) = curves(charts(page)["norm of the gradient"])
    steps = [second[1] - first[1] for first, second in pairwise(norms)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert steps[0] < 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (-3, 7, [-2, 0, 2, 4, 6]), (3, 3, [3])],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert svg.ticks(low, high) == pytest.approx(expected)


def test_a_long_run_is_thinned_to_means():
    lengths = range(1, 5001)
    run = Run("a", None, PretrainConfig(), [row("train", n, mlm_loss=float(n % 2)) for n in lengths])
    chart = ElementTree.fromstring(_chart_of(run))
    (line,) = curves(chart)
    assert len(line) == 1000
    heights = {y for _, y in line}
    # Five neighbours that alternate between 0 and 1 have a mean of 0.4 or 0.6: never the extremes.
    assert len(heights) == 2


def _chart_of(run: Run) -> str:
    from fastbert.train import run_report

    return run_report._curve([run], "mlm_loss", "loss", 1.0, False)


def test_directories_of_one_name_are_told_apart(two, tmp_path):
    other = tmp_path / "other" / "a"
    shutil.copytree(two[0], other)
    names = [run.name for run in read_runs([two[0], other])]
    assert len(set(names)) == 2
    assert names[1] == "other/a"


def test_what_is_no_run_is_one_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for path, said in ((tmp_path / "none", "found no config.yaml"), (made(tmp_path, "r", []), "found none")):
        assert main(["report", str(path)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_fine_tuning_is_no_run_to_compare(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("task: sst2\nbatch_size: 32\n")
    (tmp_path / "metrics.jsonl").write_text(to_line(row("dev", 1, accuracy=0.5)))
    assert main(["report", str(tmp_path)]) == 2
    expected = "expected a run directory of `fastbert pretrain`, got one of `fastbert finetune`, whose results are in"
    assert f"{tmp_path}: {expected} its dev_metrics.json\n" in capsys.readouterr().err


def test_every_run_leaves_a_page(tmp_path):
    data = runs.prepare_data(tmp_path / "data")
    result = pretrain(runs.config(data, tmp_path / "run", steps=4, eval_every=2), quiet=True)
    assert tmp_path / "run" / "report.html" in result.paths
    page = (tmp_path / "run" / "report.html").read_text()
    found = charts(page)
    assert [len(line) for line in curves(found["masked-LM cross-entropy (nats)"])] == [4, 2]
    assert f"{result.heldout['mlm_loss']:.4g}" in page
    assert "token_budget: 256" in page


def test_a_legend_that_is_too_long_for_a_row_takes_several():
    names = [f"a row with name {number:x}" for number in range(12)]
    lines = [svg.Curve([(0, 1), (1, number)], "#000000", name, True) for number, name in enumerate(names)]
    for count, height in ((3, 240), (12, 256 + 16)):
        chart = ElementTree.fromstring(svg.line_chart(lines[:count], "nats", "tokens"))
        assert chart.attrib["viewBox"] == f"0 0 760 {height}"
        texts = [(float(t.attrib["x"]), float(t.attrib["y"]), t.text) for t in chart.iter(f"{_SVG}text")]
        legend = [(x, y, text) for x, y, text in texts if text[0] == "■"]
        assert sorted(text for *_, text in legend) == [f"■ {name}" for name in names[:count]]
        # A letter of 12 points is under 7 wide: no name begins left of the chart, or upon another or the axis's name.
        taken = {14.0: 64 + 7 * len("nats")}
        for x, y, text in sorted(legend, key=lambda entry: (entry[1], entry[0])):
            assert x - 7 * len(text) >= taken.get(y, 64)
            taken[y] = x
        assert min(float(c.attrib["cy"]) for c in chart.iter(f"{_SVG}circle")) > max(y for _, y, _ in legend)


def test_a_line_with_anothers_colour_is_dashed():
    chart = svg.line_chart([svg.Curve([(0, 1), (1, 2)], "#000000", "again", dashed=True)], "nats", "tokens")
    assert 'stroke-dasharray="6 4"' in chart
    assert "╌ again" in chart
