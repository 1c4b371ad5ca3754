"""What was written comes back; what was damaged is refused in one sentence that names the file."""

from __future__ import annotations

import json
import os
import pickle
import random

import numpy as np
import pytest

from fastbert.data.manifest import Manifest, SpecialIds
from fastbert.data.shard_writer import ShardWriter
from fastbert.data.shards import ShardSet
from fastbert.errors import DataError, InputError


def write(directory, documents, vocab_size=1000, max_tokens=50, batch=None):
    """A data directory; documents are lists of lists of ids. `batch` adds so many documents in one call."""
    writer = ShardWriter(directory, "train", vocab_size, max_tokens)
    if batch is None:
        for document in documents:
            writer.add([np.array(sentence) for sentence in document])
    else:
        for first in range(0, len(documents), batch):
            part = documents[first : first + batch]
            sentences = [sentence for document in part for sentence in document]
            writer.add_documents(np.concatenate(sentences), [len(s) for s in sentences], [len(d) for d in part])
    entries = tuple(writer.close())
    manifest = Manifest(vocab_size, SpecialIds(0, 1, 2, 3, 4), "0" * 64, {"train": entries}, writer.files)
    (directory / "manifest.json").write_text(manifest.dumps())
    return directory


def some_documents(count=40, vocab_size=1000, seed=0):
    rng = random.Random(seed)
    return [
        [[rng.randrange(vocab_size) for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(1, 9))]
        for _ in range(count)
    ]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1000, np.uint16), (65536, np.uint16), (65537, np.uint32)])
@pytest.mark.parametrize("batch", [None, 7])
def test_round_trip(tmp_path, vocab_size, dtype, batch):
    documents = some_documents(vocab_size=vocab_size)
    documents[3][0][0] = vocab_size - 1
    documents[5] = [[7] * 300]  # longer than a shard
    shards = ShardSet.open(write(tmp_path, documents, vocab_size, batch=batch), verify=True)
    assert len(shards.tokens) > 5
    assert {tokens.dtype for tokens in shards.tokens} == {np.dtype(dtype)}
    # Only a document that alone is too long exceeds the limit.
    assert all(entry.tokens <= 50 or entry.documents == 1 for entry in shards.manifest.splits["train"])
    assert max(map(len, shards.tokens)) == 300
    assert len(shards) == shards.num_documents == len(documents)
    assert shards.num_sentences == sum(map(len, documents))
    sentences = [sentence for document in documents for sentence in document]
    assert shards.sentence_lengths.tolist() == [len(sentence) for sentence in sentences]
    assert [shards.sentence(i).tolist() for i in range(shards.num_sentences)] == sentences
    assert shards.num_tokens == sum(map(len, sentences))
    assert shards.document_starts[-1] == shards.num_sentences
    for number, document in enumerate(documents):
        first, end = shards.document_starts[number : number + 2]
        assert shards.gather(first, end).tolist() == [index for sentence in document for index in sentence]
        assert shards.gather(first + 1, end).tolist() == [index for sentence in document[1:] for index in sentence]
        assert shards.gather(first, first).tolist() == []


@pytest.mark.parametrize("batch", [None, 8])
@pytest.mark.parametrize("document", [[[7]] * 3, [[7] * 25]])
def test_a_shard_is_filled_to_its_limits(tmp_path, document, batch):
    """50 tokens, and for the sake of the index, which is kept in memory, a sentence for 8 of them."""
    shards = ShardSet.open(write(tmp_path, [document] * 8, batch=batch))
    assert [entry.documents for entry in shards.manifest.splits["train"]] == [2] * 4


def test_pickle_maps_again(tmp_path):
    shards = ShardSet.open(write(tmp_path, some_documents(400), max_tokens=5000))
    text = pickle.dumps(shards)
    assert len(text) < 1000
    assert (pickle.loads(text).gather(0, 1) == shards.gather(0, 1)).all()


def test_gather_stays_within_a_shard(tmp_path):
    shards = ShardSet.open(write(tmp_path, some_documents()))
    for wrong in ((0, shards.num_sentences), (-1, 2), (3, 2), (0, shards.num_sentences + 1)):
        with pytest.raises(IndexError):
            shards.gather(*wrong)


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_file_that_is_cut_off_while_it_is_mapped(tmp_path, suffix):
    """To read what is missing would end the process with SIGBUS."""
    directory = write(tmp_path, some_documents(4000), max_tokens=10_000)
    shards = ShardSet.open(directory)
    path = directory / "train" / f"shard-00000.{suffix}"
    last = len(shards.sentence_lengths) - 1
    os.truncate(path, 8)
    with pytest.raises(DataError, match=f"shard-00000.{suffix}: expected a file that stays as it is"):
        shards.check_whole([last, 0])
    shards.check_whole([last])


@pytest.mark.parametrize("wrong", [-1, 1000, 70000])
def test_id_outside_the_vocabulary(tmp_path, wrong):
    writer = ShardWriter(tmp_path, "train", 1000)
    with pytest.raises(InputError, match=f"0 to 999, got {wrong}"):
        writer.add([np.array([5, wrong])])


def test_lengths_that_do_not_add_up(tmp_path):
    writer = ShardWriter(tmp_path, "train", 1000)
    for sentences, documents in (([2, 2], [2]), ([3, 2], [1]), ([5, 0], [2]), ([6, -1], [2])):
        with pytest.raises(InputError, match="add up"):
            writer.add_documents(np.arange(5), sentences, documents)


def refused(directory, *words, verify=False):
    with pytest.raises(DataError) as error:
        ShardSet.open(directory, verify=verify)
    for word in words:
        assert str(word) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_truncated_missing_altered(tmp_path, suffix):
    directory = write(tmp_path, some_documents())
    path = directory / "train" / f"shard-00001.{suffix}"
    content = path.read_bytes()
    path.write_bytes(content[:-2])
    refused(directory, path, f"expected {len(content)} bytes, got {len(content) - 2}")
    path.write_bytes(content + b"\0")
    refused(directory, path, f"got {len(content) + 1}")
    altered = bytearray(content)
    altered[-8] ^= 1
    path.write_bytes(altered)
    refused(directory, path, "SHA-256", verify=True)
    path.unlink()
    refused(directory, path, "got none")


def test_altered_index_is_refused_without_hashes(tmp_path):
    directory = write(tmp_path, some_documents())
    path = directory / "train" / "shard-00000.idx"
    table = np.fromfile(path, "<i8")
    for place, value in ((0, 7), (4, 1), (6, 10**6), (6, -5), (6, 0)):
        wrong = table.copy()
        wrong[place] = value
        wrong.tofile(path)
        refused(directory, path)


def test_symbolic_links_are_refused(tmp_path):
    directory = write(tmp_path / "data", some_documents())
    path = directory / "train" / "shard-00000.bin"
    other = tmp_path / "elsewhere"
    os.rename(path, other)
    path.symlink_to(other)
    refused(directory, path, "symbolic link")
    path.unlink()
    os.rename(other, path)
    os.rename(directory / "train", tmp_path / "moved")
    (directory / "train").symlink_to(tmp_path / "moved")
    refused(directory, "symbolic link")


def edited(directory, change):
    path = directory / "manifest.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    return directory


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/passwd", "train/../../x.bin", "train/shard-00000.bin\n", 5])
def test_manifest_cannot_lead_out_of_its_directory(tmp_path, name):
    def change(table):
        table["splits"]["train"][0]["bin"] = name
        table["files"][str(name)] = {"bytes": 10, "sha256": ""}

    refused(edited(write(tmp_path, some_documents()), change), "manifest.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(version=2), "version 2"),
        (lambda t: t.update(format="other"), "'other'"),
        (lambda t: t.pop("splits"), "splits"),
        (lambda t: t.pop("special_ids"), "special_ids"),
        (lambda t: t["special_ids"].update(mask=1000), "special id 1000"),
        (lambda t: t["splits"]["train"][0].update(tokens=-1), "-1"),
        (lambda t: t["splits"]["train"][0].update(tokens="many"), "many"),
        (lambda t: t["files"].clear(), "got none"),
        (lambda t: t.update(files=[]), "manifest.json"),
        (lambda t: t["files"]["train/shard-00000.bin"].update(bytes=float("inf")), "infinity"),
    ],
)
def test_foreign_or_damaged_manifest(tmp_path, change, words):
    refused(edited(write(tmp_path, some_documents()), change), "manifest.json", words)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_manifest_that_is_none(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    refused(tmp_path, "manifest.json")


def test_no_manifest_no_split(tmp_path):
    refused(tmp_path / "nothing", "manifest.json", "No such file")
    with pytest.raises(DataError, match="'heldout', got train"):
        ShardSet.open(write(tmp_path, some_documents()), "heldout")


def test_counts_that_do_not_fit_the_files(tmp_path):
    directory = edited(write(tmp_path, some_documents()), lambda t: t["splits"]["train"][0].update(tokens=3))
    refused(directory, "shard-00000", "expected")


def test_ids_of_another_vocabulary(tmp_path):
    directory = edited(write(tmp_path, some_documents()), lambda t: t.update(vocab_size=999))
    refused(directory, "below the vocabulary's size 999, got 999", verify=True)
