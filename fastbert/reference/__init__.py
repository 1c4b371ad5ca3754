"""Every op in plain torch, for any floating dtype including float64: the truth that kernels are held to.

Nothing here imports anything else of fastbert. Statistics and softmax are computed in float32 at least; results have
the dtype of the first argument.
"""

from .attention import attention, attention_padded
from .cross_entropy import cross_entropy
from .dropout import dropout, keep_mask, philox_4x32
from .embedding import embedding
from .encoder import Steps, encoder
from .gelu import gelu
from .layer_norm import layer_norm
from .linear import linear
from .linear_fp8 import dequantize_fp8, linear_fp8, quantize_fp8
from .linear_int8 import linear_int8

__all__ = [
    "Steps",
    "attention",
    "attention_padded",
    "cross_entropy",
    "dequantize_fp8",
    "dropout",
    "embedding",
    "encoder",
    "gelu",
    "keep_mask",
    "layer_norm",
    "linear",
    "linear_fp8",
    "linear_int8",
    "philox_4x32",
    "quantize_fp8",
]
