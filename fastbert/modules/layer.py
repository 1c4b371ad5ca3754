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
from .unread import ModuleWithout


class BertSelfAttention(ModuleWithout):
    """Queries, keys and values of every token, and attention within the layout (Vaswani et al. 2017, section 3.2.2)."""

    computed_by_ops = ("dropout",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.head_dim
        size = config.hidden_size
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)

    def forward(self, x: Tensor, layout: Layout, dropout: Dropout | None) -> tuple[Tensor, Tensor | None]:
        """x (T, H) -> context (T, H), and the probabilities (B, nheads, S, S) if the layout keeps them, else None."""
        heads = (self.num_attention_heads, self.attention_head_size)
        linears = (self.query, self.key, self.value)
        q, k, v = (apply_linear(linear, x).unflatten(-1, heads) for linear in linears)
        if type(layout) is PackedLayout and all(type(linear) is QuantizedLinear for linear in linears):
            dtype = ops.int8_attention_dtype(x)
            context, probs = layout.attend(q.to(dtype), k.to(dtype), v.to(dtype), dropout)
            return context.flatten(-2).to(x.dtype), probs
        context, probs = layout.attend(q, k, v, dropout)
        return context.flatten(-2), probs


class ResidualOutput(ModuleWithout):
    """LN(residual + dropout(W x + b)): the end of both branches of a layer."""

    computed_by_ops = ("dropout",)

    def __init__(self, in_features: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor, dropout: Dropout | None, rows: Tensor | None = None) -> Tensor:
        """x (T, F), residual (T, H) -> (T, H). If these are some rows of larger tensors, ``rows`` (T,) int64 are their
        numbers there, so that dropout drops what it drops there."""
        return self.normalise(*split_bias(self.dense, x), residual, dropout, rows)

    def normalise(
        self, x: Tensor, bias: Tensor | None, residual: Tensor, dropout: Dropout | None, rows: Tensor | None = None
    ) -> Tensor:
        """The part after the dense layer, whose bias is added here unless it is None."""
        return apply_norm(self.LayerNorm, x, x_bias=bias, residual=residual, dropout=dropout, rows=rows)


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
        """Computes LN(x + dropout(W_o attention(x))).

        Args:
            x: (T, H).
            dropouts: on the probabilities and on the branch.
            rows: (R,) int64, the tokens that are needed; None for all.

        Returns:
            (T, H), or (R, H) for ``rows``; and the probabilities if the layout keeps them, else None.
        """
        on_probs, on_output = dropouts
        context, probs = self.self(x, layout, on_probs)
        if rows is not None:
            context, x = context.index_select(0, rows), x.index_select(0, rows)
            return self.output(context, x, on_output, rows), probs
        return self.output(context, x, on_output), probs


class BertIntermediate(ModuleWithout):
    """gelu(W x + b)."""

    computed_by_ops = ("intermediate_act_fn",)

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
        index: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the layer.

        Args:
            x: (T, H).
            layout: which tokens attend to each other.
            key: that of dropout in this forward pass, None for none. It is an argument so that recomputing the layer
                for the backward pass drops the same elements.
            rows: (R,) int64, the tokens that are computed beyond the attention; None for all. All are attended to.
            rates: the dropout rates, by default the layer's own. They are an argument for the same reason: they follow
                the modes of the layer's parts, which may change before the backward pass.
            index: the layer's place in the stack, by default the one it was built for. A layer that is copied or
                shared drops other elements in each place.

        Returns:
            (T, H), or (R, H) for ``rows``; and the attention probabilities if the layout keeps them, else None.
        """
        on_probs, on_attention, on_output = self.dropouts(key, rates, index)
        x, probs = self.attention(x, layout, (on_probs, on_attention), rows)
        given = self._feed_forward(x)
        if given is not None and ops.is_fused("mlp", *given):
            return self.output.normalise(ops.mlp(*given), self.output.dense.bias, x, on_output, rows), probs
        numbers = () if rows is None else (rows,)  # a module in the place of ours may take none
        return self.output(self.intermediate(x), x, on_output, *numbers), probs

    def is_by_token(self) -> bool:
        """Whether all that follows the attention is fastbert's own, which computes each token by itself. A module in
        its place may mix tokens, as a batch normalisation does."""
        if type(self.attention) is not BertAttention or type(self.intermediate) is not BertIntermediate:
            return False
        outputs = (self.attention.output, self.output)
        return all(type(end) is ResidualOutput and type(end.LayerNorm) is nn.LayerNorm for end in outputs)

    @property
    def rates(self) -> tuple[float, float, float]:
        """Dropout rates of the attention probabilities, of the attention branch and of the feed-forward branch; 0 for a
        part in evaluation mode, as in a frozen layer."""
        of_probs, of_hidden = self.config.attention_probs_dropout_prob, self.config.hidden_dropout_prob
        attention = self.attention
        return (
            of_probs if attention.self.training else 0.0,
            of_hidden if attention.output.training else 0.0,
            of_hidden if self.output.training else 0.0,
        )

    def dropouts(
        self, key: DropoutKey | None, rates: tuple[float, float, float] | None = None, index: int | None = None
    ) -> ops.LayerDropouts:
        """The rates and places in the random stream of this layer's dropouts; ``rates`` and ``index`` as in
        `forward`."""
        if key is None:
            return None, None, None
        site = FIRST_LAYER_SITE + LAYER_SITES * (self.index if index is None else index)
        on_probs, on_attention, on_output = self.rates if rates is None else rates
        return key.site(on_probs, site), key.site(on_attention, site + 1), key.site(on_output, site + 2)

    def _feed_forward(self, x: Tensor) -> tuple | None:
        """The arguments of `ops.mlp`, or None if a part of the block was replaced or has hooks."""
        parts = (self.intermediate, self.output)
        built = type(self.intermediate) is BertIntermediate and type(self.output) is ResidualOutput
        if not built or any(is_watched(part) or not is_plain(part.dense) for part in parts):
            return None
        up, down = (part.dense for part in parts)
        return x, up.weight, up.bias, down.weight, self.intermediate.approximate
