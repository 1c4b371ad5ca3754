"""The native look at a stack of layers: its parameters, or None for whatever is not as fastbert made it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from fastbert import BertConfig, BertEncoder, _native
from fastbert.modules import hooks, stack

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason="the C++ extension is not built")

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def encoder() -> BertEncoder:
    return BertEncoder(BertConfig(**SIZES)).eval()


def look(encoder: BertEncoder, kept: stack._Stack | None = None, **other):
    modules = list(encoder.layer)
    kind = stack._kind(modules, encoder.config)
    return stack._plain_parameters(modules, kept or stack._Stack(), kind._replace(**other))


def test_every_parameter_is_found_under_its_name(encoder):
    names = {
        "query_weight": "attention.self.query.weight",
        "key_bias": "attention.self.key.bias",
        "value_weight": "attention.self.value.weight",
        "attention_out_bias": "attention.output.dense.bias",
        "attention_norm_weight": "attention.output.LayerNorm.weight",
        "intermediate_weight": "intermediate.dense.weight",
        "out_weight": "output.dense.weight",
        "norm_bias": "output.LayerNorm.bias",
    }
    layers = look(encoder)
    assert len(layers) == 3
    for number, layer in enumerate(layers):
        assert {id(t) for t in layer} == {id(p) for p in encoder.layer[number].parameters()}
        for field, name in names.items():
            assert getattr(layer, field) is encoder.get_parameter(f"layer.{number}.{name}"), name


def test_the_same_layers_are_the_same_tuple(encoder):
    kept = stack._Stack()
    before = look(encoder, kept)
    assert look(encoder, kept) is before
    dense = encoder.layer[2].output.dense
    dense.bias = nn.Parameter(torch.zeros(16))
    after = look(encoder, kept)
    assert after[2].out_bias is dense.bias
    assert after[:2] == before[:2]
    del encoder.layer[2]
    assert len(look(encoder, kept)) == 2


class Watched(nn.Linear):
    pass


class OwnTensor(torch.Tensor):
    pass


def _hook(kind: str):
    def change(encoder):
        getattr(encoder.layer[1].output.dense, kind)[0] = print

    return change


CHANGES = {
    **{kind: _hook(kind) for kind in hooks.KINDS},
    "a forward": lambda e: setattr(e.layer[2].attention.output, "forward", print),
    "a forward of a container": lambda e: setattr(e.layer[2].attention, "forward", print),
    "a layer of another class": lambda e: e.layer.__setitem__(1, nn.Identity()),
    "a class that inherits": lambda e: setattr(e.layer[0].intermediate, "dense", Watched(16, 24)),
    "a part that is gone": lambda e: delattr(e.layer[0].output, "LayerNorm"),
    "a part that is None": lambda e: setattr(e.layer[0].output, "LayerNorm", None),
    "no bias": lambda e: setattr(e.layer[1].attention.self.key, "bias", None),
    "no bias at all": lambda e: setattr(e.layer[1].output, "dense", nn.Linear(24, 16, bias=False)),
    "a tensor of another class": lambda e: e.layer[1].output.LayerNorm._parameters.__setitem__(
        "weight", torch.ones(16).as_subclass(OwnTensor)
    ),
    "a parametrisation": lambda e: nn.utils.parametrizations.weight_norm(e.layer[2].output.dense),
    "another eps": lambda e: setattr(e.layer[1].attention.output.LayerNorm, "eps", 1e-3),
    "another GELU": lambda e: setattr(e.layer[2].intermediate, "approximate", "tanh"),
    "other heads": lambda e: setattr(e.layer[2].attention.self, "num_attention_heads", 4),
    "another width": lambda e: e.layer.__setitem__(
        2, BertEncoder(BertConfig(**SIZES | {"intermediate_size": 8})).layer[0]
    ),
}


@pytest.mark.parametrize("why", CHANGES)
def test_what_is_not_as_it_was_made_is_not_taken(why, encoder):
    kept = stack._Stack()
    assert look(encoder, kept) is not None
    CHANGES[why](encoder)
    assert look(encoder, kept) is None
    assert look(encoder) is None


@pytest.mark.parametrize("why", [why for why in CHANGES if why != "a part that is gone"])
def test_nor_is_it_under_a_compiler(why, encoder, monkeypatch):
    """Which has the same look in Python."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert look(encoder) is not None
    CHANGES[why](encoder)
    assert look(encoder) is None


def test_a_hook_on_all_modules(encoder):
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert look(encoder) is None
    finally:
        handle.remove()
    assert look(encoder) is not None


def test_an_error_of_a_comparison_comes_through(encoder):
    class Odd:
        def __eq__(self, other):
            raise ArithmeticError("no order")

    encoder.layer[1].output.LayerNorm.eps = Odd()
    with pytest.raises(ArithmeticError, match="no order"):
        look(encoder)


def test_no_layer_is_kept_alive_and_no_tensor_beyond_the_next_look(encoder):
    kept = stack._Stack()
    look(encoder, kept)
    layer, bias = weakref.ref(encoder.layer[0]), weakref.ref(encoder.layer[0].output.dense.bias)
    del encoder.layer[0]
    gc.collect()
    assert layer() is None
    look(encoder, kept)
    gc.collect()
    assert bias() is None


@pytest.mark.parametrize(
    "part", [(0, "child", nn.Linear, {}, "", ()), (-1, "", nn.Linear), (-1, 3, nn.Linear, {}, "", ())]
)
def test_parts_that_make_no_tree_are_refused(part):
    with pytest.raises((ValueError, TypeError, IndexError)):
        _native.extension().ModuleWalk([part], (nn.Parameter,), [])
