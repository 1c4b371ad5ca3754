"""Modules after the pooling, prompts and lower-casing, against directories that sentence-transformers wrote itself."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_library import library as st
from sentence_library import modules as theirs_of
from tiny_bert import VOCAB
from tiny_bert import save as save_tiny
from torch import nn

import fastbert
from fastbert import SentenceEncoder
from fastbert.cli.main import main
from fastbert.errors import CheckpointError, InputError
from fastbert.interop.convert import convert
from fastbert.interop.sentence_modules import Dense, pool, read_module
from fastbert.weights.reading import read_state_dict

TEXTS = [
    "the film was great .",
    "",
    "paris",
    "THE Book of France",
    "a bad , dull and poor book of france is not good , not fine !" * 4,
    "unknown words",
]


def model_of(directory: Path, *modules, **pooling) -> st.SentenceTransformer:
    """sentence-transformers' model over a tiny BERT, in evaluation mode."""
    if not (directory / "config.json").exists():
        save_tiny(directory, "BertModel")
        (directory / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    transformer = theirs_of.Transformer(str(directory))
    parts = [transformer, theirs_of.Pooling(32, **{"pooling_mode": "mean", **pooling}), *modules]
    return st.SentenceTransformer(modules=parts, device="cpu").eval()


def dense(*sizes, **options):
    if unknown := set(options) - set(inspect.signature(theirs_of.Dense).parameters):
        pytest.skip(f"this release of sentence-transformers has no {', '.join(unknown)}")
    torch.manual_seed(sum(sizes))
    return theirs_of.Dense(*sizes, **options)


def assert_equal(ours: SentenceEncoder, theirs, texts=TEXTS, **options) -> None:
    wanted = theirs.encode(texts, **options)
    assert wanted.shape[1] == ours.dim
    np.testing.assert_allclose(ours.encode(texts, **options), wanted, rtol=0, atol=1e-5)


def layer_norm(size: int):
    module = theirs_of.LayerNorm(size)
    nn.init.normal_(module.norm.weight)
    nn.init.normal_(module.norm.bias)
    return module


CHAINS = {
    "LaBSE": lambda: [dense(32, 32), theirs_of.Normalize()],
    "distiluse": lambda: [dense(32, 20)],
    "several": lambda: [dense(32, 48, activation_function=nn.ReLU()), dense(48, 7, activation_function=nn.Identity())],
    "normalize_first": lambda: [theirs_of.Normalize(), dense(32, 9, bias=False)],
    "normalize_twice": lambda: [theirs_of.Normalize(), dense(32, 9), theirs_of.Normalize()],
    "residual": lambda: [dense(32, 32, use_residual=True), dense(32, 5, use_residual=True)],
    "norm_and_dropout": lambda: [theirs_of.Dropout(0.5), layer_norm(32), dense(32, 8), theirs_of.Dropout(0.1)],
    "dropout_last": lambda: [theirs_of.Normalize(), theirs_of.Dropout(0.5)],
}


@pytest.mark.parametrize("name", CHAINS)
def test_modules_after_the_pooling(name, tmp_path):
    model = model_of(tmp_path / "bert", *CHAINS[name]())
    model.save(str(tmp_path / "st"))
    ours = SentenceEncoder.from_pretrained(tmp_path / "st")
    assert_equal(ours, model)
    # The last Normalize can be told otherwise, those between are part of the model.
    with_more = ours.encode(TEXTS, normalize=True)
    np.testing.assert_allclose(with_more, model.encode(TEXTS, normalize_embeddings=True), rtol=0, atol=1e-5)
    raw = ours.encode(TEXTS, normalize=False)
    last = type(model[-1]).__name__ == "Normalize" or name == "dropout_last"
    assert np.allclose(raw, model.encode(TEXTS), atol=1e-4) != last


@pytest.mark.parametrize(
    "activation",
    [
        *(nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Mish, nn.SELU),
        *(nn.Softplus, nn.ReLU6, nn.Hardtanh),
    ],
)
def test_every_activation(activation, tmp_path):
    module = dense(32, 37, activation_function=activation())
    module.save(str(tmp_path))
    ours = read_module("Dense", tmp_path)
    x = torch.randn(50, 32) * 3
    wanted = module({"sentence_embedding": x})["sentence_embedding"]
    torch.testing.assert_close(ours(x), wanted, rtol=0, atol=1e-5)
    # One row at a time and all at once: the same bits.
    with fastbert.batch_invariant():
        together = ours(x)
        assert all(torch.equal(ours(x[i : i + 1])[0], together[i]) for i in range(50))


@pytest.mark.parametrize("form", ["pytorch_model.bin", "float16", "types_of_release_2", "no activation_function"])
def test_the_files_of_other_releases(form, tmp_path):
    model = model_of(tmp_path / "bert", dense(32, 12), theirs_of.Normalize())
    model.save(str(tmp_path / "st"))
    home = tmp_path / "st" / "2_Dense"
    if form == "types_of_release_2":
        modules = json.loads((tmp_path / "st" / "modules.json").read_text())
        assert all(".modules." in module["type"] for module in modules)
        for module in modules:
            module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
        (tmp_path / "st" / "modules.json").write_text(json.dumps(modules))
        keys = ("in_features", "out_features", "bias", "activation_function")
        values = json.loads((home / "config.json").read_text())
        (home / "config.json").write_text(json.dumps({key: values[key] for key in keys}))
    elif form == "no activation_function":
        values = json.loads((home / "config.json").read_text())
        del values["activation_function"]
        (home / "config.json").write_text(json.dumps(values))
    elif form == "float16":
        fastbert_state = {name: tensor.half() for name, tensor in model[2].state_dict().items()}
        from safetensors.torch import save_file

        save_file(fastbert_state, home / "model.safetensors")
        model[2].load_state_dict(fastbert_state)
    else:
        (home / "model.safetensors").unlink()
        torch.save(model[2].state_dict(), home / "pytorch_model.bin")
    assert_equal(SentenceEncoder.from_pretrained(tmp_path / "st"), model)


def test_precisions_and_batches(tmp_path):
    """Dense is float32 in each: what differs from float32 is what differs without it."""
    model = model_of(tmp_path / "bert", dense(32, 16), theirs_of.Normalize())
    model.save(str(tmp_path / "st"))
    wanted = model.encode(TEXTS)
    for precision in ("fp32", "bf16", "int8"):
        ours = SentenceEncoder.from_pretrained(tmp_path / "st", precision=precision)
        assert {p.dtype for p in ours.modules.parameters()} == {torch.float32}
        got = ours.encode(TEXTS)
        assert got.dtype == np.float32
        assert (got * wanted).sum(1).min() > 0.99
        # Streaming and batching: the same bits whatever the company.
        together = ours.encode(TEXTS * 3, batch_invariant=True)
        for budget in (1, 40):
            np.testing.assert_array_equal(ours.encode(TEXTS * 3, token_budget=budget, batch_invariant=True), together)
        alone = np.concatenate([ours.encode([text], batch_invariant=True) for text in TEXTS])
        np.testing.assert_array_equal(alone, together[: len(TEXTS)])


@pytest.mark.parametrize("modes", [["mean", "max", "cls"], ["lasttoken", "weightedmean", "mean_sqrt_len_tokens"]])
@pytest.mark.parametrize("include_prompt", [True, False])
def test_poolings_prompts_and_lengths(modes, include_prompt, tmp_path):
    modules = [dense(96, 10), theirs_of.Normalize()]
    model = model_of(tmp_path / "bert", *modules, pooling_mode=modes, include_prompt=include_prompt)
    model.prompts = {"query": "the capital of ", "document": "the film : ", "fused": "pari"}
    model.default_prompt_name = "document"
    model.max_seq_length = 12
    model.save(str(tmp_path / "st"))
    again = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    ours = SentenceEncoder.from_pretrained(tmp_path / "st")
    assert ours.max_seqlen == 12
    assert_equal(ours, again)
    assert np.abs(ours.encode(TEXTS) - ours.encode(TEXTS, prompt="")).max() > 1e-3
    texts = [*TEXTS, "s", "s is the capital"]  # "paris": the prompt is not a whole word
    for options in ({"prompt_name": "query"}, {"prompt": ""}, {"prompt": "paris . "}, {"prompt_name": "fused"}):
        assert_equal(ours, again, texts, **options)
    long = "the film is bad and dull and poor and not good and not fine "
    if "max" not in modes:  # minus infinity, there and here
        assert_equal(ours, again, TEXTS, prompt=long * 2)


def test_texts_are_cut_on_the_left_where_the_tokenizer_says_so(tmp_path):
    save_tiny(tmp_path / "bert", "BertModel")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "truncation_side": "left"}
    (tmp_path / "bert" / "tokenizer_config.json").write_text(json.dumps(settings))
    model = model_of(tmp_path / "bert")
    model.max_seq_length = 6
    model.save(str(tmp_path / "st"))
    ours = SentenceEncoder.from_pretrained(tmp_path / "st")
    assert_equal(ours, model)
    ours.save_pretrained(tmp_path / "again")
    assert_equal(ours, st.SentenceTransformer(str(tmp_path / "again"), device="cpu"))
    assert_equal(SentenceEncoder.from_pretrained(tmp_path / "again"), model)


def test_prompts_that_cannot_be(tmp_path):
    ours = SentenceEncoder.from_pretrained(save_tiny(tmp_path, "BertModel"))
    np.testing.assert_array_equal(ours.encode(["paris"], prompt_name="query"), ours.encode(["paris"]))
    for options, said in (
        ({"prompt_name": "passage"}, "prompt_name must be one of query, document, got 'passage'"),
        ({"prompt_name": ["query"]}, "prompt_name must be one of"),
        ({"prompt": 3}, "prompts must be strings, got one of type int"),
        ({"prompt": "\ud800"}, "prompts must be texts that UTF-8 can write"),
        ({"prompt": "a", "prompt_name": "query"}, "a prompt or a prompt_name, got both"),
    ):
        with pytest.raises(InputError, match=said):
            ours.encode(["paris"], **options)


def test_pooling_without_a_prompts_tokens_by_hand():
    hidden = torch.tensor([[1.0], [3.0], [5.0], [-7.0]])
    cu_seqlens = torch.tensor([0, 3, 4], dtype=torch.int32)
    wanted = {
        "cls": [5, -7],
        "max": [5, -torch.inf],
        "mean": [5, 0],
        "mean_sqrt_len_tokens": [5, 0],
        "weightedmean": [5, 0],
        "lasttoken": [5, 0],
    }
    for mode, values in wanted.items():
        torch.testing.assert_close(pool(hidden, cu_seqlens, mode, 2)[:, 0], torch.tensor(values, dtype=torch.float32))
    # Positions count the prompt: (2 * 3 + 3 * 5) / 5.
    assert float(pool(hidden, cu_seqlens, "weightedmean", 1)[0]) == pytest.approx(4.2)


def test_lower_casing_is_that_of_sentence_transformers(tmp_path):
    """Letter by letter, and not of special tokens that stand in a text."""
    save_tiny(
        tmp_path / "bert", "BertModel", vocab=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "οδοσ", "οδος", "the"]
    )
    (tmp_path / "bert" / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}'
    )
    model_of(tmp_path / "bert").save(str(tmp_path / "st"))
    said = json.loads((tmp_path / "st" / "sentence_bert_config.json").read_text())
    (tmp_path / "st" / "sentence_bert_config.json").write_text(json.dumps({**said, "do_lower_case": True}))
    ours = SentenceEncoder.from_pretrained(tmp_path / "st")
    again = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    # What the tokenizer does to a text by itself, here to a control character, it still does.
    assert_equal(ours, again, ["THE", "ΟΔΟΣ", "the [MASK] THE", "[mask]", "T\x7fHE"])
    assert np.array_equal(ours.encode(["T\x7fHE"]), ours.encode(["the"]))
    assert np.abs(ours.encode(["the [MASK]"]) - ours.encode(["the the"])).max() > 1e-3


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name if path.parent != directory else ''}/{name}": tensor
        for path in sorted(directory.rglob("model.safetensors"))
        for name, tensor in read_state_dict(path.parent).items()
    }


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("way", ["convert", "save"])
def test_what_is_written_again_is_the_same(way, name, tmp_path):
    modes = ["mean", "cls"] if name == "distiluse" else "mean"
    chain = [dense(64, 20)] if name == "distiluse" else CHAINS[name]()
    model = model_of(tmp_path / "bert", *chain, pooling_mode=modes)
    model.prompts = {"query": "the capital of ", "document": "the film "}
    model.default_prompt_name = "query"
    model.max_seq_length = 9
    model.similarity_fn_name = "dot"
    model.save(str(tmp_path / "st"))
    if way == "convert":
        arguments = ["convert", str(tmp_path / "st"), str(tmp_path / "out"), "--to", "sentence-transformers"]
        assert main(arguments) == 0
    else:
        SentenceEncoder.from_pretrained(tmp_path / "st").save_pretrained(tmp_path / "out")
    again = st.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert (again.prompts, again.default_prompt_name, again.max_seq_length) == (model.prompts, "query", 9)
    assert again.similarity_fn_name == "dot"
    ours = SentenceEncoder.from_pretrained(tmp_path / "out")
    np.testing.assert_array_equal(ours.encode(TEXTS), SentenceEncoder.from_pretrained(tmp_path / "st").encode(TEXTS))
    assert_equal(ours, model)
    assert_equal(ours, again)
    before, after = weights_of(tmp_path / "st"), weights_of(tmp_path / "out")
    before = {key: tensor for key, tensor in before.items() if "pooler" not in key}
    after = {key: tensor for key, tensor in after.items() if "pooler" not in key}
    # Directories that hold no weights (Dropout) may go, and numbers with them.
    numbered = [sorted(key.split("_", 1)[-1] for key in tensors) for tensors in (before, after)]
    assert numbered[0] == numbered[1]
    for old, new in zip(sorted(before), sorted(after), strict=True):
        assert before[old].dtype == after[new].dtype
        assert torch.equal(before[old], after[new])


@pytest.mark.parametrize("change", ["words are added", "another model's"])
def test_the_tokenizer_that_is_saved_is_the_encoders(change, tmp_path):
    """And not the one of the directory that the model was read from."""
    source = save_tiny(tmp_path / "bert", "BertModel")
    model, tokenizer = fastbert.BertModel.from_pretrained(source), fastbert.load_tokenizer(source)
    if change == "words are added":
        tokenizer.add_tokens(["zzz"])
        model.resize_token_embeddings(tokenizer.get_vocab_size())
    else:
        tokenizer = fastbert.load_tokenizer(save_tiny(tmp_path / "b", vocab=[*VOCAB[:5], *VOCAB[:4:-1]]))
    encoder = SentenceEncoder(model, tokenizer)
    encoder.save_pretrained(tmp_path / "out")
    texts = ["zzz film", *TEXTS]
    again = SentenceEncoder.from_pretrained(tmp_path / "out")
    np.testing.assert_array_equal(again.encode(texts), encoder.encode(texts))
    theirs = st.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(theirs.encode(texts), encoder.encode(texts), rtol=0, atol=1e-5)


def test_an_encoder_of_ones_own_is_saved(tmp_path):
    """Without a directory behind it; pooling in an order of its own; float16 weights keep their bits."""
    plain = SentenceEncoder.from_pretrained(save_tiny(tmp_path / "bert", "BertModel"))
    plain.model.tokenizer_source = None
    head = Dense(64, 6, activation_function="GELU").half()
    encoder = SentenceEncoder(
        *(plain.model, plain.tokenizer),
        pooling=("mean", "cls"),
        modules=[head],
        normalize=True,
        max_seqlen=8,
        do_lower_case=True,
        prompt="the ",
        truncate_dim=4,
    )
    encoder.save_pretrained(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert written["normalizer"]["type"] == "BertNormalizer", "lower-casing is the encoder's and not the tokenizer's"
    again = SentenceEncoder.from_pretrained(tmp_path / "out")
    assert again.modules[0].linear.weight.dtype == torch.float16
    assert (again.pooling, again.max_seqlen, again.prompt, again.dim) == (("mean", "cls"), 8, "the ", 4)
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    assert_equal(again, st.SentenceTransformer(str(tmp_path / "out"), device="cpu"))
    fastbert.quantize(encoder)
    with pytest.raises(CheckpointError, match="save the model before quantize"):
        encoder.save_pretrained(tmp_path / "int8")
    plain.modules = nn.Sequential(nn.Linear(32, 3))
    with pytest.raises(InputError, match="to save, got Linear"):
        plain.save_pretrained(tmp_path / "linear")
    assert not (tmp_path / "linear").exists()


@pytest.mark.parametrize("version", ["in config_sentence_transformers.json", "in config.json"])
def test_the_older_layout_is_converted_with_its_settings(version, tmp_path):
    model = model_of(tmp_path / "bert", dense(32, 5))
    model.save(str(tmp_path / "st"))
    inner = tmp_path / "st" / "0_Transformer"
    inner.mkdir()
    for path in list((tmp_path / "st").iterdir()):
        if path.is_file() and path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(inner / path.name)
    modules = json.loads((tmp_path / "st" / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "st" / "modules.json").write_text(json.dumps(modules))
    if version == "in config.json":  # as releases before 2.0 left it, beside no model
        (tmp_path / "st" / "config_sentence_transformers.json").unlink()
        (tmp_path / "st" / "config.json").write_text('{"__version__": "0.3.9"}')
    assert_equal(SentenceEncoder.from_pretrained(tmp_path / "st"), model)
    convert(tmp_path / "st", tmp_path / "out", to="sentence-transformers")
    assert_equal(SentenceEncoder.from_pretrained(tmp_path / "out"), model)


@pytest.fixture
def labse(tmp_path) -> Path:
    model_of(tmp_path / "bert", dense(32, 16), theirs_of.Normalize()).save(str(tmp_path / "st"))
    return tmp_path / "st"


def change(path: Path, **values) -> None:
    before = json.loads(path.read_text()) if path.exists() else {}  # releases before 6 write none for a Normalize
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**before, **values}))


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        (
            "2_Dense/config.json",
            {"activation_function": "own.Tanh"},
            "2_Dense/config.json: activation_function must be",
        ),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.PReLU"}, "PReLU"),
        ("2_Dense/config.json", {"activation_function": "torch.load"}, "torch.load"),
        ("2_Dense/config.json", {"activation_function": None}, "got None"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'"),
        ("2_Dense/config.json", {"module_output_name": "other"}, "a Dense of sentence_embedding"),
        ("2_Dense/config.json", {"in_features": "32"}, "in_features must be a whole number"),
        ("2_Dense/config.json", {"in_features": 33}, "expected the weights of a Dense"),
        ("2_Dense/config.json", {"bias": False}, "expected the weights of a Dense"),
        ("2_Dense/config.json", {"bias": 1}, "bias must be true or false"),
        ("2_Dense/config.json", {"use_residual": True}, "residual.weight"),
        ("2_Dense/config.json", {"out_features": 1 << 40}, "out_features must be a whole number"),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}, "a Normalize of sentence_embedding"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}, "Dense expects vectors of 32 numbers, got"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'feature-extraction'"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"max_length": 3}}}, "processing_kwargs"),
        ("sentence_bert_config.json", {"query_length": 5}, "expected query_length None, got 5"),
        ("sentence_bert_config.json", {"document_length": 6}, "expected document_length None, got 6"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed", "length": 12}}, "query_expansion None"),
        ("sentence_bert_config.json", {"tokenizer_args": {"do_lower_case": False}}, "tokenizer_args that change"),
        ("sentence_bert_config.json", {"modality_config": {"image": {}}}, "modality_config with the text"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "prompts, names and texts"),
        ("config_sentence_transformers.json", {"prompts": []}, "prompts, names and texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": ["query"]}, "expected a prompt named"),
    ],
)
def test_what_is_not_supported_is_named(file, values, said, labse):
    change(labse / file, **values)
    with pytest.raises((InputError, CheckpointError), match=said) as caught:
        SentenceEncoder.from_pretrained(labse)
    assert "\n" not in str(caught.value)


def test_arguments_that_change_nothing_are_passed_over(labse):
    wanted = SentenceEncoder.from_pretrained(labse).encode(TEXTS)
    change(labse / "sentence_bert_config.json", model_args={"torch_dtype": "float32"}, tokenizer_args={})
    np.testing.assert_array_equal(SentenceEncoder.from_pretrained(labse).encode(TEXTS), wanted)


def test_other_modules_and_orders_are_named(labse):
    modules = json.loads((labse / "modules.json").read_text())

    def refusal(listed) -> str:
        (labse / "modules.json").write_text(json.dumps(listed))
        with pytest.raises(InputError) as caught:
            SentenceEncoder.from_pretrained(labse)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    place = "sentence_transformers.models"
    assert "got CNN among Transformer, Pooling, CNN" in refusal(
        [*modules[:2], {"type": f"{place}.CNN", "path": "2_CNN"}]
    )
    assert "got own.Dense among" in refusal([*modules[:2], {**modules[2], "type": "own.Dense"}])
    assert "got Transformer, Dense, Pooling" in refusal([modules[0], modules[2], modules[1]])
    assert "got Transformer" in refusal(modules[:1])
    assert "got none" in refusal([])
    for path in ("../bert", "x" * 10_000, "\0", "\ud800"):
        assert "inside its own directory" in refusal([*modules[:2], {**modules[2], "path": path}])


def test_weights_that_are_missing_or_damaged_are_named(labse, tmp_path):
    weights = labse / "2_Dense" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-9])
    with pytest.raises(CheckpointError, match="2_Dense"):
        SentenceEncoder.from_pretrained(labse)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"2_Dense: expected model\.safetensors or .*, found neither"):
        SentenceEncoder.from_pretrained(labse)
    assert main(["convert", str(labse), str(tmp_path / "out"), "--to", "sentence-transformers"]) == 2
    assert not (tmp_path / "out").exists()
    shutil.rmtree(labse / "2_Dense")
    with pytest.raises(InputError, match=r"2_Dense/config\.json"):
        SentenceEncoder.from_pretrained(labse)


def test_a_pooling_that_a_dense_does_not_fit_is_refused(tmp_path):
    model_of(tmp_path / "bert", dense(64, 16), pooling_mode=["mean", "cls"]).save(str(tmp_path / "st"))
    with pytest.raises(InputError, match="Dense expects vectors of 64 numbers, got those of 32"):
        SentenceEncoder.from_pretrained(tmp_path / "st", pooling="mean")
    with pytest.raises(InputError, match="Dense expects vectors of 64 numbers"):
        convert(tmp_path / "st", tmp_path / "out", to="sentence-transformers", options={"pooling": "cls"})
    assert not (tmp_path / "out").exists()
