"""Tasks of a BERT with a Unigram tokenizer, which puts two separators into a pair and gives no token types."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
import unigram
from tokenizers import processors
from unigram import TEXTS

from fastbert import load_tokenizer
from fastbert.cli.main import main
from fastbert.data.bpe import train_bpe
from fastbert.errors import InputError
from fastbert.tasks import registry
from fastbert.tasks.base import Row
from fastbert.tasks.encoding import encode_texts
from fastbert.tasks.fill_mask import fill_mask
from fastbert.tasks.squad_answers import Answers
from fastbert.tasks.squad_windows import best_spans


def tokenizers(path, kind="XLMRobertaTokenizer", form="split"):
    """Ours and transformers'."""
    directory = unigram.save_tokenizer(path, kind, form)
    return load_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(directory)


def test_pairs_of_a_task(tmp_path):
    ours, theirs = tokenizers(tmp_path / "bert")
    rows = [Row(str(i), (text, "El libro es muy bueno"), None) for i, text in enumerate(TEXTS)]
    first, second = (list(texts) for texts in zip(*(row.texts for row in rows), strict=True))
    wanted = theirs(first, second, truncation=True, max_length=10, padding=False)["input_ids"]
    found = registry.get("mrpc").encode(rows, ours, 10)
    assert [example.input_ids.tolist() for example in found] == wanted
    assert not any(example.token_type_ids.any() for example in found)
    with pytest.raises(InputError, match="max_seqlen must be at least 4, the number of special tokens, got 3"):
        encode_texts([row.texts for row in rows], ours, 3)


def test_a_fine_tuned_model_answers_pairs_as_in_transformers(tmp_path):
    directory = unigram.save(tmp_path / "bert")
    pairs = [(text, "das Buch ist gut") for text in unigram.CORPUS]
    for name, labelled in (("train", True), ("test", False)):
        lines = ["index\tsentence1\tsentence2" + "\tscore" * labelled]
        lines += [f"{i}\t{a}\t{b}" + f"\t{i % 6}" * labelled for i, (a, b) in enumerate(pairs)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    data, run, out = str(tmp_path / "train.tsv"), str(tmp_path / "run"), tmp_path / "predicted.tsv"
    told = ["--train", data, "--dev", data, "--out", run, "--max-seqlen", "20", "--epochs", "4", "--lr", "3e-3"]
    assert main(["finetune", "stsb", "--model", str(directory), *told]) == 0
    assert main(["evaluate", "stsb", "--model", run, "--data", data]) == 0
    assert main(["predict", "stsb", "--model", run, "--data", str(tmp_path / "test.tsv"), "--out", str(out)]) == 0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model").eval()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    options = {"padding": True, "truncation": True, "max_length": 20, "return_tensors": "pt"}
    with torch.no_grad():
        wanted = model(**theirs(*(list(texts) for texts in zip(*pairs, strict=True)), **options)).logits[:, 0].numpy()
    found = [float(line.split("\t")[1]) for line in out.read_text().splitlines()[1:]]
    assert np.ptp(wanted.clip(0, 5)) > 0.01
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_masks_are_filled_as_by_transformers(tmp_path):
    from fastbert import BertForMaskedLM

    directory = unigram.save(tmp_path / "bert", "BertForMaskedLM")
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    given = theirs("Paris is <mask> , <mask>", return_tensors="pt", padding=False)
    with torch.no_grad():
        logits = transformers.BertForMaskedLM.from_pretrained(directory).eval()(**given).logits[0]
    masks = (given["input_ids"][0] == theirs.mask_token_id).nonzero()[:, 0]
    # Rows that no token has are no candidates.
    probabilities = logits[masks].softmax(-1)[:, : len(theirs)]
    model = BertForMaskedLM.from_pretrained(directory)
    found = fill_mask(model, load_tokenizer(directory), "Paris is <mask> , <mask>", top_k=4)
    assert [[c.id for c in candidates] for candidates in found] == probabilities.topk(4).indices.tolist()
    assert [c.token for c in found[0]] == theirs.convert_ids_to_tokens([c.id for c in found[0]])


@pytest.mark.parametrize("form", ["split", "blanks"])
def test_words_and_their_tags(form, tmp_path):
    ours, theirs = tokenizers(tmp_path / "bert", form=form)
    task = registry.get("ner")
    words, tags = ("Paris", "schlecht", "☃zzz", "Germany", ","), ("B-LOC", "O", "O", "B-LOC", "O")
    task.learn([Row("0", words, tags)])
    (example,) = task.encode([Row("0", words, tags)], ours, 32)
    wanted = theirs(list(words), is_split_into_words=True, padding=False)
    assert example.input_ids.tolist() == wanted["input_ids"]
    numbers = wanted.word_ids()
    assert example.meta.positions.tolist() == [numbers.index(word) for word in range(len(words))]
    labels = [example.label[position] for position in example.meta.positions]
    assert [task.labels[label] for label in labels] == list(tags)
    assert (example.label != -100).sum() == len(words)
    # A word of which nothing is left needs a tag too.
    (example,) = task.encode([Row("0", ("Paris", "\u200e", ","), ("O", "O", "O"))], ours, 32)
    assert [ours.id_to_token(index) for index in example.input_ids] == ["<s>", "▁Paris", "<unk>", "▁,", "</s>"]


CONTEXT = "Paris is  the capital of France ,\n☃ not Berlin . das Buch ist schlecht"


@pytest.mark.parametrize(("kind", "form"), [("XLMRobertaTokenizer", "split"), ("PreTrainedTokenizerFast", "blanks")])
def test_windows_and_spans_of_questions(kind, form, tmp_path):
    ours, theirs = tokenizers(tmp_path / "bert", kind, form)
    answers = ["Paris", "France", "the capital of France", "☃", "schlecht", "Berlin"]
    question, task = "what is ?", registry.get("squad1")
    rows = [
        Row(str(index), (question, CONTEXT), Answers((answer,), (CONTEXT.index(answer),)))
        for index, answer in enumerate(answers)
    ]
    for most, stride in ((64, 16), (16, 4)):
        task.doc_stride = stride
        examples = task.encode(rows, ours, most)
        own = [example for example in examples if example.row == 0]
        room = most - len(theirs(question, padding=False)["input_ids"]) - 2
        options = {"truncation": "only_second", "max_length": most, "stride": room - stride, "padding": False}
        wanted = theirs(question, CONTEXT, return_overflowing_tokens=True, return_offsets_mapping=True, **options)
        assert [example.input_ids.tolist() for example in own] == wanted["input_ids"]
        assert not any(example.token_type_ids.any() for example in own)
        for example, offsets in zip(own, wanted["offset_mapping"], strict=True):
            begin, texts = example.meta.first, [CONTEXT[start:end] for start, end in offsets]
            found = [CONTEXT[s:e] for s, e in zip(example.meta.starts, example.meta.ends, strict=True)]
            assert found == [text.strip() for text in texts[begin : begin + len(found)]]
        for example in examples:
            if example.label != (0, 0):
                scores = np.zeros((len(example.input_ids), 2))
                scores[example.label[0], 0] = scores[example.label[1], 1] = 1.0
                window = example.meta
                window.owned[:] = True
                best = best_spans(window, scores, 1, 30)[0]
                assert CONTEXT[best.begin : best.end] == answers[example.row]
        assert {example.row for example in examples if example.label != (0, 0)} == set(range(len(rows)))


def test_a_blank_is_no_answer(tmp_path):
    ours, _ = tokenizers(tmp_path / "bert", "PreTrainedTokenizerFast", "blanks")
    task, row = registry.get("squad1"), Row("0", ("what ?", "is ☃"), None)
    (example,) = task.encode([row], ours, 16)
    scores = np.zeros((len(example.input_ids), 2))
    assert ours.id_to_token(int(example.input_ids[example.meta.first + 1])) == "▁"
    scores[example.meta.first + 1] = 5.0
    scores[example.meta.first] = 1.0
    (answer,) = task.decode([row], [example], [scores])
    texts = [entry["text"] for entry in answer.nbest]
    assert texts == [text.strip() for text in texts]
    assert all(texts)


def test_features_of_pairs_need_types(tmp_path):
    ours, _ = tokenizers(tmp_path / "bert")
    task = registry.get("mrpc")
    task.features = "last"
    with pytest.raises(InputError, match="got one whose class, model_input_names or template leave token_type_ids out"):
        task.encode([Row("0", ("Paris", "France"), None)], ours, 16)


def test_windows_of_a_berts_bytes(tmp_path):
    """RoBERTa's marks after byte pairs: two separators too, and the blank before a word in its first piece."""
    tokenizer = train_bpe([CONTEXT] * 3, 400)
    tokenizer.add_special_tokens(list(unigram.NAMES.values()))
    sep, cls = (("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **unigram.NAMES}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    row = Row("0", ("what is ?", CONTEXT), None)
    (example,) = registry.get("squad1").encode([row], load_tokenizer(tmp_path), 384)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert example.input_ids.tolist() == theirs(*row.texts)["input_ids"]
    assert not example.token_type_ids.any()
    assert "France" in [CONTEXT[s:e] for s, e in zip(example.meta.starts, example.meta.ends, strict=True)]
