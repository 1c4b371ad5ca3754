"""Doors out: ONNX graphs that ONNX Runtime runs, directories that sentence-transformers reads."""

from __future__ import annotations

import json
import sys

import hf_parity as hf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_bert import save

import fastbert
from fastbert.cli.main import main
from fastbert.errors import CheckpointError, InputError
from fastbert.interop.convert import convert
from fastbert.interop.convert_onnx import PaddedBert
from fastbert.interop.sentence_modules import Dense
from fastbert.weights.reading import read_state_dict

# An export takes about ten seconds of torch's own: one that shows every operator runs by default.
slow = pytest.mark.slow
ONNX = (
    "BertForPreTraining",
    *(pytest.param(name, marks=slow) for name in ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")),
    *(pytest.param(name, marks=slow) for name in ("BertForTokenClassification", "BertForQuestionAnswering")),
    *(pytest.param(name, marks=slow) for name in ("BertForNextSentencePrediction", "BertForMultipleChoice")),
)
TEXTS = ["the film was great .", "paris", "", "a bad , dull and poor book of france is not good , not fine !"]


@pytest.mark.parametrize("name", ONNX)
def test_onnx_runtime_gives_our_outputs(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    directory = save(tmp_path / "model", name)
    found = convert(directory, tmp_path / "model.onnx", to="onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [x.name for x in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    kept = session.get_modelmeta().custom_metadata_map["config.json"]
    assert json.loads(kept) == json.loads(found.model.config.to_json_string())
    names = [x.name for x in session.get_outputs()]
    choice = name == "BertForMultipleChoice"
    for shape in ((4, 11), (1, 1), (3, 32)):  # none of them the shape that it was traced with
        mask = torch.ones(shape, dtype=torch.int64)
        if shape == (4, 11):
            mask = hf.masks()["holes"]
        if shape == (3, 32):
            mask[1] = 0  # a row that fills up a batch
        if choice:
            shape = (shape[0], 2, shape[1])
            mask = mask[:, None].repeat(1, 2, 1)
        given = {
            "input_ids": torch.randint(5, 20, shape),
            "attention_mask": mask,
            "token_type_ids": torch.randint(0, 2, shape),
        }
        got = session.run(None, {key: x.numpy() for key, x in given.items()})
        with torch.no_grad():
            wanted = found.model(**given)
        assert names == [key for key in wanted.keys() if key not in ("mlm_logits", "nsp_logits")]  # noqa: SIM118
        for key, x in zip(names, got, strict=True):
            hf.assert_near(torch.tensor(x), wanted[key], torch.float32, f"{key} at {shape}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.onnx"]


def test_a_graph_computes_the_activation_of_its_model(tmp_path):
    """Also the head's: google's own weights are read as the tanh form of GELU where their configuration says so."""
    for name in ("BertForPreTraining", "BertForTokenClassification"):
        directory = save(tmp_path / name, name, hidden_act="gelu_new")
        model = getattr(fastbert, name).from_pretrained(directory).eval()
        given = {key: torch.randint(5, 20, (2, 7)) for key in ("input_ids", "attention_mask")}
        given["token_type_ids"] = torch.zeros(2, 7, dtype=torch.int64)
        graph = PaddedBert(model)
        with torch.no_grad():
            got, wanted = graph.named(**given), model(**given)
        for key, x in got.items():
            hf.assert_near(x, wanted[key], torch.float32, key)


@slow
def test_onnx_of_two_dtypes_and_few_positions(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    directory = save(tmp_path / "model", "BertModel", max_position_embeddings=5, num_hidden_layers=1)
    model = fastbert.BertModel.from_pretrained(directory, dtype=torch.float16)
    model.encoder.layer[0].output.LayerNorm.float()
    model.save_pretrained(tmp_path / "mixed")
    convert(tmp_path / "mixed", tmp_path / "model.onnx", to="onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    shape = (3, 5)
    given = {"input_ids": torch.randint(5, 20, shape), "attention_mask": torch.ones(shape, dtype=torch.int64)}
    given["token_type_ids"] = torch.randint(0, 2, shape)
    got = session.run(None, {key: x.numpy() for key, x in given.items()})
    with torch.no_grad():
        wanted = model.float()(**given)
    for x, y in zip(got, wanted.to_tuple(), strict=False):
        hf.assert_near(torch.tensor(x), y, torch.float32, "outputs")


@pytest.mark.parametrize("named", ["BertForSequenceClassification", "BertForQuestionAnswering", "BertForMaskedLM"])
def test_of_several_heads_the_one_that_the_configuration_names_goes_out(named, tmp_path):
    state = {}
    for head in ("BertForMaskedLM", "BertForQuestionAnswering", "BertForSequenceClassification"):
        state |= read_state_dict(save(tmp_path / head, head))
    save_file(state, tmp_path / named / "model.safetensors", {"format": "pt"})
    found = convert(tmp_path / named, tmp_path / "out")
    assert type(found.model).__name__ == named
    kept = read_state_dict(tmp_path / "out")
    assert all(torch.equal(tensor, state[name]) for name, tensor in kept.items())


def test_a_directory_is_no_onnx_file(tmp_path):
    with pytest.raises(InputError, match="got a directory"):
        convert(save(tmp_path / "model"), tmp_path, to="onnx")


def test_a_file_of_another_kind_is_not_replaced_by_a_graph(tmp_path):
    weights = save(tmp_path / "model") / "model.safetensors"
    before = weights.read_bytes()
    with pytest.raises(InputError, match=r"expected a new file or an \.onnx file to replace, got another file"):
        convert(weights, weights, to="onnx")
    assert weights.read_bytes() == before


def test_a_file_that_cannot_be_written_is_found_before_the_export(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: pytest.fail("exported"))
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match="expected to write it, got: "):
        convert(save(tmp_path / "model"), tmp_path / "taken" / "model.onnx", to="onnx")


def test_a_model_of_one_position_is_no_graph_of_any_length(tmp_path):
    """torch's exporter ended in pages of its own."""
    with pytest.raises(InputError, match="expected a model of 2 positions or more, got 1"):
        convert(save(tmp_path / "model", max_position_embeddings=1), tmp_path / "model.onnx", to="onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_without_the_exporter_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # not importable, installed or not
    with pytest.raises(InputError, match=r"needs onnx and onnxscript \(pip install 'fastbert\[onnx\]'\), got: "):
        convert(save(tmp_path / "model"), tmp_path / "model.onnx", to="onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_transformers_gives_our_vectors(pooling, normalize, tmp_path):
    library = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    source = save(tmp_path / "model", "BertForPreTraining")
    options = {"pooling": pooling, "normalize": normalize, "max_seqlen": 9}
    convert(source, tmp_path / "out", to="sentence-transformers", options=options)
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in theirs] == ["Transformer", "Pooling", "Normalize"][: 2 + normalize]
    wanted = theirs.encode(TEXTS)
    got = fastbert.SentenceEncoder.from_pretrained(tmp_path / "out").encode(TEXTS)
    hf.assert_near(torch.tensor(got), torch.tensor(wanted), torch.float32, "vectors")
    lengths = np.linalg.norm(got, axis=1)
    assert (np.abs(lengths - 1) < 1e-5).all() == normalize
    # And the encoder is the pre-trained model's.
    model = fastbert.BertForPreTraining.from_pretrained(source)
    again = fastbert.BertModel.from_pretrained(tmp_path / "out")
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.bert.state_dict().items())


def test_a_sentence_directory_needs_a_tokenizer_and_a_known_pooling(tmp_path, capsys):
    source = save(tmp_path / "model", "BertModel")
    with pytest.raises(InputError, match="mean, cls, max"):
        convert(source, tmp_path / "out", to="sentence-transformers", options={"pooling": "best"})
    (source / "vocab.txt").unlink()
    assert main(["convert", str(source), str(tmp_path / "out"), "--to", "sentence-transformers"]) == 2
    assert "expected the tokenizer's files" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sentence_directory_keeps_what_it_says(tmp_path):
    """Pooling, length, lower-casing, prompt, what is cut off: the vectors are those of the source."""
    source = save(tmp_path / "model", "BertModel")
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 9}')
    convert(source, tmp_path / "cut", to="sentence-transformers", options={"normalize": False})
    plain, cut = (fastbert.SentenceEncoder.from_pretrained(tmp_path / name) for name in ("model", "cut"))
    np.testing.assert_array_equal(cut.encode(TEXTS), plain.encode(TEXTS))
    said = {"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False}
    prompts = {"prompts": {"query": "the book "}, "default_prompt_name": "query", "truncate_dim": 20}
    for name, values in (
        ("1_Pooling/config.json", {"word_embedding_dimension": 32, **said}),
        ("sentence_bert_config.json", {"max_seq_length": 7, "do_lower_case": True}),
        ("config_sentence_transformers.json", prompts),
    ):
        (tmp_path / "cut" / name).write_text(json.dumps(values))
    convert(tmp_path / "cut", tmp_path / "again", to="sentence-transformers")
    wanted, got = (fastbert.SentenceEncoder.from_pretrained(tmp_path / name) for name in ("cut", "again"))
    texts = [text.upper() for text in TEXTS]
    np.testing.assert_array_equal(got.encode(texts), wanted.encode(texts))
    options = {"pooling": "cls", "normalize": True, "max_seqlen": 5}
    convert(tmp_path / "cut", tmp_path / "told", to="sentence-transformers", options=options)
    told = fastbert.SentenceEncoder.from_pretrained(tmp_path / "told")
    assert (told.pooling, told.normalize, told.max_seqlen, told.prompt) == (("cls",), True, 5, "the book ")


def test_a_sentence_directory_says_no_more_than_the_model_can_read(tmp_path):
    """sentence-transformers takes the number as it is written."""
    source = save(tmp_path / "model", "BertModel")
    (source / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 100000}')
    convert(source, tmp_path / "out", to="sentence-transformers")
    positions = json.loads((source / "config.json").read_text())["max_position_embeddings"]
    assert json.loads((tmp_path / "out" / "sentence_bert_config.json").read_text())["max_seq_length"] == positions


def test_what_another_form_leaves_out_of_a_sentence_directory_is_named(tmp_path, capsys):
    source = save(tmp_path / "model", "BertModel")
    encoder = fastbert.SentenceEncoder(
        fastbert.BertModel.from_pretrained(source),
        fastbert.load_tokenizer(source),
        pooling=["cls", "mean"],
        modules=[Dense(64, 8)],
        normalize=True,
        max_seqlen=9,
        prompts={"query": "the ", "document": ""},
        truncate_dim=5,
    )
    encoder.save_pretrained(tmp_path / "st")
    left = ("pooling cls and mean", "Dense", "Normalize", "prompts query", "max_seq_length", "truncate_dim")
    assert convert(tmp_path / "st", tmp_path / "plain").left_out == left
    assert main(["convert", str(tmp_path / "st"), str(tmp_path / "tf1"), "--to", "tf1"]) == 0
    assert f"left out: {', '.join(left)}\n" in capsys.readouterr().err
    assert convert(tmp_path / "st", tmp_path / "again", to="sentence-transformers").left_out == ()
    assert convert(source, tmp_path / "pickle", to="pickle").left_out == ()
    config = fastbert.BertModel.from_pretrained(source).config.to_dict() | {"bilstm_units": 8}
    headed = fastbert.BertForSequenceClassification(fastbert.BertConfig.from_dict(config)).save_pretrained(
        tmp_path / "h"
    )
    (headed / "vocab.txt").write_bytes((source / "vocab.txt").read_bytes())
    left = convert(headed, tmp_path / "of headed", to="sentence-transformers").left_out
    assert left == ("the head bilstm", "the head classifier")
    assert "bilstm_units" not in json.loads((tmp_path / "of headed" / "config.json").read_text())
    # Modules that are damaged or not known here do not keep the model from being read.
    (dense,) = (tmp_path / "st").glob("*_Dense/model.safetensors")
    dense.write_bytes(dense.read_bytes()[:-1])
    (left,) = convert(tmp_path / "st", tmp_path / "damaged").left_out
    assert left.startswith("what stands beside the model, which cannot be read: ")
    modules = (tmp_path / "st" / "modules.json").read_text()
    (tmp_path / "st" / "modules.json").write_text(modules.replace(".Normalize", ".CNN"))
    (left,) = convert(tmp_path / "st", tmp_path / "cnn").left_out
    assert "got CNN among" in left


def test_a_sentence_directory_that_cannot_be_kept_is_refused(tmp_path):
    convert(save(tmp_path / "model", "BertModel"), tmp_path / "source", to="sentence-transformers")
    for longest in (1, 33, "9"):  # sentence-transformers ends in a traceback where the model has not so many places
        with pytest.raises(InputError, match="max_seqlen must be a whole number between 3 and"):
            convert(tmp_path / "source", tmp_path / "out", to="sentence-transformers", options={"max_seqlen": longest})
    modules = (tmp_path / "source" / "modules.json").read_text()
    (tmp_path / "source" / "modules.json").write_text(modules.replace(".Normalize", ".CNN"))
    with pytest.raises(InputError, match=r"got CNN among Transformer, Pooling, CNN$"):
        convert(tmp_path / "source", tmp_path / "out", to="sentence-transformers")
    assert not (tmp_path / "out").exists()


def test_a_sentence_directory_keeps_every_dtype(tmp_path):
    model = fastbert.BertForMaskedLM.from_pretrained(save(tmp_path / "model"), dtype=torch.bfloat16)
    norm = model.bert.encoder.layer[0].output.LayerNorm.float()
    torch.nn.init.normal_(norm.weight)
    model.save_pretrained(tmp_path / "mixed")
    convert(tmp_path / "mixed", tmp_path / "out", to="sentence-transformers")
    state = read_state_dict(tmp_path / "out")
    assert state["embeddings.word_embeddings.weight"].dtype == torch.bfloat16
    assert torch.equal(state["encoder.layer.0.output.LayerNorm.weight"], norm.weight)
