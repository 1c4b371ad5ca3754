"""Sentence pairs and runs of sentences, read back from batches whose every token says where it comes from."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from fastbert.data.config import SampleConfig
from fastbert.data.pairs import plan_full_sentences, plan_pairs
from fastbert.data.pretraining import PretrainingData
from fastbert.errors import DataError


def starts_of(shards) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([[0], np.cumsum(shards.sentence_lengths)]), shards.document_starts


def samples_of(corpus, epoch=0, **options):
    data = PretrainingData(corpus.shards, SampleConfig(**options))
    return [
        sample
        for ids in data.batches(epoch, 8192, shuffle=False)
        for sample in corpus.samples(data.collate(epoch, ids))
    ]


@pytest.mark.parametrize(("max_seqlen", "short_seq_prob"), [(128, 0.1), (40, 0.5), (8, 0.0)])
def test_labels_say_where_the_second_segment_is_from(numbered, max_seqlen, short_seq_prob):
    samples = samples_of(numbered, max_seqlen=max_seqlen, short_seq_prob=short_seq_prob)
    document, sentence = numbered.document_of, numbered.sentence_of
    assert {sample.label for sample in samples} == {0, 1}
    for sample in samples:
        a, b = sample.a, sample.b
        assert len(a) >= 1
        assert len(b) >= 1
        assert sample.length <= max_seqlen
        # Each segment is one piece of one document.
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()
        assert document[a[0]] == document[a[-1]]
        assert document[b[0]] == document[b[-1]]
        if sample.label == 1:
            assert document[a[0]] != document[b[0]]
            continue
        assert document[a[0]] == document[b[0]]
        assert sentence[a[-1]] < sentence[b[0]]
        # Nothing lies between them but what was cut from a sample that had to be.
        if b[0] != a[-1] + 1:
            assert sample.length == max_seqlen


def test_truncation_takes_from_the_longer_segment_at_both_ends(numbered):
    token_starts, document_starts = starts_of(numbered.shards)
    plan = plan_pairs(token_starts, document_starts, 32, 0.0, 0, 0)
    whole = np.stack([token_starts[x[:, 1]] - token_starts[x[:, 0]] for x in (plan.a, plan.b)], 1)
    cuts = np.stack([plan.a_cut.sum(1), plan.b_cut.sum(1)], 1)
    front = fronts = 0
    for lengths, cut, a_cut, b_cut in zip(whole.tolist(), cuts.tolist(), plan.a_cut, plan.b_cut, strict=True):
        # Token by token, as the paper's code does it.
        left = list(lengths)
        while sum(left) > 29:
            left[0 if left[0] > left[1] else 1] -= 1
        assert [length - taken for length, taken in zip(lengths, cut, strict=True)] == left
        front, fronts = front + a_cut[0] + b_cut[0], fronts + sum(cut)
    assert fronts > 5_000
    assert front / fronts == pytest.approx(0.5, abs=0.02)
    assert (plan.lengths == (whole - cuts).sum(1) + 3).all()


@pytest.mark.parametrize("max_seqlen", [128, 512])
def test_both_labels_are_one_half(numbered, max_seqlen):
    token_starts, document_starts = starts_of(numbered.shards)
    labels = np.concatenate(
        [plan_pairs(token_starts, document_starts, max_seqlen, 0.1, 0, epoch).is_random for epoch in range(12)]
    )
    assert len(labels) > 4_000
    assert 100 * labels.mean() == pytest.approx(50, abs=1.5)


def test_documents_of_one_sentence_do_not_tip_the_balance(number_corpus):
    """A quarter of the documents can only get a random partner; the others make up for it."""
    rng = random.Random(0)
    lengths = [[rng.randint(5, 30) for _ in range(1 if n % 4 == 0 else 25)] for n in range(400)]
    token_starts, document_starts = starts_of(number_corpus(lengths).shards)
    labels = [plan_pairs(token_starts, document_starts, 128, 0.1, 0, epoch).is_random for epoch in range(5)]
    assert 100 * np.concatenate(labels).mean() == pytest.approx(50, abs=1.5)


@pytest.mark.parametrize("max_seqlen", [16, 128])
def test_no_sentence_is_lost(numbered, max_seqlen):
    """First segments and real second segments, in order, are the corpus; only truncation takes tokens away."""
    token_starts, document_starts = starts_of(numbered.shards)
    plan = plan_pairs(token_starts, document_starts, max_seqlen, 0.1, 3, 1)
    runs = []
    for a, b, is_random in zip(plan.a.tolist(), plan.b.tolist(), plan.is_random, strict=True):
        runs += [a] if is_random else [a, b]
    assert runs[0][0] == 0
    assert runs[-1][1] == numbered.shards.num_sentences
    assert all(before[1] == after[0] for before, after in pairwise(runs))

    samples = samples_of(numbered, epoch=1, max_seqlen=max_seqlen, seed=3)
    seen = np.concatenate([x for s in samples for x in ([s.a] if s.label else [s.a, s.b])])
    assert len(np.unique(seen)) == len(seen)
    cut = plan.a_cut.sum() + plan.b_cut[~plan.is_random].sum()
    assert len(seen) + cut == numbered.shards.num_tokens


def paper_samples(lengths, max_seqlen: int, short_seq_prob: float, at_least: int, rng: random.Random):
    """(tokens of A, tokens of B, is random) as section 3.1 and appendix A.2 of the paper tell it, sentence by sentence.

    at_least: sentences of a run, where the document has them. In the paper 1; but such a run can only get a random
    partner, so that more than half of the pairs are random where targets are short.
    """
    room, out = max_seqlen - 3, []
    for number, document in enumerate(lengths):
        target = rng.randint(2, room) if rng.random() < short_seq_prob else room
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or (sum(chunk) >= target and len(chunk) >= at_least):
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a, is_random = sum(chunk[:a_end]), len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    other = rng.choice([n for n in range(len(lengths)) if n != number])
                    b = 0
                    for length in lengths[other][rng.randrange(len(lengths[other])) :]:
                        b += length
                        if b >= target - a:
                            break
                    i -= len(chunk) - a_end
                else:
                    b = sum(chunk[a_end:])
                while a + b > room:
                    a, b = (a - 1, b) if a > b else (a, b - 1)
                out.append((a, b, is_random))
                chunk = []
            i += 1
    return np.array(out)


@pytest.mark.parametrize(
    ("max_seqlen", "short_seq_prob", "at_least"), [(512, 0.1, 1), (512, 0.6, 2), (256, 0.0, 1), (64, 0.2, 2)]
)
def test_samples_are_like_those_of_the_paper(numbered, max_seqlen, short_seq_prob, at_least):
    token_starts, document_starts = starts_of(numbered.shards)
    sentences = np.diff(token_starts).tolist()
    lengths = [sentences[a:b] for a, b in zip(document_starts[:-1].tolist(), document_starts[1:].tolist(), strict=True)]
    rng, epochs = random.Random(0), 15
    theirs = [paper_samples(lengths, max_seqlen, short_seq_prob, at_least, rng) for _ in range(epochs)]
    count, theirs = sum(map(len, theirs)), np.concatenate(theirs)
    plans = [plan_pairs(token_starts, document_starts, max_seqlen, short_seq_prob, 0, n) for n in range(epochs)]
    ours = []
    for plan in plans:
        a = token_starts[plan.a[:, 1]] - token_starts[plan.a[:, 0]] - plan.a_cut.sum(1)
        b = token_starts[plan.b[:, 1]] - token_starts[plan.b[:, 0]] - plan.b_cut.sum(1)
        ours.append(np.stack([a, b, plan.is_random], 1))
    ours = np.concatenate(ours)
    assert len(ours) == pytest.approx(count, rel=0.04)
    # Mean tokens of A, of B and of both; of real and of random pairs.
    for label in (0, 1):
        mine, their = ours[ours[:, 2] == label], theirs[theirs[:, 2] == label]
        np.testing.assert_allclose(mine[:, :2].mean(0), their[:, :2].mean(0), rtol=0.05)
    total, wanted = ours[:, :2].sum(1), theirs[:, :2].sum(1)
    assert total.mean() == pytest.approx(wanted.mean(), rel=0.03)
    for share in (0.25, 0.5, 0.75, 0.999):
        limit = share * (max_seqlen - 3)
        assert (total < limit).mean() == pytest.approx((wanted < limit).mean(), abs=0.02)


def test_a_shorter_length_may_be_any_up_to_the_whole():
    """Documents of ten sentences of a token: a run is as long as it was to be, and the most is room for 5 tokens."""
    plan = plan_pairs(np.arange(1001), np.arange(0, 1001, 10), 8, 1.0, 0, 0)
    assert set(plan.lengths[~plan.is_random].tolist()) == {5, 6, 7, 8}


def test_random_partners_are_from_all_over_the_corpus(numbered):
    token_starts, document_starts = starts_of(numbered.shards)
    partners = []
    for epoch in range(10):
        plan = plan_pairs(token_starts, document_starts, 64, 0.1, 0, epoch)
        partners.append(np.searchsorted(document_starts, plan.b[plan.is_random, 0], side="right") - 1)
    # Each document is as likely as any other, however long.
    counts = np.bincount(np.concatenate(partners), minlength=160)
    mean = counts.mean()
    assert mean > 80
    assert np.abs(counts - mean).max() < 5.5 * np.sqrt(mean)


def test_one_document_has_no_random_partner(number_corpus):
    corpus = number_corpus([[5, 6, 7]])
    data = PretrainingData(corpus.shards, SampleConfig())
    with pytest.raises(
        DataError, match=r"^next-sentence pairs .* at least 2 documents, got 1; nsp: false .--samples.no-nsp. makes"
    ):
        data.plan(0)
    assert len(PretrainingData(corpus.shards, SampleConfig(nsp=False)).plan(0)) >= 1


@pytest.mark.parametrize("max_seqlen", [8, 64, 512])
def test_runs_of_full_sentences_are_the_corpus(small_numbered, max_seqlen):
    numbered = small_numbered
    samples = samples_of(numbered, max_seqlen=max_seqlen, nsp=False)
    assert np.concatenate([sample.a for sample in samples]).tolist() == list(range(numbered.shards.num_tokens))
    assert all(1 <= len(sample.a) <= max_seqlen - 2 for sample in samples)
    document, sentence = numbered.document_of, numbered.sentence_of
    lengths = numbered.shards.sentence_lengths
    previous = None
    for sample in samples:
        first, last = sample.a[0], sample.a[-1]
        assert document[first] == document[last]
        # A run ends inside a sentence only where that sentence alone is too long.
        if last + 1 < len(sentence) and sentence[last] == sentence[last + 1]:
            assert sentence[first] == sentence[last]
            assert lengths[sentence[last]] > max_seqlen - 2
        # A run is full: after the first of a document, the next sentence would not have fitted.
        elif previous is not None and document[previous] == document[first] and last + 1 < len(sentence):
            inside = sentence[first] == sentence[first - 1]
            if document[last + 1] == document[first] and not inside:
                assert len(sample.a) + lengths[sentence[last + 1]] > max_seqlen - 2
        previous = last


def test_runs_of_full_sentences_differ_from_epoch_to_epoch(numbered):
    plans = [plan_full_sentences(*starts_of(numbered.shards), 512, 0, epoch) for epoch in range(2)]
    starts = [set(plan.a[:, 0].tolist()) for plan in plans]
    assert len(starts[0] & starts[1]) < 0.6 * len(starts[0])
