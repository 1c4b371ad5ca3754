"""Pairs of models with the same weights, ours and transformers', the masks they are compared under, and the comparison.

transformers computes pads too: only what it says of kept tokens is compared.
"""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor

import fastbert

BATCH, LENGTH, VOCAB, LABELS = 4, 11, 61, 3
CLASSES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
)
every_class = pytest.mark.parametrize("name", CLASSES)

# Ends of names of biases whose gradient is 0 by arithmetic, because a softmax does not see a shift of all its scores:
# both sides hold nothing but rounding, which is measured against the gradient of the weight beside it.
_KEY_BIAS = "attention.self.key.bias"


def masks() -> dict[str, Tensor | None]:
    """The masks of a (4, 11) batch by name."""
    columns = torch.arange(LENGTH)
    lengths = torch.tensor([11, 7, 3, 1])[:, None]
    holes = (torch.rand(BATCH, LENGTH, generator=torch.Generator().manual_seed(5)) < 0.6).long()
    holes[:, 0] = 1
    no_first = holes.clone()
    no_first[1, 0] = 0
    left_and_empty = (columns >= torch.tensor([0, 5, 11, 3])[:, None]).long()
    empty = (columns < torch.tensor([11, 5, 0, 2])[:, None]).long()
    return {
        "none": None,
        "prefix": (columns < lengths).long(),
        "left": (columns >= LENGTH - lengths).long(),
        "holes": holes,
        "hole_at_first": no_first,
        "empty_row": empty,
        "left_and_empty_row": left_and_empty,
    }


MASKS = tuple(masks())


def kept_tokens(mask: Tensor | None) -> Tensor:
    """(B, S) bool."""
    return torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else mask != 0


def hf_config(**changes) -> transformers.BertConfig:
    # Large initial weights: with 0.02 attention is nearly uniform and gelu nearly linear, and a wrong one could pass.
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    rest = {"intermediate_size": 64, "max_position_embeddings": 24, "initializer_range": 0.2, "num_labels": LABELS}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertConfig(**{**sizes, **rest, **rates, **changes})


def pair(name: str, dtype: torch.dtype = torch.float32, attention: str = "eager", **changes):
    """transformers' model and ours, in training mode, with one set of random weights (biases and LayerNorms too)."""
    torch.manual_seed(1)
    if name == "BertForQuestionAnswering":
        changes = {"num_labels": 2, **changes}  # a start and an end: transformers cannot run it with another number
    config = hf_config(**changes)
    config._attn_implementation = attention
    theirs = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs = theirs.to(dtype)
    ours = getattr(fastbert, name)(config).to(dtype)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs.train(), ours.train()


def inputs(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(0, VOCAB, (BATCH, LENGTH), generator=generator),
        "token_type_ids": torch.randint(0, 2, (BATCH, LENGTH), generator=generator),
    }


def arguments(name: str, mask: str = "prefix") -> dict[str, Tensor | None]:
    """What a model of the class is called with, but for its labels."""
    given = {**inputs(), "attention_mask": masks()[mask]}
    if name == "BertForMultipleChoice":
        given = {key: None if x is None else x.view(2, 2, LENGTH) for key, x in given.items()}
    return given


def labels(name: str, mask: str = "prefix") -> dict[str, Tensor]:
    """Labels of the class, -100 where a token is masked."""
    keep = kept_tokens(masks()[mask])
    words = inputs(7)["input_ids"].masked_fill(~keep, -100)
    return {
        "BertForPreTraining": {"labels": words, "next_sentence_label": torch.tensor([0, 1, 1, 0])},
        "BertForMaskedLM": {"labels": words},
        "BertForNextSentencePrediction": {"labels": torch.tensor([0, 1, 1, 0])},
        "BertForSequenceClassification": {"labels": torch.tensor([0, 1, 2, 0])},
        "BertForTokenClassification": {"labels": (words % LABELS).masked_fill(~keep, -100)},
        "BertForQuestionAnswering": {
            "start_positions": torch.tensor([0, 1, 2, 0]),
            "end_positions": torch.ones(4).long(),
        },
        "BertForMultipleChoice": {"labels": torch.tensor([1, 0])},
    }.get(name, {})


def assert_near(ours: Tensor, theirs: Tensor, dtype: torch.dtype, what: str) -> None:
    """Outputs: 1e-5 in float32, 1e-10 in float64."""
    assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
    assert ours.isfinite().all(), f"{what}: NaN or infinity"
    error = float((ours - theirs).detach().abs().max()) if ours.numel() else 0.0
    limit = 1e-5 if dtype == torch.float32 else 1e-10
    assert error <= limit, f"{what}: differs by {error:.3g}, {limit:g} allowed"


def assert_near_gradient(got: Tensor, expected: Tensor, dtype: torch.dtype, name: str, scale: Tensor) -> None:
    """One gradient, relative to the largest element of ``scale``: 1e-4 in float32, 1e-10 in float64."""
    limit = 1e-4 if dtype == torch.float32 else 1e-10
    error = float((got - expected).abs().max() / scale.abs().max())
    assert error <= limit, f"gradient of {name} differs by {error:.3g} of its largest element, {limit:g} allowed"


def assert_same_gradients(ours, theirs, dtype: torch.dtype, zero_biases: tuple[str, ...] = ()) -> None:
    """Gradients of all parameters, each held to `assert_near_gradient`.

    ``zero_biases`` are ends of names of further biases, beside the keys', whose gradient is 0 by arithmetic.
    """
    truth = dict(theirs.named_parameters())
    own = dict(ours.named_parameters())
    assert set(own) == set(truth)
    compared = 0
    for name, parameter in own.items():
        expected = truth[name].grad
        got = parameter.grad
        zero = name.endswith((_KEY_BIAS, *zero_biases))
        if not zero and (expected is None or not expected.any()):
            assert got is None or not got.any(), f"{name}: a gradient where there is none"
            continue
        assert got is not None, f"{name}: no gradient"
        assert got.isfinite().all(), f"{name}: NaN or infinity in the gradient"
        scale = expected
        if zero:
            scale = truth[name.removesuffix("bias") + "weight"].grad
        assert_near_gradient(got, expected, dtype, name, scale)
        compared += 1
    # Embeddings (5), 16 a layer: a comparison of nothing must not pass.
    assert compared >= 5 + 16 * 3
