"""`fastbert bench`: bad options in one sentence, and the data benchmark end to end."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from fastbert.bench import plot, pool
from fastbert.bench import run as bench_run
from fastbert.cli import main as cli


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--only", "W1,W9"], "--only must be of W1, W2, W3, W4, T1, T2; got 'W9'"),
        (["inference", "--only", "T1"], "--only must be of W1, W2, W3, W4 in bench inference; got 'T1'"),
        (["training", "--only", "T1,W2"], "--only must be of T1, T2 in bench training; got 'W2'"),
        (["--peers", "sdpa,keras"], "--peers must be of reference, eager, sdpa"),
        (
            ["--preload", "/no/such/lib.so"],
            "--preload: expected a shared library, got /no/such/lib.so, which is not a file",
        ),
        (["--rounds", "0"], "--rounds must be between 1 and 4096, got 0"),
        (["--threads", "-1"], "--threads must be between 1 and 4096, got -1"),
        (["--threads", "99999999999"], "--threads must be between 1 and 4096, got 99999999999"),
        (["data", "--mb", "nan"], "--mb must be above 0 and finite, got nan"),
        (["data", "--mb", "inf"], "--mb must be above 0 and finite, got inf"),
        (
            ["kernels", "--model", "mini"],
            "--model would change nothing: it belongs to bench inference and training, got bench kernels",
        ),
        (
            ["data", "--only", "W1"],
            "--only would change nothing: it belongs to bench inference and training, got bench data",
        ),
        (["training", "--mb", "5"], "--mb would change nothing: it belongs to bench data, got bench training"),
        (
            ["--only", "W1", "--corpus", "c"],
            "--corpus would change nothing: it belongs to bench data, got bench all with --only",
        ),
        (["--page", "p.md"], "--page would change nothing: it belongs to bench report, got bench all"),
        (
            ["report", "--quick"],
            "--quick would change nothing: it belongs to bench inference, training, kernels and data, got bench report",
        ),
    ],
)
def test_bad_options_are_one_sentence(options, sentence, capsys):
    assert cli.main(["bench", *options]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"fastbert: {sentence}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's loader says what it does not preload")
def test_a_library_that_would_not_be_preloaded_is_refused(tmp_path, capsys, monkeypatch):
    """The loader would go on without it, and rows would be called "+ preload" that are not."""
    monkeypatch.setattr(bench_run, "Session", lambda *_: pytest.fail("it began to measure"))
    library = re.search(r"/\S+/libc[.-]\S+", Path("/proc/self/maps").read_text())[0]
    script, short = tmp_path / "script.so", tmp_path / "short.so"
    script.write_text("no library, but long enough for a header of one. " * 2)
    short.write_bytes(b"")
    apart = [tmp_path / name / "lib.so" for name in ("of two words", "before:after")]
    for path in apart:
        path.parent.mkdir()
        shutil.copy(library, path)
    reasons = {script: "invalid ELF header", short: "file too short"}
    reasons |= dict.fromkeys(apart, "LD_PRELOAD ends paths at these")
    for path, reason in reasons.items():
        options = ["inference", "--quick", "--preload", str(path), "--out", str(tmp_path / "out")]
        assert cli.main(["bench", *options]) == 2
        said = "--preload: expected a library that LD_PRELOAD takes (no blanks or colons in its path), got"
        assert capsys.readouterr().err.endswith(f"fastbert: {said} {path}: {reason}\n")
    assert pool.why_not_preloaded(library) is None
    (tmp_path / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert pool.why_not_preloaded(library) == "a Python with it ended with status 3"


def test_nothing_is_measured_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(bench_run, "run", lambda *_: pytest.fail("it began to measure"))
    assert cli.main(["bench", "data", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"fastbert: {tmp_path / 'file'}: Not a directory\n"


def test_kernels_and_data_have_a_panel_each(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b""))[1])
    kernels = [
        {"op": "gelu", "shape": "S1", "dtype": dtype, "ratio": ratio}
        for dtype, ratio in (("fp32", 2.5), ("bf16", None))
    ]
    data = [{"what": "tokenizers encode_batch", "mb_per_s": 2.0}, {"what": "fastbert prepare", "mb_per_s": 6.0}]
    document = {"machine": {"processor": "P"}, "threads": 1, "date": "2026-11-28", "sessions": []}
    plot.plot(document | {"kernels": kernels, "data": data}, tmp_path / "bench.png")
    drawn = [[bar.get_width() for bar in axes.patches] for axes in figures[0].axes]
    labels = [[label.get_text() for label in axes.get_yticklabels()] for axes in figures[0].axes]
    assert drawn == [[2.5], [6.0, 2.0]]
    assert labels == [["gelu S1 fp32"], ["fastbert prepare", "tokenizers encode_batch"]]


def test_a_library_that_is_called_in_several_ways_has_one_bar(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), path.write_bytes(b""))[1])
    speeds = [
        ("fastbert", "ours", 9.0),
        ("sdpa", "sdpa", 1.0),
        ("sdpa", "sdpa, sorted", 4.0),
        ("sdpa", "sdpa, each", 2.0),
    ]
    rows = [
        {
            "workload": "W2",
            "status": "ok",
            "variant": f"{name}, {dtype}",
            "peer": peer,
            "dtype": dtype,
            "preload": False,
        }
        | {"tokens_per_second": speed, "p50_ms": 1 / speed}
        for dtype in ("fp32", "bf16")
        for peer, name, speed in speeds
    ]
    rows.append(rows[-1] | {"preload": True, "variant": "sdpa + preload", "tokens_per_second": 0.5, "p50_ms": 2.0})
    workloads = {"W2": {"latency": False, "title": "mixed"}}
    session = {"kind": "inference", "model": "base", "workloads": workloads, "rows": rows}
    document = {"machine": {"processor": "P"}, "threads": 1, "date": "2026-11-30", "sessions": [session]}
    plot.plot(document, tmp_path / "bench.png")
    axes = figures[0].axes[0]
    assert [bar.get_width() for bar in axes.patches][::-1] == [9.0, 4.0, 9.0, 4.0, 0.5]
    labels = [label.get_text() for label in axes.get_yticklabels()][::-1]
    each = [f"{name}, {dtype}" for dtype in ("fp32", "bf16") for name in ("ours", "sdpa, sorted")]
    assert labels == [*each, "sdpa + preload"]


def test_what_is_run_by_default():
    found = [(k, m, [w.name for w in ws]) for k, m, ws in bench_run.plans(bench_run.KINDS, None, (), False)]
    assert found == [
        ("inference", "base", ["W1", "W2", "W3", "W4"]),
        ("training", "base", ["T1", "T2"]),
        ("training", "4x256", ["T1"]),
    ]
    quick = [(k, m) for k, m, _ in bench_run.plans(bench_run.KINDS, None, (), True)]
    assert quick == [("inference", "mini"), ("training", "mini")]
    assert bench_run.plans(("training",), "minilm", ("T2",), False)[0][1] == "minilm"


def test_data_end_to_end(tmp_path, capsys):
    corpus = tmp_path / "text.txt"
    corpus.write_text("The cat sat on the mat. It was a good mat.\n\nDogs do not sit on mats.\n" * 50)
    vocab = tmp_path / "vocab.txt"
    vocab.write_text(
        "\n".join(
            [
                "[PAD]",
                "[UNK]",
                "[CLS]",
                "[SEP]",
                "[MASK]",
                *"abcdefghijklmnopqrstuvwxyz.",
                *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
            ]
        )
        + "\n"
    )
    out = tmp_path / "out"
    options = ["--corpus", str(corpus), "--vocab", str(vocab), "--mb", "0.05", "--threads", "1"]
    assert cli.main(["bench", "data", "--quick", *options, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert str(out / "bench.json") in shown
    assert str(out / "bench.md") in shown
    assert str(out / "bench.png") in shown
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    blocks = [block.splitlines() for block in (out / "bench.md").read_text().split("\n\n") if block.startswith("|")]
    assert len(blocks) == 2
    assert all({line.count("|") for line in block} == {block[0].count("|")} for block in blocks)
    assert any("fastbert prepare" in line for line in blocks[0])
    document = json.loads((out / "bench.json").read_text())
    assert document["sessions"] == []
    rates = {row["what"]: row for row in document["data"]}
    assert set(rates) == {"tokenizers encode_batch", "tokenizers encode_batch_fast", "fastbert prepare"}
    ours = rates["fastbert prepare"]["mb_per_s"]
    assert all(row["prepare_ratio"] == pytest.approx(ours / row["mb_per_s"]) for row in rates.values())
    assert all(row["mb"] == pytest.approx(0.05, rel=0.1) for row in rates.values()), "--quick has no say over --mb"
    assert all(row["mb_per_s"] > 0 for row in rates.values())
    assert all(row["peak_mb"] > 5 for row in document["data_memory"])


def test_an_empty_corpus_is_named(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("")
    assert (
        cli.main(
            [
                "bench",
                "data",
                "--corpus",
                str(tmp_path / "empty.txt"),
                "--vocab",
                str(tmp_path),
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 2
    )
    assert "empty.txt: expected text to repeat, got an empty file" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
