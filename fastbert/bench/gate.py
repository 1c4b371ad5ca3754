"""The gate: how far a variant's results are from float64, and whether that is close enough to be the same model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Largest relative error ||got - true|| / ||true||: of any token's hidden state, or of any compared gradient. Rounding
# alone reaches about a tenth of the fp32 limit and a third of the bf16 one (12 layers); int8 depends on the weights,
# and 0.35 is a cosine of 0.94.
INFERENCE_LIMITS = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.35}
TRAINING_LIMITS = {"fp32": 1e-3, "bf16": 0.1}


def hidden_error(got: np.ndarray, true: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Compares last hidden states (B, S, H) where the mask (B, S) is not zero.

    Returns:
        ``relative``: the relative error of the worst token; ``max_abs``: the error of the worst element; ``cosine``:
        that of the worst token. A different shape, or a NaN, gives an infinite error.
    """
    if got.shape != true.shape:
        return {"relative": float("inf"), "max_abs": float("inf"), "cosine": -1.0}
    got, true = got[mask != 0].astype(np.float64), true[mask != 0]
    if not np.isfinite(got).all():
        return {"relative": float("inf"), "max_abs": float("inf"), "cosine": -1.0}
    norms = np.linalg.norm(true, axis=-1)
    relative = np.linalg.norm(got - true, axis=-1) / norms
    lengths = np.maximum(np.linalg.norm(got, axis=-1) * norms, np.finfo(np.float64).tiny)
    return {
        "relative": float(relative.max()),
        "max_abs": float(np.abs(got - true).max()),
        "cosine": float(((got * true).sum(-1) / lengths).min()),
    }


def training_error(got: Mapping[str, np.ndarray], true: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Compares the loss and gradients of one batch without dropout.

    Returns:
        ``loss``: relative error of the loss; ``relative``: the largest relative error of the loss and of any gradient.
    """
    if set(got) != set(true) or any(got[name].shape != true[name].shape for name in true):
        return {"loss": float("inf"), "relative": float("inf")}
    tiny = np.finfo(np.float64).tiny
    errors = {name: np.linalg.norm(got[name] - true[name]) / max(np.linalg.norm(true[name]), tiny) for name in true}
    finite = {name: float(e) if np.isfinite(e) else float("inf") for name, e in errors.items()}
    return {"loss": finite["loss"], "relative": max(finite.values())}


def limit(kind: str, dtype: str) -> float:
    """The largest ``relative`` error with which a variant still gets a figure."""
    return (INFERENCE_LIMITS if kind == "inference" else TRAINING_LIMITS)[dtype]
