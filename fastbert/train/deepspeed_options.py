"""The options by which a run asks for DeepSpeed; without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class DeepSpeedOptions:
    """Whether and how a run uses DeepSpeed.

    Args:
        file: the user's DeepSpeed configuration.
        zero: without a file, the stage of ZeRO, 0 to 3.
        offload: without a file, whether to keep the optimiser state in the CPU's memory and to update there.

    Raises:
        InputError: the options contradict each other, or there is no such stage.
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
        """Whether the run uses DeepSpeed."""
        return self.file is not None or self.zero is not None
