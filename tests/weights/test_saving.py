"""Directories that fastbert writes: they load in transformers, come back bit for bit, and are whole or not there."""

import json
import os
import resource
from pathlib import Path

import pytest
import torch
from hf_parity import every_class
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_bert import VOCAB
from tiny_bert import config as tiny_config
from tiny_bert import save as save_tiny

import fastbert
from fastbert.data.tokenizer import save_tokenizer
from fastbert.errors import CheckpointError
from fastbert.interop.convert import convert
from fastbert.interop.sentence_files import read_settings
from fastbert.weights.reading import read_state_dict
from fastbert.weights.safetensors_format import write_safetensors
from fastbert.weights.saving import save_directory, write_all


def make(name, **changes):
    """A model of ours with random numbers everywhere, also where BERT starts with zeros and ones."""
    torch.manual_seed(5)
    model = getattr(fastbert, name)(fastbert.BertConfig.from_hf(tiny_config(**changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model.eval()


def assert_same(state, other):
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("tied", [True, False])
@every_class
def test_a_round_trip_through_transformers_changes_no_bit(tmp_path, name, tied):
    import transformers
    from patched import V5

    model = make(name, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "ours")
    theirs, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert_same({**model.state_dict()}, {**theirs.state_dict()})
    theirs.save_pretrained(tmp_path / "theirs")
    again = getattr(fastbert, name).from_pretrained(tmp_path / "theirs")
    assert_same(model.state_dict(), again.state_dict())
    # The files themselves hold the same tensors: nothing tied is stored twice, nothing left out.
    ours, others = read_state_dict(tmp_path / "ours"), read_state_dict(tmp_path / "theirs")
    if not V5 and not tied:
        # transformers 4 leaves one name of the decoder's bias out also where the weights are not tied.
        ours.pop("cls.predictions.decoder.bias", None)
    assert_same(ours, others)


def test_the_file_is_one_that_transformers_4_accepts(tmp_path):
    model = make("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "cls.predictions.decoder.weight" not in file.keys()  # noqa: SIM118  (not a dictionary)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert config["model_type"] == "bert"
    assert config["dtype"] == "float32"
    assert list(config) == sorted(config)


def test_half_precision_stays_half(tmp_path):
    import transformers

    model = make("BertModel").bfloat16()
    model.save_pretrained(tmp_path)
    theirs = transformers.BertModel.from_pretrained(tmp_path, dtype="auto")
    assert theirs.dtype == torch.bfloat16
    assert_same(model.state_dict(), theirs.state_dict())
    assert_same(model.state_dict(), fastbert.BertModel.from_pretrained(tmp_path, dtype="auto").state_dict())


def test_tensors_with_strides_and_shared_memory_are_saved_as_they_read(tmp_path):
    model = make("BertModel")
    layers = model.encoder.layer
    shared = torch.randn(96, 32)
    for part, linear in zip(
        shared.split(32), (layers[0].attention.self.query, layers[0].attention.self.key), strict=False
    ):
        linear.weight = torch.nn.Parameter(part)
    layers[1].attention.self.query.weight = torch.nn.Parameter(torch.randn(32, 32).t())
    expected = {name: t.clone() for name, t in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    assert_same(expected, read_state_dict(tmp_path))


def test_tensors_that_begin_where_another_does_are_none_of_its_names(tmp_path):
    model = make("BertModel")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = state["embeddings.word_embeddings.weight"]
    state["embeddings.token_type_embeddings.weight"] = whole[: model.config.type_vocab_size]
    state["embeddings.LayerNorm.weight"] = whole[0]
    expected = {name: tensor.clone() for name, tensor in state.items()}
    save_directory(model, tmp_path, model.config.to_dict(), state=state)
    assert_same(expected, read_state_dict(tmp_path))


def test_wrappers_leave_no_trace(tmp_path):
    model = make("BertForMaskedLM")
    plain, config = read_state_dict_of(model, tmp_path / "plain"), model.config.to_dict()
    save_directory(torch.nn.DataParallel(model), tmp_path / "parallel", config)
    save_directory(torch.compile(model), tmp_path / "compiled", config)
    for form in ("parallel", "compiled"):
        assert_same(plain, read_state_dict(tmp_path / form))
        assert json.loads((tmp_path / form / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]


def read_state_dict_of(model, directory):
    model.save_pretrained(directory)
    return read_state_dict(directory)


def test_the_tokenizers_files_travel_unchanged(tmp_path):
    source = save_tiny(tmp_path / "source")
    (source / "tokenizer_config.json").write_bytes(b'{"do_lower_case":  true}\r\n')
    fastbert.BertForMaskedLM.from_pretrained(source).save_pretrained(tmp_path / "copy")
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (source / name).read_bytes()
    assert not (tmp_path / "copy" / "tokenizer.json").exists()


def test_a_file_of_an_earlier_tokenizer_that_cannot_be_removed_is_told(tmp_path, monkeypatch):
    source = save_tiny(tmp_path / "source")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "merges.txt").write_text("a b\n")

    def refused(path, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(CheckpointError, match=r"merges.txt: expected to remove it, since .*, got: Permission denied"):
        fastbert.BertForMaskedLM.from_pretrained(source).save_pretrained(tmp_path / "copy")


@pytest.mark.parametrize("settings", [None, {"strip_accents": False, "model_max_length": 8}, {"do_lower_case": None}])
@pytest.mark.parametrize("cased", [True, False])
def test_a_case_that_was_guessed_is_written_down(tmp_path, cased, settings):
    transformers = pytest.importorskip("transformers")
    source = save_tiny(tmp_path / "source")
    words = ["The", "Film", "the", "film", "Paris", "paris"] if cased else ["the", "film", "paris"]
    (source / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    beside = source / "tokenizer_config.json"
    if settings is None:
        beside.unlink(missing_ok=True)
    else:
        beside.write_text(json.dumps(settings))
    save_directory(make("BertModel"), tmp_path / "copy", tiny_config().to_dict(), source)
    written = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
    assert written == {"tokenizer_class": "BertTokenizer", **(settings or {}), "do_lower_case": not cased}
    assert json.loads((source / "tokenizer_config.json").read_text() if settings else "null") == settings
    texts = ["The Film", "paris Film"]
    wanted = [fastbert.load_tokenizer(source).encode(text).ids for text in texts]
    for to in ("pickle", "sentence-transformers"):
        convert(source, tmp_path / to, to=to)
    for directory in (tmp_path / "copy", tmp_path / "pickle", tmp_path / "sentence-transformers"):
        assert transformers.AutoTokenizer.from_pretrained(directory)(texts)["input_ids"] == wanted
        assert [fastbert.load_tokenizer(directory).encode(text).ids for text in texts] == wanted


def test_a_vocabulary_that_was_named_itself_brings_its_configuration(tmp_path):
    source = save_tiny(tmp_path / "source")
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    save_directory(make("BertModel"), tmp_path / "copy", tiny_config().to_dict(), source / "vocab.txt")
    assert (tmp_path / "copy" / "tokenizer_config.json").read_text() == '{"do_lower_case": false}'


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"max_len": 16}, 16),
        ({"max_len": 16, "model_max_length": 8}, 8),
        ({"max_len": 16, "model_max_length": None}, None),
        ({}, None),
    ],
)
def test_the_longest_input_under_its_older_name(tmp_path, settings, longest):
    transformers = pytest.importorskip("transformers")
    source = save_tiny(tmp_path)
    (source / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **settings}))
    theirs = transformers.AutoTokenizer.from_pretrained(source).model_max_length
    assert read_settings(source).max_seqlen == (theirs if theirs < 1 << 30 else None) == longest


def test_saving_over_its_own_directory_keeps_the_tokenizer(tmp_path):
    source = save_tiny(tmp_path)
    vocab = (source / "vocab.txt").read_bytes()
    model = fastbert.BertForMaskedLM.from_pretrained(source)
    expected = {name: t.clone() for name, t in model.state_dict().items()}
    model.save_pretrained(source)
    assert (source / "vocab.txt").read_bytes() == vocab
    # What was read is no view of the file that was just replaced.
    assert_same(expected, model.state_dict())


def test_saving_over_another_model_leaves_nothing_of_its_tokenizer(tmp_path):
    """Readers prefer some of the files to others: ids would be those of the model that was there before."""
    words = [*VOCAB[:5], *VOCAB[:4:-1]]
    before, after = (save_tiny(tmp_path / name, "BertModel", vocab) for name, vocab in (("a", VOCAB), ("b", words)))
    save_tokenizer(fastbert.load_tokenizer(before), before)
    (before / "added_tokens.json").write_text("{}")
    out, note = tmp_path / "out", tmp_path / "out" / "note.txt"
    fastbert.BertModel.from_pretrained(before).save_pretrained(out)
    assert (out / "tokenizer.json").is_file()
    note.write_text("mine")
    fastbert.BertModel.from_pretrained(after).save_pretrained(out)
    ids = fastbert.load_tokenizer(after).encode("the film is good").ids
    assert fastbert.load_tokenizer(out).encode("the film is good").ids == ids
    assert not (out / "tokenizer.json").exists()
    assert not (out / "added_tokens.json").exists()
    assert note.read_text() == "mine"
    make("BertModel").save_pretrained(out)  # which has no tokenizer to write
    assert (out / "vocab.txt").is_file()


@pytest.mark.parametrize("added", ["zork", "two words"])
def test_a_tokenizer_with_added_tokens_is_kept(added, tmp_path):
    """With transformers, whose models do not write tokenizers, either may be saved first."""
    transformers = pytest.importorskip("transformers")
    source, out = save_tiny(tmp_path / "source", "BertForMaskedLM", VOCAB), tmp_path / "out"
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens([added])
    tokenizer.save_pretrained(out)
    model = fastbert.BertForMaskedLM.from_pretrained(source)
    model.save_pretrained(out)  # the table has no row for the token, so this tokenizer is not the model's
    assert fastbert.load_tokenizer(out).token_to_id(added) is None
    tokenizer.save_pretrained(out)
    model.resize_token_embeddings(len(tokenizer))
    text = f"the film {added} good"
    for wrapped in (False, True):
        if wrapped:  # as adapters do, which need not tell the number of their rows
            model.bert.embeddings.word_embeddings = torch.nn.Sequential(model.get_input_embeddings())
        state = {name.replace("embeddings.0.", "embeddings."): x for name, x in model.state_dict().items()}
        model.save_pretrained(out, state_dict=state)
        assert fastbert.load_tokenizer(out).encode(text).ids == tokenizer(text)["input_ids"]
        assert transformers.AutoTokenizer.from_pretrained(out)(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert len(tokenizer) - 1 in tokenizer(text)["input_ids"]


def test_an_equal_tokenizer_is_not_read_to_be_compared(tmp_path, monkeypatch):
    """A large one takes seconds, twice, at each saving over the last."""
    model = fastbert.BertModel.from_pretrained(save_tiny(tmp_path / "source"))
    model.save_pretrained(tmp_path / "out")  # its tokenizer_config.json says more than the source's
    model = fastbert.BertModel.from_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "copy")
    monkeypatch.setattr("fastbert.data.tokenizer.is_extended", lambda *_: pytest.fail("read"))
    model.save_pretrained(tmp_path / "copy")
    model.save_pretrained(tmp_path / "out")
    (tmp_path / "copy" / "added_tokens.json").write_text("{}")
    with pytest.raises(pytest.fail.Exception):
        model.save_pretrained(tmp_path / "copy")


def test_a_relative_directory_is_that_of_the_moment_of_reading(tmp_path, monkeypatch):
    source = save_tiny(tmp_path / "work" / "model")
    monkeypatch.chdir(tmp_path / "work")
    model = fastbert.BertForMaskedLM.from_pretrained("model")
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("copy")
    assert (tmp_path / "copy" / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


def test_all_files_have_the_permissions_that_the_umask_allows(tmp_path):
    old = os.umask(0o027)
    try:
        make("BertModel").save_pretrained(tmp_path)
    finally:
        os.umask(old)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("model.safetensors", "config.json"), 0o640
    )


def test_weights_are_written_to_the_file_that_is_locked(tmp_path):
    """A file of unfinished work without a lock is one that a killed process left, and others remove it."""
    path = tmp_path / "f"
    path.touch()
    before = path.stat().st_ino
    write_safetensors({"w": torch.ones(3)}, path)
    assert [path.stat().st_ino for path in tmp_path.iterdir()] == [before]


def test_the_safetensors_library_reads_the_file(tmp_path):
    kinds = (torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    state = {str(dtype): torch.arange(5).to(dtype) for dtype in kinds}
    state |= {"ä": torch.tensor(2.5), "none": torch.empty(3, 0).T, "rows": torch.ones(2, 3)}
    write_safetensors(state, tmp_path / "f")
    assert_same(state, load_file(tmp_path / "f"))


def test_a_full_disk_leaves_what_was_there(tmp_path):
    make("BertModel").save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model = make("BertForMaskedLM")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # the write fails as on a full disk, with another word
    try:
        with pytest.raises(CheckpointError) as caught:
            model.save_pretrained(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_failure_after_the_weights_leaves_what_was_there(tmp_path, monkeypatch):
    make("BertModel").save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = os.fsync
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"config\.json: .*No space left on device"):
        make("BertForMaskedLM").save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CheckpointError, match="file"):
        make("BertModel").save_pretrained(tmp_path / "file")


def test_a_model_without_values_is_refused(tmp_path):
    with torch.device("meta"):
        model = fastbert.BertModel(fastbert.BertConfig.from_hf(tiny_config()))
    with pytest.raises(CheckpointError, match="meta device"):
        save_directory(model, tmp_path / "out", {})
    assert not (tmp_path / "out").exists()


def test_directories_that_were_made_for_nothing_are_removed(tmp_path):
    def full(path):
        raise OSError(28, "No space left on device")

    (tmp_path / "kept").mkdir()
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_all(tmp_path / "kept" / "a" / "b", {"c/d/one": lambda path: path.write_text(""), "two": full})
    assert list(tmp_path.rglob("*")) == [tmp_path / "kept"]
