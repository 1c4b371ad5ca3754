"""Other kinds of tasks fit the interface as one small class each: the shared machinery knows none of them.

A regression on pairs and a tagger of words, written here, learn trivial rules through `finetune` unchanged.
"""

import itertools

import numpy as np
import pytest
import tiny_bert
import torch
from scipy.stats import pearsonr

import fastbert
from fastbert.config import BertConfig
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.base import Example, Row, Task
from fastbert.tasks.config import FinetuneConfig
from fastbert.tasks.encoding import encode_texts, private_copy
from fastbert.tasks.finetune import finetune

GOOD, BAD = ("good", "great", "fine"), ("bad", "dull", "poor")


class JsonTask(Task):
    """What these two do not differ in."""

    def read(self, path):
        raise NotImplementedError

    read_predictions = read

    def write_predictions(self, rows, predictions, path):
        path.write_text("\n".join(map(str, predictions)))


class PairRegression(JsonTask):
    """A number for a pair, by mean squared error; judged by Pearson's correlation, as STS-B is."""

    name, metrics = "pair-regression", ("pearson",)

    def encode(self, rows, tokenizer, max_seqlen):
        encodings = encode_texts([row.texts for row in rows], tokenizer, max_seqlen)
        return [Example(i, e.ids, e.type_ids, float(rows[i].label)) for i, e in enumerate(encodings)]

    def model(self, directory):
        return fastbert.BertForSequenceClassification.from_pretrained(directory, num_labels=1)

    def decode(self, rows, examples, outputs):
        return [float(value[0]) for value in outputs]

    def metric(self, rows, predictions):
        return {"pearson": float(pearsonr([row.label for row in rows], predictions)[0])}


class Tagging(JsonTask):
    """A label a word; judged by the share of words that are right."""

    name, metrics = "tagging", ("accuracy",)

    def encode(self, rows, tokenizer, max_seqlen):
        encoder = private_copy(tokenizer)
        encoder.enable_truncation(max_seqlen)
        encodings = encoder.encode_batch([row.texts for row in rows], is_pretokenized=True)
        return [self._example(i, row, e) for i, (row, e) in enumerate(zip(rows, encodings, strict=True))]

    def _example(self, index, row, encoding):
        labels = [-100 if word is None else row.label[word] for word in encoding.word_ids]
        return Example(index, encoding.ids, encoding.type_ids, labels, meta=encoding.word_ids)

    def model(self, directory):
        return fastbert.BertForTokenClassification.from_pretrained(directory, num_labels=3)

    def collate(self, examples):
        batch, _ = super().collate([Example(e.row, e.input_ids, e.token_type_ids) for e in examples])
        return batch, {"labels": torch.tensor([label for e in examples for label in e.label])}

    def outputs(self, out, batch):
        logits, bounds = out.logits.cpu().numpy(), batch.cu_seqlens.tolist()
        return [logits[begin:end] for begin, end in itertools.pairwise(bounds)]

    def decode(self, rows, examples, outputs):
        return [
            [int(np.argmax(row)) for row, word in zip(logits, example.meta, strict=True) if word is not None]
            for example, logits in zip(examples, outputs, strict=True)
        ]

    def metric(self, rows, predictions):
        right = [
            a == b for row, found in zip(rows, predictions, strict=True) for a, b in zip(row.label, found, strict=True)
        ]
        return {"accuracy": float(np.mean(right))}


def learn(task, directory, rows, **recipe):
    torch.manual_seed(0)
    config = FinetuneConfig(**{"epochs": 15, "batch_size": 16, "lr": 3e-3, "max_seqlen": 24, **recipe})
    tokenizer = fastbert.load_tokenizer(directory)
    return finetune(task, task.model(directory), tokenizer, rows[:192], rows[192:], config)


def test_a_regression_on_pairs(directory):
    rng = np.random.default_rng(0)
    rows = []
    for index in range(256):
        a, b = (str((GOOD + BAD)[i]) for i in rng.integers(0, 6, 2))
        rows.append(Row(str(index), (f"the film is {a}", f"the book was {b} ."), float(a in GOOD) + (b in GOOD)))
    assert learn(PairRegression(), directory, rows).best["pearson"] > 0.95


def test_a_tagger_of_words(directory):
    rng = np.random.default_rng(0)
    words = tiny_bert.WORDS.split()
    tag = {**dict.fromkeys(GOOD, 1), **dict.fromkeys(BAD, 2)}
    rows = []
    for index in range(256):
        texts = tuple(str(words[i]) for i in rng.integers(0, len(words), rng.integers(1, 12)))
        rows.append(Row(str(index), texts, [tag.get(word, 0) for word in texts]))
    assert learn(Tagging(), directory, rows).best["accuracy"] > 0.99


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("text-classification", "abc"),
        ("mnli", ["entailment", "neutral", "contradiction"]),
        ("ner", ["O", "B-X", "I-X"]),
    ],
)
def test_classes_whose_ids_leave_some_out_are_refused(name, classes):
    """transformers loads such a model, and finds no name for its class 1; the place in the list is none."""
    for ids, got in (((0, 2, 5), "0, 2, 5"), ((1, 2, 3), "1, 2, 3"), ((-1, 0, 1), "-1, 0, 1")):
        config = BertConfig(id2label=dict(zip(map(str, ids), classes, strict=True)))
        with pytest.raises(InputError, match=f"expected an id2label whose class ids are 0 to 2, got {got}"):
            registry.get(name).restore(config)
    registry.get(name).restore(BertConfig(id2label=dict(zip("210", classes, strict=True))))
