"""Weights of Hugging Face directories: every variant of the names, and what is refused."""

import json
import logging
import os
import pickle
import re
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tf_bundle import write_bundle
from tiny_bert import config as tiny_config

import fastbert
from fastbert.errors import CheckpointError, InputError
from fastbert.signals import removed_on_sigterm
from fastbert.weights.foreign_names import to_tensorflow
from fastbert.weights.loading import canonical_keys, load_into
from fastbert.weights.materialise import materialise
from fastbert.weights.misfit import padded_vocabulary
from fastbert.weights.reading import read_state_dict, read_weights_file

WORD = "bert.embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture(scope="module")
def theirs():
    """transformers' model with all pre-training heads; LayerNorms and biases too hold random numbers."""
    import transformers

    torch.manual_seed(3)
    model = transformers.BertForPreTraining(tiny_config()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def state(theirs):
    return {name: tensor.clone() for name, tensor in theirs.state_dict().items()}


def new(name="BertForPreTraining", **changes):
    return getattr(fastbert, name)(fastbert.BertConfig.from_hf(tiny_config(**changes)))


def assert_holds(model, theirs, prefix=""):
    """Every tensor of ours equals transformers' of the same name, and there is none more or less."""
    expected = {name.removeprefix(prefix): t for name, t in theirs.state_dict().items() if name.startswith(prefix)}
    held = model.state_dict()
    assert held.keys() == expected.keys()
    for name, tensor in held.items():
        assert torch.equal(tensor, expected[name]), name


def gamma_beta(state):
    return {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in state.items()
    }


VARIANTS = {
    "as saved": lambda s: s,
    "gamma and beta": gamma_beta,
    "DataParallel": lambda s: {f"module.{n}": t for n, t in s.items()},
    "FSDP and checkpointing": lambda s: {
        n.replace("bert.", "bert._fsdp_wrapped_module.").replace(".layer.0.", ".layer.0._checkpoint_wrapped_module."): t
        for n, t in s.items()
    },
    "torch.compile": lambda s: {f"_orig_mod.{n}": t for n, t in s.items()},
    "both": lambda s: {f"module._orig_mod.{n}": t for n, t in s.items()},
    "an encoder compiled alone": lambda s: {
        n.replace("bert.encoder.", "bert.encoder._orig_mod."): t for n, t in s.items()
    },
    "LightningModule": lambda s: {f"model.{n}": t for n, t in s.items()},
    "of a bare model, compiled": lambda s: {
        (f"model._orig_mod.{n.removeprefix('bert.')}" if "bert." in n else n): t for n, t in s.items()
    },
    "no bert prefix": lambda s: {n.removeprefix("bert."): t for n, t in s.items()},
    "buffers persisted": lambda s: {
        **s,
        "bert.embeddings.position_ids": torch.arange(32)[None],
        "bert.embeddings.token_type_ids": torch.zeros(1, 32, dtype=torch.long),
    },
    "decoder missing": lambda s: {n: t for n, t in s.items() if ".decoder." not in n},
    "only the decoder's bias": lambda s: {n: t for n, t in s.items() if n != "cls.predictions.bias"},
    "only the decoder's weight": lambda s: {n: t for n, t in s.items() if n != WORD},
    "contiguous copies of transposed memory": lambda s: {
        n: t.t().contiguous().t() if t.dim() == 2 else t for n, t in s.items()
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_variant_of_the_names_loads(theirs, state, variant, device):
    with torch.device(device):
        model = new()
    report = load_into(model, VARIANTS[variant](state), source="there")
    assert_holds(model, theirs)
    assert (report.missing, report.unexpected, report.mismatched) == ((), (), ())
    decoder = model.cls.predictions.decoder
    assert decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_the_names_come_out_as_those_of_transformers(theirs, state):
    expected = set(theirs.state_dict()) - {"cls.predictions.decoder.bias"}
    for variant, change in VARIANTS.items():
        if "only" not in variant and "missing" not in variant:
            assert set(canonical_keys(change(state))) == expected, variant


def test_a_bare_model_and_one_with_heads_read_each_other(theirs, state):
    bare = new("BertModel")
    report = load_into(bare, state, source="there")
    assert_holds(bare, theirs, "bert.")
    assert all(name.startswith("cls.") for name in report.unexpected)
    full = new("BertForSequenceClassification")
    before = full.classifier.weight.clone()
    report = load_into(full, bare.state_dict(), source="there")
    assert_holds(full.bert, theirs, "bert.")
    assert torch.equal(full.classifier.weight, before)
    assert report.missing == ("classifier.weight", "classifier.bias")


def test_a_model_that_deepspeed_has_divided_is_told_where_to_load(state):
    """Its parameters are empty, and were called ones of another shape."""
    model = new("BertModel")
    for parameter in model.parameters():
        parameter.data, parameter.ds_id = torch.empty(0), 0
    with pytest.raises(InputError, match=r"there: .* call from_pretrained outside of that block") as refused:
        load_into(model, state, source="there")
    assert "mismatched" not in str(refused.value)


def test_a_new_head_is_said_once_and_pretraining_heads_are_no_warning(state, caplog):
    model = new("BertForQuestionAnswering")
    with caplog.at_level(logging.INFO, logger="fastbert"):
        load_into(model, state, source="there")
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "qa_outputs.weight" in warnings[0]
    assert "there" in warnings[0]
    assert any("cls.seq_relationship.weight" in r.getMessage() for r in caplog.records if r.levelno == logging.INFO)


def test_what_a_lightning_module_has_beside_the_model_is_not_used(theirs, state, tmp_path):
    saved = {f"model.{n}": t for n, t in state.items()} | {"loss.weight": torch.ones(2)}
    torch.save({"state_dict": saved, "global_step": 3}, tmp_path / "last.ckpt")
    model = new()
    assert load_into(model, read_weights_file(tmp_path / "last.ckpt"), source="there").unexpected == ("loss.weight",)
    assert_holds(model, theirs)


def test_a_models_own_names_go_before_those_of_a_lightning_module(theirs, state):
    saved = {f"model.{n}": torch.zeros_like(t) for n, t in state.items()}
    model = new()
    assert set(load_into(model, saved | state, source="there").unexpected) == saved.keys()
    assert_holds(model, theirs)


@pytest.mark.parametrize(
    ("owners", "said"),
    [(["net."], "net.bert."), (["question.", "passage."], "question.bert. and passage.bert.")],
)
def test_names_of_further_modules_are_refused_with_what_to_do(state, owners, said):
    saved = {f"{owner}{n}": t for owner in owners for n, t in state.items()}
    with pytest.raises(CheckpointError, match=r"^there: expected the weights of") as caught:
        load_into(new(), saved, source="there")
    end = f": the weights are under {said} there; save the state_dict() of that module alone"
    assert str(caught.value).endswith(end)


def test_an_unknown_encoder_tensor_is_a_warning(state, caplog):
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        report = load_into(new(), {**state, "bert.encoder.layer.9.output.dense.bias": torch.zeros(32)}, source="there")
    assert report.unexpected == ("bert.encoder.layer.9.output.dense.bias",)
    assert "layer.9" in caplog.text


def test_weights_that_are_no_numbers_are_a_warning(state, caplog):
    state["cls.predictions.bias"][3] = 3e38
    state["cls.predictions.bias"][4] = 3e38
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        load_into(new(), state, source="there")
        assert not caplog.records
        state[QUERY][2, 3] = float("nan")
        state[QUERY] = state[QUERY].to(torch.float8_e4m3fn)  # of which torch knows no isfinite
        state["cls.seq_relationship.bias"][0] = float("-inf")
        load_into(new(), state, source="there")
    assert [record.getMessage() for record in caplog.records] == [
        f"there: 2 with NaN or infinite numbers ({QUERY}, cls.seq_relationship.bias): its results are meaningless"
    ]


def test_a_model_on_meta_gets_a_new_head_with_the_numbers_of_bert(theirs, state):
    with torch.device("meta"):
        model = new("BertForSequenceClassification", num_labels=50, initializer_range=0.5)
    load_into(model, state, source="there")
    assert_holds(model.bert, theirs, "bert.")
    assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
    assert model.classifier.bias.abs().max() == 0
    assert 0.45 < model.classifier.weight.std() < 0.55  # 1600 numbers: the standard error is 0.009
    assert model(torch.tensor([[2, 5, 3]])).logits.shape == (1, 50)


def test_of_a_model_partly_on_meta_buffers_are_computed_and_values_stay():
    model = torch.nn.Module()
    model.kept = torch.nn.Parameter(torch.arange(3.0))
    for name in ("position_ids", "other"):
        model.register_buffer(name, torch.empty(1, 5, dtype=torch.long, device="meta"))
    materialise(model, {})
    assert model.kept.tolist() == [0.0, 1.0, 2.0]
    assert (model.position_ids.tolist(), model.other.tolist()) == ([[0, 1, 2, 3, 4]], [[0] * 5])


def test_what_is_frozen_of_a_model_on_meta_stays_so(state):
    with torch.device("meta"):
        model = new()
    model.bert.embeddings.requires_grad_(False)
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    load_into(model, state, source="there")
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == frozen != []


def test_weights_are_converted_to_the_dtype_of_the_model(state):
    model = new().bfloat16()
    load_into(model, state, source="there")
    assert torch.equal(model.state_dict()[QUERY], state[QUERY].bfloat16())
    model = new().double()
    load_into(model, {name: t.half() for name, t in state.items()}, source="there")
    assert torch.equal(model.state_dict()[QUERY], state[QUERY].half().double())


def test_what_is_missing_mismatched_and_unexpected_is_listed_and_nothing_written(state):
    del state[QUERY]
    state["bert.embeddings.position_embeddings.weight"] = torch.zeros(31, 32)
    state["bert.extra"] = torch.zeros(1)
    model = new()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_into(model, state, source="weights/there")
    message = str(caught.value)
    assert message.startswith("weights/there: ")
    assert f"1 missing ({QUERY})" in message
    assert "1 mismatched (bert.embeddings.position_embeddings.weight is (31, 32) for (32, 32))" in message
    assert "1 unexpected (bert.extra)" in message
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_tensor_of_another_kind_of_number_is_named_by_it(state):
    state[QUERY] = state[QUERY].to(torch.int8)
    with pytest.raises(CheckpointError, match=rf"{QUERY} is torch\.int8 for torch\.float32"):
        load_into(new(), state, source="there")


def test_long_lists_are_shortened_and_counted(state):
    with pytest.raises(CheckpointError) as caught:
        load_into(new(), {n: t for n, t in state.items() if ".encoder." not in n}, source="there")
    assert "64 missing (" in str(caught.value)  # 4 layers of 16 tensors
    assert "and 54 more" in str(caught.value)


def test_whole_numbers_do_not_load_into_weights(state):
    state[QUERY] = torch.zeros(32, 32, dtype=torch.int64)
    with pytest.raises(CheckpointError, match="1 mismatched"):
        load_into(new(), state, source="there")


def test_a_head_of_another_shape_is_an_error(state):
    with pytest.raises(CheckpointError, match=r"classifier.weight is \(3, 32\) for \(2, 32\)"):
        load_into(
            new("BertForTokenClassification"),
            {**state, "classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(2)},
            source="there",
        )


def test_a_refused_head_says_how_to_begin_with_a_new_one(state):
    heads = {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}
    wrong = {**state, "bert.embeddings.position_embeddings.weight": torch.zeros(31, 32)}
    whole = {"classifier.weight": torch.zeros(2, 32, dtype=torch.int64), "classifier.bias": torch.zeros(2)}
    for tensors, told in (({**state, **heads}, True), ({**wrong, **heads}, False), ({**state, **whole}, False)):
        with pytest.raises(CheckpointError) as caught:
            load_into(new("BertForTokenClassification"), tensors, source="there")
        assert str(caught.value).endswith("with new weights if ignore_mismatched_sizes=True") is told
    load_into(new("BertForTokenClassification"), {**state, **heads}, ignore_mismatched_sizes=True, source="there")


def test_two_different_tensors_of_one_name_are_refused(state):
    with pytest.raises(CheckpointError, match="two that differ"):
        canonical_keys({**state, f"module.{QUERY}": state[QUERY] + 1})


def test_the_bias_that_an_untied_decoder_computes_with_wins(state):
    other = state["cls.predictions.bias"] + 1
    assert torch.equal(canonical_keys({**state, "cls.predictions.decoder.bias": other})["cls.predictions.bias"], other)


def test_a_decoder_of_its_own_is_kept_where_the_configuration_says_tied(tmp_path, caplog):
    """The file is right: transformers 5 computes with both matrices, and version 4 with the embeddings alone."""
    import transformers
    from patched import V5
    from tiny_bert import save

    from fastbert.interop.convert import convert

    source = save(tmp_path / "source")
    # Clones: older releases of safetensors return the file, mapped into memory, and write over it.
    state = {name: t.clone() for name, t in load_file(source / "model.safetensors").items()}
    state[DECODER] = state[WORD] + 1
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    ours = fastbert.BertForMaskedLM.from_pretrained(source)
    assert f"{DECODER} differs from {WORD}" in caplog.text
    ids = torch.tensor([[2, 7, 9, 3]])
    if V5:
        theirs = transformers.BertForMaskedLM.from_pretrained(source).eval()
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)
    ours.save_pretrained(tmp_path / "saved")
    convert(source, tmp_path / "converted")
    for name in ("saved", "converted"):
        again = read_state_dict(tmp_path / name)
        assert all(torch.equal(again[key], state[key]) for key in (WORD, DECODER))
        assert torch.equal(fastbert.BertForMaskedLM.from_pretrained(tmp_path / name)(ids).logits, ours(ids).logits)
    with pytest.raises(CheckpointError, match="tied"):
        convert(source, tmp_path / "tf1", to="tf1")


def test_a_vocabulary_without_padding_is_not_padded():
    """NVIDIA's and DeepSpeed's examples fill it up to a multiple of eight."""
    assert [rows for rows in range(30520, 30540) if padded_vocabulary(rows, 30522)] == [30528]
    assert not padded_vocabulary(30528, 30528)


def shards(directory: Path, state, names=("model-00001-of-00002", "model-00002-of-00002"), suffix="safetensors"):
    """Writes the state in two shards with their index."""
    halves = list(state)[::2], list(state)[1::2]
    weight_map = {}
    for shard, keys in zip(names, halves, strict=True):
        part = {key: state[key].clone() for key in keys}
        save_file(part, directory / f"{shard}.{suffix}") if suffix != "bin" else torch.save(
            part, directory / f"{shard}.bin"
        )
        weight_map |= dict.fromkeys(keys, f"{shard}.{suffix}")
    stem = "pytorch_model.bin" if suffix == "bin" else "model.safetensors"
    (directory / f"{stem}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


@pytest.mark.parametrize("form", ["safetensors", "bin", "old bin", "sharded safetensors", "sharded bin"])
def test_every_form_of_file_is_read(tmp_path, theirs, state, form):
    if form == "safetensors":
        theirs.save_pretrained(tmp_path)
    elif form.startswith("sharded"):
        shards(tmp_path, state, suffix=form.split()[1])
    else:
        torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=form == "bin")
    read = read_state_dict(tmp_path)
    assert read.keys() >= {WORD, QUERY}
    for name, tensor in read.items():
        assert torch.equal(tensor, state[name]), name
    tiny_config().save_pretrained(tmp_path)
    assert_holds(fastbert.BertForPreTraining.from_pretrained(tmp_path), theirs)


class _Initialised(torch.overrides.TorchFunctionMode):
    """Counts the parameters that are given initial values."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__module__", "") == "torch.nn.init"
        return func(*args, **(kwargs or {}))


def test_what_a_file_holds_is_not_drawn_before(tmp_path):
    model = new("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    with _Initialised() as initialised:
        loaded = fastbert.BertForMaskedLM.from_pretrained(tmp_path)
    assert initialised.count == 0
    assert torch.equal(torch.random.get_rng_state(), before)
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    assert_holds(loaded, model)


def test_a_head_that_a_file_lacks_is_drawn_as_in_a_new_model(tmp_path):
    new("BertModel").save_pretrained(tmp_path)
    torch.manual_seed(5)
    expected = new("BertForSequenceClassification").classifier.weight
    torch.manual_seed(5)
    got = fastbert.BertForSequenceClassification.from_pretrained(tmp_path).classifier
    assert torch.equal(got.weight, expected)
    assert not got.bias.any()


def test_a_model_that_is_read_under_the_meta_device_has_numbers(tmp_path):
    new("BertModel").save_pretrained(tmp_path)
    with torch.device("meta"):
        held = fastbert.BertModel.from_pretrained(tmp_path)
    assert all(parameter.device.type == "cpu" for parameter in held.parameters())


def test_safetensors_come_before_pickles(tmp_path, state):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert list(read_state_dict(tmp_path)) == ["a"]


@pytest.mark.parametrize("cut", [0, 5, 100, 0.5, -1])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_named(tmp_path, state, name, cut):
    path = tmp_path / name
    save_file({k: v.clone() for k, v in state.items()}, path) if "safe" in name else torch.save(state, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut) if isinstance(cut, float) else cut])
    with pytest.raises(CheckpointError) as caught:
        read_state_dict(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class _Payload:
    """Unpickled by a careless reader, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


class _Command:
    """Unpickled by a careless reader, it calls what torch refuses by its module's name, and in other words."""

    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path, zipped):
    proof = tmp_path / "ran"
    pickle.loads(pickle.dumps(_Payload(proof)))
    assert proof.exists(), "the payload must be a working one"
    proof.unlink()
    torch.save({"weight": _Payload(proof)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        read_state_dict(tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "content",
    [
        [torch.zeros(1)],
        {"a": 1},
        {1: torch.zeros(1)},
        {"weights": {"a": torch.zeros(1)}},
        {"a": torch.zeros(1).expand(1 << 40)},
        {"a": torch.zeros(2).to_sparse()},
    ],
    ids=["list", "number", "key", "nested", "absurd size", "sparse"],
)
def test_a_pickle_of_other_things_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: expected"):
        read_state_dict(tmp_path)


def test_torchs_advice_to_run_a_files_code_is_not_passed_on(tmp_path):
    torch.save({"weight": _Payload(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds other objects: Unsupported global: ") as caught:
        read_state_dict(tmp_path)
    assert "weights_only" not in str(caught.value)
    assert str(caught.value).endswith(" was not an allowed global by default.")
    torch.save({"weight": _Command()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"holds other objects: Trying to load unsupported GLOBAL \w+\.system whose"
    ):
        read_state_dict(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"version 1 of something else")
    with pytest.raises(CheckpointError, match=r"holds other objects: Unsupported operand 118$"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "a.ckpt.index", "a.ckpt.data-00000-of-00001"]
)
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    if ".ckpt" in name:
        write_bundle(tmp_path / "a.ckpt", {"v": torch.zeros(1)})
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n")
    with pytest.raises(CheckpointError, match=f"{re.escape(name)}: expected weights, got a pointer of Git LFS to them"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("numbers", [torch.zeros(1 << 20), torch.arange(1 << 14)], ids=["to nothing", "a little"])
def test_a_compressed_bomb_is_refused(tmp_path, numbers):
    import zipfile

    torch.save({"a": numbers}, tmp_path / "plain.bin")
    with (
        zipfile.ZipFile(tmp_path / "plain.bin") as plain,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for record in plain.infolist():
            bomb.writestr(record.filename, plain.read(record))
    with pytest.raises(CheckpointError, match="bytes of records"):
        read_state_dict(tmp_path)


def test_an_old_torch_reads_no_pickles(tmp_path, state, monkeypatch):
    torch.save(state, tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.5.1"))
    with pytest.raises(CheckpointError, match=r"needs torch 2\.6, got 2\.5\.1"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../evil.safetensors",
        "/etc/evil.safetensors",
        "sub/evil.safetensors",
        "..",
        "",
        "a\\b.safetensors",
        "model.bin",
        7,
    ],
)
def test_a_shard_name_that_leads_elsewhere_is_refused(tmp_path, state, shard):
    home = tmp_path / "model"
    (home / "sub").mkdir(parents=True)
    # The files are there: only the name is wrong.
    for path in (tmp_path / "evil.safetensors", home / "sub" / "evil.safetensors"):
        save_file({"a": torch.zeros(1)}, path)
    torch.save({"a": torch.zeros(1)}, home / "model.bin")
    index = home / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match=r"index\.json: expected"):
        read_state_dict(home)


def test_a_link_out_of_the_directory_is_refused_and_one_inside_it_read(tmp_path):
    home = tmp_path / "model"
    home.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "outside.safetensors")
    (home / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "shard.safetensors"}}))
    (home / "shard.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(CheckpointError, match="link out of it"):
        read_state_dict(home)
    (tmp_path / "outside.safetensors").rename(home / "real.safetensors")
    (home / "shard.safetensors").unlink()
    (home / "shard.safetensors").symlink_to("real.safetensors")
    assert read_state_dict(home)["a"].item() == 1


@pytest.mark.parametrize("folder", [".", "0_Transformer"])
def test_the_links_of_the_hubs_cache_are_read(tmp_path, folder):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc" / folder, tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": torch.ones(1)}, blobs / "123")
    (snapshot / "shard.safetensors").symlink_to(os.path.relpath(blobs / "123", snapshot))
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "shard.safetensors"}}))
    assert read_state_dict(snapshot)["a"].item() == 1


def test_a_missing_shard_and_a_missing_tensor_are_named(tmp_path, state):
    weight_map = shards(tmp_path, state)
    second = tmp_path / "model-00002-of-00002.safetensors"
    part = load_file(second)
    name = next(iter(part))
    del part[name]
    save_file(part, second)
    with pytest.raises(CheckpointError, match=name):
        read_state_dict(tmp_path)
    second.unlink()
    with pytest.raises(CheckpointError, match=weight_map[name]):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": null}}'])
def test_a_damaged_index_is_named(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: expected"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("name", ["bert_model.ckpt.meta", "tf_model.h5", "flax_model.msgpack"])
def test_files_of_other_frameworks_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=f"{name}: expected"):
        read_state_dict(tmp_path)


def test_a_scope_around_the_model_is_none_of_tensorflows_names(tmp_path, theirs, state):
    tensors = to_tensorflow({name: tensor for name, tensor in state.items() if not name.endswith("decoder.bias")})
    write_bundle(tmp_path / "bert_model.ckpt", {f"module/a/{name}": tensor for name, tensor in tensors.items()})
    model = new()
    load_into(model, read_state_dict(tmp_path), source="x")
    assert_holds(model, theirs)
    # Of two models nobody says which one is meant.
    both = {f"{scope}/{name}": tensor for scope in ("teacher", "student") for name, tensor in tensors.items()}
    write_bundle(tmp_path / "bert_model.ckpt", both)
    with pytest.raises(CheckpointError, match=r"unexpected \(student/bert/embeddings"):
        load_into(new(), read_state_dict(tmp_path), source="x")


def test_a_checkpoint_of_tensorflow_2_is_named(tmp_path):
    variable = "model/layer-with-weights-0/embeddings/.ATTRIBUTES/VARIABLE_VALUE"
    write_bundle(tmp_path / "bert_model.ckpt", {variable: torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"bert_model\.ckpt\.index: expected .* got TensorFlow 2's, model/"):
        read_state_dict(tmp_path)


def test_a_directory_without_weights_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=str(path)):
            read_state_dict(path)


@pytest.mark.parametrize(
    "name", ["ckpt_8601.pt", "model.fp16.safetensors", "bert.index", "global_step10/mp_rank_00_model_states.pt"]
)
def test_a_checkpoint_under_another_name_is_named(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / name, (1e9, 1e9))
    for other in ("training_args.bin", "optimizer.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        (tmp_path / other).write_bytes(b"x")
    with pytest.raises(
        CheckpointError, match=f"found neither; `fastbert convert {re.escape(str(tmp_path / name))} NEW`"
    ):
        read_state_dict(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=r"found neither$"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_weights_are_read_is_not_the_files_fault(tmp_path, monkeypatch, number):
    """What the library makes of it: `could not determine the shape of object type`."""

    def interrupted(path):
        try:
            signal.raise_signal(number)
        except BaseException:
            raise ValueError("could not determine the shape") from None
        return {}

    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    monkeypatch.setattr("safetensors.torch.load_file", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)), removed_on_sigterm():
        read_state_dict(tmp_path)
