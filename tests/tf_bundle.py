"""A TensorFlow checkpoint as its own code would write it: what the tests of the doors read."""

from __future__ import annotations

from pathlib import Path

from fastbert.weights.tensor_bundle import index_bytes, shard_path, write_data


def write_bundle(prefix: Path, tensors, num_shards: int = 1) -> Path:
    """A checkpoint over several data files."""
    entries = {}
    names = sorted(tensors)
    for shard in range(num_shards):
        with shard_path(prefix, shard, num_shards).open("wb") as file:
            made = write_data({n: tensors[n] for n in names[shard::num_shards]}, file)
        entries |= {n: type(e)(e.dtype, e.shape, shard, e.offset, e.size, e.crc) for n, e in made.items()}
    Path(f"{prefix}.index").write_bytes(index_bytes(entries, num_shards))
    return prefix
