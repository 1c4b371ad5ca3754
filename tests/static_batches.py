"""Batches of static shapes without their padding, to compare them with the batches that they were made from."""

from dataclasses import fields, replace

from fastbert.data.budget import StaticBatch
from fastbert.packing import PackedBatch


def real(batch: PackedBatch) -> PackedBatch:
    """A batch without the padding of `fill_up`; any other batch as it is."""
    if not isinstance(batch, StaticBatch):
        return batch
    given = {f.name: getattr(batch, f.name) for f in fields(PackedBatch)}
    tokens = {name: given[name][: batch.real_tokens] for name in ("input_ids", "token_type_ids", "position_ids")}
    labels = {}
    if batch.mlm_labels is not None:
        labels = {name: given[name][: batch.real_labels] for name in ("mlm_positions", "mlm_labels")}
    nsp = None if batch.nsp_labels is None else batch.nsp_labels[: batch.real_sequences]
    bounds = given["cu_seqlens"][: batch.real_sequences + 1]
    plain = PackedBatch(**given | tokens | labels | {"cu_seqlens": bounds, "nsp_labels": nsp})
    return replace(plain, max_seqlen=int(bounds.diff().max()) if batch.real_sequences else 0)
