"""Files as data-set hubs export them, and the rows that they hold."""

from __future__ import annotations

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from fastbert.tasks.base import Row

SINGLE, PAIR = ("sentence",), ("sentence1", "sentence2")
# What the hub's GLUE has: names of the text columns, and what the numbers of its labels mean to us.
HUB = {
    "cola": (SINGLE, {0: "0", 1: "1"}),
    "sst2": (SINGLE, {0: "0", 1: "1"}),
    "mrpc": (PAIR, {0: "0", 1: "1"}),
    "stsb": (PAIR, {3.8: 3.8, 0.0: 0.0}),
    "qqp": (("question1", "question2"), {0: "0", 1: "1"}),
    "mnli": (("premise", "hypothesis"), {0: "entailment", 1: "neutral", 2: "contradiction"}),
    "qnli": (("question", "sentence"), {0: "entailment", 1: "not_entailment"}),
    "rte": (PAIR, {0: "entailment", 1: "not_entailment"}),
    "wnli": (PAIR, {0: "0", 1: "1"}),
}
TEXTS = ['He said, "no".', "caf\u00e9, twice", '"quoted"', "plain"]


def exported(name: str, form: str, labels=True) -> tuple[bytes, list[Row]]:
    """A file with a row for each label, and the rows that it holds."""
    columns, meaning = HUB[name]
    records, rows = [], []
    for number, (label, word) in enumerate(meaning.items()):
        texts = tuple(TEXTS[(number + place) % len(TEXTS)] for place in range(len(columns)))
        shown = label if labels else -1.0 if name == "stsb" else -1
        records.append({**dict(zip(columns, texts, strict=True)), "label": shown, "idx": 10 + number})
        rows.append(Row(str(10 + number), texts, word if labels else None))
    if form in ("json", "jsonl"):
        return "".join(json.dumps(record) + "\n" for record in records).encode(), rows
    if form == "parquet":
        return parquet(records, {"label": pa.float32() if name == "stsb" else pa.int64(), "idx": pa.int32()}), rows
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(records[0]), delimiter="\t" if form == "tsv" else ",", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode(), rows


def parquet(
    records: list[dict],
    types: dict | None = None,
    classes: dict[str, list[str]] | None = None,
    table: pa.Table | None = None,
) -> bytes:
    """A Parquet file of these rows, or of this table.

    Args:
        types: of columns, where they are others than pyarrow takes.
        classes: names of the numbers of columns, kept as the `datasets` library keeps them.
    """
    table = pa.Table.from_pylist(records) if table is None else table
    for name, kind in (types or {}).items():
        at = table.schema.get_field_index(name)
        # Not a cast: pyarrow 15 has the fields of a struct in the order of their names, and casts to no other.
        table = table.set_column(at, name, pa.array(table[name].to_pylist(), kind))
    if classes is not None:
        features = {name: {"names": names, "_type": "ClassLabel"} for name, names in classes.items()}
        for name in features:
            if pa.types.is_list(table.schema.field(name).type):
                features[name] = {"feature": features[name], "_type": "List"}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()
