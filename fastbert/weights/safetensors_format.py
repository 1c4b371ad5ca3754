"""Writes files in the format of huggingface/safetensors: eight bytes with the length of a JSON header, the header, the
tensors end to end.

The library's own `save_file` (0.8) makes a new file under a name of its own and renames it: only the file's owner may
read it, whatever the umask is, and a process that is killed leaves it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def header_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, list[str]]:
    """What comes before the tensors in a file, and their names in the order in which they follow.

    Raises:
        CheckpointError: a tensor is of a dtype that is not in `_NAMES`.
    """
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    # The widest dtypes first, so that each tensor begins at a multiple of its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise CheckpointError(f"{name}: expected a dtype that a safetensors file can hold, got {tensor.dtype}")
        begin, end = end, end + tensor.nbytes
        table[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def bytes_of(tensor: Tensor) -> Tensor:
    """The values of a tensor as a file has them: a flat uint8 tensor, a view of a contiguous one."""
    # A tensor without values may have strides, from which torch makes no bytes.
    return tensor.detach().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def write_safetensors(state: Mapping[str, Tensor], path: Path) -> None:
    """Writes tensors by name, contiguous and on the CPU, into a file. If the file exists, it stays the same one, with
    its permissions and its lock.

    Raises:
        OSError: the file cannot be written.
        CheckpointError: as by `header_of`.
    """
    header, order = header_of(state, {"format": "pt"})  # transformers 4 refuses metadata without the format
    with open(path, "wb") as file:
        file.write(header)
        for name in order:
            file.write(bytes_of(state[name]).numpy())
