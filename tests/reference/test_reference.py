"""The reference ops against published values, hand-worked numbers, independent formulas and numerical gradients."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from fastbert import ops, reference
from fastbert.errors import InputError
from fastbert.packing import PackedBatch, Packing
from fastbert.rng import DropoutKey


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers published with Random123 (Salmon et al. 2011), kat_vectors, philox4x32 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    words = reference.philox_4x32(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in words) == expected


def test_keep_mask_mapping_of_bits_to_elements():
    """Row r, column c takes 16-bit half c % 8, low half first, of the words at counter (c // 8, r, site, offset)."""
    dropout = DropoutKey(seed=(7 << 32) | 5, offset=11).site(0.25, 3)
    mask = reference.keep_mask(torch.tensor([0, 9]), 13, dropout)
    for row_index, row in enumerate((0, 9)):
        for column in range(13):
            counter = tuple(torch.tensor([value]) for value in (column // 8, row, 3, 11))
            words = [int(word) for word in reference.philox_4x32(counter, (5, 7))]
            half = (words[(column % 8) // 2] >> (16 * (column % 2))) & 0xFFFF
            assert bool(mask[row_index, column]) == (half >= 16384)


def test_dropout_share_scale_and_purity():
    x = torch.ones(4000, 96)
    dropout = DropoutKey(1234, 5).site(0.1, 2)
    y = ops.dropout(x, dropout)
    assert abs((y == 0).double().mean().item() - 0.1) < 0.002  # 4 standard deviations are 0.002
    assert torch.equal(y, ops.dropout(x, dropout))
    assert y.unique().tolist() == pytest.approx([0.0, 65536 / (65536 - 6554)])
    for other in (DropoutKey(1234, 6).site(0.1, 2), DropoutKey(1234, 5).site(0.1, 3), DropoutKey(1235, 5).site(0.1, 2)):
        agree = ((ops.dropout(x, other) == 0) == (y == 0)).double().mean().item()
        assert abs(agree - 0.82) < 0.005  # independent masks agree where both keep or both drop
    assert DropoutKey(1).site(0.0, 1) is None
    with pytest.raises(InputError, match=r"between 0 and 1, got 1\.5"):
        DropoutKey(1).site(1.5, 1)


def test_gelu_hand_worked():
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    phi = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in (-0.5, 0.5, 2.5)]
    expected = torch.tensor([-0.5 * phi[0], 0.5 * phi[1], 2.5 * phi[2]], dtype=torch.float64)
    torch.testing.assert_close(ops.gelu(x, torch.full((3,), 0.5, dtype=torch.float64)), expected, rtol=1e-14, atol=0)
    tanh = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in (-1.0, 0.0, 2.0)]
    torch.testing.assert_close(ops.gelu(x, None, "tanh"), torch.tensor(tanh, dtype=torch.float64), rtol=1e-14, atol=0)
    with pytest.raises(InputError, match="fast"):
        ops.gelu(x, None, "fast")


def test_layer_norm_hand_worked():
    # residual + x + x_bias = (1, 3, 5, 7): mean 4, variance 5.
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    residual = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    y = ops.layer_norm(x, 2 * ones, 3 * ones, 0.0, x_bias=ones, residual=residual)
    expected = 3 + 2 * torch.tensor([[-3.0, -1.0, 1.0, 3.0]], dtype=torch.float64) / math.sqrt(5)
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=1e-14)


def _attention_numpy(q, k, v, bounds, causal, keep=None, scale=1.0):
    """Token by token and head by head, in plain loops."""
    out = np.zeros_like(q)
    _, nheads, head_dim = q.shape
    for start, end in pairwise(bounds):
        for t in range(start, end):
            last = t + 1 if causal else end
            for h in range(nheads):
                scores = np.array([q[t, h] @ k[j, h] for j in range(start, last)]) / math.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                if keep is not None:
                    weights = weights * keep(t * nheads + h, last - start) * scale
                out[t, h] = weights @ v[start:last, h]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("bounds", [[0, 1], [0, 5, 5, 10, 17], [0, 4, 8], [0, 0, 3]])
def test_attention_against_loops(bounds, p, causal):
    q, k, v = torch.randn(3, bounds[-1], 2, 8, dtype=torch.float64)
    dropout = DropoutKey(3, 1).site(p, 4)

    def keep(row, columns):
        return reference.keep_mask(torch.tensor([row]), columns, dropout)[0].numpy()

    expected = _attention_numpy(
        q.numpy(), k.numpy(), v.numpy(), bounds, causal, keep if dropout else None, dropout.scale if dropout else 1.0
    )
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    with ops.backend("reference"):
        out = ops.attention(q, k, v, cu_seqlens, 17, dropout=dropout, causal=causal)
    torch.testing.assert_close(out, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_attention_packed_equals_padded():
    q, k, v = torch.randn(3, 6, 2, 4, dtype=torch.float64)
    bounds = torch.tensor([0, 4, 6], dtype=torch.int32)
    packed = reference.attention(q, k, v, bounds, 4)
    padded = torch.zeros(3, 2, 2, 4, 4, dtype=torch.float64)
    for b, (start, end) in enumerate(((0, 4), (4, 6))):
        for i, x in enumerate((q, k, v)):
            padded[i, b, :, : end - start] = x[start:end].transpose(0, 1)
    mask = torch.tensor([[0.0] * 4, [0.0, 0.0, -math.inf, -math.inf]], dtype=torch.float64)[:, None, None]
    out, probs = reference.attention_padded(*padded, mask)
    torch.testing.assert_close(out[0].transpose(0, 1), packed[:4])
    torch.testing.assert_close(out[1, :, :2].transpose(0, 1), packed[4:])
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, 2, 4, dtype=torch.float64))
    empty, _ = reference.attention_padded(*padded, torch.full((2, 1, 1, 4), -math.inf, dtype=torch.float64))
    assert torch.equal(empty, torch.zeros_like(empty))


def test_tokens_of_no_sequence_give_zeros_and_get_them():
    q, k, v = (torch.full((3, 2, 4), math.inf, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 5, requires_grad=True)
    out = reference.attention(q, k, v, torch.zeros(2, dtype=torch.int32), 0, bias=bias)
    assert torch.equal(out, torch.zeros(3, 2, 4))
    for gradient in torch.autograd.grad(out.sum(), [q, k, v, bias]):
        assert not gradient.any()


@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(torch.float16).min])
def test_a_row_without_keys_has_finite_results_and_gradients(lowest):
    # In float16 a negative score beside the lowest number is -inf, for every key of the row.
    q = torch.full((1, 1, 2, 4), -8.0, dtype=torch.float16, requires_grad=True)
    k = torch.full((1, 1, 2, 4), 8.0, dtype=torch.float16, requires_grad=True)
    mask = torch.tensor([[0.0, 0.0], [lowest, lowest]], dtype=torch.float16)[None, None]
    out, probs = reference.attention_padded(q, k, torch.ones_like(k), mask)
    assert torch.equal(probs[0, 0, 0], torch.tensor([0.5, 0.5], dtype=torch.float16))
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, probs, q.grad, k.grad))


def test_cross_entropy_hand_worked():
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([1, 0, -100])
    expected = [math.log(4 / 3), math.log(2), 0.0]
    torch.testing.assert_close(
        ops.cross_entropy(logits, labels, reduction="none"), torch.tensor(expected, dtype=torch.float64)
    )
    assert ops.cross_entropy(logits, labels).item() == pytest.approx(sum(expected) / 2)
    with pytest.raises(InputError, match=r"\(3, 2\) and \(2,\)"):
        ops.cross_entropy(logits, labels[:2])


def _leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradients_numerically():
    """Every reference op, every floating input, in float64, with dropout on."""
    dropout = DropoutKey(9, 2).site(0.4, 1)
    check = torch.autograd.gradcheck
    cu_seqlens = torch.tensor([0, 3, 3, 4], dtype=torch.int32)
    qkv = [_leaf(4, 2, 2) for _ in range(3)]
    for causal in (False, True):
        assert check(
            lambda q, k, v, c=causal: reference.attention(q, k, v, cu_seqlens, 3, dropout=dropout, causal=c), qkv
        )
    mask = torch.tensor([0.0, 0.0, -1e4], dtype=torch.float64)
    assert check(lambda q, k, v: reference.attention_padded(q, k, v, mask, dropout=dropout)[0], [_leaf(2, 2, 3, 2)] * 3)
    for approximate in ("none", "tanh"):
        assert check(lambda x, b, a=approximate: reference.gelu(x, b, a), [_leaf(4, 3), _leaf(3)])
    assert check(
        lambda x, w, b, xb, r: reference.layer_norm(x, w, b, 1e-5, x_bias=xb, residual=r, dropout=dropout),
        [_leaf(4, 5), _leaf(5), _leaf(5), _leaf(5), _leaf(4, 5)],
    )
    ids = torch.tensor([0, 2, 2, 1])
    assert check(
        lambda *tables: reference.embedding(ids, ids % 2, torch.arange(4), *tables, 1e-5, dropout=dropout),
        [_leaf(3, 4), _leaf(2, 4), _leaf(4, 4), _leaf(4), _leaf(4)],
    )
    assert check(lambda x: reference.cross_entropy(x, torch.tensor([0, -100, 2])), [_leaf(3, 4)])
    assert check(reference.linear, [_leaf(3, 4), _leaf(2, 4), _leaf(2)])


def test_embedding_padding_row_gets_no_gradient():
    word = _leaf(3, 4)
    ids = torch.tensor([0, 1])
    one, zero = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    out = ops.embedding(ids, ids, ids, word, _leaf(2, 4), _leaf(2, 4), one, zero, 1e-5, padding_idx=0)
    (out * torch.randn_like(out)).sum().backward()
    assert torch.equal(word.grad[0], zero)
    assert word.grad[1].abs().max() > 0


def test_packing_round_trip_with_holes():
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
    packing = Packing.from_mask(mask)
    assert packing.cu_seqlens.tolist() == [0, 3, 3, 5]
    assert (packing.max_seqlen, packing.cu_seqlens.dtype) == (3, torch.int32)
    x = torch.arange(12.0).reshape(3, 4)
    assert packing.pack(x).tolist() == [0.0, 2.0, 3.0, 9.0, 10.0]
    assert torch.equal(packing.unpack(packing.pack(x)), x * mask)
    full = Packing.full(3, 4)
    assert full.cu_seqlens.tolist() == Packing.from_mask(torch.ones(3, 4)).cu_seqlens.tolist()
    with pytest.raises(InputError, match=r"\(3, 1, 4\)"):
        Packing.from_mask(mask[:, None])


def test_packed_batch_from_sequences():
    batch = PackedBatch.from_sequences([[5, 6, 7], [], [8]], [[0, 0, 1], [], [1]])
    assert batch.input_ids.tolist() == [5, 6, 7, 8]
    assert batch.token_type_ids.tolist() == [0, 0, 1, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 0]
    assert batch.cu_seqlens.tolist() == [0, 3, 3, 4]
    assert (batch.num_tokens, batch.num_sequences, batch.max_seqlen) == (4, 3, 3)
    for ids, types in (([[1, 2]], [[0]]), ([[1, 2], [3]], [[0], [0, 1]])):
        with pytest.raises(InputError, match="lengths of input_ids, row for row"):
            PackedBatch.from_sequences(ids, types)
