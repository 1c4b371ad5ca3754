"""The one tolerance rule: how far a kernel may be from the truth (STYLE.md, "Tolerance rule").

Truth is the op's reference in float64. What rounding alone does is measured, not guessed: the same reference run in the
tested dtype. A kernel may err twice as much at its worst element (three times for a gradient) and 1.2 times in the root
mean square, plus one unit in the last place of the largest true value.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ulp(value: float, dtype: torch.dtype) -> float:
    """Distance from |value| to the next number of this dtype."""
    x = torch.tensor(abs(value), dtype=torch.float64).to(dtype)
    return float((torch.nextafter(x, torch.full_like(x, float("inf"))) - x).double())


def assert_close(got: Tensor, truth: Tensor, same: Tensor, *, gradient: bool = False, what: str = "result") -> None:
    """Holds ``got`` to the rule.

    Args:
        got: the kernel's result.
        truth: the reference's, in float64.
        same: the reference's, run in the dtype of ``got``.
        gradient: takes the factor 3 in place of 2 for the largest error.
    """
    assert got.shape == truth.shape == same.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(truth.shape)}"
    assert truth.dtype == torch.float64, "the truth is computed in float64"
    assert got.dtype == same.dtype, f"{what}: dtype {got.dtype}, expected {same.dtype}"
    if not truth.numel():
        return
    assert torch.equal(got.isfinite(), truth.isfinite()), f"{what}: NaN or infinity where the truth has none"
    finite = truth.isfinite()
    error, allowed = (got.double() - truth)[finite].abs(), (same.double() - truth)[finite].abs()
    if not error.numel():
        return
    floor = ulp(float(truth[finite].abs().max()), got.dtype)
    factor = 3 if gradient else 2
    worst, limit = float(error.max()), factor * float(allowed.max()) + floor
    assert worst <= limit, f"{what}: largest error {worst:.3g}, {factor} x that of rounding + 1 ulp is {limit:.3g}"
    rms, limit = float(error.square().mean().sqrt()), 1.2 * float(allowed.square().mean().sqrt()) + floor
    assert rms <= limit, f"{what}: RMS error {rms:.3g}, 1.2 x that of rounding + 1 ulp is {limit:.3g}"
