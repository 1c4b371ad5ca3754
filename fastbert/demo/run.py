"""The demo, stage by stage: each stage is a few calls of the library, as a user would make them."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .. import hardware
from ..data import builtin_corpus
from ..data.config import SampleConfig
from ..data.prepare import prepare
from ..data.pretraining import PretrainingData, realised_shares
from ..data.shards import ShardSet
from ..data.tokenizer import load_tokenizer, train_wordpiece
from ..errors import InputError
from ..files import write_whole
from ..models import BertForMaskedLM, BertForPreTraining
from ..tasks.config import FinetuneConfig
from ..tasks.fill_mask import fill_mask
from ..tasks.finetune import finetune
from ..tasks.text_classification import TextClassification
from ..train.config import PretrainConfig
from ..train.evaluation import evaluate
from ..train.model_and_data import build_model
from ..train.pretrain import PretrainResult, pretrain
from ..weights.loading import warnings_held
from . import families
from .recipe import FULL, QUICK, Recipe

_MARKER = "demo.json"
_TEST_EPOCHS = 3
_TEXT_TOKENS = 64

MASKED_SENTENCES = (
    "Return a new [MASK] object.",
    "If the [MASK] is not found, an exception is raised.",
    "This function returns the number of [MASK] in the list.",
    "Open the file and [MASK] its contents.",
    "The default value is [MASK].",
)


@dataclass
class DemoResult:
    """Everything that the report shows; all but paths and runs is also written to demo.json."""

    out: Path
    recipe: Recipe
    corpus: dict = field(default_factory=dict)
    shares: str = ""
    run: PretrainResult | None = None
    parameters: int = 0
    test: dict = field(default_factory=dict)
    masks: list[tuple[str, list[tuple[str, float]]]] = field(default_factory=list)
    classifier: dict = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ended_early(self) -> str:
        """A note if pre-training was ended by the time limit; "" if it came to its last step."""
        steps, run = self.recipe.steps, self.run
        if run.steps >= steps:
            return ""
        return (
            f"Pre-training was ended by the clock after {self.recipe.max_minutes:g} minutes, at step {run.steps} of "
            f"{steps} ({run.tokens / run.seconds:,.0f} tokens a second), so the figures below are of a model that has "
            f"seen {100 * run.steps / steps:.0f} % of its text. If other programs were using the cores, their threads "
            f"and these waited for each other: try OMP_NUM_THREADS=1, or again when the machine is free."
        )

    def to_json(self) -> str:
        """The content of demo.json: the figures and the recipe."""
        names = ("corpus", "shares", "parameters", "test", "masks", "classifier", "seconds")
        values = {name: getattr(self, name) for name in names}
        values |= {"recipe": vars(self.recipe), "steps": self.run.steps, "tokens": self.run.tokens}
        return json.dumps(values, indent=1)


class _Stages:
    """Prints which stage runs, and measures how long each takes."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds, self._name, self._began = seconds, None, 0.0

    def begin(self, name: str) -> None:
        self.end()
        print(f"\n== {name}", flush=True)
        self._name, self._began = name, time.monotonic()

    def end(self) -> None:
        if self._name is not None:
            self._seconds[self._name] = time.monotonic() - self._began
            self._name = None


def run_demo(out: Path, quick: bool = False, seed: int = 0) -> DemoResult:
    """Runs the whole demo and writes ``out``.

    Args:
        out: the directory to make; an earlier demo in it is replaced.
        quick: a version of about a minute, whose figures mean little.
        seed: of all random numbers.

    Raises:
        InputError: ``out`` holds something else, or the seed is out of range.
    """
    recipe = QUICK if quick else FULL
    if not 0 <= seed <= (1 << 64) - recipe.seeds:  # the last stage uses this many seeds in a row
        raise InputError(f"seed must be at least 0 and at most 2^64 - {recipe.seeds}, got {seed}")
    _clear(out)
    result = DemoResult(out, recipe)
    stages = _Stages(result.seconds)
    stages.begin("corpus and vocabulary")
    _prepare(result)
    stages.begin("pre-training")
    _pretrain(result, seed)
    stages.begin("test documents")
    _evaluate(result)
    stages.begin("masks")
    _fill_masks(result)
    stages.begin("classifier")
    _classify(result, seed)
    stages.end()
    write_whole(out / _MARKER, result.to_json())
    return result


def _clear(out: Path) -> None:
    """Makes an empty directory. Raises InputError if that would remove something other than an earlier demo."""
    if out.exists():
        if not out.is_dir() or (any(out.iterdir()) and not (out / _MARKER).exists()):
            raise InputError(f"{out}: expected no such path, or the directory of an earlier demo, got something else")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    # Marks the directory as a demo's, even if the demo is interrupted.
    write_whole(out / _MARKER, "{}")


def _prepare(result: DemoResult) -> None:
    documents = list(builtin_corpus.documents())
    sizes = {name: sum(map(len, sentences)) for name, sentences in documents}
    validation, testing = families.split_documents(sizes.items(), result.recipe.heldout_share)
    rest = [(name, sentences) for name, sentences in documents if name not in testing]
    training = [sentence for name, sentences in rest if name not in validation for sentence in sentences]
    tokenizer = train_wordpiece(training, result.recipe.vocab_size)
    prepare(rest, tokenizer, result.out / "data", heldout=validation)
    prepare([(name, sentences) for name, sentences in documents if name in testing], tokenizer, result.out / "test")
    data, _ = _data(result)
    result.corpus = {
        "documents": len(documents),
        "validation_documents": len(validation),
        "test_documents": len(testing),
        "bytes": sum(sizes.values()),
        "tokens": data.shards.num_tokens,
        "vocabulary": data.shards.manifest.vocab_size,
    }
    result.shares = str(realised_shares(data, max_tokens=min(data.shards.num_tokens, 1_000_000)))
    print(
        f"the standard library's documentation: {len(documents)} documents, {sum(sizes.values()) / 1e6:.2f} MB, "
        f"{len(validation)} of them for validation and {len(testing)} for the test; vocabulary of "
        f"{data.shards.manifest.vocab_size}\n{result.shares}"
    )


def _data(result: DemoResult) -> tuple[PretrainingData, PretrainingData]:
    """The training and the test documents; pre-training reads the validation documents itself."""
    samples = SampleConfig(max_seqlen=result.recipe.max_seqlen)
    return tuple(PretrainingData(ShardSet.open(result.out / name, "train"), samples) for name in ("data", "test"))


def _config(result: DemoResult, seed: int) -> PretrainConfig:
    recipe = result.recipe
    return PretrainConfig(
        data=str(result.out / "data"),
        out=str(result.out / "run"),
        model=f"{recipe.layers}x{recipe.hidden}x{recipe.heads}",
        init="small",
        # A model this small, on a corpus seen a few times, forgets more than it overfits.
        dropout=0.0,
        token_budget=recipe.token_budget,
        steps=recipe.steps,
        max_minutes=recipe.max_minutes,
        lr=recipe.lr,
        warmup=recipe.warmup,
        betas=recipe.betas,
        eval_every=max(recipe.steps // 8, 1),
        save_every=recipe.steps,
        log_every=max(recipe.steps // 40, 1),
        seed=seed,
        samples=SampleConfig(max_seqlen=recipe.max_seqlen),
    )


def _pretrain(result: DemoResult, seed: int) -> None:
    result.run = pretrain(_config(result, seed))
    if result.run.interrupted:
        raise KeyboardInterrupt
    if result.ended_early:
        print(result.ended_early)


def _evaluate(result: DemoResult) -> None:
    _, testing = _data(result)
    model = BertForPreTraining.from_pretrained(result.run.model_dir).to(hardware.default_device())
    result.parameters = model.num_parameters()
    row = result.test = evaluate(model, testing, epochs=_TEST_EPOCHS)
    gain = row["unigram_entropy"] - row["mlm_loss"]
    margin = f"{abs(gain):.2f} {'under' if gain >= 0 else 'over'} it"
    print(
        f"masked LM: cross-entropy {row['mlm_loss']:.3f} nats, unigram entropy of the same targets "
        f"{row['unigram_entropy']:.3f}: {margin}\n"
        f"           accuracy {100 * row['mlm_acc']:.1f} %, "
        f"most frequent token {100 * row['most_frequent_acc']:.1f} %\n"
        f"next sentence: accuracy {100 * row['nsp_acc']:.1f} %, guessing 50 %"
    )


def _fill_masks(result: DemoResult) -> None:
    model = BertForMaskedLM.from_pretrained(result.run.model_dir).to(hardware.default_device())
    tokenizer = load_tokenizer(result.run.model_dir)
    for sentence in MASKED_SENTENCES:
        best = [(c.token, c.probability) for c in fill_mask(model, tokenizer, sentence, top_k=5)[0]]
        result.masks.append((sentence, best))
        print(f"{sentence:<58} {', '.join(f'{token} {100 * p:.0f} %' for token, p in best)}")


def _classify(result: DemoResult, seed: int) -> None:
    recipe = result.recipe
    data, _ = _data(result)
    sizes = [(name, sum(map(len, sentences))) for name, sentences in builtin_corpus.documents()]
    pool, test = families.labelled_texts(*families.split_documents(sizes, recipe.heldout_share))
    classes = families.classes(pool)
    tokenizer = load_tokenizer(result.run.model_dir)
    accuracies: dict[str, list[float]] = {"pre-trained": [], "random weights": []}
    for number in range(seed, seed + recipe.seeds):
        train = families.few_labels(pool, recipe.labels, number)
        for start, lr in (("pre-trained", recipe.classifier_lr), ("random weights", recipe.scratch_lr)):
            task = TextClassification(classes)
            torch.manual_seed(number)
            with warnings_held():  # of the randomly initialised head
                model = task.model(result.run.model_dir).to(hardware.default_device())
            if start == "random weights":
                model.bert.load_state_dict(build_model(_config(result, number), data).bert.state_dict())
            # Few labels need dropout, which pre-training does not use.
            model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = model.dropout.p = 0.1
            config = FinetuneConfig(
                epochs=recipe.epochs, batch_size=16, lr=lr, max_seqlen=min(_TEXT_TOKENS, recipe.max_seqlen), seed=number
            )
            # The last epoch is reported, not the best: these rows are the test.
            history = finetune(task, model, tokenizer, train, test, config).history
            accuracies[start].append(history[-1]["accuracy"])
            print(f"seed {number}, {start}: {100 * history[-1]['accuracy']:.1f} %", flush=True)
    counts = [sum(row.label == family for row in test) for family in classes]
    result.classifier = {
        "classes": list(classes),
        "labels_each": recipe.labels,
        "test_texts": len(test),
        "largest_class": max(counts) / len(test),
        "accuracies": accuracies,
    }
    means = {start: 100 * sum(values) / len(values) for start, values in accuracies.items()}
    print(
        f"{len(classes)} families of modules, {recipe.labels} labels each, {len(test)} test texts from "
        f"modules never seen:\nfrom the pre-trained model {means['pre-trained']:.1f} %, from random weights "
        f"{means['random weights']:.1f} %, largest class {100 * max(counts) / len(test):.1f} %"
    )
