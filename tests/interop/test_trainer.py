"""transformers' Trainer, PEFT and accelerate around patched models and around ours: runs as transformers' own."""

from __future__ import annotations

import copy

import hf_parity as hf
import pytest
import torch
import transformers
from torch import nn

import fastbert

pytest.importorskip("accelerate")

_STEPS = 6


class _Rows(torch.utils.data.Dataset):
    """Rows of different lengths, so that every batch has pads; labels that can be learnt."""

    def __init__(self, number: int, task: str) -> None:
        generator = torch.Generator().manual_seed(3)
        self.task = task
        self.rows = [
            torch.randint(1, hf.VOCAB, (int(n),), generator=generator)
            for n in torch.randint(3, hf.LENGTH, (number,), generator=generator)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"ids": self.rows[i]}

    def collate(self, items):
        ids = nn.utils.rnn.pad_sequence([item["ids"] for item in items], batch_first=True)
        mask = (ids != 0).long()
        labels = {
            "BertForSequenceClassification": {"labels": ids[:, 0] % hf.LABELS},
            "BertForTokenClassification": {"labels": (ids % hf.LABELS).masked_fill(mask == 0, -100)},
            "BertForMaskedLM": {"labels": ids.masked_fill(mask == 0, -100)},
            "BertForQuestionAnswering": {"start_positions": ids[:, 0] % 3, "end_positions": ids[:, 1] % 3},
        }[self.task]
        return {"input_ids": ids, "attention_mask": mask, **labels}


TASKS = ("BertForSequenceClassification", "BertForTokenClassification", "BertForMaskedLM", "BertForQuestionAnswering")


def train(model, task, directory, **options):
    """Losses of a few steps, and the evaluation's, by transformers' Trainer; on a GPU with ``use_cpu=False``."""
    rows = _Rows(8 * _STEPS, task)
    arguments = transformers.TrainingArguments(
        output_dir=str(directory),
        max_steps=_STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        seed=5,
        remove_unused_columns=False,
        disable_tqdm=True,
        **{"save_strategy": "no", "use_cpu": True, **options},
    )
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=rows.collate
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    norms = [line["grad_norm"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == _STEPS
    return [*losses, *norms, trainer.evaluate()["eval_loss"]]


def assert_same_run(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        # The Trainer's log rounds to four digits after the point in some releases: never closer than it says.
        assert abs(x - y) <= 1e-5 * abs(y) + 1e-9, f"{x} and {y}"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}], ids=["plain", "checkpointing"])
def test_a_patched_model_trains_as_before(task, options, tmp_path, only_ours):
    theirs, _ = hf.pair(task)
    ours = fastbert.patch(copy.deepcopy(theirs))
    start = copy.deepcopy(theirs.state_dict())
    truth = train(theirs, task, tmp_path / "theirs", **options)
    only_ours()
    assert_same_run(train(ours, task, tmp_path / "ours", **options), truth)
    trained = theirs.state_dict()
    # Adam divides by a moment: a gradient that is 0 by arithmetic moves its parameter by noise, on both sides.
    noise = ("key.bias", *(("qa_outputs.bias", "layer.2.output.LayerNorm.bias") if "Question" in task else ()))
    for name, x in ours.state_dict().items():
        if not name.endswith(noise) and trained[name].is_floating_point():
            step = (trained[name] - start[name]).abs().max()
            assert (x - trained[name]).abs().max() <= 1e-2 * step + 1e-7, name


def test_a_patched_model_that_the_trainer_compiles(tmp_path, passes):
    task = "BertForSequenceClassification"
    theirs, _ = hf.pair(task)
    ours = fastbert.patch(copy.deepcopy(theirs))
    truth = train(theirs, task, tmp_path / "theirs")
    options = {"torch_compile": True, "torch_compile_backend": "eager"}
    assert_same_run(train(ours, task, tmp_path / "ours", **options), truth)
    assert len(passes) >= 2 * _STEPS  # of training, and of the evaluation after it, which is not compiled


@pytest.mark.parametrize("task", TASKS[:3])
def test_our_own_models_train_like_those_of_transformers(task, tmp_path):
    theirs, ours = hf.pair(task)
    truth = train(theirs, task, tmp_path / "theirs")
    assert_same_run(train(ours, task, tmp_path / "ours"), truth)


def test_accumulated_steps_of_our_own_model(tmp_path):
    task = "BertForSequenceClassification"
    theirs, ours = hf.pair(task)
    theirs.accepts_loss_kwargs = False  # its loss is the mean of its own batch, although its signature says otherwise
    options = {"gradient_accumulation_steps": 2}
    truth = train(theirs, task, tmp_path / "theirs", **options)
    assert_same_run(train(ours, task, tmp_path / "ours", **options), truth)


def test_the_trainers_checkpoint_of_a_patched_model_loads(tmp_path):
    task = "BertForSequenceClassification"
    ours = fastbert.patch(hf.pair(task)[0])
    train(ours, task, tmp_path, save_strategy="steps", save_steps=_STEPS)
    for cls in (getattr(transformers, task), getattr(fastbert, task)):
        again = cls.from_pretrained(tmp_path / f"checkpoint-{_STEPS}").state_dict()
        assert again.keys() == ours.state_dict().keys()
        assert all(torch.equal(x, again[name]) for name, x in ours.state_dict().items())


def test_the_trainers_checkpoint_of_our_own_model_holds_its_weights(tmp_path):
    from safetensors.torch import load_file

    task = "BertForSequenceClassification"
    _, ours = hf.pair(task)
    train(ours, task, tmp_path, save_strategy="steps", save_steps=_STEPS)
    saved = load_file(tmp_path / f"checkpoint-{_STEPS}" / "model.safetensors")
    assert saved.keys() == ours.state_dict().keys()
    assert all(torch.equal(x, saved[name]) for name, x in ours.state_dict().items())


def _with_lora(model, **options):
    peft = pytest.importorskip("peft")
    torch.manual_seed(8)
    config = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=4,
        target_modules=["query", "value"],
        init_lora_weights=False,
        lora_dropout=0.0,
        **options,
    )
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("when", ["before", "after"])
def test_lora_on_query_and_value(when, tmp_path, only_ours):
    task = "BertForSequenceClassification"
    theirs, _ = hf.pair(task)
    ours = copy.deepcopy(theirs)
    theirs = _with_lora(theirs)
    if when == "before":
        fastbert.patch(ours)
        # A pass before the adapters come: the view of the bare model must not outlive them.
        ours(**hf.inputs())
        ours = _with_lora(ours)
    else:
        ours = fastbert.patch(_with_lora(ours))
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"]}
    with torch.no_grad():
        bare = ours.base_model.model(**given)
        with ours.disable_adapter():
            assert (ours(**given).logits - bare.logits).abs().max() > 1e-2, "the adapters change nothing"
    truth = train(theirs, task, tmp_path / "theirs")
    with torch.no_grad():
        expected = copy.deepcopy(theirs).merge_and_unload()(**given).logits
    only_ours()
    assert_same_run(train(ours, task, tmp_path / "ours"), truth)
    moved = {n: p for n, p in ours.named_parameters() if p.requires_grad}
    assert {n for n in moved if "lora_" in n} == {n for n, _ in theirs.named_parameters() if "lora_" in n}
    ours.save_pretrained(tmp_path / "adapter")
    merged = ours.merge_and_unload()
    with torch.no_grad():
        hf.assert_near(merged(**given).logits, expected, torch.float32, "merged")


def test_lora_with_recomputation(tmp_path, only_ours):
    task = "BertForSequenceClassification"
    theirs, _ = hf.pair(task)
    ours = fastbert.patch(_with_lora(copy.deepcopy(theirs)))
    theirs = _with_lora(theirs)
    # The reentrant kind, transformers 4's default, loses the gradients of adapters over frozen embeddings.
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    truth = train(theirs, task, tmp_path / "theirs", **options)
    only_ours()
    assert_same_run(train(ours, task, tmp_path / "ours", **options), truth)


def test_accelerate_prepares_a_patched_model(only_ours):
    import accelerate

    task = "BertForSequenceClassification"
    theirs, _ = hf.pair(task)
    ours = fastbert.patch(copy.deepcopy(theirs))
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"], "labels": torch.tensor([0, 1, 2, 0])}
    runs = []
    for model in (theirs, ours):
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        losses = []
        for _ in range(4):
            loss = model(**given).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        runs.append(losses)
        only_ours()
    assert_same_run(runs[1], runs[0])
    assert runs[1][-1] < runs[1][0]


def test_what_accelerate_has_offloaded_and_brought_back_is_ours_again(only_ours):
    """Its hooks leave each module's own forward behind as an attribute of the module."""
    import accelerate

    theirs, _ = hf.pair("BertForSequenceClassification")
    before, after = fastbert.patch(copy.deepcopy(theirs)), copy.deepcopy(theirs)
    given = {**hf.inputs(), "attention_mask": hf.masks()["prefix"]}
    with torch.no_grad():
        wanted = theirs(**given).logits
        for model in (before, after):
            accelerate.cpu_offload(model, execution_device="cpu")
            hf.assert_near(model(**given).logits, wanted, torch.float32, "offloaded")
            accelerate.hooks.remove_hook_from_submodules(model)
        fastbert.patch(after)
        only_ours()
        for model in (before, after):
            hf.assert_near(model(**given).logits, wanted, torch.float32, "brought back")
        for model in (before, after):
            fastbert.unpatch(model)
            with pytest.raises(AssertionError, match="transformers' own attention"):
                model(**given)


DICTIONARIES = pytest.mark.skipif(torch.__version__ < (2, 7), reason="torch 2.6 compiles no graph that makes them")


@DICTIONARIES
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("task", ["BertForSequenceClassification", "BertForQuestionAnswering"])
def test_predictions_of_our_own_models(task, smoothing, tmp_path):
    """Without labels for a span's head, as for a test set; the metrics are given the logits that transformers' are."""
    rows, found = _Rows(8, task), []
    rows.rows = [row[:3] for row in rows.rows]  # no pads, whose logits are not those of transformers
    for model in hf.pair(task, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_eval_batch_size=4,
            label_smoothing_factor=smoothing,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=True,
        )
        given = []
        trainer = transformers.Trainer(
            model=model.eval(),
            args=arguments,
            data_collator=lambda items: {
                name: x for name, x in rows.collate(items).items() if not name.endswith("_positions")
            },
            compute_metrics=lambda predicted, given=given: given.append(predicted.predictions) or {},
        )
        predictions = trainer.predict(rows).predictions
        found.append([*given, predictions])
    for wanted, got in zip(*found, strict=True):
        assert type(wanted) is type(got)
        for x, y in zip(*((x if isinstance(x, tuple) else (x,)) for x in (wanted, got)), strict=True):
            assert abs(x - y).max() < 1e-5


@DICTIONARIES
def test_accelerates_mixed_precision_gives_float32_outputs():
    accelerate = pytest.importorskip("accelerate")
    _, ours = hf.pair("BertForSequenceClassification")
    accelerate.state.AcceleratorState._reset_state(True)
    prepared = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(ours)
    out = prepared(torch.randint(1, hf.VOCAB, (2, 5)), labels=torch.tensor([0, 1]))
    assert out.logits.dtype == torch.float32
    accelerate.state.AcceleratorState._reset_state(True)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", [f"BertFor{head}" for head in ("SequenceClassification", "MultipleChoice")])
def test_a_copy_that_data_parallel_makes(name, train):
    """It has tensors in the place of parameters; on the CPU torch makes none itself."""
    _, ours = hf.pair(name)
    ours.train(train)
    copies = {module: module._replicate_for_data_parallel() for module in ours.modules()}
    for module, copied in copies.items():
        for key, child in module._modules.items():
            copied._modules[key] = None if child is None else copies[child]
        for key, parameter in module._parameters.items():
            if parameter is not None:
                setattr(copied, key, parameter.view_as(parameter))
    ids = torch.randint(1, hf.VOCAB, (2, 2, 5) if name == "BertForMultipleChoice" else (2, 5))
    assert copies[ours].device == ours.device
    assert copies[ours].dtype == ours.dtype
    copies[ours](ids)[0].sum().backward()
    assert all(p.grad is not None for p in ours.bert.encoder.parameters())
