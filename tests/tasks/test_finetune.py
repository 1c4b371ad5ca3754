"""Fine-tuning: learns a trivial task, repeats itself, agrees with transformers' classifier, and knows no task."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tiny_bert
import torch
import transformers
from tiny_bert import rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.batching import training_batches
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.finetune import Callbacks, finetune
from fastbert.tasks.predict import predict, run_model


@pytest.fixture
def task():
    return registry.get("sst2")


def test_learns_a_word(directory, task, tmp_path):
    torch.manual_seed(0)
    model, tokenizer = task.model(directory), fastbert.load_tokenizer(directory)
    dev = rows_of(64, 2)
    config = FinetuneConfig(epochs=6, batch_size=16, lr=3e-3, max_seqlen=16)
    result = finetune(task, model, tokenizer, rows_of(256, 1), dev, config, out=tmp_path / "run")
    assert result.history[0]["train_loss"] > result.history[-1]["train_loss"]
    assert result.best["accuracy"] == 1.0
    # The model handed back, and the one on disk in transformers' hands, are the best epoch's.
    examples = task.encode(dev, tokenizer, 16)
    assert task.metric(dev, predict(task, model, dev, examples))["accuracy"] == 1.0
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(result.model_dir).eval()
    assert theirs.config.id2label == {0: "negative", 1: "positive"}
    with torch.inference_mode():
        said = [theirs(input_ids=torch.tensor(e.input_ids)[None]).logits.argmax().item() for e in examples]
    right = sum(found == e.label for found, e in zip(said, examples, strict=True))
    assert right == len(dev)


def test_the_best_epoch_is_the_earliest_of_the_best_and_its_weights_are_kept(directory, task):
    """Accuracies of 0.25, 0.75, 0.75 and 0.5."""
    rows, right, weights = rows_of(8, 2), iter((2, 6, 6, 4)), []

    class Scripted(type(task)):
        def decode(self, rows, examples, outputs):
            count = next(right)
            return [row.label if i < count else str(1 - int(row.label)) for i, row in enumerate(rows)]

    scripted = Scripted()
    model = scripted.model(directory)
    keep = Callbacks(on_evaluation=lambda _: weights.append({k: v.clone() for k, v in model.state_dict().items()}))
    config = FinetuneConfig(epochs=4, batch_size=8, lr=1e-3, max_seqlen=16)
    result = finetune(scripted, model, fastbert.load_tokenizer(directory), rows, rows, config, callbacks=keep)
    assert result.best == result.history[1]
    assert [record["accuracy"] for record in result.history] == [0.25, 0.75, 0.75, 0.5]
    assert all(torch.equal(value, weights[1][name]) for name, value in model.state_dict().items())
    assert not torch.equal(weights[1]["classifier.weight"], weights[2]["classifier.weight"])


def test_training_drops_out(tmp_path, task):
    """Of a first step without and with dropout the loss differs, and the next one of the same seed drops the same; of
    another seed others are dropped, also where the order of the rows does not matter."""
    losses = []
    for rate, seed in ((0.0, 0), (0.5, 0), (0.5, 0), (0.5, 1)):
        rates = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
        directory = tiny_bert.save(tmp_path, "BertForSequenceClassification", num_labels=2, **rates)
        config = FinetuneConfig(epochs=1, batch_size=32, max_seqlen=16, seed=seed)
        given = (task.model(directory), fastbert.load_tokenizer(directory), rows_of(1, 1) * 32, rows_of(8, 2), config)
        losses.append(finetune(task, *given).history[0]["train_loss"])
    assert losses[1] == losses[2] != pytest.approx(losses[0], rel=1e-2)
    assert losses[3] != losses[1]


def test_a_seed_gives_one_result(directory, task):
    def accuracies(seed):
        torch.manual_seed(0)
        config = FinetuneConfig(epochs=2, batch_size=16, lr=1e-3, max_seqlen=16, seed=seed)
        tokenizer = fastbert.load_tokenizer(directory)
        history = finetune(task, task.model(directory), tokenizer, rows_of(64, 1), rows_of(32, 2), config).history
        return [epoch["train_loss"] for epoch in history]

    assert accuracies(0) == accuracies(0)
    assert accuracies(0) != accuracies(1)


def test_packed_logits_are_transformers_padded_ones(tmp_path, task):
    directory = tiny_bert.save(tmp_path, "BertForSequenceClassification", num_labels=2)
    tokenizer = fastbert.load_tokenizer(directory)
    rows = rows_of(40, 3)
    examples = task.encode(rows, tokenizer, 16)
    found = run_model(task, task.model(directory), examples, token_budget=64)
    padder = transformers.BertTokenizer(str(directory / "vocab.txt"))
    inputs = padder([row.texts[0] for row in rows], padding=True, return_tensors="pt")
    assert inputs["attention_mask"].min() == 0
    theirs = transformers.BertForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        expected = theirs(**inputs, labels=torch.tensor([int(row.label) for row in rows]))
    torch.testing.assert_close(torch.tensor(np.array(found.values)), expected.logits, atol=1e-5, rtol=0)
    assert found.loss == pytest.approx(expected.loss.item(), abs=1e-5)


def test_the_recipe_is_transformers_step_for_step(tmp_path, task):
    """Dropout off, the losses and gradient norms of 32 steps are those of transformers' model on padded batches, with
    torch's AdamW, clipping and transformers' linear schedule."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    directory = tiny_bert.save(tmp_path / "start", "BertForSequenceClassification", num_labels=2, **rates)
    tokenizer, rows = fastbert.load_tokenizer(directory), rows_of(128, 5)
    options = {"lr": 1e-3, "weight_decay": 0.05, "clip": 0.5}
    config = FinetuneConfig(epochs=2, batch_size=8, max_seqlen=16, log_every=1, **options)
    finetune(task, task.model(directory), tokenizer, rows, rows_of(8, 6), config, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    ours = [(line["loss"], line["grad_norm"]) for line in lines if line["kind"] == "train"]
    assert len(ours) == 32

    model = transformers.BertForSequenceClassification.from_pretrained(directory).train()
    still = [name.endswith("bias") or "LayerNorm" in name for name, _ in model.named_parameters()]
    groups = [
        {"params": [p for p, s in zip(model.parameters(), still, strict=True) if s is kind], "weight_decay": decay}
        for kind, decay in ((False, 0.05), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 3, 32)
    padder = transformers.BertTokenizer(str(directory / "vocab.txt"))
    theirs = []
    for epoch in range(2):
        for chosen in training_batches([1] * 128, seed=0, epoch=epoch, batch_size=8):
            inputs = padder([rows[i].texts[0] for i in chosen], padding=True, return_tensors="pt")
            loss = model(**inputs, labels=torch.tensor([int(rows[i].label) for i in chosen])).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            theirs.append((loss.item(), norm.item()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_batch_computes_no_pad_token(directory, task):
    examples = task.encode(rows_of(10, 4), fastbert.load_tokenizer(directory), 16)
    batch, labels = task.collate(examples)
    assert batch.num_tokens == sum(e.num_tokens for e in examples)
    assert (batch.input_ids != tiny_bert.VOCAB.index("[PAD]")).all()
    assert labels["labels"].tolist() == [e.label for e in examples]


def test_a_run_directory_holds_the_whole_story(directory, task, tmp_path, pictures):
    out = tmp_path / "run"
    config = FinetuneConfig(epochs=2, batch_size=8, max_seqlen=8, limit_train=20, limit_dev=12, log_every=1)
    finetune(
        task, task.model(directory), fastbert.load_tokenizer(directory), rows_of(64, 1), rows_of(32, 2), config, out=out
    )
    from fastbert.tasks.trained import trained_with

    recipe, path = trained_with(out, "sst2")
    assert (recipe["task"], recipe["max_seqlen"], path) == ("sst2", 8, out / "config.yaml")
    alone = out / "model" / "config.json"
    assert trained_with(out / "model", "sst2") == ({"task": "sst2", "max_seqlen": 8, "auxiliary_lm": 0.0}, alone)
    assert trained_with(out / "model", "rte") == ({}, alone)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if step["kind"] == "train"]
    means = [step["train_loss"] for step in steps if step["kind"] == "dev"]
    # Of rows, and not of batches: an epoch has 8, 8 and 4.
    assert means == pytest.approx([(8 * a + 8 * b + 4 * c) / 20 for a, b, c in (losses[:3], losses[3:])])
    assert sum("accuracy" in key for step in steps for key in step) >= 2
    metrics = json.loads((out / "dev_metrics.json").read_text())
    predictions = (out / "dev_predictions.tsv").read_text().splitlines()
    errors = (out / "dev_errors.jsonl").read_text().splitlines()
    assert len(predictions) == 13
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert len(errors) == round(12 * (1 - metrics["accuracy"]))


def test_what_does_not_fit_leaves_nothing(directory, task, tmp_path):
    tokenizer, rows = fastbert.load_tokenizer(directory), rows_of(8, 1)
    out = tmp_path / "run"
    with pytest.raises(InputError, match="max_position_embeddings, 32, got 64"):
        finetune(task, task.model(directory), tokenizer, rows, rows, FinetuneConfig(max_seqlen=64), out=out)
    for size in (10, 28):
        small = tiny_bert.save(tmp_path / f"small-{size}", "BertModel", vocab=tiny_bert.VOCAB[:size])
        with pytest.raises(InputError, match=f"ids go up to 28, but the model's vocab_size is {size}"):
            finetune(task, task.model(small), tokenizer, rows, rows, FinetuneConfig(max_seqlen=16), out=out)
    with pytest.raises(InputError, match="token budget of 4 is below one sequence"):
        finetune(
            task, task.model(directory), tokenizer, rows, rows, FinetuneConfig(token_budget=4, max_seqlen=16), out=out
        )
    assert not out.exists()
    wrong = [("clip", 0.0), ("clip", -1.0), ("lr", math.inf), ("weight_decay", -5.0), ("seed", -1), ("seed", 1 << 64)]
    for name, value in (*wrong, ("max_seqlen", 2)):
        with pytest.raises(InputError, match=f"{name} must be .*, got {value}"):
            FinetuneConfig(**{name: value})
    with pytest.raises(InputError, match="epochs must be at least 1, got 0"):
        FinetuneConfig(epochs=0)


def test_a_full_disk_leaves_no_half_model(directory, task, tmp_path, monkeypatch):
    """The weights are written, and then the disk is full."""
    model, write = task.model(directory), task.model(directory).save_pretrained

    def full(target):
        write(target)
        raise OSError(28, "No space left on device", "tokenizer.json")

    monkeypatch.setattr(model, "save_pretrained", full)
    rows, out = rows_of(8, 1), tmp_path / "run"
    config = FinetuneConfig(epochs=1, max_seqlen=16)
    with pytest.raises(OSError, match="No space left"):
        finetune(task, model, fastbert.load_tokenizer(directory), rows, rows, config, out=out)
    assert sorted(path.name for path in out.iterdir()) == ["checkpoints", "config.yaml", "metrics.jsonl", "tensorboard"]


@pytest.mark.parametrize("kind", ["training", "dev"])
def test_rows_without_labels_are_refused(directory, task, kind):
    """Of dev rows none was right, of training rows torch said something."""
    rows = {"training": rows_of(8, 1), "dev": rows_of(8, 2)}
    rows[kind][5] = dataclasses.replace(rows[kind][5], id="x5", label=None)
    given = (task, task.model(directory), fastbert.load_tokenizer(directory), *rows.values())
    with pytest.raises(InputError, match=f"task sst2: expected a label in every {kind} row, got none in the row x5"):
        finetune(*given, FinetuneConfig(epochs=1, max_seqlen=16))
    limits = {"limit_train": 5, "limit_dev": 5}  # the others are not looked at
    assert finetune(*given, FinetuneConfig(epochs=1, max_seqlen=16, **limits)).history


@pytest.mark.parametrize("name", ["rte", "squad1", "swag", "text-classification"])
def test_pairs_need_a_model_with_two_token_types(name, tmp_path, capsys):
    """Said before anything is read; it was said in the first step, and on a GPU types have no check."""
    columns = ["--text-columns", "a", "b"] if name == "text-classification" else []
    head = {"squad1": "QuestionAnswering", "swag": "MultipleChoice"}.get(name, "SequenceClassification")
    model = tiny_bert.save(tmp_path / "model", f"BertFor{head}", type_vocab_size=1)
    data = str(tmp_path / "missing.tsv")
    train = ["--train", data, "--dev", data, "--out", str(tmp_path / "run")]
    said = f"task {name}: expected a model for pairs of texts, with a type_vocab_size of 2 or more in its config.json"
    assert main(["finetune", name, "--model", str(model), "--max-seqlen", "32", *train, *columns]) == 2
    assert said in capsys.readouterr().err
    # A tokenizer that gives no types needs none.
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "DistilBertTokenizer"}')
    assert main(["finetune", name, "--model", str(model), "--max-seqlen", "32", *train, *columns]) == 2
    assert said not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_pairs_of_a_model_without_types_are_refused_before_the_first(command, tmp_path, capsys):
    model = tiny_bert.save(tmp_path / "model", "BertForSequenceClassification", type_vocab_size=1)
    (tmp_path / "dev.tsv").write_text("a\tb\tlabel\nfilm\tbook\t0\nbook\tfilm\t1\n")
    given = ["--model", str(model), "--data", str(tmp_path / "dev.tsv"), "--max-seqlen", "32", "--text-columns", "a"]
    assert main([command, "text-classification", *given]) == 0
    capsys.readouterr()
    assert main([command, "text-classification", *given, "b"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("fastbert: task text-classification: expected a model for pairs of texts, with a type_")
    assert shown.out == ""
