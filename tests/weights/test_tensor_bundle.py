"""TensorFlow's checkpoint format: held to a real file, its checksums compared, and what lies in one refused."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tf_bundle import write_bundle

import fastbert
from fastbert.errors import CheckpointError
from fastbert.interop.convert import convert
from fastbert.weights import leveldb, tensor_bundle
from fastbert.weights.crc32c import crc32c, masked
from fastbert.weights.tensor_bundle import Entry, _messages, index_bytes, read_bundle, read_index, shard_path


def test_checksum_is_crc_32c():
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the published catalogue of CRCs
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert crc32c(bytes(range(32))) == 0x46DD794E
    data = np.random.default_rng(0).integers(0, 256, 3_000_001, dtype=np.uint8).tobytes()
    whole = crc32c(data)
    for cut in (1, 1023, 1024, 1025, 2_500_000):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole
    stub = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    for size in (1, 1023, 1024, 1025, 50_001):
        assert masked(crc32c(data[:size])) == stub.masked_crc32c(data[:size])


def test_googles_own_index_is_read_and_written_byte_for_byte(shared_data):
    home = shared_data / "google_bert"
    num_shards, entries = read_index(home / "bert_model.ckpt.index")
    assert num_shards == 1
    end = 0
    for entry in entries.values():  # float32, end to end, in the order of names
        assert (entry.dtype, entry.offset) == (1, end)
        end += entry.size
    assert index_bytes(entries) == (home / "bert_model.ckpt.index").read_bytes()
    # Every one of its names is a place in our model, of that shape, and none of ours is left.
    config = fastbert.BertConfig.from_pretrained(home)
    from fastbert.weights.foreign_names import from_tensorflow

    with torch.device("meta"):
        model = fastbert.BertForPreTraining(config)
        there = from_tensorflow({name: torch.empty(entry.shape) for name, entry in entries.items()})
    own = {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert {n: tuple(t.shape) for n, t in there.items()} == own


def test_a_checkpoint_of_googles_names_without_its_data(shared_data, tmp_path):
    shutil.copy(shared_data / "google_bert" / "bert_model.ckpt.index", tmp_path)
    shutil.copy(shared_data / "google_bert" / "bert_config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt\.data-00000-of-00001: expected the data"):
        convert(tmp_path, tmp_path / "out")


def test_types_shapes_shards_and_long_indices(tmp_path):
    generator = torch.Generator().manual_seed(0)
    kinds = (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    )
    tensors = {
        f"{i * 7919 % 10_000:04d}/{'long_' * 25}{i}": torch.randint(0, 2, shape, generator=generator).to(kinds[i % 8])
        for i, shape in enumerate([(), (0,), (3,), (2, 5), (1, 2, 3)] * 500)
    }
    prefix = write_bundle(tmp_path / "model.ckpt-7", tensors, num_shards=3)
    assert (tmp_path / "model.ckpt-7.index").stat().st_size > 256 << 10  # so it has more than one block
    back = read_bundle(prefix)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name


def test_damage_anywhere_is_found(tmp_path):
    prefix = write_bundle(tmp_path / "b.ckpt", {f"v{i}": torch.arange(40.0) for i in range(3)})
    index, data = Path(f"{prefix}.index"), shard_path(prefix, 0, 1)
    good_index, good_data = index.read_bytes(), data.read_bytes()
    footer = len(good_index) - 48
    handles = len(good_index) - 8
    for at in range(0, len(good_index), 3):
        if footer <= at < handles:
            continue  # padding of the footer, which carries nothing after the two handles
        index.write_bytes(good_index[:at] + bytes([good_index[at] ^ 0x21]) + good_index[at + 1 :])
        with pytest.raises(CheckpointError):
            read_bundle(prefix)
    for size in (0, 10, 48, footer, len(good_index) - 1):
        index.write_bytes(good_index[:size])
        with pytest.raises(CheckpointError, match=r"b\.ckpt\.index"):
            read_bundle(prefix)
    index.write_bytes(good_index)
    for at in range(0, len(good_data), 7):
        data.write_bytes(good_data[:at] + bytes([good_data[at] ^ 1]) + good_data[at + 1 :])
        with pytest.raises(CheckpointError, match="checksum"):
            read_bundle(prefix)
    data.write_bytes(good_data[:-1])
    with pytest.raises(CheckpointError, match="inside the file"):
        read_bundle(prefix)


def _entry(**changes):
    return Entry(**{"dtype": 1, "shape": (4,), "shard": 0, "offset": 0, "size": 16, "crc": 0, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (1 << 40,), "size": 1 << 42},
        {"shape": (1 << 31, 1 << 31, 1 << 31)},
        {"shape": (-4,), "size": -16},
        {"shape": (-2, -2)},
        {"shard": 5},
        {"shard": -1},
        {"offset": -16},
        {"offset": 1 << 60},
        {"size": 17},
    ],
)
def test_descriptions_that_lie_are_refused(changes, tmp_path):
    """With a checksum that agrees wherever there is something to read."""
    (tmp_path / "b.ckpt.data-00000-of-00001").write_bytes(bytes(32))
    size = changes.get("size", 16)
    entry = _entry(**changes, crc=masked(crc32c(bytes(size if 0 <= size < 32 else 16))))
    (tmp_path / "b.ckpt.index").write_bytes(index_bytes({"v": entry}))
    with pytest.raises(CheckpointError) as refused:
        read_bundle(tmp_path / "b.ckpt")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("row", [b"\1\1\1ab", b"\0\1\5ab", b"\0\5\0ab"], ids=["shares", "value", "key"])
def test_rows_that_lie_are_refused(row):
    """With a checksum that agrees: of the key before, and of what is left of the block."""
    block = row + struct.pack("<2I", 0, 1)
    content = block + b"\0" + struct.pack("<I", masked(crc32c(b"\0", crc32c(block))))
    with pytest.raises(ValueError, match="a row ends outside its block"):
        list(leveldb._read_block(content, 0, len(block)))


def test_a_number_without_an_end_is_refused():
    with pytest.raises(ValueError, match="longer than 64 bits"):
        leveldb._read_varint(b"\x80" * 10 + b"\1", 0)


@pytest.mark.parametrize("shards", [0, -1, 1 << 40])
def test_a_number_of_files_that_lies_is_refused(shards, tmp_path):
    (tmp_path / "b.ckpt.index").write_bytes(index_bytes({"v": _entry()}, shards))
    with pytest.raises(CheckpointError, match="4096 files"):
        read_bundle(tmp_path / "b.ckpt")


def test_types_have_tensorflows_numbers():
    names = pytest.importorskip("tensorboard.compat.proto.types_pb2").DataType
    theirs = {"float16": "half", "float32": "float", "float64": "double"}
    for number, dtype in tensor_bundle._TYPES.items():
        name = str(dtype).removeprefix("torch.")
        assert names.Name(number) == f"DT_{theirs.get(name, name)}".upper()


def test_numbers_without_a_type_there_are_not_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"^v: expected a type that a checkpoint can hold, got torch\.complex64"):
        write_bundle(tmp_path / "b.ckpt", {"v": torch.zeros(2, dtype=torch.complex64)})


def test_text_among_the_tensors_is_left_out(tmp_path):
    prefix = write_bundle(tmp_path / "b.ckpt", {"v": torch.arange(4.0)})
    entries = read_index(f"{prefix}.index")[1] | {"text": _entry(dtype=7)}  # DT_STRING
    Path(f"{prefix}.index").write_bytes(index_bytes(entries))
    assert {name: tensor.tolist() for name, tensor in read_bundle(prefix).items()} == {"v": [0.0, 1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("header", "entry", "said"),
    [
        ({"endianness": 1}, {}, "expected little-endian numbers in 1 to 4096 files, got endianness 1"),
        ({}, {"slices": [b"0"]}, "b'v' is cut in slices"),
    ],
    ids=["big-endian", "slices"],
)
def test_what_tensorflow_can_write_and_is_not_read(header, entry, said, tmp_path):
    header_type, entry_type = _messages()
    rows = [(b"", header_type(num_shards=1, **header)), (b"v", entry_type(dtype=1, **entry))]
    (tmp_path / "b.ckpt.index").write_bytes(leveldb.table_bytes([(k, m.SerializeToString()) for k, m in rows]))
    with pytest.raises(CheckpointError, match=said):
        read_index(tmp_path / "b.ckpt.index")


def test_an_index_that_is_larger_than_any_is_not_read(tmp_path, monkeypatch):
    content = index_bytes({"v": _entry()})
    (tmp_path / "b.ckpt.index").write_bytes(content)
    monkeypatch.setattr(tensor_bundle, "MAX_BYTES", len(content) - 1)
    with pytest.raises(CheckpointError, match=rf"expected at most {len(content) - 1} bytes, got {len(content)}"):
        read_index(tmp_path / "b.ckpt.index")


def test_blocks_compressed_by_snappy_are_read(tmp_path, monkeypatch):
    """The index of CoVBERT is published so, and TensorFlow reads it."""
    codec = pytest.importorskip("pyarrow").Codec("snappy")
    append = leveldb._append_block

    def append_compressed(out: bytearray, rows: list, restart_every: int) -> bytes:
        plain = bytearray()
        append(plain, rows, restart_every)
        packed = codec.compress(bytes(plain[:-5]), asbytes=True)
        handle = leveldb._varint(len(out)) + leveldb._varint(len(packed))
        out += packed + b"\1" + struct.pack("<I", masked(crc32c(b"\1", crc32c(packed))))
        return handle

    names = [f"bert/encoder/layer_{i}/attention/self/{part}/kernel" for i in range(12) for part in ("key", "query")]
    entries = {name: _entry(offset=16 * i) for i, name in enumerate(sorted(names))}
    plain = index_bytes(entries)
    monkeypatch.setattr(leveldb, "_append_block", append_compressed)
    compressed = index_bytes(entries)
    assert len(compressed) < len(plain)
    (tmp_path / "b.ckpt.index").write_bytes(compressed)
    assert read_index(tmp_path / "b.ckpt.index") == (1, entries)


SNAPPY = b"\x08abc\x11\x03\xf0\x3c" + bytes(range(61)) + b"\x0a\x3d\x00\x03\x48\0\0\0"  # pieces of all kinds
UNPACKED = b"abc" + b"abcabcab" + bytes(range(61)) + b"\0\1\2" + b"a"


def test_the_kinds_of_pieces_that_snappy_has():
    assert leveldb.unpacked_snappy(bytes([len(UNPACKED)]) + SNAPPY) == UNPACKED
    assert (
        pytest.importorskip("pyarrow")
        .Codec("snappy")
        .decompress(bytes([len(UNPACKED)]) + SNAPPY, len(UNPACKED), asbytes=True)
        == UNPACKED
    )


def test_snappy_s_longest_pieces():
    """60 bytes are the most that a tag alone can announce; copies go up to 64, and the short ones back to 2,047."""
    content = bytes(range(60))
    assert leveldb.unpacked_snappy(bytes([60, 59 << 2]) + content) == content
    long = content * 10
    block = b"\xdc\x04" + b"\xf4" + (599).to_bytes(2, "little") + long + bytes([2 << 5 | 1, 600 - 512])
    assert leveldb.unpacked_snappy(block) == long + long[:4]
    again = bytes([64, 0 << 2]) + b"a" + bytes([62 << 2 | 2, 1, 0])
    assert leveldb.unpacked_snappy(again) == b"a" * 64


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (bytes([len(UNPACKED) + 1]) + SNAPPY, "another length"),
        (bytes([len(UNPACKED) - 1]) + SNAPPY, "another length"),
        (bytes([len(UNPACKED)]) + SNAPPY[:-1], "copies what is not there|another length"),
        (bytes([len(UNPACKED)]) + SNAPPY + b"\0", "another length"),
        (b"\x08\x08abc\x11\x04", "copies what is not there"),
        (b"\x08\x08abc\x11\x00", "copies what is not there"),
        (b"\xff\xff\xff\xff\x0f\x08abc", "says that it has 4294967295 bytes"),
        (b"\x00", "says that it has 0 bytes"),
    ],
)
def test_compressed_blocks_that_lie_are_refused(block, reason):
    with pytest.raises(ValueError, match=reason):
        leveldb.unpacked_snappy(block)


def test_blocks_compressed_otherwise_are_named(tmp_path):
    content = bytearray(index_bytes({"v": _entry()}))
    # The trailer of the first block: mark it as LevelDB's Zstandard, with a checksum that agrees.
    size = content.index(struct.pack("<I", 1)) + 4
    content[size] = 2
    content[size + 1 : size + 5] = struct.pack("<I", masked(crc32c(b"\2", crc32c(bytes(content[:size])))))
    (tmp_path / "b.ckpt.index").write_bytes(content)
    with pytest.raises(CheckpointError, match="compressed in a way that TensorFlow does not know, number 2"):
        read_bundle(tmp_path / "b.ckpt")
