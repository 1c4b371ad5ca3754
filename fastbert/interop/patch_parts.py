"""What may stand in the place of a dense layer or a table of words in a model that is computed packed.

A packed pass calls it with (T, in_features) rows, or (T,) ids, transformers with (B, S, ...). To a module
that computes every token by itself that is the same; one that steers the first token, records what it sees or puts a
prompt in front would do so with the wrong tokens, in silence.
"""

from __future__ import annotations

from torch import nn

TOKENWISE = "fastbert_tokenwise"
"""An attribute by which a module of the caller's own says that it computes every token by itself."""

# Torch's, by their code: a parametrised layer, and a subclass that leaves it alone, have a class of their own.
_FORWARDS = tuple(
    kind.forward
    for kind in (
        *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.Sequential),
        *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
        nn.Module,  # lists and dictionaries of modules, which have none
    )
)
# Libraries of adapters and of quantised layers, which are made for inputs of any shape before the last.
_LIBRARIES = ("torch.ao.nn.", "torchao.", "peft.", "loralib.", "bitsandbytes.", "optimum.", "hqq.", "fastbert.")
# The one of them whose experts are chosen by the mean of all tokens.
_MIXING = ("peft.tuners.lily.",)


def is_tokenwise(module: nn.Module) -> bool:
    """Whether a module is known to compute every token by itself."""
    if getattr(module, TOKENWISE, False):
        return True
    cls = type(module)
    library = cls.__module__.startswith(_LIBRARIES) and not cls.__module__.startswith(_MIXING)
    if not library and cls.forward not in _FORWARDS:
        return False
    # What makes a weight sees no token.
    inside = (child for name, child in module._modules.items() if name != "parametrizations")
    return all(is_tokenwise(child) for child in inside if child is not None)
