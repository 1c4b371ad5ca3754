"""The fused embedding against the reference by the one rule, against its formula in numpy, at every level."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from close import assert_close
from levels import LEVELS, Guarded, at_level, threads

from fastbert import _native, ops, reference
from fastbert.errors import BackendError, InputError
from fastbert.ops import _cpu, _dropout_schema
from fastbert.rng import Dropout

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

DROPOUT = Dropout(p=0.2, seed=(0x77 << 45) + 3, offset=5, site=9)
NAMES = ("out", "dword", "dtoken_type", "dposition", "dweight", "dbias")
# (tokens, words, positions, columns): at and off vector widths, over the 1,024 columns whose keep bits are held at a
# time, over the 1,024 tokens up to which chunks have 16 rows, over the 32 rows that are added in one run.
SHAPES = [(1, 5, 3, 1), (7, 11, 9, 13), (37, 100, 40, 24), (300, 20, 12, 100), (130, 500, 64, 768), (9, 30, 10, 1100)]
SHAPES += [(1100, 3, 7, 16), (33, 40, 33, 63), (40, 6, 50, 65)]


@pytest.fixture(params=LEVELS)
def level(request):
    with at_level(request.param), ops.backend("cpu"):
        yield request.param


def ids_of(tokens, words, positions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(words, (tokens,), generator=generator)
    ids[: tokens // 3] = words // 2  # one word that many tokens read, as [MASK] is
    return ids, torch.randint(2, (tokens,), generator=generator), torch.arange(tokens) % positions


def tables_of(words, positions, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(n, columns, generator=generator) for n in (words, 2, positions)]
    return [*tables, 1 + 0.3 * torch.randn(columns, generator=generator), torch.randn(columns, generator=generator)]


def run(function, ids, leaves, dout, dtype, eps=1e-12, **options):
    """[output, gradients of the leaves] with everything in one dtype."""
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    out = function(*ids, *leaves, eps, **options)
    assert out.dtype == dtype
    return [out.detach(), *torch.autograd.grad(out, leaves, dout.to(dtype))]


@pytest.mark.parametrize("dropout", [None, DROPOUT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(level, shape, dtype, dropout):
    tokens, words, positions, columns = shape
    draws = []
    # A rounding error is a matter of luck where there are few elements: tiny shapes are judged together.
    for seed in range(max(1, 120 // (tokens * columns))):
        ids, leaves = ids_of(tokens, words, positions, seed), tables_of(words, positions, columns, seed)
        leaves, dout = [leaf.to(dtype) for leaf in leaves], torch.randn(tokens, columns).to(dtype)
        options = {"padding_idx": words // 3, "dropout": dropout}
        draws.append(
            [
                run(f, ids, leaves, dout, d, **options)
                for f, d in ((ops.embedding, dtype), (reference.embedding, torch.float64), (reference.embedding, dtype))
            ]
        )
    for i, name in enumerate(NAMES):
        got, truth, same = (torch.cat([draw[k][i].reshape(-1) for draw in draws]) for k in range(3))
        assert_close(got, truth, same, gradient=i > 0, what=name)


def by_hand(ids, leaves, dout, eps):
    """The formulas of Ba et al. 2016 (section 3) and their derivative, in numpy's float64, row by row."""
    ids, tables = [i.numpy() for i in ids], [t.double().numpy() for t in leaves[:3]]
    weight, bias, dout = (t.double().numpy() for t in (*leaves[3:], dout))
    out, gradients = np.zeros_like(dout), [np.zeros_like(t) for t in tables] + [np.zeros_like(weight) for _ in range(2)]
    for t in range(len(dout)):
        z = sum(table[i[t]] for table, i in zip(tables, ids, strict=True))
        deviation = np.sqrt(((z - z.mean()) ** 2).mean() + eps)
        normal = (z - z.mean()) / deviation
        out[t] = normal * weight + bias
        g = dout[t] * weight
        dz = (g - g.mean() - normal * (g * normal).mean()) / deviation
        for gradient, i in zip(gradients[:3], ids, strict=True):
            gradient[i[t]] += dz
        gradients[3] += dout[t] * normal
        gradients[4] += dout[t]
    return [out, *gradients]


@pytest.mark.parametrize("eps", [1e-12, 0.5])  # beside a variance of 3 the first is lost
def test_against_the_formula(level, eps):
    ids, leaves, dout = ids_of(29, 13, 10), tables_of(13, 10, 21), torch.randn(29, 21)
    got = run(ops.embedding, ids, leaves, dout, torch.float32, eps)
    same = run(reference.embedding, ids, leaves, dout, torch.float32, eps)
    for name, a, b, c in zip(NAMES, got, by_hand(ids, leaves, dout, eps), same, strict=True):
        assert_close(a, torch.from_numpy(b), c, gradient=name != "out", what=name)


def test_the_mask_is_that_of_the_token_and_the_column(level):
    ids, leaves = ids_of(50, 9, 8), tables_of(9, 8, 40)
    out = ops.embedding(*ids, *leaves, 1e-12, dropout=DROPOUT)
    keep = reference.keep_mask(torch.arange(50), 40, DROPOUT)
    plain = ops.embedding(*ids, *leaves, 1e-12)
    scale = torch.tensor(DROPOUT.scale, dtype=torch.float32)
    torch.testing.assert_close(out, torch.where(keep, plain * scale, torch.zeros(())), rtol=1e-6, atol=0.0)
    assert not out[~keep].any()


@pytest.mark.parametrize("padding_idx", [None, 0, 4, -1])
def test_rows_that_nobody_read_and_the_padding_row_have_no_gradient(level, padding_idx):
    ids, leaves = ids_of(20, 9, 30), tables_of(12, 30, 17)
    ids[0][3:6] = torch.tensor([0, 11, 4])
    _, dword, _, dposition, *_ = run(
        ops.embedding, ids, leaves, torch.randn(20, 17), torch.float32, padding_idx=padding_idx
    )
    read = set(ids[0].tolist()) - ({padding_idx % 12} if padding_idx is not None else set())
    assert [bool(row.any()) for row in dword] == [i in read for i in range(12)]
    assert not dposition[20:].any()
    assert dposition[:20].any(dim=1).all()


def test_frozen_tables(level):
    ids, leaves = ids_of(20, 9, 30), tables_of(9, 30, 17)
    whole = run(ops.embedding, ids, leaves, torch.ones(20, 17), torch.float32)
    for free in range(5):
        mine = [leaf.clone().requires_grad_(i == free) for i, leaf in enumerate(leaves)]
        ops.embedding(*ids, *mine, 1e-12).sum().backward()
        assert [leaf.grad is not None for leaf in mine] == [i == free for i in range(5)]
        assert torch.equal(mine[free].grad, whole[1 + free])


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("where", ["above", "below"])
def test_an_id_out_of_range_is_the_error_of_the_reference(level, which, where):
    ids, leaves = [i.clone() for i in ids_of(20, 9, 30)], tables_of(9, 30, 17)
    ids[which][13] = len(leaves[which]) if where == "above" else -1
    messages = []
    for function in (ops.embedding, reference.embedding):
        with pytest.raises(IndexError) as error:
            function(*ids, *leaves, 1e-12)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_bits_do_not_depend_on_threads_or_repetition(level):
    ids, leaves, dout = ids_of(1300, 700, 128), tables_of(700, 128, 200), torch.randn(1300, 200)
    with threads(1):
        once = run(ops.embedding, ids, leaves, dout, torch.float32, padding_idx=0, dropout=DROPOUT)
    for count in (1, 2, 3, 4):
        with threads(count):
            again = run(ops.embedding, ids, leaves, dout, torch.float32, padding_idx=0, dropout=DROPOUT)
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_levels_agree():
    ids, leaves, dout = ids_of(60, 20, 16), tables_of(20, 16, 200), torch.randn(60, 200)
    results = []
    for name in LEVELS:
        with at_level(name), ops.backend("cpu"):
            results.append(run(ops.embedding, ids, leaves, dout, torch.float32, dropout=DROPOUT))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 17, 100])
def test_nothing_is_written_beside_the_results(level, columns, dtype):
    ids, guarded = ids_of(37, 11, 8), Guarded()
    leaves = [guarded(t.to(dtype) if i < 3 else t) for i, t in enumerate(tables_of(11, 8, columns))]
    ids = [guarded(i) for i in ids]
    native, dropout = _native.extension(), _cpu.native_dropout(*_dropout_schema.arguments(DROPOUT))
    out, dout = (guarded(torch.randn(37, columns).to(dtype)) for _ in range(2))
    sums = [guarded(torch.zeros(37, columns)), guarded(torch.zeros(37)), guarded(torch.zeros(37))]
    sums = [t.data_ptr() for t in sums]
    at = [t.data_ptr() for t in leaves]
    where = ([i.data_ptr() for i in ids], at[:3], [11, 2, 8])
    bad = native.embedding_forward(_cpu.code(out), *where, *at[3:], 1e-12, dropout, out.data_ptr(), *sums, 37, columns)
    assert bad == -1
    dtables = [guarded(torch.zeros_like(t)) for t in leaves[:3]]
    rest = [guarded(torch.zeros(columns)), guarded(torch.zeros(columns))]
    rest += [guarded(torch.zeros(native.reduction_chunks(37) * 2 * columns)), guarded(torch.zeros(37 * columns))]
    rest += [guarded(torch.zeros(37 + 11 + 1, dtype=torch.int32))]
    native.embedding_backward(
        _cpu.code(dout), dout.data_ptr(), where[0], where[2], at[3], dropout, *sums,
        [t.data_ptr() for t in dtables], -1, *(t.data_ptr() for t in rest), 37, columns,
    )  # fmt: skip
    guarded.check()
    expected = run(ops.embedding, ids, leaves, dout, dtype, dropout=DROPOUT) if dtype == torch.float32 else None
    if expected:
        assert torch.equal(out, expected[0])
        assert all(torch.equal(a, b) for a, b in zip((*dtables, *rest[:2]), expected[1:], strict=True))


def test_narrow_ids_strided_tensors_and_no_tokens(level):
    ids, leaves = ids_of(20, 9, 30), tables_of(9, 30, 34)
    expected = ops.embedding(*ids, *[t[..., ::2].contiguous() for t in leaves], 1e-12)
    strided = [torch.stack([i, i + 5], dim=1)[:, 0] for i in ids]
    assert torch.equal(ops.embedding(*strided, *[t[..., ::2] for t in leaves], 1e-12), expected)
    narrow = [i.to(torch.int32) for i in ids]
    assert torch.equal(ops.embedding(*narrow, *[t[..., ::2] for t in leaves], 1e-12), expected)
    none = [torch.empty(0, dtype=torch.int64)] * 3
    got = run(ops.embedding, none, leaves, torch.empty(0, 34), torch.float32)
    assert got[0].shape == (0, 34)
    assert all(not g.any() for g in got[1:])


def test_what_the_kernel_refuses():
    ids, leaves = ids_of(4, 9, 30), tables_of(9, 30, 8)
    with ops.backend("cpu"):
        with pytest.raises(BackendError, match="float64"):
            ops.embedding(*ids, *[t.double() for t in leaves], 1e-12)
        with pytest.raises(BackendError, match="int64 ids, got float32"):
            ops.embedding(ids[0].float(), *ids[1:], *leaves, 1e-12)
        with pytest.raises(BackendError, match="one dtype"):
            ops.embedding(*ids, leaves[0].bfloat16(), *leaves[1:], 1e-12)


@pytest.mark.parametrize(("which", "said"), [(1, "one width H"), (2, "one width H"), (3, "weight"), (4, "bias")])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_nothing_is_read_beyond_a_narrower_table(backend, which, said):
    ids, leaves = ids_of(4, 9, 30), tables_of(9, 30, 8)
    leaves[which] = leaves[which][..., :4].contiguous()
    with ops.backend(backend), pytest.raises(InputError, match=said):
        ops.embedding(*ids, *leaves, 1e-12)


@pytest.mark.parametrize("which", [3, 4])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_norm_without_weight_or_bias_is_refused(backend, which):
    ids, leaves = ids_of(4, 9, 30), tables_of(9, 30, 8)
    leaves[which] = None
    with ops.backend(backend):
        with pytest.raises(InputError, match=r"must have shape \(8,\), got None"):
            ops.embedding(*ids, *leaves, 1e-12)
        with pytest.raises(InputError, match=r"must have shape \(8,\), got None"):
            ops.layer_norm(torch.randn(4, 8), *leaves[3:], 1e-12)


def test_opcheck():
    ids, leaves = ids_of(6, 9, 30), [t.requires_grad_() for t in tables_of(9, 30, 20)]
    arguments = (*ids, *leaves, 1e-12, 0, 13107, 11, 4, 2, None, True)
    results = torch.library.opcheck(torch.ops.fastbert.embedding, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("write", ["in place", "data"])
def test_tables_may_change_between_forward_and_backward(dtype, write):
    """An adversarial loss is computed with changed words, which are themselves again when both losses have their
    backward pass; as torch's, the gradient is the one at the words of the forward pass, to the bit."""
    ids, leaves, dout = ids_of(20, 9, 30), tables_of(9, 30, 34), torch.randn(20, 34).to(dtype)
    expected = run(ops.embedding, ids, leaves, dout, dtype, padding_idx=1, dropout=DROPOUT)[1:]
    leaves = [t.to(dtype).requires_grad_() for t in leaves]
    out = ops.embedding(*ids, *leaves, 1e-12, padding_idx=1, dropout=DROPOUT)
    with torch.no_grad():
        for table in leaves[:3]:
            (table.data if write == "data" else table).mul_(3).add_(1)
    found = torch.autograd.grad(out, leaves, dout)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
