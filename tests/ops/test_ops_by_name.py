"""The CPU ops called by their names, `torch.ops.fastbert.*`, with what they do not take: a sentence, and never a crash.

The functions of `fastbert.ops` check their arguments and go to the kernels directly; a graph comes by the names.
"""

from __future__ import annotations

import pytest
import torch

from fastbert import _native, ops
from fastbert.errors import InputError

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

NO_DROPOUT = (0, 0, 0, 0, None)
BOUNDS = torch.tensor([0, 3, 8], dtype=torch.int32)
HIDDEN, INNER = 32, 48


def _layer() -> list[torch.Tensor]:
    square, vector = (HIDDEN, HIDDEN), (HIDDEN,)
    shapes = [*[square] * 3, *[vector] * 3, square, *[vector] * 3, (INNER, HIDDEN), (INNER,), (HIDDEN, INNER)]
    return [torch.randn(shape) for shape in (*shapes, *[vector] * 3)]


def _samples() -> dict[str, tuple]:
    r, ids = torch.randn, torch.arange(6)
    tables = r(30, 24), r(2, 24), r(16, 24)
    heads = [r(8, 2, 16) for _ in range(5)]
    with torch.no_grad():
        packed = ops.pack_int8(r(16, 64), torch.tensor([3, 40])) if _native.why_missing() is None else r(1)
    return {
        "gelu": (r(6, 20), r(20), False),
        "gelu_backward": (r(6, 20), r(6, 20), r(20), False),
        "layer_norm": (r(6, 20), r(20), r(20), 1e-5, r(20), r(6, 20), *NO_DROPOUT, ids, True),
        "layer_norm_backward": (r(6, 20), r(6, 20), r(6), r(6), r(20), *NO_DROPOUT, ids, True, True),
        "dropout": (r(6, 20), 13107, 11, 4, 2, None, ids),
        "keep_mask": (ids, 20, 13107, 11, 4, 2, None),
        "cross_entropy": (r(6, 20), ids, -100),
        "cross_entropy_backward": (r(6), r(6, 20), ids, r(6, 2), -100),
        "attention": (*heads[:3], BOUNDS, 5, 0.25, False, *NO_DROPOUT, r(2, 9), True),
        "attention_backward": (*heads, r(2, 8), BOUNDS, 5, 0.25, False, *NO_DROPOUT, r(2, 9), True),
        "embedding": (ids, ids % 2, ids, *tables, r(24), r(24), 1e-12, 0, *NO_DROPOUT, True),
        "embedding_backward": (
            *(r(6, 24), ids, ids % 2, ids, r(6, 24), r(24), r(6), r(6), [30, 2, 16], 0, [True] * 3, *NO_DROPOUT),
        ),
        "linear": (r(6, 20), r(12, 20), r(12), True),
        "linear_backward": (r(6, 12), r(6, 20), r(12, 20), [True] * 3),
        "linear_float32": (r(6, 20), r(12, 20), r(12), True, True),
        "linear_float32_backward": (r(6, 12), r(6, 20), r(12, 20), [True] * 3),
        "linear_int8": (r(6, 64), packed, 16, r(16), 0, r(6, 16)),
        "encoder": (r(8, HIDDEN), _layer() + _layer(), BOUNDS, 2, 1e-12, "none", True, r(2, 9)),
    }


SAMPLES = _samples()
_TENSORS = [
    (name, place)
    for name, arguments in SAMPLES.items()
    for place, argument in enumerate(arguments)
    if isinstance(argument, torch.Tensor)
]


def _call(name: str, place: int, value):
    arguments = list(SAMPLES[name])
    arguments[place] = value
    return getattr(torch.ops.fastbert, name)(*arguments)


# What is as good as the sample: other tensors do not tell these sizes.
FITS = {("wider", name, 0) for name in ("dropout", "keep_mask", "cross_entropy")} | {("wider", "linear_int8", 1)}
FITS |= {("wider", "cross_entropy_backward", 1)}
FITS |= {("deeper", name, 0) for name in ("dropout", "gelu", "linear", "linear_float32")}


@pytest.mark.parametrize(("name", "place"), _TENSORS)
def test_a_tensor_of_another_dtype(name, place):
    said = rf"^{name}: expected \w+ \(.*\) in [\w ]+, got \(.*\) in complex64$"
    with pytest.raises(InputError, match=said):
        _call(name, place, SAMPLES[name][place].to(torch.complex64))


@pytest.mark.parametrize("how", ["wider", "deeper"])
@pytest.mark.parametrize(("name", "place"), _TENSORS)
def test_a_tensor_of_another_shape(name, place, how):
    x = SAMPLES[name][place]
    wrong = torch.cat([x, x[..., :1]], -1) if how == "wider" else x[None]
    if (how, name, place) in FITS:
        _call(name, place, wrong)
        return
    with pytest.raises(
        InputError, match=rf"^{name}: expected|^(cu_seqlens must ascend|bias must be)|^x must be \(\.\.\., K\)"
    ):
        _call(name, place, wrong)


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("dropout", 1, -1, "threshold of 0 to 65536, got -1"),
        ("layer_norm", 6, 1 << 40, "threshold of 0 to 65536"),
        ("attention", 11, torch.zeros(3, dtype=torch.int64), r"expected rng \(2,\) in int64, got \(3,\)"),
        ("attention", 3, BOUNDS[:0], "cu_seqlens must ascend from 0 to the 8 tokens"),
        ("attention", 3, BOUNDS + 1, "cu_seqlens must ascend from 0 to the 8 tokens"),
        ("attention_backward", 6, BOUNDS + 1, "cu_seqlens must ascend from 0 to the 8 tokens"),
        ("cross_entropy_backward", 2, torch.full((6,), 1 << 40), "labels must be -100"),
        ("cross_entropy_backward", 2, torch.full((6,), -1), "labels must be -100"),
        ("embedding_backward", 1, torch.full((6,), 1 << 40), "index out of range in self"),
        ("embedding_backward", 3, torch.full((6,), -1), "index out of range in self"),
        ("embedding_backward", 10, [True], "wanted for 3 tables, got 1"),
        ("embedding_backward", 8, [9], "table_rows for 3 tables, got 1"),
        ("linear_backward", 3, [], "wants for 3 gradients, got 0"),
        ("linear_float32_backward", 3, [True] * 4, "wants for 3 gradients, got 4"),
        ("linear_backward", 1, None, "of which the weight's gradient is made, got None"),
        ("linear_int8", 2, 32, r"for a packed weight \[N, K\] = \[16, 64\]"),
        ("linear_int8", 4, 3, "an activation of 0 to 2, got 3"),
        ("encoder", 1, [], "16 tensors a layer, got 0"),
        ("encoder", 1, _layer()[:-1], "16 tensors a layer, got 15"),
        ("encoder", 3, 0, "heads that divide 32 hidden units, got 0"),
        ("encoder", 3, 5, "heads that divide 32 hidden units, got 5"),
        ("encoder", 5, "exact", 'approximate "none" or "tanh", got \'exact\''),
        ("encoder", 2, BOUNDS[:0], "cu_seqlens must ascend from 0 to the 8 tokens"),
    ],
)
def test_a_value_that_no_shape_tells(name, place, value, said):
    with pytest.raises((InputError, IndexError), match=said):
        _call(name, place, value)


def test_heads_that_are_too_large():
    heads = [torch.randn(4, 1, 513)] * 3
    with pytest.raises(InputError, match="heads of at most 512, got 513"):
        torch.ops.fastbert.attention(*heads, torch.tensor([0, 4]), 4, 1.0, False, *NO_DROPOUT, None, True)
    layer = [torch.randn(513, 513) if t.shape == (HIDDEN, HIDDEN) else torch.randn(513) for t in _layer()]
    with pytest.raises(InputError, match="encoder: the CPU kernels take heads of at most 512, got 513"):
        torch.ops.fastbert.encoder(torch.randn(8, 513), layer, BOUNDS, 1, *SAMPLES["encoder"][4:])


def test_one_dtype_for_all_activations():
    q, *others = (x.bfloat16() for x in SAMPLES["attention"][:3])
    with pytest.raises(InputError, match=r"^attention: expected k \(8, 2, 16\) in bfloat16, got .* in float32$"):
        torch.ops.fastbert.attention(q, others[0].float(), others[1], *SAMPLES["attention"][3:])


def test_an_encoder_that_is_known_is_given_another_width():
    """Its layers were packed by the call before, which looked at them."""
    arguments = list(SAMPLES["encoder"])
    torch.ops.fastbert.encoder(*arguments)
    arguments[0] = torch.randn(8, 2 * HIDDEN)
    with pytest.raises(InputError, match=r"expected x \(T, H\) of layers for H = \(32,\), got \(8, 64\)"):
        torch.ops.fastbert.encoder(*arguments)


def test_a_packed_weight_with_a_damaged_header():
    """As a file may hold one: the sizes and places in it are what a kernel reads memory by."""
    x, packed, *rest = SAMPLES["linear_int8"]
    numbers = 12
    for field in range(numbers):
        for value in (-1, 1 << 40, 65):
            damaged = packed.clone()
            damaged[8 * field : 8 * field + 8] = torch.tensor([value]).view(torch.uint8)
            with pytest.raises(InputError):
                torch.ops.fastbert.linear_int8(x, damaged, *rest)
            with pytest.raises(InputError):
                ops.linear_int8(x, damaged, 16)
    cut = packed[: packed.numel() // 2].clone()
    with pytest.raises(InputError, match=r"packed by pack_int8, got uint8 .* with another beginning"):
        ops.linear_int8(x, cut, 16)
    column = int(packed[72:80].view(torch.int64))  # where the outliers' numbers lie
    damaged = packed.clone()
    for outliers in ([1 << 20, 40], [-1, 40], [3, 64], [40, 40], [40, 3]):
        damaged[column : column + 8] = torch.tensor(outliers, dtype=torch.int32).view(torch.uint8)
        with pytest.raises(InputError, match="with another beginning"):
            ops.linear_int8(x, damaged, 16)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_does_not_lie_together(name):
    """Strided tensors are what a graph may hand over: the results are those of contiguous ones."""
    function, arguments = getattr(torch.ops.fastbert, name), SAMPLES[name]
    strided = [torch.stack([a, a], -1)[..., 0] if isinstance(a, torch.Tensor) and a.dim() else a for a in arguments]
    expected, got = function(*arguments), function(*strided)
    for a, b in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (expected, got)), strict=True):
        assert torch.equal(a, b)
