"""DeepSpeed's universal checkpoints: one folder a parameter, from which any number of ranks and any stage can go on."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from ...errors import CheckpointError


def convert(source: Path, target: Path) -> None:
    """Makes the universal form of a DeepSpeed checkpoint; one process does it.

    Args:
        source: the folder of its files, which have verified: DeepSpeed unpickles them.
        target: a folder that is not there yet.

    Raises:
        CheckpointError: DeepSpeed cannot.
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
    except Exception as error:  # whatever DeepSpeed raises, the sentence is about the checkpoint
        raise CheckpointError(f"{source}: DeepSpeed cannot convert it for another number of ranks: {error}") from error
