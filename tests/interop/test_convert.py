"""`fastbert convert`: bit for bit between the forms, read by transformers."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import zlib
from pathlib import Path

import pytest
import torch
import transformers
from tf_bundle import write_bundle
from tiny_bert import VOCAB
from tiny_bert import config as tiny_config

import fastbert
from fastbert.cli.main import main
from fastbert.errors import CheckpointError, InputError
from fastbert.interop.convert import convert
from fastbert.tasks.feature_classifier import FeatureClassifier
from fastbert.tasks.feature_tagger import FeatureTagger
from fastbert.tasks.on_features import of_kind
from fastbert.tasks.trained import trained_with
from fastbert.weights.tensor_bundle import read_bundle

CLASSES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)


def _theirs(name="BertForPreTraining", **changes):
    torch.manual_seed(3)
    labels = {} if name in ("BertForQuestionAnswering", "BertModel") else {"num_labels": 5}
    model = getattr(transformers, name)(tiny_config(**{**labels, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def _saved(model, directory: Path) -> Path:
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return directory


def _assert_holds(directory: Path, model) -> None:
    """transformers reads the directory, finds every tensor, and each has the bits of the model's."""
    again, info = type(model).from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == state[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), state[name].view(torch.uint8)), name


@pytest.mark.parametrize("name", CLASSES)
def test_through_every_form_and_back(name, tmp_path):
    theirs = _theirs(name)
    source = _saved(theirs, tmp_path / "source")
    convert(source, tmp_path / "tf1", to="tf1")
    with pytest.raises(InputError, match=r"nope.json: expected the configuration of .*tf1, found no such file"):
        convert(tmp_path / "tf1", tmp_path / "pickle", to="pickle", config=source / "nope.json")
    convert(tmp_path / "tf1", tmp_path / "pickle", to="pickle", config=source / "config.json")
    convert(tmp_path / "pickle", tmp_path / "end")
    _assert_holds(tmp_path / "end", theirs)
    for form in ("tf1", "pickle", "end"):
        assert (tmp_path / form / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
    assert json.loads((tmp_path / "end" / "config.json").read_text())["architectures"] == [name]


@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining", "BertForSequenceClassification"])
def test_tensorflows_own_configuration_is_enough(name, tmp_path):
    theirs = _theirs(name)
    convert(_saved(theirs, tmp_path / "source"), tmp_path / "tf1", to="tf1")
    assert sorted(path.name for path in (tmp_path / "tf1").iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "vocab.txt",
    ]
    # By its largest file, too, which is the one that looks like the weights.
    convert(tmp_path / "tf1" / "bert_model.ckpt.data-00000-of-00001", tmp_path / "by-data")
    found = convert(tmp_path / "tf1" / "bert_model.ckpt", tmp_path / "end")
    assert (tmp_path / "by-data" / "model.safetensors").read_bytes() == (
        tmp_path / "end" / "model.safetensors"
    ).read_bytes()
    _assert_holds(tmp_path / "end", theirs)
    assert type(found.model).__name__ == name
    # The label count comes from the tensor: google-research/bert's configuration has none.
    if name == "BertForSequenceClassification":
        assert found.model.config.num_labels == 5
    model = getattr(fastbert, name).from_pretrained(tmp_path / "tf1", **({"num_labels": 5} if "Seq" in name else {}))
    assert torch.equal(model.get_input_embeddings().weight, theirs.get_input_embeddings().weight)


def test_of_several_checkpoints_one_is_converted(tmp_path):
    """google-research/bert's training leaves its last five; the sentence has the command."""
    convert(_saved(_theirs("BertModel"), tmp_path / "source"), tmp_path / "tf1", to="tf1")
    for path in list((tmp_path / "tf1").glob("bert_model.ckpt.*")):
        shutil.copy(path, path.with_name(path.name.replace("bert_model.ckpt", "model.ckpt-343")))
    with pytest.raises(CheckpointError, match=r"ckpt.index, model.ckpt-343.index: `fastbert") as told:
        fastbert.BertModel.from_pretrained(tmp_path / "tf1")
    [_, command, _] = str(told.value).split("`")
    assert main([*command.split()[1:-1], str(tmp_path / "end")]) == 0
    fastbert.BertModel.from_pretrained(tmp_path / "end")


@pytest.mark.parametrize(("act", "form"), [("gelu_new", "tanh"), ("gelu_python", "none"), ("gelu", "none")])
def test_tensorflows_configuration_has_a_name_that_its_code_knows(tmp_path, act, form):
    source = _saved(_theirs("BertModel", hidden_act=act), tmp_path / "source")
    convert(source, tmp_path / "tf1", to="tf1")
    assert json.loads((tmp_path / "tf1" / "bert_config.json").read_text())["hidden_act"] == "gelu"
    convert(tmp_path / "tf1", tmp_path / "end")
    wanted = fastbert.BertModel.from_pretrained(source)
    ids = torch.arange(5, 12)[None]
    for directory in ("tf1", "end"):
        model = fastbert.BertModel.from_pretrained(tmp_path / directory)
        assert model.config.gelu_approximate == form
        assert torch.equal(model(ids).last_hidden_state, wanted(ids).last_hidden_state)
    # Without the key of ours the file is google's own, which is read as before.
    values = json.loads((tmp_path / "tf1" / "bert_config.json").read_text())
    values.pop("transformers_hidden_act", None)
    (tmp_path / "tf1" / "bert_config.json").write_text(json.dumps(values))
    assert fastbert.BertConfig.from_pretrained(tmp_path / "tf1").gelu_approximate == "none"


@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice"]
)
def test_tensorflows_configuration_says_what_a_head_is(name, tmp_path):
    """Three heads of one tensor's name, and google-research/bert's code passes over the keys that tell them apart."""
    names = {index: f"class {index}" for index in range(5)}
    problem = "multi_label_classification" if "Seq" in name else None
    theirs = _theirs(name, id2label=names, label2id={n: i for i, n in names.items()}, problem_type=problem)
    convert(_saved(theirs, tmp_path / "source"), tmp_path / "tf1", to="tf1")
    found = convert(tmp_path / "tf1", tmp_path / "end")
    assert type(found.model).__name__ == name
    assert (found.model.config.id2label, found.model.config.problem_type) == (names, problem)
    _assert_holds(tmp_path / "end", theirs)
    assert fastbert.BertConfig.from_pretrained(tmp_path / "tf1").id2label == names


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForQuestionAnswering"])
def test_tensorflows_configuration_keeps_what_predictions_depend_on(name, tmp_path):
    """A regression's statistics, a threshold, the options of a fine-tuning: google-research/bert's code passes over
    them."""
    kept = {
        **{"label_mean": 3.5, "label_deviation": 100.0, "null_threshold": -1.5, "classifier_dropout": 0.25},
        **{"fastbert": {"task": "ner", "max_seqlen": 48, "document_context": True}, "pad_token_id": 3},
    }
    model = getattr(fastbert, name)(fastbert.BertConfig.from_hf(_theirs(name).config))
    for key, value in kept.items():
        setattr(model.config, key, value)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "tf1", to="tf1")
    config = convert(tmp_path / "tf1", tmp_path / "end").model.config.to_dict()
    assert {key: config[key] for key in kept} == kept
    assert trained_with(tmp_path / "tf1", "ner")[0] == kept["fastbert"]


def test_tensorflows_vocabulary_is_made_of_a_tokenizer_json(tmp_path, caplog):
    """As transformers 5 saves every tokenizer."""
    source = _saved(_theirs("BertModel"), tmp_path / "source")
    words = (source / "vocab.txt").read_text()
    fastbert.load_tokenizer(source).save(str(source / "tokenizer.json"))
    (source / "vocab.txt").unlink()
    convert(source, tmp_path / "tf1", to="tf1")
    assert (tmp_path / "tf1" / "vocab.txt").read_text() == words
    # Ids that the model has no row for would end google's code on a TPU in numbers of chance.
    tokenizer = fastbert.load_tokenizer(source)
    tokenizer.add_tokens(["more"])
    tokenizer.save(str(source / "tokenizer.json"))
    with pytest.raises(InputError, match=f"expected ids below the model's vocab_size, {len(VOCAB)}, got {len(VOCAB)}"):
        convert(source, tmp_path / "more", to="tf1")
    assert not (tmp_path / "more").exists()
    # A tokenizer of another kind has no such file, and the weights are converted all the same.
    (source / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}))
    convert(source, tmp_path / "unigram", to="tf1")
    assert not (tmp_path / "unigram" / "vocab.txt").exists()
    assert "no vocab.txt is written" in caplog.text


@pytest.mark.parametrize("head", [FeatureClassifier, FeatureTagger])
def test_a_classifier_over_a_bilstm_is_no_head_of_berts(head, tmp_path):
    """It is as wide as BERT's here, and was taken for that: an answer of chance in every other library."""
    base = _saved(_theirs("BertModel"), tmp_path / "base")
    config = fastbert.BertConfig.from_pretrained(base)
    units = config.hidden_size // (2 if head is FeatureTagger else 8)
    options = {"feature_layers": "last", "feature_units": units, "feature_pairs": head is FeatureClassifier}
    config = fastbert.BertConfig.from_pretrained(base, num_labels=2, **options)
    of_kind(head, "bert")(config).save_pretrained(tmp_path / "features")
    found = convert(tmp_path / "features", tmp_path / "end")
    assert {name.split(".")[0] for name in found.unused} == {"classifier", "lstm"}
    assert json.loads((tmp_path / "end" / "config.json").read_text())["architectures"] == ["BertModel"]


def test_what_is_there_is_not_mixed_with(tmp_path):
    source = _saved(_theirs("BertModel"), tmp_path / "source")
    for target in (tmp_path / "end", source):
        if target is not source:
            convert(source, target, to="sentence-transformers")
        before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match="already exists and is not empty"):
            convert(source, target)
        assert before == {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    # Swapped: that the model is in the way, and might be removed, is not what is told.
    with pytest.raises(CheckpointError, match=r"nowhere: expected a directory.* found nothing"):
        convert(tmp_path / "nowhere", source)


def test_an_old_pickle_with_gamma_and_beta(tmp_path):
    theirs = _theirs()
    source = _saved(theirs, tmp_path / "source")
    (source / "model.safetensors").unlink()
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in theirs.state_dict().items()
    }
    torch.save(old, source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    convert(source, tmp_path / "end")
    _assert_holds(tmp_path / "end", theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_bits(dtype, tmp_path):
    theirs = _theirs().to(dtype)
    convert(_saved(theirs, tmp_path / "source"), tmp_path / "tf1", to="tf1")
    convert(tmp_path / "tf1", tmp_path / "end")
    again = transformers.BertForPreTraining.from_pretrained(tmp_path / "end", dtype=dtype)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_file_with_two_dtypes_keeps_both(tmp_path):
    from safetensors.torch import load_file, save_file

    source = _saved(_theirs("BertModel"), tmp_path / "source")
    state = load_file(source / "model.safetensors")
    # Clones: older releases of safetensors return the file, mapped into memory, and write over it.
    state = {name: t.clone() if "LayerNorm" in name else t.bfloat16() for name, t in state.items()}
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    convert(source, tmp_path / "end")
    end = load_file(tmp_path / "end" / "model.safetensors")
    assert end.keys() == state.keys()
    assert all(end[name].dtype == t.dtype and torch.equal(end[name], t) for name, t in state.items())


def test_shards(tmp_path):
    theirs = _theirs()
    theirs.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    assert len(list((tmp_path / "source").glob("model-*.safetensors"))) > 1
    convert(tmp_path / "source" / "model.safetensors.index.json", tmp_path / "by its index")
    _assert_holds(tmp_path / "by its index", theirs)
    convert(tmp_path / "source", tmp_path / "end")
    _assert_holds(tmp_path / "end", theirs)


def test_state_dictionaries_of_trainers(tmp_path):
    """NVIDIA's names (a dense layer with a fused activation) in a dictionary with other things; DeepSpeed's layers."""
    theirs = _theirs()
    state = theirs.state_dict()
    dense_act = ("intermediate.dense.", "pooler.dense.", "transform.dense.")
    nvidia = {}
    for name, tensor in state.items():
        fused = any(part in name for part in dense_act)
        nvidia["module." + (name.replace(".dense.", ".dense_act.") if fused else name)] = tensor
    deepspeed = {n: t for n, t in state.items() if ".layer." not in n}
    short = {
        "attn_ow": "attention.output.dense.weight",
        "attn_ob": "attention.output.dense.bias",
        "attn_nw": "attention.output.LayerNorm.weight",
        "attn_nb": "attention.output.LayerNorm.bias",
        "inter_w": "intermediate.dense.weight",
        "inter_b": "intermediate.dense.bias",
        "output_w": "output.dense.weight",
        "output_b": "output.dense.bias",
        "norm_w": "output.LayerNorm.weight",
        "norm_b": "output.LayerNorm.bias",
    }
    for i in range(4):
        layer = f"bert.encoder.layer.{i}"
        for leaf, tail in (("attn_qkvw", "weight"), ("attn_qkvb", "bias")):
            parts = [state[f"{layer}.attention.self.{x}.{tail}"] for x in ("query", "key", "value")]
            deepspeed[f"{layer}.{leaf}"] = torch.cat(parts)
        deepspeed |= {f"{layer}.{leaf}": state[f"{layer}.{long}"] for leaf, long in short.items()}
    theirs.config.save_pretrained(tmp_path)
    torch.save({"model": nvidia, "optimizer": {"step": 3}, "files": [1, "a"]}, tmp_path / "ckpt_1.pt")
    torch.save({"module": deepspeed, "global_steps": 7}, tmp_path / "mp_rank_00_model_states.pt")
    for file in ("ckpt_1.pt", "mp_rank_00_model_states.pt"):
        convert(tmp_path / file, tmp_path / f"end of {file}")
        _assert_holds(tmp_path / f"end of {file}", theirs)
    query = "bert.encoder.layer.0.attention.self.query.weight"
    both = {**deepspeed, query: state[query]}  # fused and apart: nothing is lost where they agree
    torch.save({"module": both}, tmp_path / "both.pt")
    convert(tmp_path / "both.pt", tmp_path / "end of both.pt")
    _assert_holds(tmp_path / "end of both.pt", theirs)
    torch.save({"module": {**both, query: state[query] + 1}}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="two that differ, fused and apart"):
        convert(tmp_path / "other.pt", tmp_path / "none")
    deepspeed["bert.encoder.FinalLayerNorm.weight"] = torch.ones(32)
    torch.save({"module": deepspeed}, tmp_path / "pre_ln.pt")
    with pytest.raises(CheckpointError, match="pre-LN"):
        convert(tmp_path / "pre_ln.pt", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_a_directory_that_nvidias_fine_tuning_wrote(sharded, tmp_path):
    """Its pytorch_model.bin is a trainer's file, with the model under "model"."""
    theirs = _theirs("BertForQuestionAnswering")
    state = theirs.state_dict()
    nvidia = {name.replace("intermediate.dense.", "intermediate.dense_act."): tensor for name, tensor in state.items()}
    if sharded:
        weight_map = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(nvidia)}
        for shard in set(weight_map.values()):
            torch.save({name: nvidia[name] for name in nvidia if weight_map[name] == shard}, tmp_path / shard)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    else:
        torch.save({"model": nvidia}, tmp_path / "pytorch_model.bin")
    theirs.config.save_pretrained(tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "bert_config.json")
    convert(tmp_path, tmp_path / "end")
    _assert_holds(tmp_path / "end", theirs)
    model = fastbert.BertForQuestionAnswering.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_vocabulary_that_was_padded_keeps_its_rows(tmp_path, caplog):
    """NVIDIA's and DeepSpeed's examples bring it to a multiple of 8, beside Google's configuration that says 30522."""
    theirs = _theirs(vocab_size=104)
    state = {n: t for n, t in theirs.state_dict().items() if n != "cls.predictions.decoder.bias"}
    torch.save({"model": state, "optimizer": {"state": {}}, "files": [1]}, tmp_path / "ckpt_1.pt")
    for said in (97, 103):
        (tmp_path / "bert_config.json").write_text(json.dumps({**theirs.config.to_dict(), "vocab_size": said}))
        convert(tmp_path / "ckpt_1.pt", tmp_path / f"of {said}")
        _assert_holds(tmp_path / f"of {said}", theirs)
        assert f"have 104 rows, of which the configuration knows {said}: padding, kept" in caplog.text
    for said in (96, 105):  # another vocabulary, and none that was padded
        (tmp_path / "bert_config.json").write_text(json.dumps({**theirs.config.to_dict(), "vocab_size": said}))
        with pytest.raises(CheckpointError, match=rf"word_embeddings.weight is \(104, 32\) for \({said}, 32\)"):
            convert(tmp_path / "ckpt_1.pt", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_directory_with_a_padded_vocabulary_says_what_to_do(tmp_path):
    """Every command reads it as it is but `convert`."""
    _theirs(vocab_size=104).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for said, padded in ((97, True), (96, False), (112, False)):
        (tmp_path / "config.json").write_text(json.dumps({**values, "vocab_size": said}))
        with pytest.raises(CheckpointError) as caught:
            fastbert.BertForPreTraining.from_pretrained(tmp_path)
        assert f"is (104, 32) for ({said}, 32)" in str(caught.value)
        assert ("its vocabulary was padded; `fastbert convert`" in str(caught.value)) == padded


def test_files_of_trainers_without_a_models_weights(tmp_path):
    theirs = _theirs()
    theirs.config.save_pretrained(tmp_path)
    state = theirs.state_dict()
    fused = {"bert.encoder.layer.0.attn_qkvw": torch.zeros(95, 32)}
    cases = {
        "zero_pp_rank_0_mp_rank_00_optim_states.pt": (
            {"optimizer_state_dict": {"zero_stage": 2, "partition": torch.zeros(3)}, "ds_version": "0.14.0"},
            "expected tensors of a model, or .* under model, module, .*, got optimizer_state_dict, ds_version$",
        ),
        "mp_rank_00_model_states.pt": (
            {"module": {name: torch.empty(0) for name in state}, "ds_version": "0.14.0"},
            "expected whole weights, got empty ones: .* ZeRO stage 3 are in shards, of which its zero_to_fp32.py",
        ),
        "stage_of_none.pt": ({"module": None, "epoch": 1}, "expected tensors of a model, .* got module, epoch$"),
        "empty.pt": ({"model": {}}, "got no keys$"),
        "odd.pt": ({"module": fused}, "attn_qkvw: expected query, key and value in one, got "),
    }
    for name, (saved, reason) in cases.items():
        torch.save(saved, tmp_path / name)
        with pytest.raises(CheckpointError, match=reason) as caught:
            convert(tmp_path / name, tmp_path / "none")
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert not (tmp_path / "none").exists()


def test_optimiser_slots_are_left_where_they_are(tmp_path):
    theirs = _theirs()
    convert(_saved(theirs, tmp_path / "source"), tmp_path / "tf1", to="tf1")
    state = read_bundle(tmp_path / "tf1" / "bert_model.ckpt")
    slots = "adam_m", "adam_v", "Adam", "Adam_1", "lamb_m", "lamb_v", "LAMB", "LAMB_1", "momentum", "Momentum"
    kept = {f"{name}/{slot}": torch.zeros_like(t) for name, t in state.items() for slot in slots}
    counts = dict.fromkeys(("global_step", "beta1_power", "beta2_power"), torch.tensor(9))
    write_bundle(tmp_path / "tf1" / "bert_model.ckpt", {**state, **kept, **counts})
    found = convert(tmp_path / "tf1", tmp_path / "end")
    assert found.unused == ()
    _assert_holds(tmp_path / "end", theirs)


def test_what_a_form_has_no_place_for(tmp_path):
    untied = _theirs(tie_word_embeddings=False)
    source = _saved(untied, tmp_path / "untied")
    with pytest.raises(CheckpointError, match="tied"):
        convert(source, tmp_path / "tf1", to="tf1")
    other = _saved(_theirs(layer_norm_eps=1e-5), tmp_path / "eps")
    with pytest.raises(CheckpointError, match="layer_norm_eps"):
        convert(other, tmp_path / "tf1", to="tf1")
    with pytest.raises(InputError, match="one of safetensors"):
        convert(source, tmp_path / "tf1", to="tf2")
    assert not (tmp_path / "tf1").exists()


@pytest.mark.parametrize("field", ["is_decoder", "position_embedding_type", "bilstm_units"])
def test_tensorflows_form_is_of_plain_bert(tmp_path, field):
    """Its code would read the weights and compute something else with them."""
    value = {"is_decoder": True, "position_embedding_type": "sinusoidal", "bilstm_units": 4}[field]
    sizes = {"vocab_size": len(VOCAB), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = fastbert.BertConfig(**sizes, intermediate_size=8, **{field: value})
    fastbert.BertForSequenceClassification(config).save_pretrained(tmp_path / "source")
    with pytest.raises(CheckpointError, match=f"google-research/bert computes with {field} "):
        convert(tmp_path / "source", tmp_path / "tf1", to="tf1")
    assert not (tmp_path / "tf1").exists()


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return zlib.crc32, (b"run",)

    _theirs().config.save_pretrained(tmp_path)
    torch.save({"model": {"x": Evil()}}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="holds other objects"):
        convert(tmp_path / "evil.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shapes_of_no_bert_are_one_sentence(tmp_path, capsys):
    """Tensors that no head, dense layer or fused layer has, and a word of the configuration that is no list."""
    theirs = _theirs("BertForSequenceClassification")
    source = _saved(theirs, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "architectures": 5}))
    convert(source, tmp_path / "end")
    _assert_holds(tmp_path / "end", theirs)
    query = "bert.encoder.layer.0.attention.self.query.weight"
    convert(source, tmp_path / "tf1", to="tf1")
    tensors = read_bundle(tmp_path / "tf1" / "bert_model.ckpt")
    kernel = query.replace(".", "/").replace("layer/0", "layer_0").replace("weight", "kernel")
    write_bundle(tmp_path / "tf1" / "bert_model.ckpt", {**tensors, kernel: tensors[kernel].reshape(32, 4, 8)})
    torch.save({**theirs.state_dict(), "classifier.weight": torch.tensor(1.0)}, source / "head.pt")
    torch.save({**theirs.state_dict(), "bert.encoder.layer.0.attn_qkvw": torch.tensor(1.0)}, source / "fused.pt")
    for wrong, told in (
        (tmp_path / "tf1", rf"{query} is (32, 4, 8) for (32, 32)"),
        (source / "head.pt", "classifier.weight is () for"),
        (source / "fused.pt", "expected query, key and value in one, got ()"),
    ):
        assert main(["convert", str(wrong), str(tmp_path / "none")]) == 2
        assert told in capsys.readouterr().err


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="found nothing"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    theirs = _theirs()
    torch.save(theirs.state_dict(), tmp_path / "m.pt")
    with pytest.raises(InputError, match=r"config\.json or bert_config\.json"):
        convert(tmp_path / "m.pt", tmp_path / "out")
    theirs.config.save_pretrained(tmp_path)
    state = {n: t for n, t in theirs.state_dict().items() if "pooler" not in n}
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"bert\.pooler\.dense\.weight"):
        convert(tmp_path / "m.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for name in ("a.ckpt-1", "a.ckpt-2"):
        write_bundle(tmp_path / name, {"v": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"makes a model directory of one"):
        fastbert.weights.reading.read_state_dict(tmp_path)


def test_the_command(tmp_path, capsys):
    theirs = _theirs("BertForQuestionAnswering")
    source = _saved(theirs, tmp_path / "source")
    assert main(["convert", str(source), str(tmp_path / "tf1"), "--to", "tf1"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "tf1")
    assert main(["convert", str(tmp_path / "tf1"), str(tmp_path / "end")]) == 0
    assert "BertForQuestionAnswering: 4 layers of 32" in capsys.readouterr().err
    _assert_holds(tmp_path / "end", theirs)
    assert main(["convert", str(tmp_path / "nowhere"), str(tmp_path / "x")]) == 2
    assert "expected a directory" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["safetensors", "pickle", "tf1", "sentence-transformers"])
@pytest.mark.parametrize("end", ["SIGTERM", "full disk"])
def test_what_ends_in_the_middle_leaves_nothing(tmp_path, monkeypatch, capsys, form, end):
    source = _saved(_theirs(), tmp_path / "source")
    out = tmp_path / "new" / "out"
    seen = []

    last = 5 if form == "sentence-transformers" else 2  # the file that is complete when it comes: there, 1_Pooling's

    def stop(descriptor):
        seen.append(list(out.rglob(".*")))
        if len(seen) == last and end == "SIGTERM":
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the test's own process would end"
            signal.raise_signal(signal.SIGTERM)
        elif len(seen) == last:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", stop)
    status = main(["convert", str(source), str(out), "--to", form])
    assert len(seen[-1]) == last
    assert status == (128 + signal.SIGTERM if end == "SIGTERM" else 2)
    assert ("No space left on device" in capsys.readouterr().err) == (end == "full disk")
    assert not out.parent.exists()


@pytest.mark.parametrize("limit", [2_000, 20_000])
def test_a_pickle_that_does_not_fit_on_the_disk(tmp_path, capsys, limit):
    """With the smaller one torch raises an error of its own, with the larger one the file does."""
    source = _saved(_theirs(), tmp_path / "source")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # a write fails as on a full disk, with another word
    try:
        assert main(["convert", str(source), str(tmp_path / "out"), "--to", "pickle"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "pytorch_model.bin: expected to write it, got: File too large" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
