"""The arithmetic of a step against published counts, and pictures that open."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import fastbert
from fastbert import BertConfig
from fastbert.train.flops import batch_flops, measured_peak, sequence_flops
from fastbert.train.plots import loss_plot, score_plot


@pytest.mark.parametrize(
    ("size", "seqlen", "predicted", "gflop"),
    [("base", 128, 20, 69.9), ("base", 512, 80, 301.4), ("large", 128, 20, 240.6), ("large", 512, 80, 1020.5)],
)
def test_sequence_flops_are_the_known_figures(size, seqlen, predicted, gflop):
    assert sequence_flops(BertConfig.from_name(size), seqlen, predicted) / 1e9 == pytest.approx(gflop, abs=0.05)


def test_flops_counted_by_torch(tmp_path):
    """torch's own counter over a padded forward pass of the plain arithmetic, multiplied by three."""
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig as HfConfig
    from transformers import BertForMaskedLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 160}
    model = BertForMaskedLM(HfConfig(vocab_size=90, **sizes, attn_implementation="eager"))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, 24, dtype=torch.int64))
    # transformers scores every token; so does ours when all are predicted.
    assert sequence_flops(BertConfig(vocab_size=90, **sizes), 24, 24) == 3 * counter.get_total_flops()


def test_a_batch_is_the_sum_of_its_sequences():
    config = BertConfig.from_name("4x256")
    parts = [sequence_flops(config, length, n) for length, n in ((5, 1), (128, 20), (77, 0))]
    assert batch_flops(config, (5, 128, 77), 21) == pytest.approx(sum(parts), rel=1e-12)


def test_measured_peak_is_a_rate_of_this_machine():
    peak, source = measured_peak(torch.device("cpu"), torch.float32, seconds=0.05)
    assert 1e9 < peak < 1e14
    assert source.startswith("measured, float32")


def rows(nsp: bool, steps: int = 50) -> list[dict]:
    found = []
    for step in range(1, steps + 1):
        row = {"kind": "heldout" if step % 10 == 0 else "train", "step": step, "mlm_loss": 8 - step / 10}
        found.append(row | ({"nsp_acc": 0.5 + step / 200} if nsp else {}))
    return found


@pytest.mark.parametrize("nsp", [True, False])
@pytest.mark.parametrize("baseline", [None, 6.5])
def test_pictures_open(tmp_path, nsp, baseline):
    image = pytest.importorskip("PIL.Image")
    png, svg = (loss_plot(rows(nsp), tmp_path / f"loss.{end}", baseline=baseline) for end in ("png", "svg"))
    with image.open(png) as picture:
        picture.load()
        assert picture.size == ((1350 if nsp else 900), 540)
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10, "the picture is empty"
    text = svg.read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert {p.name for p in tmp_path.iterdir()} == {"loss.png", "loss.svg"}


def test_what_is_drawn_is_the_rows(tmp_path, monkeypatch):
    """The curves' points, read from matplotlib's own axes."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b""))[1])
    loss_plot(rows(True, 5000), tmp_path / "loss.png", baseline=6.5)
    loss, pairs = figures[0].axes
    lines = {line.get_label(): line for line in loss.lines}
    assert set(lines) == {"training", "held out", "unigram entropy (held out)"}
    assert list(lines["held out"].get_xdata()) == list(range(10, 5001, 10))
    assert lines["held out"].get_ydata()[0] == pytest.approx(7.0)
    assert 1000 <= len(lines["training"].get_xdata()) <= 2001
    assert lines["training"].get_xdata()[-1] >= 4990
    assert set(lines["unigram entropy (held out)"].get_ydata()) == {6.5}
    held_out = next(line for line in pairs.lines if line.get_label() == "held out")
    assert held_out.get_ydata()[0] == pytest.approx(55.0)


def test_a_finetunings_losses_and_score_are_drawn(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b""))[1])
    dev = [{"kind": "dev", "step": 8 * n, "train_loss": 1 / n, "dev_loss": 2 / n, "accuracy": n / 4} for n in (1, 2)]
    early = {"kind": "early", "step": 3, "dev_loss": 9.0, "accuracy": 0.0}
    steps = [{"kind": "train", "step": step, "loss": 3 / step} for step in (5, 10)]
    for rows, guess in (([early, *steps, *dev], 0.5), (dev, None)):
        score_plot(rows, tmp_path / "loss.png", metric="accuracy", guess=guess)
    found = [
        [{line.get_label(): line.get_xydata().tolist() for line in axes.lines} for axes in figure.axes]
        for figure in figures
    ]
    scores = {"dev": [[8, 0.25], [16, 0.5]]}
    assert found[0][0] == {"training": [[5, 0.6], [10, 0.3]], "dev": [[8, 2], [16, 1]]}
    assert found[0][1].pop("one answer for all") == [[0, 0.5], [1, 0.5]]
    assert found[1][0] == {"training": [[8, 1], [16, 0.5]], "dev": [[8, 2], [16, 1]]}
    assert found[0][1] == found[1][1] == scores


def test_a_run_without_rows_has_a_picture_and_no_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss_plot([], tmp_path / "loss.png").stat().st_size > 0
        assert loss_plot([{"kind": "train", "step": 1, "mlm_loss": float("nan")}], tmp_path / "b.png").exists()
        assert score_plot([], tmp_path / "c.png", metric="f1").stat().st_size > 0


def test_a_failed_picture_leaves_nothing(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    def fail(self, path, **_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space"):
        loss_plot(rows(True), tmp_path / "loss.png")
    assert not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_written_is_not_spoken_of(tmp_path):
    """matplotlib has a cache there, and says two sentences where it cannot."""
    code = f"""if True:
        from pathlib import Path
        from fastbert.train.plots import new_figure, save_figure
        save_figure(new_figure(), Path({str(tmp_path / "p.png")!r}))
    """
    # The package under test: in a checkout whose sources have no kernels Python would warn of them.
    home = {"MPLCONFIGDIR": "/proc/none", "PYTHONPATH": str(Path(fastbert.__file__).parents[1])}
    place = {"cwd": tmp_path, "env": {**os.environ, **home}}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **place)
    assert (done.returncode, done.stderr) == (0, "")
