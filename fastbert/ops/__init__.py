"""The ops of BERT, one public contract each; `backend` chooses who computes them.

A file without a leading underscore is an op's contract: what it computes, shapes and dtypes, checks, and the reference
as its first implementation. The others are private:

    _cpu_*, _triton_*, _cuda_*        one op on one backend; _cpu, _triton and _cuda are shared by a backend's ops,
                                      _cublaslt calls cuBLASLt
    _dispatch                         the table (op, backend) -> implementation, and the choice for a call
    _define, _dropout_schema          kernels as torch ops, and a dropout as arguments of these
    _contract                         checks for calls of torch.ops.fastbert.*, which bypass the contracts
    _watchers                         whether anything observes torch's dispatcher
    _invariant, _invariant_mode       batch-invariant mode: its interface for ops, and the mode itself
    _graph_mode, _triton_replay       CUDA graphs in inference: whether they are wanted, and the graphs
    _recompute                        activation checkpointing under the settings of the first pass
    _in_place, _needed_gradients      backward passes: gradients added to .grad directly, and those that are not used
    _double_backward, _gradients      second derivatives: who computes them, and the gradients that torch differentiates
    _product_dtypes                   the dtypes of products, also under autocast
    _float32_products                 how exact a GPU's float32 products are
    _few_rows                         gradients of large tables, of which few rows are not zero
    _int8_weights                     int8 weights: packed, checked, unpacked
    _weight_cache                     packed weights, kept as long as the weight they were made from
"""

from ..reference.attention import relative_bias

# A kernel enters the dispatcher's table by being imported.
from . import (  # noqa: F401
    _cpu_attention,
    _cpu_attention_padded,
    _cpu_cross_entropy,
    _cpu_dropout,
    _cpu_embedding,
    _cpu_encoder,
    _cpu_fp8,
    _cpu_gelu,
    _cpu_int8,
    _cpu_layer_norm,
    _cpu_linear,
    _cpu_packing,
    _cuda_linear,
    _cuda_packing,
    _triton_attention,
    _triton_cross_entropy,
    _triton_dropout,
    _triton_embedding,
    _triton_encoder,
    _triton_fp8,
    _triton_gelu,
    _triton_layer_norm,
    _triton_linear,
    _triton_packing,
)
from ._cpu_int8 import int8_attention_dtype
from ._cpu_linear import has_two_parts, products_in_two_parts
from ._dispatch import backend, current_backend, is_fused, served
from ._double_backward import without_graph
from ._float32_products import float32_matmul_precision, use_float32_matmul_precision
from ._graph_mode import cuda_graphs
from ._in_place import gradients_in_place
from ._int8_weights import pack_int8, unpack_int8
from ._invariant import active as is_batch_invariant
from ._invariant import refuse as refuse_variant
from ._invariant_mode import batch_invariant
from ._recompute import checkpoint
from .attention import attention
from .attention_padded import attention_padded
from .cross_entropy import cross_entropy
from .dropout import dropout
from .embedding import embedding
from .encoder import LayerDropouts, LayerParameters, PackedEncoder, encoder, fused_encoder, is_int8, is_recorded
from .gelu import gelu
from .layer_norm import layer_norm
from .linear import linear
from .linear_fp8 import linear_fp8
from .linear_int8 import linear_int8
from .mlp import mlp
from .packing import RoomPacking, read_mask

__all__ = [
    "LayerDropouts",
    "LayerParameters",
    "PackedEncoder",
    "RoomPacking",
    "attention",
    "attention_padded",
    "backend",
    "batch_invariant",
    "checkpoint",
    "cross_entropy",
    "cuda_graphs",
    "current_backend",
    "dropout",
    "embedding",
    "encoder",
    "float32_matmul_precision",
    "fused_encoder",
    "gelu",
    "gradients_in_place",
    "has_two_parts",
    "int8_attention_dtype",
    "is_batch_invariant",
    "is_fused",
    "is_int8",
    "is_recorded",
    "layer_norm",
    "linear",
    "linear_fp8",
    "linear_int8",
    "mlp",
    "pack_int8",
    "products_in_two_parts",
    "read_mask",
    "refuse_variant",
    "relative_bias",
    "served",
    "unpack_int8",
    "use_float32_matmul_precision",
    "without_graph",
]
