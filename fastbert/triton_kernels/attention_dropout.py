"""The dropout's bits for attention's probabilities, drawn once into memory where several kernels or blocks need them.

The forward kernel and both backward kernels use the same bits. Drawing them in each kernel would take some 14
instructions a score, which would set the kernel's time, and an exchange between the threads that draw and those that
use them; reading a bit takes two. At 512 tokens, one bit of memory for each score is a thirtieth of what a layer keeps
for backward. The bits are those of `fastbert.reference.dropout`, as `common.keep_bits` makes them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import _philox, cdiv, kernel, own_block

# A row of bits is filled up to a multiple of so many columns, so that no tile of 16 to 128 keys reads past its end.
COLUMNS = 128
BLOCK_M, BLOCK_G = 64, 16  # rows, and groups of eight columns


@triton.jit
def _two(word, limit, bit: tl.constexpr):
    """The bits of a word's two columns, at ``bit`` and the place above: whether its low and its high half reach the
    threshold. The high half is compared with the low one still below it, which changes nothing.
    """
    low = ((word << 16) >= limit).to(tl.uint32)
    high = (word >= limit).to(tl.uint32)
    return (low << bit) | (high << (bit + 1))


@kernel
def _bits_kernel(
    bytes_ptr,  # (nheads, T, 16 bit_blocks) uint8
    cu_seqlens_ptr,  # (B + 1) int32
    rng_ptr,  # (2) int64
    bit_blocks,
    T,
    nheads,
    site,
    threshold,
    BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    head, start, length, first_row = own_block(cu_seqlens_ptr, BLOCK_M)
    if first_row >= length:
        return
    rows = first_row + tl.arange(0, BLOCK_M)
    seed, offset = tl.load(rng_ptr), tl.load(rng_ptr + 1)
    random_rows = ((start + rows) * nheads + head).to(tl.uint32)[:, None]
    limit = (threshold << 16).to(tl.uint32)
    bytes_ptr += (head.to(tl.int64) * T + start + rows)[:, None] * (16 * bit_blocks)
    for first in range(0, length, 8 * BLOCK_G):
        groups = first // 8 + tl.arange(0, BLOCK_G)[None, :]
        w0, w1, w2, w3 = _philox(seed, groups.to(tl.uint32), random_rows, site.to(tl.uint32), offset.to(tl.uint32))
        byte = _two(w0, limit, 0) | _two(w1, limit, 2) | _two(w2, limit, 4) | _two(w3, limit, 6)
        tl.store(bytes_ptr + groups, byte.to(tl.uint8), mask=(rows < length)[:, None])


@triton.jit
def load_keep(bits_ptr, rows, inside, first, bit_blocks, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(BLOCK_M, BLOCK_N) bool: which elements are kept, from column ``first`` on.

    Args:
        rows: (BLOCK_M) int64, counted through all heads.
        inside: which of them there are.
    """
    WIDTH: tl.constexpr = bits_ptr.dtype.element_ty.primitive_bitwidth
    words = first // WIDTH + tl.arange(0, BLOCK_N // WIDTH)
    # Multiplied here and not given as a stride: Triton knows that a product with a constant is a multiple of it.
    at = rows[:, None] * (bit_blocks * (128 // WIDTH)) + words[None, :]
    found = tl.load(bits_ptr + at, mask=inside[:, None], other=0)
    bits = (found[:, :, None] >> tl.arange(0, WIDTH)[None, None, :].to(found.dtype)) & 1
    return tl.reshape(bits, (BLOCK_M, BLOCK_N)) != 0


def draw(q: Tensor, bounds: list[Tensor], max_seqlen: int, rng: Tensor, site: int, threshold: int) -> Tensor:
    """-> (nheads, T, bytes) uint8 for q (T, nheads, head_dim): bit j of byte g of a row is for column 8 g + j. Bits
    past a sequence's last key are undefined.

    Args:
        bounds: of the sequences of each launch (`attention.launches`).
    """
    tokens, nheads = q.shape[:2]
    bits = torch.empty(nheads, tokens, cdiv(max_seqlen, COLUMNS) * (COLUMNS // 8), dtype=torch.uint8, device=q.device)
    for of_launch in bounds:
        _bits_kernel[(cdiv(max_seqlen, BLOCK_M), nheads, of_launch.numel() - 1)](
            *(bits, of_launch, rng, bits.shape[2] // 16, tokens, nheads, site, threshold),
            BLOCK_M=BLOCK_M,
            BLOCK_G=BLOCK_G,
            num_warps=4,
        )
    return bits


def words(bits: Tensor | None, columns: int, q: Tensor) -> tuple[Tensor, int]:
    """The bits in words as a kernel with tiles of ``columns`` keys reads them, and how many blocks of 128 columns a row
    has.
    """
    kind = torch.int32 if columns >= 32 else torch.int16
    if bits is None:
        return q.new_empty(0, dtype=kind), 0
    return bits.view(kind), bits.shape[2] // 16
