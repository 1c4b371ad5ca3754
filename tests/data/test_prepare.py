"""Shards hold the library's ids of the corpus, whoever makes them; a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import peak_memory
import pretraining_runs
import pytest

from fastbert import files
from fastbert.data import prepare as module
from fastbert.data.bpe import train_bpe
from fastbert.data.corpus import Document, read_documents
from fastbert.data.encode import Job, WorkerSettings
from fastbert.data.prepare import prepare
from fastbert.data.shards import ShardSet
from fastbert.data.tokenizer import build_tokenizer, load_tokenizer
from fastbert.data.vocab_files import Normalisation
from fastbert.errors import DataError, InputError

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def vocab(shared_data):
    return shared_data / "vocab" / "bert-base-uncased-vocab.txt"


@pytest.fixture
def small_batches(monkeypatch):
    """So that worker processes have something to do on a small corpus."""
    monkeypatch.setattr(module, "BATCH_CHARS", 1 << 13)
    monkeypatch.setattr(module, "_SERIAL_CHARS", 1 << 14)


@pytest.fixture(scope="module")
def books(shared_data, tmp_path_factory):
    """The first million characters: about sixty chapters."""
    path = tmp_path_factory.mktemp("corpus") / "books.txt"
    path.write_text((shared_data / "corpus" / "books.txt").read_text(encoding="utf-8")[:1_000_000], encoding="utf-8")
    return path


def test_a_tokenizer_that_cuts_and_fills_up_does_neither(tmp_path):
    """As many that a caller has used before; its own settings stay."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "bo", "##ok", "film"]
    tokenizer = build_tokenizer({word: index for index, word in enumerate(words)}, Normalisation())
    documents = [("a", ["the book the film", "film"]), ("b", ["book book"])]
    plain = prepare(documents, tokenizer, tmp_path / "plain", num_workers=1)
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=8)
    assert prepare(documents, tokenizer, tmp_path / "other", num_workers=1).counts == plain.counts
    one, other = (ShardSet.open(tmp_path / name).tokens[0].tolist() for name in ("plain", "other"))
    assert one == other == [5, 6, 7, 5, 8, 8, 6, 7, 6, 7]
    assert tokenizer.truncation["max_length"] == 1


def test_two_corpora_at_the_same_time_each_have_their_tokenizer():
    """As in two threads: the second took the first one's place."""
    encoded = []
    for word in ("film", "book"):
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", word]
        tokenizer = build_tokenizer({word: index for index, word in enumerate(words)}, Normalisation())
        jobs = iter([Job([(True, ["film", "book"])], [False], 8)] * 2)
        encoded.append(module._encode(jobs, WorkerSettings(tokenizer.to_str(), "<u2", "never", 1), 1))
    found = [next(each).tokens.tolist() for each in (*encoded, *encoded)]
    assert found == [[5, 1], [1, 5], [5, 1], [1, 5]]


def test_sentences_that_pairs_leave_most_of_out_are_told(tmp_path, caplog):
    """A transcript of a million words without a full stop gave one sample of 128 tokens, and nobody was told."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film"]
    tokenizer = build_tokenizer({word: index for index, word in enumerate(words)}, Normalisation())
    short = [("a", ["the film"] * 300)]
    prepare([*short, ("b", ["the film " * 300])], tokenizer, tmp_path / "few", num_workers=1)
    assert not caplog.records
    prepare([*short, ("b", ["the film " * 500])], tokenizer, tmp_path / "many", num_workers=1)
    [record] = caplog.records
    share = 100 * (1000 - 512) / 1600
    assert f"{tmp_path / 'many'}: pairs of sentences leave out {share:.1f} % of the tokens" in record.getMessage()


def content(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_ids_are_transformers(books, vocab, tmp_path, small_batches):
    transformers = pytest.importorskip("transformers")
    manifest = prepare(books, vocab, tmp_path / "data", num_workers=2, shard_tokens=30_000)
    shards = ShardSet.open(tmp_path / "data", verify=True)
    tokenizer = transformers.BertTokenizer(vocab=str(vocab), vocab_file=str(vocab))
    documents = list(read_documents([books]))
    assert len(shards) == len(documents)
    for number, document in enumerate(documents):
        first, end = shards.document_starts[number : number + 2]
        expected = tokenizer(document.sentences, add_special_tokens=False)["input_ids"]
        assert [shards.sentence(i).tolist() for i in range(first, end)] == expected
    assert manifest.counts["train"] == {
        "documents": len(documents),
        "sentences": shards.num_sentences,
        "tokens": shards.num_tokens,
    }
    assert len(shards.tokens) > 3
    special = manifest.special_ids
    assert (special.pad, special.unk, special.cls, special.sep, special.mask) == (0, 100, 101, 102, 103)
    assert manifest.unknown_tokens == sum(int((tokens == 100).sum()) for tokens in shards.tokens)
    assert shards.tokenizer().encode("a test").ids == load_tokenizer(vocab).encode("a test").ids


def test_same_bytes_for_any_number_of_workers(books, vocab, tmp_path, small_batches):
    found = []
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        prepare([books], vocab, out, heldout=0.2, num_workers=workers, shard_tokens=50_000)
        found.append(content(out))
    assert found[0] == found[1] == found[2]


def test_heldout_is_by_text(vocab, tmp_path):
    rng = random.Random(0)
    documents = [(f"d{n}", ["a story.", f"story {rng.random()} begins.", "it ends."]) for n in range(2000)]
    manifest = prepare(iter(documents), vocab, tmp_path / "a", heldout=0.1)
    share = manifest.counts["heldout"]["documents"] / 2000
    assert abs(share - 0.1) < 0.03  # 4.5 standard deviations
    assert manifest.counts["train"]["documents"] + manifest.counts["heldout"]["documents"] == 2000
    # Order, repetition and company do not move a document to the other side.
    rng.shuffle(documents)
    prepare([Document(*d) for d in documents] * 2, vocab, tmp_path / "b", heldout=0.1)
    sides = []
    for name in ("a", "b"):
        shards = ShardSet.open(tmp_path / name, "heldout")
        sides.append({bytes(shards.gather(*shards.document_starts[d : d + 2])) for d in range(len(shards))})
    assert sides[0] == sides[1]
    assert len(sides[0]) == manifest.counts["heldout"]["documents"]


@pytest.mark.parametrize(
    ("heldout", "said"),
    [
        (1e-9, "got none for heldout; each is put into a split by a hash of its text: give a larger share, or more"),
        (1 - 1e-9, "got none for train; each is put into a split by a hash of its text: give a smaller share, or more"),
        (["e"], "got none for heldout; give names that documents have"),
        (["d0", "d1", "d2"], "got none for train; give names that not all documents have"),
    ],
)
def test_an_empty_split_is_told_with_what_would_help(vocab, tmp_path, heldout, said):
    documents = [(f"d{n}", [f"story {n}"]) for n in range(3)]
    with pytest.raises(DataError) as caught:
        prepare(documents, vocab, tmp_path / "data", heldout=heldout)
    assert str(caught.value).startswith("heldout = ")
    assert f"expected some of the 3 documents for each of two splits, {said}" in str(caught.value)


def test_names_of_no_document(vocab, tmp_path):
    """Who holds them out would think that nothing of them is trained on."""
    documents = [(f"d{n}", [f"story {n}"]) for n in range(3)]
    with pytest.raises(DataError, match=r"^heldout: expected .*, got 'd7' and 1 more, which no document has$"):
        prepare(documents, vocab, tmp_path / "data", heldout=["d1", "d8", "d7"])
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("form", [iter, np.array, dict.fromkeys, set], ids=["iterator", "array", "dict", "set"])
def test_names_in_any_form(vocab, tmp_path, form):
    documents = [(f"d{n}", [f"story {n}"]) for n in range(5)]
    counts = prepare(documents, vocab, tmp_path / "data", heldout=form(["d1", "d3"])).counts
    assert [counts[split]["documents"] for split in ("train", "heldout")] == [3, 2]


def test_a_share_in_numpys_numbers(vocab, tmp_path):
    documents = [(f"d{n}", [f"story {n}"]) for n in range(50)]
    made = [prepare(documents, vocab, tmp_path / kind.__name__, heldout=kind(0.5)) for kind in (float, np.float32)]
    assert made[0].files == made[1].files


def test_parts_of_a_long_document_stay_together(vocab, tmp_path, monkeypatch):
    from fastbert.data import corpus

    monkeypatch.setattr(corpus, "MAX_DOCUMENT_CHARS", 200)
    text = "\n\n".join("\n".join(f"document{n} line {i}." for i in range(40)) for n in range(20))
    (tmp_path / "a.txt").write_text(text)
    prepare(tmp_path / "a.txt", vocab, tmp_path / "data", heldout=0.5)
    sides = {}
    for split in ("train", "heldout"):
        shards = ShardSet.open(tmp_path / "data", split)
        tokenizer = shards.tokenizer()
        for document in range(len(shards)):
            name = tokenizer.decode(shards.gather(*shards.document_starts[document : document + 2])).split()[0]
            sides.setdefault(name, []).append(split)
    assert len(sides) == 20
    assert all(len(found) > 3 and len(set(found)) == 1 for found in sides.values())


def test_sentences_may_be_given_by_an_iterator(vocab, tmp_path):
    texts = ["A first sentence.", "And a second."]
    once, twice = (
        prepare([("d", made), ("e", list(texts))], vocab, tmp_path / name)
        for name, made in (("once", iter(texts)), ("twice", texts))
    )
    assert once.files == twice.files


def test_lone_surrogates_are_no_text(vocab, tmp_path):
    """As in rows of JSON lines: they ended in a TypeError, or in a UnicodeEncodeError if a share was held out."""
    for heldout in (0.0, 0.5):
        made = [
            prepare([(f"d{n}", [f"story {mark} {n}"]) for n in range(20)], vocab, tmp_path / name, heldout=heldout)
            for name, mark in ((f"lone{heldout}", "\ud800"), (f"mark{heldout}", "?"))
        ]
        assert made[0].files == made[1].files


def test_corpus_cannot_write_special_tokens(vocab, tmp_path):
    prepare([("d", ["a [SEP] b [MASK]", "[CLS]"])], vocab, tmp_path / "data")
    shards = ShardSet.open(tmp_path / "data")
    assert not set(shards.gather(0, 2).tolist()) & set(shards.manifest.special_ids.all)


def test_segmentation_options(vocab, tmp_path):
    (tmp_path / "a.txt").write_text("One. Two.\nThree\nFour\nFive\nSix\n")
    counts = {}
    for segment in ("auto", "always", "never"):
        counts[segment] = prepare(tmp_path / "a.txt", vocab, tmp_path / segment, segment=segment).counts["train"]
    assert [counts[s]["sentences"] for s in ("auto", "always", "never")] == [5, 6, 5]


def test_a_vocabulary_of_another_text_is_told(vocab, tmp_path, caplog):
    prepare([("d", ["the house", "one day"] * 5 + ["\u1230\u120b\u121d"])], vocab, tmp_path / "few")
    assert not caplog.records
    manifest = prepare([("d", ["the \u1230\u120b\u121d \u12d3\u1208\u121d"])], vocab, tmp_path / "many")
    (record,) = caplog.records
    share = 100 * manifest.unknown_tokens / manifest.counts["train"]["tokens"]
    assert share > 50
    assert f"{tmp_path / 'many'}: {share:.1f} % of the tokens are [UNK]" in record.getMessage()


def test_documents_that_are_left_out_are_counted(vocab, tmp_path, caplog):
    """Characters of no width and control characters are text to people, and no tokens."""
    documents = [("a", ["one day"]), ("b", ["\u200b"]), ("c", ["\x01", " "]), ("d", ["the house"]), ("e", ["he said"])]
    counts = prepare(documents, vocab, tmp_path / "data", heldout=["b", "d", "e"]).counts
    assert [counts[split]["documents"] for split in ("train", "heldout")] == [1, 2]
    assert caplog.messages == [f"{tmp_path / 'data'}: 2 documents left out: the tokenizer leaves nothing of the text"]
    caplog.clear()
    prepare([documents[0], documents[3], documents[4]], vocab, tmp_path / "one", heldout=["d"])
    assert "one: 1 document is held out, of which no pairs of sentences can be made" in caplog.text


def test_of_a_gpts_data_nothing_is_told_about_pairs(tmp_path, caplog):
    """It is trained without; of BERT's data both would be told."""
    documents = [("a", ["the film"]), ("b", ["the book " * 600]), ("c", ["is bad"])]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "book", "is", "bad"]
    vocabularies = {
        "gpt": train_bpe([text for _, [text] in documents], 300),
        "bert": build_tokenizer({word: index for index, word in enumerate(words)}, Normalisation()),
    }
    for name, vocab in vocabularies.items():
        prepare(documents, vocab, tmp_path / name, heldout=["a"])
    assert {message.split(":")[0] for message in caplog.messages} == {str(tmp_path / "bert")}
    assert len(caplog.messages) == 2


def nothing_left(directory, allowed):
    assert sorted(path.name for path in directory.iterdir()) == sorted(allowed)


@pytest.mark.parametrize("workers", [1, 2])
def test_failure_in_the_middle_leaves_nothing(books, vocab, tmp_path, small_batches, workers):
    path = tmp_path / "bad.txt"
    path.write_bytes(books.read_bytes()[:300_000].rpartition(b"\n")[0] + b"\nnot \xff text\n")
    lines = path.read_bytes().count(b"\n")
    with pytest.raises(DataError, match=f"bad.txt:{lines}: expected UTF-8"):
        prepare(path, vocab, tmp_path / "data", num_workers=workers)
    nothing_left(tmp_path, ["bad.txt"])


@pytest.mark.parametrize(
    ("corpus", "options", "error"),
    [
        ([], {}, DataError),
        ([("d", [])], {}, DataError),
        ([("d", ["\u200b", " "])], {}, DataError),
        ([("d", "a string")], {}, DataError),
        ([("d", [5])], {}, DataError),
        ([("d", ["\u1230\u120b\u121d", "\u12d3\u1208\u121d"])], {}, DataError),  # Amharic: all [UNK]
        ([("d", ["a"])], {"heldout": 0.5}, DataError),
        ([("d", ["a"])], {"heldout": 1.0}, InputError),
        ([("d", ["a"])], {"heldout": -0.1}, InputError),
        ([("d", ["a"])], {"num_workers": 0}, InputError),
        ([("d", ["a"])], {"num_workers": 99999}, InputError),
        ([("d", ["a"])], {"shard_tokens": 0}, InputError),
        ([("d", ["a"])], {"segment": "some"}, InputError),
        (["missing.txt"], {}, InputError),
        (["missing.txt"], {"errors": "ignore"}, InputError),
    ],
)
def test_bad_input(vocab, tmp_path, corpus, options, error):
    with pytest.raises(error) as caught:
        prepare(corpus, vocab, tmp_path / "data", **options)
    assert "\n" not in str(caught.value)
    nothing_left(tmp_path, [])


def test_what_is_there_stays(vocab, tmp_path):
    out = tmp_path / "data"
    prepare([("d", ["first"])], vocab, out)
    before = content(out)
    with pytest.raises(InputError, match="exists"):
        prepare([("d", ["second"])], vocab, out)
    with pytest.raises(DataError):
        prepare([], vocab, out, overwrite=True)
    assert content(out) == before
    prepare([("d", ["second"])], vocab, out, overwrite=True)
    assert ShardSet.open(out).tokenizer().decode(ShardSet.open(out).sentence(0)) == "second"
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.txt").write_text("years of work")
    with pytest.raises(InputError, match="left alone"):
        prepare([("d", ["second"])], vocab, mine, overwrite=True)
    nothing_left(tmp_path, ["data", "thesis"])


def test_what_another_call_wrote_meanwhile_stays(vocab, tmp_path):
    out = tmp_path / "data"

    def documents(other, **options):
        yield "d", ["first"]
        prepare([("d", [other])], vocab, out, **options)

    with pytest.raises(InputError, match="exists"):
        prepare(documents("second"), vocab, out)
    assert ShardSet.open(out).tokenizer().decode(ShardSet.open(out).sentence(0)) == "second"
    prepare(documents("third", overwrite=True), vocab, out, overwrite=True)
    assert ShardSet.open(out).tokenizer().decode(ShardSet.open(out).sentence(0)) == "first"
    nothing_left(tmp_path, ["data"])


@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk(books, vocab, tmp_path, small_batches, workers):
    """A limit on the size of a file fails the write in the kernel, as a full disk does."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from fastbert.data import prepare as module; module.BATCH_CHARS = 1 << 13; module._SERIAL_CHARS = 1 << 14\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: module.prepare(sys.argv[1], sys.argv[2], sys.argv[3], num_workers=int(sys.argv[4]))\n"
        "except module.DataError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(books), str(vocab), str(tmp_path / "data"), str(workers)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=REPO, timeout=60)
    assert answer.stderr == ""
    place = tmp_path / "data" / "train" / "shard-00000.bin"  # not of the directory that is renamed at the end
    assert answer.stdout.startswith(f"{place}: expected to write")
    assert os.strerror(errno.EFBIG) in answer.stdout
    assert answer.stdout.count("\n") == 1
    nothing_left(tmp_path, [])


def test_interrupt_leaves_nothing(books, vocab, tmp_path):
    """Ctrl-C goes to the whole group of processes."""
    code = (
        "import itertools, sys\nfrom fastbert.data import prepare as module\n"
        "module.BATCH_CHARS = 1 << 13; module._SERIAL_CHARS = 1 << 14\n"
        "endless = ((str(n), ['words and words'] * 100) for n in itertools.count())\n"
        "module.prepare(endless, sys.argv[1], sys.argv[2], num_workers=2)\n"
    )
    command = [sys.executable, "-c", code, str(vocab), str(tmp_path / "data")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=REPO, start_new_session=True)
    deadline = time.monotonic() + 60
    try:
        while not list(tmp_path.glob(".data.tmp-*/train/shard-00000.bin")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert stderr.count("Traceback") == 1
    nothing_left(tmp_path, [])
    with pytest.raises(ProcessLookupError):  # no worker is left
        os.killpg(process.pid, 0)


def test_interrupt_when_half_of_the_workers_are_started(vocab, tmp_path):
    """The one that had been started was waited for forever at the end."""
    code = (
        "import itertools, os, signal, sys\nfrom fastbert import processes\n"
        "from fastbert.data import prepare as module\n"
        "context = processes.quick_context()\n"
        "class Interrupting(type(context.Process())):\n"
        "    def start(self):\n"
        "        super().start()\n"
        "        context.Process = type(self).__base__\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "context.Process = Interrupting\n"
        "module.BATCH_CHARS = 1 << 13; module._SERIAL_CHARS = 1 << 14\n"
        "endless = ((str(n), ['words and words'] * 100) for n in itertools.count())\n"
        "module.prepare(endless, sys.argv[1], sys.argv[2], num_workers=2)\n"
    )
    command = [sys.executable, "-c", code, str(vocab), str(tmp_path / "data")]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=REPO, timeout=60)
    assert answer.stderr.rstrip().endswith("KeyboardInterrupt")
    assert answer.stderr.count("Traceback") == 1
    nothing_left(tmp_path, [])


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="the system does not tell who sent a signal")
def test_a_workers_sigterm_that_is_not_its_parents_ends_nothing(vocab, tmp_path, small_batches):
    """A batch system sends it to all processes: a worker that died of it in the middle of handing a result over was
    waited for for ever, before the parent had ended in order."""
    killed = []

    def documents():
        for number in range(60):
            yield str(number), ["words and words"] * 600
            if number == 30:
                killed.extend(process.pid for process in multiprocessing.active_children())
                subprocess.run(["kill", "-TERM", *map(str, killed)], check=True)

    prepare(documents(), vocab, tmp_path / "data", num_workers=2)
    assert len(killed) == 2
    assert len(ShardSet.open(tmp_path / "data")) == 60


def test_what_a_killed_call_left_goes_with_the_next_one(vocab, tmp_path, monkeypatch):
    """Unfinished data, unless a process is at them, and data that had been replaced but not yet removed."""
    monkeypatch.setattr(files, "_YOUNG_SECONDS", 0.0)
    left, lives, alien, old = (
        tmp_path / f".data.{name}" for name in ("tmp-0123456789ab", "tmp-ba9876543210", "tmp-x", "old-0123456789ab")
    )
    for directory in (left, lives, alien, old):
        directory.mkdir()
        (directory / "shard-00000.bin").write_bytes(b"words")
    code = (
        "import sys, time\nfrom fastbert.files import held\n"
        "with held(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lives)], stdout=subprocess.PIPE, text=True, cwd=REPO
    ) as other:
        try:
            assert other.stdout.readline() == "held\n"
            prepare([("a", ["one two"])], vocab, tmp_path / "data")
            # A call that was killed between its two renames has left no other data than these.
            assert old.exists()
            prepare([("a", ["one two"])], vocab, tmp_path / "data", overwrite=True)
        finally:
            other.kill()
    assert not left.exists()
    assert not old.exists()
    assert lives.exists()
    assert alien.exists()


def test_what_may_be_of_a_call_that_begins_stays(tmp_path):
    """A directory is there a moment before it is held."""
    young, old = tmp_path / ".data.tmp-0123456789ab", tmp_path / ".data.tmp-ba9876543210"
    for directory, age in ((young, 30), (old, 90)):
        directory.mkdir()
        os.utime(directory, (time.time() - age,) * 2)
    files.remove_leftovers(tmp_path, ".data.tmp-*")
    assert list(tmp_path.iterdir()) == [young]


@pytest.mark.skipif(not peak_memory.STATUS.exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_corpus(vocab, tmp_path):
    """Peak memory of preparing 2 and 20 MB, each in a process of its own with one worker: it grew by 2.3 MiB. To keep
    the ids would take 8 MiB more, the text 19."""
    code = (
        "import sys\nfrom fastbert.data.prepare import prepare\nfrom peak_memory import peak_mib\n"
        "line = 'The quick brown fox jumps over the lazy dog, and nobody minds it much.'\n"
        "documents = ((str(n), [line] * 100) for n in range(int(sys.argv[3])))\n"
        "prepare(documents, sys.argv[1], sys.argv[2], num_workers=1, shard_tokens=1 << 17)\n"
        "print(peak_mib())\n"
    )
    peaks = []
    for count in (280, 2800):
        command = [sys.executable, "-c", code, str(vocab), str(tmp_path / str(count)), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, env=pretraining_runs.environment(), check=True)
        peaks.append(float(done.stdout))
    print(f"peaks of {peaks[0]:.1f} and {peaks[1]:.1f} MiB")
    assert peaks[1] < peaks[0] + 5
