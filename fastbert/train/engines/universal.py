"""DeepSpeed's universal checkpoints, one folder per parameter, which any number of ranks can load."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from ...errors import CheckpointError


def convert(source: Path, target: Path) -> None:
    """Converts a DeepSpeed checkpoint to the universal format; called by one process.

    Args:
        source: the folder of its files, which must have been verified, because DeepSpeed unpickles them.
        target: the folder to make.

    Raises:
        CheckpointError: DeepSpeed cannot convert it.
    """
    from deepspeed.checkpoint import ds_to_universal

    options = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            ds_to_universal.main(options)
    except Exception as error:  # DeepSpeed raises errors of many classes
        raise CheckpointError(f"{source}: DeepSpeed cannot convert it for another number of ranks: {error}") from error
