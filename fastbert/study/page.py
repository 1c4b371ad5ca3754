"""The report of a study: report.md, report.html, results.json and the pictures, all from one JSON value."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import yaml

from .. import svg
from ..result_files import write_json
from ..wording import counted
from .compare import CLEAR, CLEAR_MARGIN, shown
from .definition import PERPLEXITY
from .document import Document

# The names of the rows that `spec` makes from one row and the shares in ``at``.
_SHARE = re.compile(r"(.+), \d[\d.e+-]* %")


def write(results: dict, out: Path) -> list[Path]:
    """Writes the report to ``out`` and returns the paths.

    Args:
        results: those of `results.collect`.
        out: the directory.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_json(results, out / "results.json")
    page = Document(results["title"] or f"Study {results['study']}", out)
    if results["about"]:
        page.text(results["about"])
    _figures(page, results)
    _order(page, results)
    _pretraining(page, results)
    _curves(page, results)
    if "polysemy" in results:
        _senses(page, results["polysemy"])
    _again(page, results)
    return [*page.save(), out / "results.json"]


def _figures(page: Document, results: dict) -> None:
    page.heading("Figures")
    header = [""]
    for column in results["columns"]:
        header.append(f"{column['column']} ({column['metric']})")
        if _has_paper(results, column):
            header.append(f"paper: {column['paper']}")
    rows = []
    for row in results["rows"]:
        line = [row["row"]]
        for column in results["columns"]:
            figure = row["figures"][column["column"]]
            line.append(spread(figure["mean"], figure["sd"], 2 if column["column"] == PERPLEXITY else 1))
            if _has_paper(results, column):
                line.append("" if figure["paper"] is None else f"{figure['paper']:g}")
        rows.append(line)
    guesses = [_guess(results, column["column"]) for column in results["columns"]]
    if any(guesses):
        line = ["one answer for all rows"]
        for column, guess in zip(results["columns"], guesses, strict=True):
            line += [guess, *[""] * _has_paper(results, column)]
        rows.append(line)
    page.table(header, rows)
    seeds = len(results["seeds"])
    over = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed, so without a standard deviation"
    sizes = ", ".join(_sizes(column) for column in results["columns"] if "training_rows" in column)
    text = (
        f"{over}; each seed is that of a pre-training and of what is fine-tuned from it. Larger is better, except for "
        f"perplexity. Training and dev rows: {sizes}."
    )
    if any(_has_paper(results, column) for column in results["columns"]):
        text += (
            " The paper's figures are of far longer pre-trainings (BERT's: a million steps of 256 sequences, 40 passes "
            "over 3.3 billion words) and of whole training sets, so compare the order of the rows and not the figures."
        )
    page.text(text)


def _guess(results: dict, column: str) -> str:
    """The figure of a constant answer, for each row of the table if they differ; "" if there is none."""
    found = {row["row"]: row["figures"][column]["guess"] for row in results["rows"]}
    said = {row: "" if guess is None else f"{guess:.1f}" for row, guess in found.items()}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return ", ".join(f"{guess} ({row})" for row, guess in said.items())


def _sizes(column: dict) -> str:
    """The numbers of training and dev rows of a task, for each row of the table if they differ."""
    rows = column.get("rows_of") or {"": (column["training_rows"], column["dev_rows"])}
    said = (f"{training:,} and {dev:,}" + (f" ({row})" if row else "") for row, (training, dev) in rows.items())
    return f"{column['column']} {', '.join(said)}"


def _has_paper(results: dict, column: dict) -> bool:
    return any(row["figures"][column["column"]]["paper"] is not None for row in results["rows"])


def _order(page: Document, results: dict) -> None:
    page.heading("The order of the rows, beside the paper's")
    for column in results["columns"]:
        name = column["column"]
        beside = f", compared with the paper's {column['paper']}" if _has_paper(results, column) else ""
        page.text(f"{name}{beside}: {results['orders'][name]}")
    for (column, reason), pairs in _ties(results).items():
        said = "a pair" if len(pairs) == 1 else f"{len(pairs)} pairs"
        page.text(f"{column}: {said} of rows came out equal; {reason}.")
    against = [pair for pair in results["against_the_paper"] if pair["ours"]]
    if not against:
        return
    page.text(
        "Pairs of rows whose order is not the paper's, each with the first of these checks that explains it: whether "
        f"either row has learned the task; whether both pre-trainings came {CLEAR_MARGIN:g} nats under the unigram "
        f"entropy; whether the difference is {CLEAR:g} standard errors or more; whether both models are fine-tuned, or "
        "both frozen."
    )
    page.table(
        ("column", "pair", "paper's difference", "ours", "in standard errors", "likely reason"),
        [
            (
                pair["column"],
                f"{pair['first']} - {pair['second']}",
                f"{pair['paper']:+.4g}",
                f"{pair['ours']:+.2f}",
                "" if pair["errors"] is None else shown(pair["errors"], "+"),
                pair["reason"],
            )
            for pair in against
        ],
    )


def _ties(results: dict) -> dict[tuple[str, str], list[dict]]:
    """Pairs of rows with equal figures, by column and reason."""
    found: dict[tuple[str, str], list[dict]] = {}
    for pair in results["against_the_paper"]:
        if not pair["ours"]:
            found.setdefault((pair["column"], pair["reason"]), []).append(pair)
    return found


def _pretraining(page: Document, results: dict) -> None:
    page.heading("Pre-training")
    rates = results["measured"]["tokens_per_second"]
    length = ("model", "steps", "weights of step", "tokens")
    margins = ("below the entropy by", "below counted frequencies by")
    loss = ("held-out loss (nats)", "unigram entropy", *margins, "accuracy")
    page.table(
        ("", *length, *loss, "next sentence", "tokens a second"),
        [
            _pretraining_line(row["row"], row["pretraining"], results["unigram_loss"], rates[row["row"]])
            for row in results["rows"]
        ],
    )
    page.text(
        "The loss is the cross-entropy of the predicted tokens of held-out documents, by each row's own objective and "
        "masks. The unigram entropy is that of the same tokens: a model that knows how frequent each token is, and "
        "nothing else, cannot come below it. Such a model, with frequencies counted on the training text, reaches "
        f"{results['unigram_loss']:.3f} on the held-out text. So a row above that has learned nothing, and a row that "
        "is not clearly below the entropy has learned next to nothing: its fine-tuning starts from little more than "
        "chance. Margins are means over the seeds, with the least of them. The weights are those of the lowest "
        "held-out loss (with next-sentence prediction, of the sum of both losses); where they are of an earlier step "
        "than the last, the model had begun to overfit."
        + (" Rows that take one pre-training at several steps have the weights of the step named." * _shares(results))
    )


def _shares(results: dict) -> bool:
    """Whether rows take the model of one pre-training after several steps."""
    return any(len(_places(results, row["pretraining"]["keys"][0])) > 1 for row in results["rows"])


def _places(results: dict, key: str) -> set[int]:
    """The steps after which rows take the model of a pre-training."""
    found = (row["pretraining"] for row in results["rows"])
    return {pretraining["steps"] for pretraining in found if pretraining["keys"][0] == key}


def _pretraining_line(name: str, found: dict, unigram_loss: float, rate: float) -> tuple[str, ...]:
    tokens = f"{statistics.fmean(found['tokens']):,.0f}"
    pairs = f"{100 * statistics.fmean(found['next_sentence']):.1f} %" if found["next_sentence"] else ""
    places = sorted(set(found.get("weights_of_step", [])))  # static vectors have none
    steps = f"{found['steps']:,}" if places or found["losses"] else ""
    length = (name, found["model"], steps, ", ".join(f"{step:,}" for step in places), tokens)
    if not found["losses"]:
        return (*length, "predicts no words", *[""] * 4, pairs, f"{rate:,.0f}")
    return (
        *length,
        spread(*_over(found["losses"]), 3),
        f"{statistics.fmean(found['unigram_entropies']):.3f}",
        _margin(found["margins"]),
        _margin([unigram_loss - loss for loss in found["losses"]]),
        f"{100 * statistics.fmean(found['accuracies']):.1f} %",
        pairs,
        f"{rate:,.0f}",
    )


def _margin(by_seed: list[float]) -> str:
    return f"{statistics.fmean(by_seed):.3f} (least {min(by_seed):.3f})"


def _curves(page: Document, results: dict) -> None:
    lines, seen = [], set()
    for row in results["rows"]:
        key = row["pretraining"]["keys"][0]
        if key in seen or not row["pretraining"]["curve"]:
            continue
        seen.add(key)
        points = [
            (point["tokens_seen"] / 1e6, point["mlm_loss"])
            for point in row["pretraining"]["curve"]
            if point["mlm_loss"] is not None  # None stands for a loss that was not finite
        ]
        lines.append(_line(len(lines), points, _share_of(row, results) or row["row"]))
    page.heading("Curves")
    page.text(f"Held-out loss of every pre-training, seed {results['seeds'][0]}.")
    chart = svg.line_chart(lines, "nats", "million tokens")
    page.picture("pretraining.svg", chart, "held-out loss against tokens, a line a row")
    names: set[str] = set()
    for column in results["columns"]:
        lines = _against_steps(results, column["column"])
        if lines:
            chart = svg.line_chart(lines, f"{column['column']} ({column['metric']})", "steps of pre-training")
            name = "".join(c if c.isalnum() else "-" for c in column["column"])
            while name.lower() in names:  # as with "a b" and "a-b", or "A" and "a" if file names ignore case
                name += "-"
            names.add(name.lower())
            page.picture(f"steps-{name}.svg", chart, f"{column['column']} against steps of pre-training")


def _against_steps(results: dict, column: str) -> list[svg.Curve]:
    """A curve for each row that a study takes at several shares of the pre-training (``at``)."""
    groups: dict[str, list[dict]] = {}
    for row in results["rows"]:
        if (name := _share_of(row, results)) is not None:
            groups.setdefault(name, []).append(row)
    lines = []
    for name, rows in groups.items():
        points = sorted((row["pretraining"]["steps"], row["figures"][column]["mean"]) for row in rows)
        lines.append(_line(len(lines), points, name))
    return lines


def _share_of(row: dict, results: dict) -> str | None:
    """The name of a row without its share of the pre-training, if it is one of several made by ``at``; else None."""
    key = row["pretraining"]["keys"][0]
    found = _SHARE.fullmatch(row["row"])
    if found is None or len(_places(results, key)) < 2:
        return None
    return found[1]


def _line(number: int, points: list[tuple[float, float]], name: str) -> svg.Curve:
    """Curve number ``number`` of a chart; when all colours are used, they are used again with dashed lines."""
    again, place = divmod(number, len(svg.COLOURS))
    return svg.Curve(points, svg.COLOURS[place], _short(name), True, bool(again))


def _senses(page: Document, found: dict) -> None:
    page.heading("Senses of words")
    page.text(
        "Words with two meanings, each in eight sentences of either meaning. 1-NN: the share of sentences for which "
        "the nearest other vector of the word has the same meaning. Silhouette: how far apart the meanings are, from "
        f"-1 to 1. Vectors that do not depend on the sentence reach {100 * found['chance']:.1f} %."
    )
    rows = [
        (name, spread(*_over([100 * v for v in of["accuracy"]]), 1) + " %", spread(*_over(of["silhouette"]), 3))
        for name, of in found["rows"].items()
    ]
    page.table(("", "1-NN", "silhouette"), rows)
    page.image("polysemy.png", "uses of each word by their first two principal components, a panel a model and word")


def _again(page: Document, results: dict) -> None:
    measured = results["measured"]
    page.heading("How this was made")
    page.code(measured["command"])
    made = ", ".join(measured["made_at_commits"])
    threads = " or ".join(counted(count, "thread") for count in measured["threads"])
    page.text(
        f"fastbert {measured['version']}, commit {measured['commit'] or 'unknown'}; models and cells made at commit "
        f"{made} on {', '.join(measured['made_on'])}, {threads} each, torch {measured['torch']}, "
        f"{measured['system']}; {measured['date']}. Corpus: {', '.join(results['corpus'])}, prepared as "
        f"{results['data']}."
    )
    hours = [measured[name] / 3600 for name in ("pretraining_seconds", "finetuning_seconds")]
    # The results in docs/studies are older than this measurement.
    worked = [measured.get(name) for name in ("pretraining_processor_seconds", "finetuning_processor_seconds")]
    of_them = "" if None in worked else f" ({sum(worked) / 3600:.2f} hours of processor time)"
    page.text(
        f"{measured['pretrained_tokens']:,} tokens of pre-training in {hours[0]:.2f} hours and "
        f"{measured['finetuned_tokens']:,} of fine-tuning in {hours[1]:.2f} hours of one process{of_them}. Two runs of "
        "this file with these seeds agree bit for bit on the same machine; results.json has every figure of every seed "
        "and the SHA-256 of every model's weights."
    )
    page.text("The study's file; the tasks' defaults are in defaults.yaml beside it:")
    page.code(results["file"])
    page.text("Pre-training at this scale, unless a row says otherwise:")
    page.code(yaml.safe_dump(results["pretrain"], sort_keys=False, default_flow_style=None, width=110))


def spread(mean: float, sd: float | None, digits: int) -> str:
    """A mean with its standard deviation."""
    return f"{mean:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def _over(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _short(name: str) -> str:
    """A name, shortened for a legend."""
    return name if len(name) <= 16 else name[:15] + "…"
