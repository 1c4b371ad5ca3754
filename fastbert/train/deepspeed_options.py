"""Which DeepSpeed a run asks for; without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class DeepSpeedOptions:
    """Which DeepSpeed is asked for.

    Args:
        file: a configuration of the user's.
        zero: without a file, the stage, 0 to 3.
        offload: without a file, keeps optimiser state in the memory of the CPU, and updates there.
    """

    file: str | None = None
    zero: int | None = None
    offload: bool = False

    def __post_init__(self) -> None:
        if self.file is not None and (self.zero is not None or self.offload):
            raise InputError("expected either deepspeed, a configuration, or zero and offload, got both")
        if self.zero is not None and self.zero not in range(4):
            raise InputError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        if self.offload and self.zero in (None, 0):
            raise InputError(f"offload needs zero 1, 2 or 3, got {self.zero}")

    @property
    def asked(self) -> bool:
        """Whether a run is to be under DeepSpeed."""
        return self.file is not None or self.zero is not None
