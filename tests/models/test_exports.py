"""Graphs that torch keeps of fastbert's models: for other batches than their example, too, what the models compute."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fastbert
from fastbert import _native
from fastbert.errors import InputError

HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "PreTraining")


def config(**options) -> fastbert.BertConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    return fastbert.BertConfig(vocab_size=50, max_position_embeddings=12, **{**sizes, **options})


def batch(*lengths: int, left: bool = False) -> tuple[Tensor, Tensor]:
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(mask, lengths, strict=True):
        row[:length] = 1
    return torch.randint(5, 50, mask.shape), mask.flip(1) if left else mask


EXAMPLE = batch(5, 3)
OTHERS = [batch(7, 2, 4), batch(6, 1, 3, left=True), batch(3, 0), batch(2, 2)]


class _OnlyTensors(nn.Module):
    """A trace gives back tensors alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()
        self.model.config.return_dict = False

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.model(ids, mask)


class _Ranker(nn.Module):
    def __init__(self, make_mask) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.encoder = fastbert.BertEncoder(config())
        self.make_mask = make_mask

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (self.encoder(self.words(ids), self.make_mask(mask)).last_hidden_state,)


def _causal(mask: Tensor) -> Tensor:
    columns = torch.arange(mask.shape[1])
    return (mask[:, None, None] != 0) & (columns[:, None] >= columns)


MASKS = {
    "2-D": lambda mask: mask,
    "bool": lambda mask: mask[:, None, None] != 0,
    "additive": lambda mask: (1.0 - mask[:, None, None]) * torch.finfo(torch.float32).min,
    "of queries": _causal,
}


def assert_as_the_model(graph, model: nn.Module, others=OTHERS) -> None:
    for given in others:
        with torch.no_grad():
            found = zip(graph(*given), model(*given), strict=True)
            for got, wanted in found:
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", [None, *HEADS])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_trace_serves_other_batches(head):
    cls = fastbert.BertModel if head is None else getattr(fastbert, f"BertFor{head}")
    model = _OnlyTensors(cls(config()))
    assert_as_the_model(torch.jit.trace(model, EXAMPLE, check_trace=False), model)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_trace_of_an_encoder_alone_serves_other_batches(kind):
    """It held kernels' results as constants, which were none when it ran."""
    model = _Ranker(MASKS[kind]).eval()
    assert_as_the_model(torch.jit.trace(model, EXAMPLE, check_trace=False), model)


# torch 2.6 exports no number of rows without a bound: it means to hold for 2 ** 63 - 1 of them, too.
SIZES = ({0: torch.export.Dim("batch", max=1024), 1: torch.export.Dim("sequence", max=12)},) * 2
# Torch 2.6 does not: with strict=True it looks like torch.compile there.
TELLS_EXPORTS = hasattr(torch.compiler, "is_exporting")
STRICT = (False, pytest.param(True, marks=pytest.mark.slow)) if TELLS_EXPORTS else (False,)


@pytest.mark.parametrize("strict", STRICT)
@pytest.mark.parametrize("kind", ["model", "encoder"])
def test_a_program_that_is_exported_serves_other_batches(tmp_path, kind, strict):
    model = _OnlyTensors(fastbert.BertModel(config())) if kind == "model" else _Ranker(MASKS["bool"]).eval()
    with torch.no_grad():
        program = torch.export.export(model, EXAMPLE, dynamic_shapes=SIZES, strict=strict)
    torch.export.save(program, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2")
    assert not [node for node in again.graph.nodes if "fastbert" in str(node.target)]
    assert_as_the_model(again.module(), model, OTHERS[:3])


def test_a_program_whose_output_has_our_class_is_read_where_that_class_is_imported(tmp_path):
    """As docs/drop-in.md says; ``import fastbert`` alone imports nothing of it."""
    with torch.no_grad():
        program = torch.export.export(fastbert.BertModel(config()).eval(), EXAMPLE, strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    modules = "torch, fastbert.outputs" if TELLS_EXPORTS else "torch, torch._higher_order_ops.wrap, fastbert.outputs"
    code = f"import {modules}; print(torch.export.load('model.pt2').call_spec.out_spec)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "BertModelOutput" in done.stdout, done.stderr


@pytest.mark.parametrize("way", ["program", "trace"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_graph_of_choices_serves_other_numbers_of_them(way):
    def choices(*given: Tensor, number: int) -> tuple[Tensor, ...]:
        return tuple(x.repeat_interleave(number, 0).unflatten(0, (-1, number)) for x in given)

    model, example = _OnlyTensors(fastbert.BertForMultipleChoice(config())), choices(*EXAMPLE, number=3)
    free = (dict(enumerate((torch.export.Dim("batch"), torch.export.Dim("choices"), SIZES[0][1]))),) * 2
    with torch.no_grad():
        if way == "trace":
            graph = torch.jit.trace(model, example, check_trace=False)
        else:
            graph = torch.export.export(model, example, dynamic_shapes=free, strict=False).module()
    assert_as_the_model(graph, model, [choices(*given, number=2) for given in OTHERS[:3]])


@pytest.mark.slow
def test_a_program_goes_to_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, names = _OnlyTensors(fastbert.BertForSequenceClassification(config())), ("ids", "mask")
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(model, EXAMPLE, path, dynamo=True, dynamic_shapes=SIZES, input_names=names, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*given: Tensor) -> list[Tensor]:
        feed = {name: x.numpy() for name, x in zip(names, given, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, feed)]

    assert_as_the_model(run, model, OTHERS[:3])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_the_exporter_that_traces_makes_a_graph_for_other_sizes(tmp_path):
    """It is the default of torch 2.6 to 2.8."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model, path = _OnlyTensors(fastbert.BertModel(config())).eval(), str(tmp_path / "model.onnx")
    free = {name: {0: "batch", 1: "tokens"} for name in ("ids", "mask")}
    torch.onnx.export(model, EXAMPLE, path, dynamo=False, dynamic_axes=free, input_names=list(free), verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*given: Tensor) -> list[Tensor]:
        feed = {name: x.numpy() for name, x in zip(free, given, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, feed)]

    assert_as_the_model(run, model, OTHERS[:3])


def test_an_output_stays_what_it_is():
    model = fastbert.BertForSequenceClassification(config()).eval()
    found = torch.export.export(model, EXAMPLE, strict=False).module()(*EXAMPLE)
    assert type(found) is type(model(*EXAMPLE))
    assert found.keys() == ["logits"]


def test_a_graph_of_torchs_operators_reads_no_mask():
    model = _OnlyTensors(fastbert.BertModel(config()))
    graph = make_fx(lambda ids, mask: model(ids, mask))(*EXAMPLE)
    ids, mask = EXAMPLE
    assert_as_the_model(graph, model, [(ids.flip(0), mask.flip(0)), (ids, mask.flip(1))])


def test_a_program_in_training_draws_by_the_seed():
    model = _OnlyTensors(fastbert.BertModel(config(hidden_dropout_prob=0.3))).train()
    program = torch.export.export(model, EXAMPLE, strict=False).module()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(program(*EXAMPLE)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    torch.manual_seed(2)
    torch.testing.assert_close(found[2], model(*EXAMPLE)[0], rtol=1e-5, atol=1e-6)


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = fastbert.BertEncoder(config()).eval()

    def forward(self, x: Tensor, bounds: Tensor) -> Tensor:
        return self.encoder(x, cu_seqlens=bounds, max_seqlen=3).last_hidden_state


@pytest.mark.parametrize("way", [torch.jit.trace, partial(torch.export.export, strict=False)], ids=["trace", "export"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_packed_tokens_are_refused_in_words(way):
    model, given = _Packed(), (torch.randn(5, 16), torch.tensor([0, 2, 5], dtype=torch.int32))
    with torch.no_grad(), pytest.raises(InputError, match="would keep where its example's packed sequences end"):
        way(model, given)


@pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))
@pytest.mark.parametrize("patched", [False, True], ids=["own", "patched"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_int8_weights_are_refused_in_words(patched):
    if patched:
        transformers = pytest.importorskip("transformers")
        model = fastbert.patch(transformers.BertModel(transformers.BertConfig(**config().to_dict())).eval())
    else:
        model = fastbert.BertModel(config()).eval()
    with torch.no_grad(), pytest.raises(InputError, match="expected a float model to export, got one with int8"):
        torch.export.export(fastbert.quantize(model), EXAMPLE, strict=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_bilstm_is_refused_in_words():
    model = _OnlyTensors(fastbert.BertForTokenClassification(config(bilstm_units=4)))
    with pytest.raises(InputError, match="expected a model without a BiLSTM"):
        torch.jit.trace(model, EXAMPLE, check_trace=False)
