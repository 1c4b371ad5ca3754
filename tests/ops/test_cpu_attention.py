"""The CPU attention kernels against the reference in float64, at every instruction-set level that runs here."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import threading

import peak_memory
import pretraining_runs
import pytest
import torch
from close import assert_close
from levels import ALL_LEVELS, TILES, at_level

from fastbert import _native, ops, reference
from fastbert.errors import BackendError, InputError
from fastbert.ops import _dropout_schema
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

DTYPES = [torch.float32, torch.bfloat16]
RESULTS = ("out", "dq", "dk", "dv", "dbias")
# At, below and above the vector widths, tile heights, panels and blocks (128 queries; 512 keys), and empty ones.
ODD = (1, 21, 24, 0, 51, 53, 119, 381, 509, 0, 512, 700)
LENGTHS = {
    "one token": (1,),
    "equal": (24, 24, 24),
    "equal and empty": (5, 0, 5),
    "short": (1, 2, 3, 7, 8, 9, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 63, 65),
    "batch of one": (129,),
    "odd": ODD,
    "all empty": (0, 0),
}


@pytest.fixture(params=ALL_LEVELS)
def level(request):
    with at_level(request.param):
        yield request.param


def bounds_of(lengths) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def attend(inputs, lengths, dout, backend="cpu", **options):
    """[out, dq, dk, dv] of q, k and v, and dbias where a bias is the fourth."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    bias = leaves[3] if len(leaves) > 3 else None
    with ops.backend(backend):
        out = ops.attention(*leaves[:3], bounds_of(lengths), max(lengths), bias=bias, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def drop(p):
    return Dropout(p, seed=(1 << 60) + 5, offset=2, site=1) if p else None


@functools.cache
def case(lengths, nheads, head_dim, dtype, p, causal, spread=1.0, beyond=None):
    """Inputs, the truth in float64, and the reference in `dtype`; shared by all levels. ``beyond`` says how much
    further than the longest sequence a bias reaches, None that there is none."""
    generator = torch.Generator().manual_seed(7)
    q, k, v, dout = torch.randn(4, sum(lengths), nheads, head_dim, generator=generator).to(dtype)
    inputs, options = [q * spread, k, v], {"dropout": drop(p), "causal": causal}
    if beyond is not None:
        inputs.append(2 * torch.randn(nheads, 2 * (max(lengths) + beyond) - 1, generator=generator))
    truth = attend([x.double() for x in inputs], lengths, dout.double(), "reference", **options)
    return inputs, dout, options, truth, attend(inputs, lengths, dout, "reference", **options)


def check(lengths, *shape):
    inputs, dout, options, truth, same = case(lengths, *shape)
    got = attend(inputs, lengths, dout, **options)
    for what, a, b, c in zip(RESULTS[: len(inputs) + 1], got, truth, same, strict=True):
        assert_close(a, b, c, gradient=what != "out", what=what)


@pytest.mark.parametrize(("p", "causal"), [(0.0, False), (0.1, False), (0.0, True), (0.3, True)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LENGTHS)
def test_against_the_reference(level, name, dtype, p, causal):
    check(LENGTHS[name], 2, 64, dtype, p, causal)


@pytest.mark.parametrize(("p", "causal", "beyond"), [(0.0, False, 1), (0.1, False, 60), (0.3, True, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in LENGTHS if name != "all empty"])
def test_a_bias_by_distance(level, name, dtype, p, causal, beyond):
    check(LENGTHS[name], 2, 64, dtype, p, causal, 1.0, beyond)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_that_hides_distant_keys(level, dtype):
    """The first keys of a long sequence, all that a kernel looks at first, are hidden from its last queries."""
    length, window = 1100, 40
    generator = torch.Generator().manual_seed(3)
    q, k, v, dout = torch.randn(4, length, 2, 16, generator=generator).to(dtype)
    distance = (torch.arange(2 * length - 1) - (length - 1)).abs()
    inputs = [q, k, v, torch.zeros(2, 2 * length - 1).masked_fill(distance > window, float("-inf"))]
    truth = attend([x.double() for x in inputs], (length,), dout.double(), "reference")
    same, got = attend(inputs, (length,), dout, "reference"), attend(inputs, (length,), dout)
    for what, a, b, c in zip(RESULTS, got, truth, same, strict=True):
        assert_close(a, b, c, gradient=what != "out", what=what)


def test_what_a_bias_is_told_by_hand(level):
    """Of one score a query, which is the bias alone: a head looks to the left, the other one to the right."""
    zero, v = torch.zeros(3, 2, 8), torch.arange(3.0).view(3, 1, 1).expand(3, 2, 8).contiguous()
    bias = torch.full((2, 7), -1e4)  # R = 4 of distances -3 to 3
    bias[0, 2], bias[1, 4] = 0.0, 0.0  # the key before, the key behind
    with ops.backend("cpu"):
        out = ops.attention(zero, zero, v, bounds_of((3,)), 3, bias=bias)
    # At the border all keys are as far away as each other.
    assert out[:, :, 0].tolist() == [[1.0, 1.0], [0.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize("of", ["bias", "queries"])
def test_a_bias_that_alone_has_a_gradient_and_one_that_has_none(of):
    inputs, dout, _, truth, same = case((5, 0, 33), 2, 16, torch.float32, 0.0, False, 1.0, 2)
    q, k, v, bias = inputs
    leaf = bias.clone().requires_grad_() if of == "bias" else q.clone().requires_grad_()
    given = (q, k, v) if of == "bias" else (leaf, k, v)
    with ops.backend("cpu"):
        out = ops.attention(*given, bounds_of((5, 0, 33)), 33, bias=leaf if of == "bias" else bias)
    out.backward(dout)
    place = RESULTS.index("dbias" if of == "bias" else "dq")
    assert_close(leaf.grad, truth[place], same[place], gradient=True)


def test_a_bias_that_does_not_fit():
    q, bounds = torch.randn(10, 2, 8), bounds_of((6, 4))
    for shape in [(2, 9), (1, 11), (2, 12), (11,)]:
        for backend in ("cpu", "reference"):
            with (
                ops.backend(backend),
                pytest.raises(InputError, match=r"^bias must be \(2, 2R-1\) with R of at least 6"),
            ):
                ops.attention(q, q, q, bounds, 6, bias=torch.randn(shape))
    # A caller's max_seqlen is not what the kernels go by.
    with ops.backend("cpu"), pytest.raises(InputError, match=r"R of at least 6, the longest sequence, got \(2, 7\)"):
        ops.attention(q, q, q, bounds, 4, bias=torch.randn(2, 7))


@pytest.mark.parametrize(("p", "causal"), [(0.1, False), (0.3, True)])
def test_tiles_go_on_from_another_levels_forward(p, causal):
    """From one forward, with its log-sum-exp and its masks, tiles and vectors make the same gradients."""
    inputs, dout, options, _, same = case(ODD, 2, 64, torch.bfloat16, p, causal)
    vectors = [level for level in ALL_LEVELS if not level.startswith("amx")][-1]
    native, before = _native.extension(), _native.isa()
    place = (bounds_of(ODD), max(ODD), 64**-0.5, causal)
    rest = _dropout_schema.arguments(options["dropout"])
    found = []
    try:
        for level in (vectors, TILES):
            native.set_isa(vectors)
            out, lse = torch.ops.fastbert.attention(*inputs, *place, *rest, None, True)
            native.set_isa(level)
            found.append(torch.ops.fastbert.attention_backward(dout, *inputs, out, lse, *place, *rest, None, False)[:3])
    finally:
        native.set_isa(before)
    assert not all(torch.equal(a, b) for a, b in zip(*found, strict=True)), "one level's kernel served both"
    for what, a, b, c in zip(RESULTS[1:4], found[1], found[0], same[1:], strict=True):
        assert_close(a, b.double(), c, gradient=True, what=what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [1, 7, 16, 20, 32, 33, 48, 72, 128, 160, 512])
def test_head_dims(level, head_dim, dtype):
    check((3, 0, 37, 65), 3, head_dim, dtype, 0.1, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(40, 150), (700,)])
def test_scores_far_from_zero(level, lengths, dtype):
    """Scores of +-50, as trained models have: one key takes nearly all of a row."""
    check(lengths, 2, 64, dtype, 0.1, False, 15.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_later_block_of_keys_far_below_the_first(level, dtype):
    """By more than the powers that float32 holds: the maximum is that of all blocks so far."""
    v = torch.randn(530, 1, 16).to(dtype)
    q, k = torch.ones_like(v), torch.full_like(v, 20.0)
    k[512:] = -20.0  # scores of 80 and of -80
    with ops.backend("cpu"):
        out = ops.attention(q, k, v, bounds_of((530,)), 530)
    mean = v[:512].double().mean(0).expand(530, 1, 16)
    assert_close(out, mean, v[:512].mean(0).expand(530, 1, 16))


def test_everything_dropped(level):
    q, k, v, dout = torch.randn(4, 20, 2, 32)
    for result in attend((q, k, v), (13, 7), dout, dropout=drop(1.0)):
        assert torch.equal(result, torch.zeros(20, 2, 32))


def test_softmax_scale(level):
    q, k, v, dout = torch.randn(4, 30, 2, 32)
    expected = attend((q.double(), k.double(), v.double()), (30,), dout.double(), "reference", softmax_scale=0.5)
    for a, b in zip(attend((q, k, v), (30,), dout, softmax_scale=0.5), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(level, dtype):
    """A fused matrix read in place, heads that are not side by side, and a gradient of one number all over."""
    fused = torch.randn(77, 3, 2, 32).to(dtype)
    views, dense = fused.unbind(1), [x.contiguous() for x in fused.unbind(1)]
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in dense]
    spaced = [torch.stack([x, x], -1)[..., 0] for x in dense]
    dout = torch.ones((), dtype=dtype).expand(77, 2, 32)
    expected = attend(dense, (40, 37), dout.contiguous(), dropout=drop(0.2))
    assert not views[0].is_contiguous()
    assert views[0].stride(0) == 3 * 64
    for inputs in (views, heads_first, spaced):
        for a, b in zip(attend(inputs, (40, 37), dout, dropout=drop(0.2)), expected, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_of_each_tensor(level, dtype):
    """Of q, k, v and the gradient rows lie apart each by its own, with NaN in between; some have one block of keys."""
    dense = torch.randn(4, 528, 1, 16).to(dtype)
    apart = [torch.full((528, gap, 1, 16), float("nan"), dtype=dtype) for gap in (2, 3, 4, 5)]
    for wide, x in zip(apart, dense, strict=True):
        wide[:, 0] = x
    *qkv, dout = (wide[:, 0] for wide in apart)
    expected = attend(dense[:3], (8, 520), dense[3])
    for a, b in zip(attend(qkv, (8, 520), dout), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_head(level, dtype):
    """One after the other, sequences are of the same head."""
    check((24, 7, 0, 30), 1, 32, dtype, 0.1, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_do_not_touch(level, causal, dtype):
    """NaN in the other sequences and heads changes no bit."""
    q, k, v, dout = torch.randn(4, 40, 2, 20).to(dtype)
    alone = attend((q, k, v), (40,), dout, causal=causal, dropout=None)
    nan = torch.full((5, 17, 3, 20), float("nan"), dtype=dtype)
    joined = []
    for x in (q, k, v, dout):
        wide = torch.full((40, 3, 20), float("nan"), dtype=dtype)
        wide[:, :2] = x
        joined.append(torch.cat([nan[0], wide, nan[1]]))
    beside = attend(joined[:3], (17, 40, 17), joined[3], causal=causal)
    for a, b in zip(beside, alone, strict=True):
        assert torch.equal(a[17:57, :2], b)
        assert a[:17].isnan().all()
        assert a[57:].isnan().all()
        assert a[:, 2].isnan().all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("lengths", "p"), [((3, 0, 5), 0.3), ((21,), 0.0), ((0, 0), 0.0)])
def test_tokens_behind_the_last_sequence_get_zeros(backend, lengths, p):
    """As on a GPU, whatever they are. A `RoomPacking` has them."""
    tokens, options = sum(lengths), {"dropout": drop(p), "causal": False, "backend": backend}
    q, k, v, dout = torch.randn(4, tokens + 4, 2, 8)
    bias = [torch.randn(2, 2 * max(lengths) + 1)] if tokens else []
    for x in (q, k, v) if tokens else ():
        x[tokens:] = float("nan")
    alone = attend([*(x[:tokens] for x in (q, k, v)), *bias], lengths, dout[:tokens], **options)
    found = attend([q, k, v, *bias], lengths, dout, **options)
    assert all(map(torch.equal, found[4:], alone[4:])), "the gradient of the bias"
    for x, expected in zip(found[:4], alone, strict=False):
        assert torch.equal(x[:tokens], expected)
        assert not x[tokens:].any()
    with ops.backend(backend), ops.batch_invariant():
        x = ops.attention(q, k, v, bounds_of(lengths), max(lengths))
    assert x.shape == q.shape
    assert x[:tokens].isfinite().all()
    assert not x[tokens:].any()


def test_nan_and_infinity_show(level):
    q, k, v, dout = torch.randn(4, 6, 1, 16)
    q[2, 0, 3] = float("nan")
    k[4, 0, 0] = float("inf")
    out = attend((q, k, v), (3, 3), dout)[0]
    assert out[[0, 1]].isfinite().all()
    assert out[2].isnan().all()
    with ops.backend("reference"):
        expected = ops.attention(q, k, v, bounds_of((3, 3)), 3)
    assert torch.equal(out.isnan(), expected.isnan())
    # A token to come does not reach back, whatever it holds.
    k[5] = float("nan")
    causal = attend((q, k, v), (3, 3), dout, causal=True)[0]
    assert causal[3].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "head_dim"), [((1, 21, 0, 53), 64), ((530,), 20)])
def test_writes_its_outputs_and_nothing_else(level, lengths, head_dim, dtype):
    """Outputs lie inside larger buffers of a known pattern, with gaps between rows: only their elements change."""
    tokens, nheads, guard = sum(lengths), 2, 64
    width = nheads * head_dim
    strides = [width + gap for gap in (3, 4, 5, 6)]
    q, k, v, dout = (x.reshape(tokens, width) for x in torch.randn(4, tokens, nheads, head_dim).to(dtype))
    buffers = [torch.full((2 * guard + tokens * stride,), float("nan"), dtype=dtype) for stride in strides]
    lse = torch.full((2 * guard + nheads * tokens,), float("nan"))
    out, dq, dk, dv = (b.data_ptr() + guard * b.element_size() for b in buffers)
    bounds, native = bounds_of(lengths), _native.extension()
    arguments = native.AttentionArgs(
        dtype=DTYPES.index(dtype),
        qkv=[x.data_ptr() for x in (q, k, v)],
        strides=[width] * 3,
        out=out,
        out_stride=strides[0],
        lse=lse.data_ptr() + guard * 4,
        cu_seqlens=bounds.data_ptr(),
        batch_size=len(lengths),
        max_seqlen=max(lengths),
        nheads=nheads,
        head_dim=head_dim,
        softmax_scale=head_dim**-0.5,
        causal=False,
        dropout=native.Dropout(seed=0, offset=0, site=0, threshold=0),
    )
    native.attention_forward(arguments)
    native.attention_backward(arguments, dout.data_ptr(), width, [dq, dk, dv], strides[1:])
    shape = (tokens, nheads, head_dim)
    expected = attend([x.reshape(shape) for x in (q, k, v)], lengths, dout.reshape(shape))
    for buffer, result, stride in zip(buffers, expected, strides, strict=True):
        inside = buffer[guard : guard + tokens * stride].reshape(tokens, stride)
        assert torch.equal(inside[:, :width].reshape(shape), result)
        assert inside[:, width:].isnan().all()
        assert buffer[:guard].isnan().all()
        assert buffer[guard + tokens * stride :].isnan().all()
    assert lse[:guard].isnan().all()
    assert lse[guard + nheads * tokens :].isnan().all()
    scores = torch.einsum("qhd,khd->hqk", *(x.reshape(shape)[-lengths[-1] :].double() for x in (q, k)))
    truth = (scores * head_dim**-0.5).logsumexp(-1)
    got = lse[guard:-guard].reshape(nheads, tokens)
    assert got.isfinite().all()
    torch.testing.assert_close(got[:, -lengths[-1] :].double(), truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_threads_or_repetition(level, dtype, biased):
    lengths = (1, 140, 21, 0, 600, 53)
    inputs, dout, options, *_ = case(lengths, 3, 32, dtype, 0.1, False, 1.0, 1 if biased else None)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        once = attend(inputs, lengths, dout, **options)
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            for a, b in zip(once, attend(inputs, lengths, dout, **options), strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(threads)


def test_a_hundred_runs_have_the_same_bits():
    lengths = (50, 3, 130)
    inputs, dout, options, *_ = case(lengths, 2, 64, torch.bfloat16, 0.1, False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        once = attend(inputs, lengths, dout, **options)
        for _ in range(100):
            for a, b in zip(once, attend(inputs, lengths, dout, **options), strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(threads)


def test_two_python_threads_at_once():
    """Scratch belongs to a thread: calls that overlap do not disturb each other."""
    cases = [case(lengths, 2, 64, torch.float32, 0.1, False) for lengths in ((50, 3, 130), (257,))]
    expected = [attend(c[0], n, c[1], **c[2]) for c, n in zip(cases, ((50, 3, 130), (257,)), strict=True)]
    wrong = []

    def work(i, lengths):
        for _ in range(20):
            got = attend(cases[i][0], lengths, cases[i][1], **cases[i][2])
            wrong.extend(
                name for name, a, b in zip(RESULTS[:4], got, expected[i], strict=True) if not torch.equal(a, b)
            )

    threads = [threading.Thread(target=work, args=(i, n)) for i, n in enumerate(((50, 3, 130), (257,)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_the_kernels_refuse():
    q = torch.randn(10, 2, 8)
    with ops.backend("cpu"):
        for bad in ([0, 11], [1, 10], [1, 9], [0, 7, 3, 10], [0, 7, 3], [0, -1]):
            with pytest.raises(InputError, match="cu_seqlens must ascend from 0 to the 10 tokens"):
                ops.attention(q, q, q, torch.tensor(bad, dtype=torch.int32), 10)
        wide = torch.randn(3, 1, 513)
        with pytest.raises(BackendError, match="at most 512, got 513"):
            ops.attention(wide, wide, wide, bounds_of((3,)), 3)
    assert ops.attention(wide, wide, wide, bounds_of((3,)), 3).shape == wide.shape


_PEAK = """
import torch
from fastbert import ops
from fastbert.rng import Dropout
from peak_memory import peak_mib

def run(length):
    q, k, v = (torch.randn(length, 4, 32, requires_grad=True) for _ in range(3))
    with ops.backend("cpu"):
        bounds = torch.tensor([0, length], dtype=torch.int32)
        ops.attention(q, k, v, bounds, length, dropout=Dropout(0.1, 1, 2, 3)).sum().backward()
    return peak_mib()

torch.set_num_threads(1)
before = run(8)
print(run(4000) - before)
"""


@pytest.mark.skipif(not peak_memory.STATUS.exists(), reason="needs /proc")
def test_no_matrix_of_scores_in_memory(tmp_path):
    """One head's 4,000 x 4,000 floats would be 61 MiB, in 16 bits 31; the tensors and the scratch were 18.5 MiB."""
    # Outside the source tree, which may have no extension: the package that this process tests.
    environment = pretraining_runs.environment()
    done = subprocess.run(
        [sys.executable, "-c", _PEAK], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 8 < float(done.stdout) < 28  # q, k, v and their gradients alone are 12


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("threshold", "causal", "save"), [(0, False, True), (13107, True, True), (0, False, False)])
def test_opcheck(threshold, causal, save, biased):
    q, k, v = (torch.randn(11, 2, 16, requires_grad=save) for _ in range(3))
    bias = torch.randn(2, 13, requires_grad=save) if biased else None
    bits = (threshold, 11, 4, 2, None)
    arguments = (q, k, v, bounds_of((4, 0, 7)), 7, 0.25, causal, *bits, bias, save)
    assert set(torch.library.opcheck(torch.ops.fastbert.attention, arguments).values()) == {"SUCCESS"}
    if not save:
        return
    with torch.no_grad():
        out, lse = torch.ops.fastbert.attention(*arguments)
        backward = (torch.randn(11, 2, 16), q, k, v, out, lse, *arguments[3:-1], biased)
        assert set(torch.library.opcheck(torch.ops.fastbert.attention_backward, backward).values()) == {"SUCCESS"}


def test_compiles_into_one_graph():
    leaves = [torch.randn(shape, requires_grad=True) for shape in (*[(11, 2, 16)] * 3, (2, 13))]
    bounds, dout = bounds_of((4, 7)), torch.randn(11, 2, 16)

    def attention(q, k, v, bias):
        return ops.attention(q * 2, k, v, bounds, 7, dropout=drop(0.1), bias=bias)

    with ops.backend("cpu"):
        eager = attention(*leaves)
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")(*leaves)
    assert torch.equal(eager, compiled)
    for a, b in zip(torch.autograd.grad(eager, leaves, dout), torch.autograd.grad(compiled, leaves, dout), strict=True):
        assert torch.equal(a, b)


def _masks_of_rectangles() -> dict[str, torch.Tensor | None]:
    """For 3 sequences of 7 tokens and 2 heads: no mask, keys, keys and queries; a row of nothing but -inf in each."""
    keys = torch.zeros(3, 1, 1, 7).masked_fill(
        torch.arange(7) >= torch.tensor([7, 3, 0])[:, None, None, None], -math.inf
    )
    square = torch.randn(3, 2, 7, 7).masked_fill(torch.rand(3, 2, 7, 7) < 0.4, -math.inf)
    square[0, 1, 2] = -math.inf
    return {"none": None, "keys": keys, "square": square, "lowest": keys.clamp(min=torch.finfo(torch.float32).min)}


@pytest.mark.parametrize("dropout", [None, Dropout(0.3, 7, 1, 2)])
@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("mask", ["none", "keys", "square", "lowest"])
def test_a_rectangle_is_the_references(mask, probabilities, dropout):
    added = _masks_of_rectangles()[mask]
    given, dout = torch.randn(3, 3, 2, 7, 8), torch.randn(3, 2, 7, 8)
    found = []
    for backend in ("cpu", "reference"):
        q, k, v = leaves = [x.clone().requires_grad_() for x in given]
        with ops.backend(backend):
            out, probs = ops.attention_padded(q, k, v, added, dropout=dropout, probabilities=probabilities)
        assert (probs is None) is not probabilities
        found.append([out, *([] if probs is None else [probs]), *torch.autograd.grad(out, leaves, dout)])
    for ours, wanted in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    if mask == "keys":
        assert not found[0][0][2].any()


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_rectangle_under_a_wider_mask(backend, probabilities):
    heads, mask = torch.randn(3, 3, 2, 7, 8).bfloat16(), _masks_of_rectangles()["square"]
    with ops.backend(backend):
        wide, narrow = (
            ops.attention_padded(*heads, m, probabilities=probabilities)[0] for m in (mask, mask.bfloat16())
        )
    assert torch.equal(wide, narrow)


def test_a_rectangle_under_a_mask_that_learns():
    mask = torch.randn(1, 2, 7, 7)
    gradients = []
    for backend in ("cpu", "reference"):
        learned = mask.clone().requires_grad_()
        torch.manual_seed(0)
        with ops.backend(backend):
            out, _ = ops.attention_padded(*torch.randn(3, 3, 2, 7, 8), learned, probabilities=False)
        gradients += torch.autograd.grad(out.square().sum(), learned)
    torch.testing.assert_close(*gradients)


def test_a_rectangle_with_rows_at_the_end_that_is_compiled():
    """transformers' masks have them: a row of the least numbers has the gradient of a uniform softmax."""
    mask = torch.zeros(3, 1, 7, 7)
    mask[1, :, 2:] = mask[1, ..., 2:] = torch.finfo(torch.float32).min
    given, found = torch.randn(3, 3, 2, 7, 8), []
    for backend in ("cpu", "reference"):
        leaves = [x.clone().requires_grad_() for x in given]

        def attend(q, k, v):
            return ops.attention_padded(q, k, v, mask, probabilities=False)[0]

        with ops.backend(backend):
            run = torch.compile(attend, backend="aot_eager", fullgraph=True) if backend == "cpu" else attend
            out = run(*leaves)
        found.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_the_least_number_is_not_infinite_in_float16():
    q, k, v = 3 * torch.randn(3, 1, 2, 4, 8)
    mask = torch.full((1, 1, 4, 4), torch.finfo(torch.float32).min)
    with ops.backend("cpu"), torch.autocast("cpu", torch.float16):
        out, _ = ops.attention_padded(q, k, v, mask, probabilities=False)
    torch.testing.assert_close(out.float(), v.mean(2, keepdim=True).expand_as(v), rtol=1e-2, atol=1e-2)


def test_a_rectangle_without_rows_has_gradients():
    q = torch.randn(0, 2, 4, 8, requires_grad=True)
    mask = torch.randn(0, 1, 4, 4, requires_grad=True)
    with ops.backend("cpu"):
        out, _ = ops.attention_padded(q, q, q, mask, probabilities=False)
        out.sum().backward()
    assert q.grad.shape == q.shape


def test_a_rectangle_of_bfloat16():
    q, k, v = torch.randn(3, 3, 2, 7, 8, dtype=torch.bfloat16)
    mask = _masks_of_rectangles()["keys"].bfloat16()
    with ops.backend("cpu"):
        out, _ = ops.attention_padded(q, k, v, mask, probabilities=False)
    exact, _ = reference.attention_padded(*(x.double() for x in (q, k, v)), mask.double())
    assert out.dtype == torch.bfloat16
    assert_close(out, exact, reference.attention_padded(q, k, v, mask)[0], what="rectangle")


def test_no_matrix_of_scores_is_made_where_nobody_wants_it(monkeypatch):
    monkeypatch.setattr(reference, "attention_padded", None)
    with ops.backend("cpu"):
        out, _ = ops.attention_padded(*torch.randn(3, 1, 2, 7, 8), torch.zeros(1, 1, 1, 7), probabilities=False)
    assert out.shape == (1, 2, 7, 8)
