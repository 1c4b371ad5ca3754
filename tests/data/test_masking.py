"""Shares, whole words and special tokens of masking, counted from the batches alone."""

from __future__ import annotations

import numpy as np
import pytest

from fastbert.data import randomness
from fastbert.data.config import SampleConfig
from fastbert.data.masking import Masker
from fastbert.data.pretraining import PretrainingData, realised_shares
from fastbert.errors import InputError

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB = 30_000
WORD, PIECE = 1000, 29_000  # ids from PIECE on continue a word


def make_masker(**changes) -> Masker:
    maskable = np.arange(VOCAB) >= 5
    options = {
        "mlm_probability": 0.15,
        "mask_mix": (0.8, 0.1, 0.1),
        "max_predictions": None,
        "whole_word": False,
        "mask_id": MASK,
        "replacements": np.flatnonzero(maskable),
        "maskable": maskable,
        "continuation": np.arange(VOCAB) >= PIECE,
    }
    return Masker(**{**options, **changes})


def random_samples(samples: int, longest: int = 128, seed: int = 0):
    """ids, sample, position of samples [CLS] ... [SEP] with a few [UNK] and even [PAD] and [MASK] inside."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(12, longest + 1, samples)
    ends = np.cumsum(lengths)
    ids = rng.integers(5, VOCAB, ends[-1])
    ids[rng.random(len(ids)) < 0.02] = UNK
    ids[rng.random(len(ids)) < 0.002] = PAD
    ids[rng.random(len(ids)) < 0.002] = MASK
    ids[ends - lengths], ids[ends - 1] = CLS, SEP
    sample = np.repeat(np.arange(samples), lengths)
    return ids, sample, np.arange(len(ids)) - (ends - lengths)[sample]


def make_keys(samples: int, seed: int = 0) -> np.ndarray:
    return randomness.key(seed, np.arange(samples))


def test_shares_over_a_million_tokens():
    ids, sample, position = random_samples(16_000)
    corrupted, positions, labels = make_masker()(ids, sample, position, make_keys(16_000))
    maskable = ids >= 5
    assert maskable.sum() > 1_000_000
    assert 100 * len(positions) / maskable.sum() == pytest.approx(15, abs=0.1)
    now = corrupted[positions]
    kinds = 100 * np.array([(now == MASK).mean(), ((now != MASK) & (now != labels)).mean(), (now == labels).mean()])
    np.testing.assert_allclose(kinds, [80, 10, 10], atol=0.3)
    # What was chosen and what came in are spread evenly over the place and over the vocabulary.
    place = np.bincount(position[positions], minlength=128)[1:11] / np.bincount(position[maskable], minlength=128)[1:11]
    np.testing.assert_allclose(place, 0.15, atol=0.015)
    drawn = now[(now != MASK) & (now != labels)]
    assert np.histogram(drawn, bins=10, range=(5, VOCAB))[0] / len(drawn) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("whole_word", [False, True])
def test_samples_of_one_length_have_the_share_too(whole_word):
    """Of 10 tokens 1.5 are wanted: as often one as two, for always two would be 20 %."""
    samples = 8_000
    ids = np.tile([CLS, *range(WORD, WORD + 10), SEP], samples)
    sample, position = np.repeat(np.arange(samples), 12), np.tile(np.arange(12), samples)
    masker = make_masker(whole_word=whole_word, replacements=np.arange(5, 8), mask_mix=(0.5, 0.5, 0.0))
    corrupted, positions, _ = masker(ids, sample, position, make_keys(samples))
    assert 100 * len(positions) / (10 * samples) == pytest.approx(15, abs=0.2)
    # Every replacement that there is comes as often as any other.
    drawn = np.bincount(corrupted[positions][corrupted[positions] != MASK], minlength=8)[5:]
    np.testing.assert_allclose(drawn / drawn.sum(), 1 / 3, atol=0.03)


def test_only_ordinary_tokens_are_chosen_and_labels_are_the_originals():
    ids, sample, position = random_samples(2_000)
    before = ids.copy()
    corrupted, positions, labels = make_masker(mlm_probability=0.5)(ids, sample, position, make_keys(2_000))
    assert (ids == before).all()
    assert (labels == ids[positions]).all()
    assert (labels >= 5).all()
    assert (np.diff(positions) > 0).all()
    untouched = np.ones(len(ids), bool)
    untouched[positions] = False
    assert (corrupted[untouched] == ids[untouched]).all()
    now = corrupted[positions]
    assert ((now >= 5) | (now == MASK)).all()


def test_max_predictions_limits_each_sample():
    ids, sample, position = random_samples(2_000)
    _, positions, _ = make_masker(max_predictions=7)(ids, sample, position, make_keys(2_000))
    counts = np.bincount(sample[positions], minlength=2_000)
    assert counts.max() == 7
    # Samples that want fewer are left alone: 15 % of 12 to 20 tokens are 3 at most.
    small = np.bincount(sample) <= 20
    assert counts[small].max() == 3
    assert counts.min() >= 1


@pytest.mark.parametrize("mix", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.8, 0.0, 0.2), (0.0, 0.2, 0.8)])
def test_other_mixes(mix):
    ids, sample, position = random_samples(1_500)
    corrupted, positions, labels = make_masker(mask_mix=mix)(ids, sample, position, make_keys(1_500))
    now = corrupted[positions]
    # One random draw in thirty thousand is the original.
    got = [(now == MASK).mean(), ((now != MASK) & (now != labels)).mean(), (now == labels).mean()]
    for share, wanted in zip(got, mix, strict=True):
        assert share == pytest.approx(wanted, abs=0.012 if 0 < wanted < 1 else 0.0005)
    assert ((now == MASK).sum() == 0) == (mix[0] == 0)


@pytest.mark.parametrize("whole_word", [False, True])
def test_none_and_all(whole_word):
    ids, sample, position = random_samples(300)
    keys = make_keys(300)
    corrupted, positions, labels = make_masker(mlm_probability=0.0, whole_word=whole_word)(ids, sample, position, keys)
    assert (corrupted == ids).all()
    assert len(positions) == len(labels) == 0
    _, positions, _ = make_masker(mlm_probability=1.0, whole_word=whole_word)(ids, sample, position, keys)
    assert positions.tolist() == np.flatnonzero(ids >= 5).tolist()


@pytest.mark.parametrize("whole_word", [False, True])
def test_samples_without_ordinary_tokens(whole_word):
    ids, sample, position = np.array([CLS, UNK, SEP, CLS, 77, SEP]), np.repeat([0, 1], 3), np.tile(np.arange(3), 2)
    _, positions, labels = make_masker(whole_word=whole_word)(ids, sample, position, make_keys(2))
    assert (positions.tolist(), labels.tolist()) == ([4], [77])


def words_of(ids: np.ndarray, position: np.ndarray) -> list[list[int]]:
    """Indices of the pieces of each word; special tokens and the edge of a sample end a word."""
    words = []
    for index, token in enumerate(ids.tolist()):
        if token < 5:
            continue
        if token >= PIECE and position[index] > 0 and ids[index - 1] >= 5:
            words[-1].append(index)
        else:
            words.append([index])
    return words


def prose(samples: int, seed: int = 0):
    """As random_samples, with a third of the tokens continuing a word."""
    ids, sample, position = random_samples(samples, seed=seed)
    rng = np.random.default_rng(seed + 1)
    ordinary = ids >= 5
    ids[ordinary] = rng.integers(5, PIECE, ordinary.sum())
    inner = ordinary & (rng.random(len(ids)) < 1 / 3)
    ids[inner] = rng.integers(PIECE, VOCAB, inner.sum())
    return ids, sample, position


def test_whole_words_are_chosen_together():
    ids, sample, position = prose(1_500)
    _, positions, _ = make_masker(whole_word=True)(ids, sample, position, make_keys(1_500))
    chosen = np.zeros(len(ids), bool)
    chosen[positions] = True
    words = words_of(ids, position)
    assert max(map(len, words)) >= 4
    for word in words:
        assert chosen[word].all() == chosen[word].any(), word
    assert 100 * chosen.sum() / (ids >= 5).sum() == pytest.approx(15, abs=0.3)
    # Pieces one by one would break most words.
    _, alone, _ = make_masker()(ids, sample, position, make_keys(1_500))
    chosen[:] = False
    chosen[alone] = True
    assert any(chosen[word].any() != chosen[word].all() for word in words)


def test_whole_words_keep_the_limit_of_predictions():
    ids, sample, position = prose(500)
    _, positions, _ = make_masker(whole_word=True, max_predictions=3)(ids, sample, position, make_keys(500))
    counts = np.bincount(sample[positions], minlength=500)
    assert counts.max() == 3
    assert (counts == 3).mean() > 0.5


def test_a_sample_that_begins_within_a_word_does_not_go_on_with_the_sample_before():
    ids, sample = np.array([WORD, WORD, PIECE, WORD]), np.array([0, 0, 1, 1])
    masker = make_masker(whole_word=True, mlm_probability=1.0)
    _, positions, _ = masker(ids, sample, np.array([0, 1, 0, 1]), make_keys(2))
    assert positions.tolist() == [0, 1, 2, 3]


def test_a_cut_word_at_the_front_of_a_segment_does_not_belong_to_the_word_before():
    # [CLS] w [SEP] ##x [SEP]: two words of one piece; one of the two is wanted, and they are equally likely.
    ids, samples = np.array([CLS, WORD, SEP, PIECE, SEP]), 400
    masker = make_masker(whole_word=True, mlm_probability=0.5)
    keys = make_keys(samples)
    tiled = np.tile(ids, samples), np.repeat(np.arange(samples), 5), np.tile(np.arange(5), samples)
    _, positions, _ = masker(*tiled, keys)
    assert len(positions) == samples
    assert (positions % 5 == 1).mean() == pytest.approx(0.5, abs=0.1)
    # The first of a batch has no word before it at all.
    cut = np.array([CLS, PIECE, PIECE, SEP]), np.zeros(4, np.int64), np.arange(4)
    _, positions, _ = make_masker(whole_word=True, mlm_probability=1.0)(*cut, make_keys(1))
    assert positions.tolist() == [1, 2]


def test_pieces_after_an_unknown_token_are_a_word_of_their_own():
    ids, samples = np.array([CLS, WORD, UNK, PIECE, SEP]), 50
    tiled = np.tile(ids, samples), np.repeat(np.arange(samples), 5), np.tile(np.arange(5), samples)
    _, positions, _ = make_masker(whole_word=True, mlm_probability=0.5)(*tiled, make_keys(samples))
    assert len(positions) == samples


def count_shares(data: PretrainingData, tokens: int) -> np.ndarray:
    """(maskable, chosen, to [MASK], to random, kept), counted from batches."""
    special = data.shards.manifest.special_ids
    counts, epoch = np.zeros(5, np.int64), 0
    while counts[0] < tokens:
        for sample_ids in data.batches(epoch, 16_384):
            batch = data.collate(epoch, sample_ids)
            ids, at, labels = (x.numpy() for x in (batch.input_ids, batch.mlm_positions, batch.mlm_labels))
            now, original = ids[at], ids.copy()
            original[at] = labels
            ordinary = ~np.isin(original, special.all)
            assert ordinary[at].all()
            assert not np.isin(now[now != special.mask], special.all).any()
            assert (np.diff(at) > 0).all()
            same = now == labels
            masked = now == special.mask
            counts += [ordinary.sum(), len(at), masked.sum(), (~same & ~masked).sum(), same.sum()]
        epoch += 1
    return counts


@pytest.mark.parametrize("nsp", [True, False])
def test_shares_on_real_text(book_shards, nsp):
    counts = count_shares(PretrainingData(book_shards, SampleConfig(max_seqlen=128, nsp=nsp)), 1_000_000)
    assert 100 * counts[1] / counts[0] == pytest.approx(15, abs=0.1)
    np.testing.assert_allclose(100 * counts[2:] / counts[1], [80, 10, 10], atol=0.3)


def test_whole_words_of_real_shards(worded):
    data = PretrainingData(worded, SampleConfig(max_seqlen=24, whole_word=True, mlm_probability=0.3))
    vocabulary = {index: token for token, index in worded.tokenizer().get_vocab().items()}
    several = 0
    for sample_ids in data.batches(0, 2048):
        batch = data.collate(0, sample_ids)
        ids = batch.input_ids.numpy().copy()
        ids[batch.mlm_positions.numpy()] = batch.mlm_labels.numpy()
        chosen = set(batch.mlm_positions.tolist())
        word = []
        for index, token in enumerate([*ids.tolist(), 0]):
            if word and not (token >= 5 and vocabulary[token].startswith("##")):
                assert len(chosen.intersection(word)) in (0, len(word))
                several += len(word) > 1 and word[0] in chosen
                word = []
            if token >= 5:
                word.append(index)
    assert several > 100


def test_realised_shares_count_what_is_there(worded):
    """Five words in a hundred are unknown here; they count neither as maskable nor as predicted."""
    data = PretrainingData(worded, SampleConfig(max_seqlen=64, duplication=1))
    maskable, chosen, to_mask, to_random, kept = count_shares(data, 1)
    shares = realised_shares(data)
    assert (shares.maskable, shares.predicted) == (maskable, chosen)
    assert (shares.to_mask, shares.to_random, shares.kept) == (to_mask, to_random, kept)
    plan = data.plan(0)
    assert (shares.tokens, shares.pairs, shares.random_pairs) == (plan.lengths.sum(), len(plan), plan.is_random.sum())
    assert f"{100 * chosen / maskable:.2f} % of {maskable:,} tokens" in str(shares)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mlm_probability": 1.1},
        {"mlm_probability": float("nan")},
        {"mask_mix": (0.8, 0.1, 0.2)},
        {"mask_mix": (1.2, -0.1, -0.1)},
        {"mask_mix": (0.5, 0.5)},
        {"mask_mix": (float("nan"), 0.5, 0.5)},
        {"max_predictions": 0},
        {"duplication": 0},
        {"short_seq_prob": -0.1},
        {"max_seqlen": 7},
    ],
)
def test_options_that_make_no_sense(wrong):
    with pytest.raises(InputError, match=f"^{next(iter(wrong))} must"):
        SampleConfig(**wrong)
