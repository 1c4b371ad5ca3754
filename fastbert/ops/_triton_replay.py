"""The encoder in inference as CUDA graphs, one for each of a few shapes of batches (`cuda_graphs`).

A batch is copied to the buffer that its shape's graph reads, and its result is copied out. The batch is padded to the
shape's number of tokens with rows that an earlier batch has left in the buffer. These are separate sequences, so they
do not affect other rows. The number of sequences is padded to a power of two; most of these sequences are empty.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from ..graph_capture import LEAST_TOKENS, Replay, on_stream, rounded_length, rounded_up, token_unit

# T * H * H of the largest batch that is replayed: with more, an H200 takes longer for a layer than the host for its
# launches (0.2 ms), so a graph would gain nothing and the padding would cost 4 %. Calculated, not measured.
MOST_WORK = 4e9
# The tokens of the largest batch that is replayed; each stream has two buffers with this many rows.
MOST_TOKENS = 16384
# The number of the pass of a shape that is captured: a capture takes the host as long as several passes.
CAPTURED_PASS = 4
# The most shapes whose graphs, of some megabytes each, are kept; the least recently used is removed first.
MOST_SHAPES = 64

# (x, cu_seqlens, max_seqlen) -> the last hidden state, in the shape of x.
Compute = Callable[[Tensor, Tensor, int], Tensor]


class _Shape:
    """One shape of batches, and the buffers that its passes read and write.

    Args:
        x, out: (T, H).
        sequences: B.
        max_seqlen: the length of the longest sequence that may occur.

    Attributes:
        replay: the graph of its pass, or None until it is captured.
        passes: how many passes there were.
    """

    def __init__(self, x: Tensor, out: Tensor, sequences: int, max_seqlen: int) -> None:
        self._x, self._out, self._max_seqlen = x, out, max_seqlen
        self.replay: Replay | None = None
        with torch.inference_mode(False):  # later passes may be outside of inference mode
            self._bounds = torch.zeros(sequences + 1, dtype=torch.int32, device=x.device)
            self._added = torch.arange(1, sequences + 2, dtype=torch.int32, device=x.device) * max_seqlen
        self.passes = 0

    def run(self, x: Tensor, cu_seqlens: Tensor, compute: Compute, stream: torch.cuda.Stream | None) -> Tensor:
        """One pass of a batch that has at most this shape."""
        tokens, bounds = len(x), len(cu_seqlens)
        self._x[:tokens].copy_(x)
        self._bounds[:bounds].copy_(cu_seqlens)
        added = self._bounds[bounds:]
        torch.add(self._added[: len(added)], tokens, out=added).clamp_(max=len(self._x))

        def kernels() -> None:
            self._out.copy_(compute(self._x, self._bounds, self._max_seqlen))

        self.passes += 1
        if self.replay is not None:
            self.replay(kernels)
        elif stream is None:
            kernels()
        else:
            with on_stream(stream):
                kernels()
        return self._out[:tokens].clone()


class _Stream:
    """The shapes used on one stream. They share their memory, since passes on a stream follow one another."""

    def __init__(self, x: Tensor) -> None:
        hidden = x.shape[1]
        rows = min(MOST_TOKENS, int(MOST_WORK / hidden**2))
        rows = rounded_up(rows, token_unit(rows, LEAST_TOKENS))
        with torch.inference_mode(False):
            self._x = torch.zeros(rows, hidden, dtype=x.dtype, device=x.device)
            self._out = torch.empty_like(self._x)
        self._side = torch.cuda.Stream(x.device) if x.is_cuda else None
        self._shapes: OrderedDict[Hashable, _Shape] = OrderedDict()

    def run(self, x: Tensor, cu_seqlens: Tensor, max_seqlen: int, about: Hashable, compute: Compute) -> Tensor:
        unit = token_unit(len(x), LEAST_TOKENS)
        tokens = rounded_up(len(x), unit)
        longest = rounded_length(max_seqlen, max(max_seqlen, MOST_TOKENS))
        sequences = max(8, 1 << (len(cu_seqlens) - 2 + -(-unit // longest)).bit_length())
        key = (tokens, sequences, longest, about)
        if key not in self._shapes:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.popitem(last=False)
            self._shapes[key] = _Shape(self._x[:tokens], self._out[:tokens], sequences, longest)
        self._shapes.move_to_end(key)
        shape = self._shapes[key]
        if self._side is not None and shape.replay is None and shape.passes >= CAPTURED_PASS - 1:
            # Torch refuses a pool of which all graphs were removed.
            if all(other.replay is None for other in self._shapes.values()):
                self._pool = torch.cuda.graph_pool_handle()
            shape.replay = Replay(self._side, self._pool, make_room=False)
        return shape.run(x, cu_seqlens, compute, self._side)


class EncoderReplays:
    """The graphs of one encoder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._weights: list[tuple] = []  # where and how the weights lay that the graphs read
        self._streams: dict[Hashable, _Stream] = {}

    def run(
        self,
        x: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        weights: Sequence[Tensor],
        about: Hashable,
        compute: Compute,
    ) -> Tensor | None:
        """The last hidden state, a new tensor (T, H), or None if this batch is to be computed without a graph.

        Args:
            x: (T, H) contiguous, in the dtype of the products.
            cu_seqlens: (B+1,) int32, on the same device.
            max_seqlen: the length of the longest sequence.
            weights: all tensors that ``compute`` reads besides its arguments.
            about: everything else that decides which kernels it launches.
            compute: launches the kernels, without waiting for the device.
        """
        if not _is_worth_it(x, cu_seqlens) or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        # A graph sees new values of weights, but not that one has moved or has another layout, as a view at the same
        # address has. For BERT-base this takes 70 microseconds, of which the addresses alone are 20.
        found = [(w.data_ptr(), w.dtype, w.shape, w.stride()) for w in weights]
        key = (x.dtype, torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None)
        with self._lock, torch.cuda.device(x.get_device()):  # -1 (the CPU) changes nothing
            if found != self._weights:
                self._weights, self._streams = found, {}
            if key not in self._streams:
                self._streams[key] = _Stream(x)
            return self._streams[key].run(x, cu_seqlens, max_seqlen, (about, _product_settings()), compute)


def _is_worth_it(x: Tensor, cu_seqlens: Tensor) -> bool:
    tokens, hidden = x.shape
    return 0 < tokens <= MOST_TOKENS and tokens * hidden**2 <= MOST_WORK and len(cu_seqlens) > 1


def _product_settings() -> tuple:
    """Torch's settings that choose a product's kernel."""
    matmul = torch.backends.cuda.matmul
    in_fp16 = getattr(matmul, "allow_fp16_accumulation", False)  # from torch 2.7 on
    # From torch 2.9 on, allow_tf32 cannot be read once fp32_precision was set.
    precision = matmul.fp32_precision if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
    reduced = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    return precision, in_fp16, *reduced
