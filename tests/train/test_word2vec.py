"""Static vectors by gensim: what they are trained on, that they repeat, and what they know."""

from __future__ import annotations

import random
import sys

import pytest
import torch

from fastbert import PackedBatch
from fastbert.data.shards import ShardSet
from fastbert.errors import DataError, InputError
from fastbert.models.encoders import load_encoder
from fastbert.models.static import StaticEncoder
from fastbert.train import word2vec
from fastbert.train.word2vec import ShardSentences, Word2VecConfig, train_word2vec

gensim = pytest.importorskip("gensim")

# Two worlds that share no word: ids 5 to 9, and 10 to 14.
WORLDS = (range(5, 10), range(10, 15))


def sentences(count: int = 400) -> list[list[int]]:
    draw = random.Random(0)
    return [draw.choices(WORLDS[number % 2], k=8) for number in range(count)]


def config(**changes) -> Word2VecConfig:
    return Word2VecConfig(**{"size": 16, "epochs": 3, "sample": 0.0, "lr": 0.05, **changes})


@pytest.mark.parametrize("algorithm", ["cbow", "skipgram"])
def test_words_that_stand_together_come_together_and_a_seed_repeats(algorithm):
    model = train_word2vec(sentences(), 16, config(algorithm=algorithm))
    vectors = model.embeddings.word_embeddings.weight.detach()
    units = torch.nn.functional.normalize(vectors[5:15], dim=1)
    cosines = units @ units.T
    within = torch.cat([cosines[:5, :5], cosines[5:, 5:]])[~torch.eye(5, dtype=torch.bool).repeat(2, 1)]
    assert within.min() > cosines[:5, 5:].max()
    # The marks of sentences and what the text does not hold have nothing.
    assert not vectors[[0, 1, 2, 3, 4, 15]].any()
    again = train_word2vec(sentences(), 16, config(algorithm=algorithm))
    assert torch.equal(again.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight)
    other = train_word2vec(sentences(), 16, config(algorithm=algorithm, seed=1))
    assert not torch.equal(other.embeddings.word_embeddings.weight, model.embeddings.word_embeddings.weight)


def test_nothing_of_a_long_sentence_is_left_out(monkeypatch):
    """gensim itself passes over what stands after so many tokens."""
    monkeypatch.setattr(word2vec, "_LONGEST", 4)
    vectors = train_word2vec([list(range(5, 15)), []] * 4, 16, config()).embeddings.word_embeddings.weight
    assert vectors[5:15].any(1).all()


def test_vectors_are_gensims():
    """The same call of gensim's, its vectors by hand into their rows."""
    from gensim.models import Word2Vec

    words = [[str(index) for index in row] for row in sentences(50)]
    expected = Word2Vec(
        words,
        sg=0,
        vector_size=16,
        window=3,
        negative=2,
        min_count=1,
        sample=0.0,
        alpha=0.05,
        epochs=2,
        seed=4,
        workers=1,
    )
    options = {"algorithm": "cbow", "window": 3, "negative": 2, "epochs": 2, "seed": 4}
    found = train_word2vec(sentences(50), 16, config(**options)).embeddings.word_embeddings.weight
    for index in range(5, 15):
        assert torch.equal(found[index], torch.tensor(expected.wv[str(index)]))


def test_from_shards_and_back_from_a_directory(prepared, tmp_path):
    shards = ShardSet.open(prepared)
    source = ShardSentences(shards)
    assert [len(row) for row in source] == shards.sentence_lengths.tolist()
    model = train_word2vec(source, shards.manifest.vocab_size, config(epochs=1), pad_token_id=0)
    model.tokenizer_source = shards.directory
    loaded = load_encoder(model.save_pretrained(tmp_path / "model"))
    assert isinstance(loaded, StaticEncoder)
    assert loaded.config.trained_by["word2vec"]["algorithm"] == "skipgram"
    batch = PackedBatch.from_sequences([shards.sentence(0), shards.sentence(1)])
    out = loaded(batch).last_hidden_state
    assert torch.equal(out, model.embeddings.word_embeddings.weight[batch.input_ids])


def test_what_does_not_fit(monkeypatch):
    with pytest.raises(InputError, match="algorithm must be one of cbow, skipgram"):
        config(algorithm="glove")
    with pytest.raises(InputError, match="window must be a whole number, at least 1, got 0"):
        config(window=0)
    with pytest.raises(InputError, match="readable more than once"):
        train_word2vec(iter(sentences()), 16, config())
    with pytest.raises(DataError, match="tokens that occur 9999 times"):
        train_word2vec(sentences(4), 16, config(min_count=9999))
    with pytest.raises(DataError, match="ids from 0 to vocab_size - 1, 11, got 5 to 14"):
        train_word2vec(sentences(), 12, config(epochs=1))
    with pytest.raises(InputError, match=r"input_ids must be between 0 and 15 \(the vocabulary has 16\), got 16"):
        train_word2vec(sentences(), 16, config(epochs=1))(PackedBatch.from_sequences([[2, 16]]))
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(InputError, match=r"word2vec needs gensim: pip install 'fastbert\[study\]'"):
        train_word2vec(sentences(), 16, config())


@pytest.mark.parametrize("given", [{"size": 4.5}, {"size": "4"}, {"seed": 1.5}, {"epochs": True}])
def test_sizes_that_are_no_whole_numbers_are_refused(given):
    with pytest.raises(InputError, match=f"{next(iter(given))} must be a whole number"):
        Word2VecConfig(**given)


@pytest.mark.parametrize("sentences", [[[1.5, 2.5]], ["ab"], [[None]]])
def test_what_is_no_id_is_not_taken_for_one(sentences):
    with pytest.raises(InputError, match="sentences must be of ids, whole numbers, got"):
        train_word2vec(sentences, 12)


def test_an_id_below_zero_is_no_row_from_the_end():
    with pytest.raises(DataError, match="ids from 0 to vocab_size - 1, 11, got -1 to 2"):
        train_word2vec([[-1, 2]], 12)
