"""The layers of GPT and GPT-2, by the same ops as BERT's.

GPT (Radford et al. 2018) normalises after each branch, GPT-2 (Radford et al. 2019, section 2.3) before:

    GPT    a = LN(x + dropout(attention(x)))      y = LN(a + dropout(mlp(a)))
    GPT-2  a = x + dropout(attention(LN(x)))      y = a + dropout(mlp(LN(a)))

Hidden states are (T, H). Modules and names are those of transformers' OpenAIGPTModel and GPT2Model; weights are
(out, in) as in `nn.Linear`, where those files have them the other way round (`models.gpt_files`).
"""

from __future__ import annotations

from torch import Tensor, nn

from .. import ops
from ..gpt_config import GPTConfig
from ..rng import FIRST_LAYER_SITE, LAYER_SITES, Dropout, DropoutKey
from .layout import Layout
from .linear import apply_gelu, apply_linear, is_plain, split_bias
from .norm import apply_norm
from .unread import ModuleWithout


class GPTAttention(ModuleWithout):
    """Causal attention; queries, keys and values are computed by one product."""

    computed_by_ops = ("attn_dropout", "resid_dropout")

    def __init__(self, config: GPTConfig, index: int) -> None:
        super().__init__()
        self.heads = (config.n_head, config.head_dim)
        # Layouts scale by head_dim ** -0.5; a GPT-2 configured to scale otherwise multiplies the queries by the ratio.
        self.extra_scale = config.softmax_scale(index) * config.head_dim**0.5
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, layout: Layout, dropout: Dropout | None) -> Tensor:
        """x (T, H) -> context (T, H), before `c_proj`."""
        fused = apply_linear(self.c_attn, x)
        q, k, v = (part.unflatten(-1, self.heads) for part in fused.chunk(3, -1))
        if abs(self.extra_scale - 1.0) > 1e-9:
            q = q * self.extra_scale
        return layout.attend(q, k, v, dropout)[0].flatten(-2)


class GPTMLP(ModuleWithout):
    """The second branch of a block: two dense layers with a GELU between them."""

    computed_by_ops = ("act", "dropout")

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.intermediate_size)
        self.c_proj = nn.Linear(config.intermediate_size, config.n_embd)
        self.approximate = config.gelu_approximate

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x (T, H) -> gelu(x W_1 + b_1) W_2 (T, H), and b_2, or None if it has been added."""
        up, down = self.c_fc, self.c_proj
        if is_plain(up) and is_plain(down):
            given = (x, up.weight, up.bias, down.weight, self.approximate)
            if ops.is_fused("mlp", *given):
                return ops.mlp(*given), down.bias
        return split_bias(down, apply_gelu(up, x, self.approximate))


class GPTBlock(nn.Module):
    """Layer number ``index``."""

    def __init__(self, config: GPTConfig, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        eps = config.layer_norm_epsilon
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=eps)
        self.attn = GPTAttention(config, index)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=eps)
        self.mlp = GPTMLP(config)

    def forward(self, x: Tensor, layout: Layout, key: DropoutKey | None, index: int | None = None) -> Tensor:
        """x (T, H) -> (T, H). ``key`` is that of dropout (None: no dropout), so that recomputation drops the same;
        ``index`` as in `BertLayer.forward`."""
        on_probs = on_attention = on_mlp = None
        if key is not None:
            site = FIRST_LAYER_SITE + LAYER_SITES * (self.index if index is None else index)
            on_probs = key.site(self.config.attn_pdrop, site)
            on_attention = key.site(self.config.resid_pdrop, site + 1)
            on_mlp = key.site(self.config.resid_pdrop, site + 2)
        if self.config.pre_norm:
            context = self.attn(apply_norm(self.ln_1, x), layout, on_probs)
            x = x + ops.dropout(apply_linear(self.attn.c_proj, context), on_attention)
            branch, bias = self.mlp(apply_norm(self.ln_2, x))
            return x + ops.dropout(branch if bias is None else branch + bias, on_mlp)
        context = self.attn(x, layout, on_probs)
        branch, bias = split_bias(self.attn.c_proj, context)
        x = apply_norm(self.ln_1, branch, x_bias=bias, residual=x, dropout=on_attention)
        branch, bias = self.mlp(x)
        return apply_norm(self.ln_2, branch, x_bias=bias, residual=x, dropout=on_mlp)
