"""The demo's report.html."""

from __future__ import annotations

from pathlib import Path

from ..report import HtmlReport
from .run import DemoResult


def write_page(result: DemoResult) -> Path:
    """Writes report.html, one file that needs nothing else, and returns its path."""
    page = HtmlReport("A BERT from scratch on the documentation that comes with Python")
    _corpus(page, result)
    _pretraining(page, result)
    _test(page, result)
    _masks(page, result)
    _classifier(page, result)
    _again(page, result)
    return page.save(result.out / "report.html")


def _corpus(page: HtmlReport, result: DemoResult) -> None:
    corpus = result.corpus
    training = corpus["documents"] - corpus["validation_documents"] - corpus["test_documents"]
    page.heading("The corpus")
    page.text(
        f"The standard library's docstrings and help topics: {corpus['documents']} documents (one a module or topic), "
        f"{corpus['bytes'] / 1e6:.2f} MB. {corpus['validation_documents']} of them are for validation: choices are "
        f"made by them, as which checkpoint is the best. {corpus['test_documents']} more are the test, which no choice "
        f"has seen. The other {training} are {corpus['tokens']:,} tokens of a WordPiece vocabulary of "
        f"{corpus['vocabulary']:,}, trained on them."
    )
    page.text(f"As realised: {result.shares}.", note=True)


def _pretraining(page: HtmlReport, result: DemoResult) -> None:
    recipe, run = result.recipe, result.run
    page.heading("Pre-training")
    page.text(
        f"{recipe.layers} layers of {recipe.hidden} units, {recipe.heads} heads, {result.parameters:,} parameters: "
        f"{run.steps:,} steps of {recipe.token_budget:,} tokens at most ({run.tokens:,} in all, no padding) in "
        f"{run.seconds / 60:.1f} minutes, {run.tokens / run.seconds:,.0f} tokens a second with evaluations."
    )
    if result.ended_early:
        page.text(result.ended_early)
    page.picture(run.run_dir / "loss.png", "masked-LM loss and next-sentence accuracy against the step")


def _test(page: HtmlReport, result: DemoResult) -> None:
    row = result.test
    page.heading("On the test documents")
    page.table(
        ("", "this model", "without a model", "what that is"),
        [
            (
                "masked-LM cross-entropy (nats)",
                f"{row['mlm_loss']:.3f}",
                f"{row['unigram_entropy']:.3f}",
                "unigram entropy of the same targets",
            ),
            (
                "masked-LM accuracy",
                f"{100 * row['mlm_acc']:.1f} %",
                f"{100 * row['most_frequent_acc']:.1f} %",
                "the most frequent target",
            ),
            ("next-sentence accuracy", f"{100 * row['nsp_acc']:.1f} %", "50.0 %", "guessing"),
        ],
        caption=f"{row['targets']:,} masked tokens and {row['pairs']:,} sentence pairs",
    )


def _masks(page: HtmlReport, result: DemoResult) -> None:
    page.heading("Masks filled in")
    page.table(
        ("sentence", "most likely tokens"),
        [
            (sentence, ", ".join(f"{token} ({100 * probability:.0f} %)" for token, probability in best))
            for sentence, best in result.masks
        ],
    )


def _classifier(page: HtmlReport, result: DemoResult) -> None:
    classifier = result.classifier
    page.heading("A classifier with few labels")
    page.text(
        f"Which family of modules is a docstring from? {len(classifier['classes'])} families "
        f"({', '.join(classifier['classes'])}), {classifier['labels_each']} labelled docstrings of each. Names of "
        f"modules are removed from the texts, and the {classifier['test_texts']} test texts are from the test's "
        "modules. Both starts see the same labels."
    )
    rows = []
    for start, values in classifier["accuracies"].items():
        each = ", ".join(f"{100 * value:.1f}" for value in values)
        rows.append((start, f"{100 * sum(values) / len(values):.1f} %", each))
    rows.append(("always the largest class", f"{100 * classifier['largest_class']:.1f} %", ""))
    page.table(("start", "mean accuracy", "by seed"), rows)


def _again(page: HtmlReport, result: DemoResult) -> None:
    page.heading("Go on from here")
    page.text("The directory of this page holds the model, the data and the run:")
    page.code(
        f'fastbert fill-mask --model {result.out}/run/model "Return the [MASK] of the file."\n'
        f"fastbert pretrain --data {result.out}/data --model {result.out}/run/model --steps 2000 --out RUN\n"
        f"tensorboard --logdir {result.out}/run/tensorboard"
    )
    seconds = result.seconds
    page.text(
        f"{sum(seconds.values()) / 60:.1f} minutes in all: "
        + ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
        + ".",
        note=True,
    )
