"""Tiny GPTs and GPT-2s made by transformers."""

from __future__ import annotations

import torch
import transformers

SIZES = {"vocab_size": 61, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
KINDS = {
    "openai-gpt": ("OpenAIGPT", {}),
    "gpt2": ("GPT2", {"bos_token_id": 0, "eos_token_id": 1}),
    "gpt2-odd": (
        "GPT2",
        {"bos_token_id": 0, "eos_token_id": 1, "n_inner": 40, "activation_function": "gelu",
         "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "tie_word_embeddings": False},
    ),
}  # fmt: skip


def theirs(kind: str, head: str = "LMHeadModel"):
    """transformers' model with random weights, biases and norms included."""
    name, changes = KINDS[kind]
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**SIZES, **changes)
    # Version 4's default, torch's attention, does not know these scales of the scores.
    config._attn_implementation = "eager"
    model = getattr(transformers, name + head)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Positions of some size, or greedy text is one token over and over.
            scale = 4.0 if "wpe" in name or "positions" in name else 1.0
            parameter.mul_(scale).add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(2, 61, shape, generator=torch.Generator().manual_seed(1))
