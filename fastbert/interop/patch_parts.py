"""Which modules may replace a dense layer or the word embeddings in a model that is computed packed.

A packed pass calls such a module with (T, in_features) rows or (T,) ids, where transformers calls it with (B, S, ...).
For a module that computes each token independently that makes no difference. One that changes the first token, records
its input or prepends a prompt would silently do so with the wrong tokens.
"""

from __future__ import annotations

from torch import nn

TOKENWISE = "fastbert_tokenwise"
"""The attribute by which one of the user's modules declares that it computes each token independently."""

# torch's modules, by their forward, which parametrised layers and subclasses inherit.
_FORWARDS = tuple(
    kind.forward
    for kind in (
        *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.Sequential),
        *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
        nn.Module,  # for lists and dictionaries of modules, which have no forward
    )
)
# Libraries of adapters and quantised layers, which accept any leading dimensions.
_LIBRARIES = (
    *("torch.ao.nn.", "torchao.", "peft.", "loralib.", "bitsandbytes.", "optimum.", "hqq.", "neural_compressor."),
    "fastbert.",
)
# An exception among them: its experts are chosen by the mean of all tokens.
_MIXING = ("peft.tuners.lily.",)


def is_tokenwise(module: nn.Module) -> bool:
    """Whether a module is known to compute each token independently."""
    if getattr(module, TOKENWISE, False):
        return True
    cls = type(module)
    library = cls.__module__.startswith(_LIBRARIES) and not cls.__module__.startswith(_MIXING)
    if not library and cls.forward not in _FORWARDS:
        return False
    # Parametrizations compute weights and do not get tokens.
    inside = (child for name, child in module._modules.items() if name != "parametrizations")
    return all(is_tokenwise(child) for child in inside if child is not None)
