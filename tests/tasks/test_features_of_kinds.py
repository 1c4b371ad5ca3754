"""Tasks on the features of frozen models of other kinds than BERT, by a learned mix too."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny_bert
import torch

import fastbert
from fastbert import PackedBatch, rng
from fastbert.cli.main import main
from fastbert.data.characters import characters_of
from fastbert.elmo_config import ElmoConfig
from fastbert.errors import InputError
from fastbert.gpt_config import GPT2Config
from fastbert.models.elmo import ElmoForPreTraining
from fastbert.models.encoders import load_encoder, read_config
from fastbert.models.gpt import GPTForPreTraining
from fastbert.models.static import StaticEncoder
from fastbert.tasks import on_features, registry
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.feature_classifier import FeatureClassifier
from fastbert.tasks.feature_files import Cached
from fastbert.tasks.feature_tagger import FeatureTagger
from fastbert.tasks.features import token_features
from fastbert.tasks.finetune import finetune
from fastbert.tasks.on_features import of_kind
from fastbert.tasks.predict import predict, run_model


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """768 units are too slow for a test."""
    monkeypatch.setattr(on_features, "UNITS", 32)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A model of each kind over one vocabulary of words."""
    root = tmp_path_factory.mktemp("kinds")
    found = {"bert": tiny_bert.save(root / "bert", "BertModel", num_hidden_layers=2)}
    torch.manual_seed(2)
    sizes = {"hidden_size": 32, "lstm_size": 40, "character_embedding_size": 8, "character_filters": [[1, 16], [3, 48]]}
    config = ElmoConfig(vocab_size=len(tiny_bert.VOCAB), **sizes)
    config.characters = characters_of(tiny_bert.VOCAB)
    models = {"elmo": ElmoForPreTraining(config)}
    with torch.no_grad():  # untrained states are small and alike
        for parameter in models["elmo"].parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    models["gpt2"] = GPTForPreTraining(GPT2Config(vocab_size=len(tiny_bert.VOCAB), n_embd=12, n_layer=2, n_head=2))
    models["static"] = StaticEncoder.of_vectors(torch.randn(len(tiny_bert.VOCAB), 12))
    for kind, model in models.items():
        model.tokenizer_source = found["bert"]
        found[kind] = model.save_pretrained(root / kind)
    return found


def task_of(name: str, features: str, rows: list[Row]):
    task = registry.get(name)
    task.learn(rows)
    task.features = features
    return task


def test_models_of_all_kinds_come_back_from_their_directories(directories):
    batch = PackedBatch.from_sequences([[2, 7, 8, 3], [2, 9, 3]])
    for kind, count in (("bert", 3), ("gpt2", 3), ("elmo", 3), ("static", 1)):
        model = load_encoder(directories[kind])
        assert read_config(directories[kind]) == model.config
        assert model.config.model_type == kind
        assert model.load_report.missing == ()
        states = model(batch, output_hidden_states=True).hidden_states
        assert [tuple(layer.shape) for layer in states] == [(7, model.config.hidden_size)] * count
        torch.testing.assert_close(states[-1], model(batch).last_hidden_state)
    assert torch.equal(
        load_encoder(directories["elmo"]).embeddings.characters, torch.from_numpy(characters_of(tiny_bert.VOCAB))
    )
    with pytest.raises(InputError, match="model_type must be 'bert', got 'elmo'"):
        fastbert.BertModel.from_pretrained(directories["elmo"])


def test_of_static_vectors_the_last_layer_is_the_only_one(directories):
    model, tokenizer = load_encoder(directories["static"]), fastbert.load_tokenizer(directories["static"])
    table = model.embeddings.word_embeddings.weight.detach().numpy()
    (found,) = token_features(model, tokenizer, ["the film"], "last")
    np.testing.assert_array_equal(found.values, table[[2, *(tiny_bert.VOCAB.index(w) for w in ("the", "film")), 3]])
    with pytest.raises(InputError, match="last4-sum needs a model of at least 4 layers, got 1"):
        list(token_features(model, tokenizer, ["the film"], "last4-sum"))


def test_extract_writes_an_elmos_states(directories, tmp_path):
    (tmp_path / "lines.txt").write_text("the film\nit\n")
    given = ["extract", "--model", str(directories["elmo"]), "--out", str(tmp_path / "out"), "--layers", "last"]
    assert main([*given, str(tmp_path / "lines.txt")]) == 0
    values = np.load(tmp_path / "out" / "features.npy")
    ids = [[2, tiny_bert.VOCAB.index("the"), tiny_bert.VOCAB.index("film"), 3], [2, tiny_bert.VOCAB.index("it"), 3]]
    with torch.inference_mode():
        expected = load_encoder(directories["elmo"])(PackedBatch.from_sequences(ids)).last_hidden_state
    np.testing.assert_allclose(values, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "elmo", "static"])
def test_a_mix_is_learned_from_a_file_that_holds_all_layers(directories, tmp_path, kind):
    train, dev, directory = tiny_bert.tagged_rows(96, 1), tiny_bert.tagged_rows(24, 2), directories[kind]
    task, tokenizer = task_of("ner", "mix", train), fastbert.load_tokenizer(directory)
    torch.manual_seed(0)
    model = task.model(directory)
    below = {name: value.clone() for name, value in model.base_model.state_dict().items()}
    plain = task.encode(train, tokenizer, 32)
    task.cache = Cached(model, tmp_path / "cache")
    cached = task.encode(train, tokenizer, 32)
    with torch.inference_mode():
        batch = PackedBatch.from_sequences([cached[5].input_ids])
        states = load_encoder(directory)(batch, output_hidden_states=True).hidden_states
    # An untrained ELMo's numbers go to 80, where neighbours in float32 lie 8e-6 apart, and both sides round.
    np.testing.assert_allclose(task.cache.files[0].rows(5), torch.cat(states, 1).numpy(), atol=1e-5, rtol=3e-6)
    with torch.no_grad():
        model.mix.scalars.uniform_(-1, 1)
    # Mixed from the file, from the model, and by hand from its states.
    shares = model.mix.weights.detach()
    by_hand = sum(share * state for share, state in zip(shares, states, strict=True))
    np.testing.assert_allclose(model.features(batch).detach(), by_hand, atol=1e-5)
    for one, two in zip(run_model(task, model, plain).values, run_model(task, model, cached).values, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)

    config = FinetuneConfig(epochs=5, batch_size=8, lr=3e-2, max_seqlen=32)
    result = finetune(task, model, tokenizer, train, dev, config, out=tmp_path / "run")
    assert result.best["f1"] > 0.95
    assert all(torch.equal(below[name], value.cpu()) for name, value in model.base_model.state_dict().items())
    if kind != "static":  # of one layer the share is always 1
        assert not torch.equal(model.mix.weights.cpu(), shares)
    assert float(model.mix.gamma.detach()) != 1.0
    again = registry.get("ner")
    again.restore(read_config(result.model_dir))
    loaded = again.model(result.model_dir)
    assert type(loaded).__name__ == json.loads((result.model_dir / "config.json").read_text())["architectures"][0]
    assert loaded.load_report.missing == ()
    assert predict(again, loaded, dev, again.encode(dev, tokenizer, 32)) == result.predictions


def test_layers_can_be_normalised_before_they_are_mixed(directories):
    config = read_config(
        directories["elmo"], feature_layers="mix", feature_layer_norm=True, num_labels=2, feature_pairs=False
    )
    model = of_kind(FeatureClassifier, "elmo")(config).eval()
    batch = PackedBatch.from_sequences([[2, 7, 8, 3]])
    with torch.no_grad():
        states = model.base_model(batch, output_hidden_states=True).hidden_states
        normal = [(s - s.mean(1, keepdim=True)) / s.std(1, unbiased=False, keepdim=True) for s in states]
        torch.testing.assert_close(model.features(batch), sum(normal) / 3)


def test_pooling_by_hand(directories):
    options = {"feature_layers": "last", "num_labels": 2}
    batch = PackedBatch.from_sequences([[2, 7, 3, 8], [2, 9]], [[0, 0, 0, 1], [0, 0]])
    hidden = torch.tensor([[1.0, -4.0], [2.0, -3.0], [-5.0, -9.0], [7.0, 1.0], [0.5, 0.0], [0.25, 3.0]])
    one = of_kind(FeatureClassifier, "static")(read_config(directories["static"], feature_pairs=False, **options))
    torch.testing.assert_close(one.pool(hidden, batch), torch.tensor([[7.0, 1.0], [0.5, 3.0]]))
    two = of_kind(FeatureClassifier, "static")(read_config(directories["static"], feature_pairs=True, **options))
    # u = (2, -3), v = (7, 1); the second sequence has no second text, which is zeros.
    expected = [[2.0, -3, 7, 1, 5, 4, 14, -3], [0.5, 3, 0, 0, 0.5, 3, 0, 0]]
    torch.testing.assert_close(two.pool(hidden, batch), torch.tensor(expected))


@pytest.mark.parametrize("head", [FeatureClassifier, FeatureTagger])
def test_heads_drop_out_while_they_are_trained(directories, head):
    options = {"feature_layers": "last", "num_labels": 2, "feature_pairs": False, "hidden_dropout_prob": 0.5}
    model = of_kind(head, "bert")(read_config(directories["bert"], **options)).train()
    batch, logits = PackedBatch.from_sequences([[2, 7, 8, 3]]), []
    for mode, offset in ((True, 1), (True, 1), (True, 2), (False, 1), (False, 2)):
        with rng.use(rng.DropoutKey(0, offset)):
            logits.append(model.train(mode)(batch).logits)
    one, again, other, *plain = logits
    assert torch.equal(one, again)
    assert torch.equal(*plain)
    assert not torch.equal(one, other)
    assert not torch.equal(one, plain[0])
    assert torch.equal(model.train().features(batch), model.eval().features(batch)), "the model below drops nothing"


@pytest.mark.parametrize(("kind", "features"), [("elmo", "mix"), ("static", "last"), ("bert", "embeddings")])
def test_a_text_task_in_commands(directories, tmp_path, capsys, kind, features):
    for name, count, seed in (("train", 96, 1), ("dev", 24, 2)):
        lines = (f"{row.texts[0]}\t{row.label}" for row in tiny_bert.rows_of(count, seed))
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    files = ["--train", str(tmp_path / "train.tsv"), "--dev", str(tmp_path / "dev.tsv"), "--out", str(tmp_path / "run")]
    recipe = ["--features", features, "--max-seqlen", "24", "--epochs", "8", "--lr", "0.03", "--batch-size", "8"]
    assert main(["finetune", "sst2", "--model", str(directories[kind]), *files, *recipe]) == 0
    assert not list(tmp_path.rglob("*.npy"))
    best = json.loads((tmp_path / "run" / "dev_metrics.json").read_text())["accuracy"]
    assert best > 0.9
    capsys.readouterr()
    assert main(["evaluate", "sst2", "--model", str(tmp_path / "run"), "--data", str(tmp_path / "dev.tsv")]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(best)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("bert", "layers last4-sum needs a model of at least 4 layers, got 2"),
        ("gpt2", "a model of type gpt2 has no head for ner, expected features or a BERT"),
    ],
)
def test_of_all_rows_one_that_cannot_be_is_told_before_the_first(directories, tmp_path, capsys, kind, sentence):
    directory = directories[kind]
    if kind == "gpt2":
        model = GPTForPreTraining(GPT2Config(vocab_size=len(tiny_bert.VOCAB), n_embd=12, n_layer=4, n_head=2))
        model.tokenizer_source = directories["bert"]
        directory = model.save_pretrained(tmp_path / "gpt2")
    (tmp_path / "data.txt").write_text("the O\nfilm B-X\n\ngood O\n")
    data = ["--train", str(tmp_path / "data.txt"), "--dev", str(tmp_path / "data.txt"), "--max-seqlen", "16"]
    given = ["--model", str(directory), *data, "--epochs", "1", "--out", str(tmp_path / "all")]
    assert main(["finetune", "ner", "--features", "all", *given]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.out == ""
    assert not (tmp_path / "all").exists()


def test_features_of_a_pair_know_its_two_texts(directories, tmp_path):
    """A BERT's features of a pair depend on the token types, from the file as from the model."""
    rows = [Row(str(i), ("the film", "a good book"[: 6 + i]), str(i % 2)) for i in range(4)]
    task, tokenizer = task_of("rte", "last", rows), fastbert.load_tokenizer(directories["bert"])
    rows = [Row(r.id, r.texts, task.labels[int(r.label)]) for r in rows]
    model = task.model(directories["bert"]).eval()
    assert model.pairs
    plain = task.encode(rows, tokenizer, 32)
    task.cache = Cached(model, tmp_path / "cache")
    cached = task.encode(rows, tokenizer, 32)
    found = [run_model(task, model, examples) for examples in (plain, cached)]
    assert found[0].loss is not None
    for one, two in zip(found[0].values, found[1].values, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    batch, _ = task.collate(cached)
    with torch.inference_mode():
        expected = load_encoder(directories["bert"])(batch).last_hidden_state.numpy()
    np.testing.assert_allclose(np.concatenate([task.cache.files[0].rows(i) for i in range(4)]), expected, atol=1e-5)
