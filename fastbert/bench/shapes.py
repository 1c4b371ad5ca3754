"""The shapes that every benchmark uses. Letters: T tokens, H hidden size, F width of the MLP, V vocabulary, N labels.

T = 4,096 is a batch of 32 sequences of 128 tokens, or of 8 of 512; packed, so without padding.
"""

from __future__ import annotations

# name -> (T, H, F)
LAYER_SHAPES = {
    "base-4096": (4096, 768, 3072),
    "base-512": (512, 768, 3072),
    "large-4096": (4096, 1024, 4096),
}

# name -> (N, V): 15 % of 4,096 tokens over BERT's uncased vocabulary.
LOSS_SHAPES = {"mlm-614": (614, 30522)}

# name -> (T, K, N) of a product with the weights (N, K).
PRODUCT_SHAPES = {"1024x768x3072": (1024, 768, 3072), "1024x3072x768": (1024, 3072, 768)}

# name -> (B, S, nheads, head_dim)
ATTENTION_SHAPES = {"8x128": (8, 128, 12, 64), "4x512": (4, 512, 12, 64)}
