"""One layer of the bidirectional post-LN Transformer encoder (Vaswani et al. 2017, section 3; Devlin et al. 2019).

    a = LN(x + dropout(W_o attention(W_q x, W_k x, W_v x)))        y = LN(a + dropout(W_2 gelu(W_1 a)))

Hidden states are (T, H), one row a token. The modules and their names are Hugging Face's.
"""

from __future__ import annotations

from torch import Tensor, nn

from .. import ops
from ..config import BertConfig
from ..rng import FIRST_LAYER_SITE, LAYER_SITES, Dropout, DropoutKey
from .layout import Layout, PackedLayout
from .linear import apply_gelu, apply_linear, is_plain, is_watched, split_bias
from .norm import apply_norm
from .quantized_linear import QuantizedLinear


class BertSelfAttention(nn.Module):
    """Queries, keys and values of every token, and attention as the layout has it (Vaswani et al. 2017, 3.2.2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.head_dim
        size = config.hidden_size
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)

    def forward(self, x: Tensor, layout: Layout, dropout: Dropout | None) -> tuple[Tensor, Tensor | None]:
        """x (T, H) -> context (T, H), and the probabilities where the layout keeps them."""
        heads = (self.num_attention_heads, self.attention_head_size)
        linears = (self.query, self.key, self.value)
        q, k, v = (apply_linear(linear, x).unflatten(-1, heads) for linear in linears)
        if type(layout) is PackedLayout and all(type(linear) is QuantizedLinear for linear in linears):
            dtype = ops.int8_attention_dtype(x)
            context, probs = layout.attend(q.to(dtype), k.to(dtype), v.to(dtype), dropout)
            return context.flatten(-2).to(x.dtype), probs
        context, probs = layout.attend(q, k, v, dropout)
        return context.flatten(-2), probs


class ResidualOutput(nn.Module):
    """LN(residual + dropout(W x + b)): what ends both branches of a layer."""

    def __init__(self, in_features: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor, dropout: Dropout | None) -> Tensor:
        """x (T, F), residual (T, H) -> (T, H)."""
        return self.normalise(*split_bias(self.dense, x), residual, dropout)

    def normalise(self, x: Tensor, bias: Tensor | None, residual: Tensor, dropout: Dropout | None) -> Tensor:
        """What follows the dense layer, whose bias may still be missing from x."""
        return apply_norm(self.LayerNorm, x, x_bias=bias, residual=residual, dropout=dropout)


class BertAttention(nn.Module):
    """The first branch of a layer: attention and its `ResidualOutput`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = ResidualOutput(config.hidden_size, config)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        dropouts: tuple[Dropout | None, Dropout | None],
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x (T, H) -> LN(x + attention) (T, H), or (R, H) of the ``rows`` alone, and the probabilities where the layout
        keeps them. ``dropouts`` are the probabilities' and the branch's."""
        on_probs, on_output = dropouts
        context, probs = self.self(x, layout, on_probs)
        if rows is not None:
            context, x = context.index_select(0, rows), x.index_select(0, rows)
        return self.output(context, x, on_output), probs


class BertIntermediate(nn.Module):
    """gelu(W x + b)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.approximate = config.gelu_approximate

    def forward(self, x: Tensor) -> Tensor:
        """(T, H) -> (T, F)."""
        return apply_gelu(self.dense, x, self.approximate)


class BertLayer(nn.Module):
    """Layer number ``index`` of the stack."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        self.config = config
        self.index = index
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        key: DropoutKey | None,
        rows: Tensor | None = None,
        rates: tuple[float, float, float] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x (T, H) -> (T, H), and attention probabilities where the layout keeps them.

        ``key`` names the random numbers of this forward pass; it is an argument, so recomputing the layer for the
        backward pass drops the same elements. So are the ``rates``, the layer's own by default: they follow the modes
        of its parts, which may change before the backward pass. With ``rows`` (R,) int64 only these tokens are computed
        beyond the attention, and (R, H) comes back; all tokens are attended to.
        """
        on_probs, on_attention, on_output = self.dropouts(key, rates)
        x, probs = self.attention(x, layout, (on_probs, on_attention), rows)
        given = self._feed_forward(x)
        if given is not None and ops.is_fused("mlp", *given):
            return self.output.normalise(ops.mlp(*given), self.output.dense.bias, x, on_output), probs
        return self.output(self.intermediate(x), x, on_output), probs

    @property
    def rates(self) -> tuple[float, float, float]:
        """Dropout of the attention's probabilities, of its branch and of the feed-forward one; 0 where the part that
        drops is in evaluation mode, as in a layer that is frozen."""
        of_probs, of_hidden = self.config.attention_probs_dropout_prob, self.config.hidden_dropout_prob
        attention = self.attention
        return (
            of_probs if attention.self.training else 0.0,
            of_hidden if attention.output.training else 0.0,
            of_hidden if self.output.training else 0.0,
        )

    def dropouts(self, key: DropoutKey | None, rates: tuple[float, float, float] | None = None) -> ops.LayerDropouts:
        """Where in the random stream this layer's dropouts are; ``rates`` as `forward` takes them."""
        if key is None:
            return None, None, None
        site = FIRST_LAYER_SITE + LAYER_SITES * self.index
        on_probs, on_attention, on_output = self.rates if rates is None else rates
        return key.site(on_probs, site), key.site(on_attention, site + 1), key.site(on_output, site + 2)

    def _feed_forward(self, x: Tensor) -> tuple | None:
        """What `ops.mlp` takes, or None where the block is not what it was built as."""
        parts = (self.intermediate, self.output)
        built = type(self.intermediate) is BertIntermediate and type(self.output) is ResidualOutput
        if not built or any(is_watched(part) or not is_plain(part.dense) for part in parts):
            return None
        up, down = (part.dense for part in parts)
        return x, up.weight, up.bias, down.weight, self.intermediate.approximate
