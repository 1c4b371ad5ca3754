"""GPT's four input transforms, its task heads and auxiliary loss, and fine-tuning from end to end."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tiny_bert import VOCAB, rows_of

import fastbert
from fastbert.cli.main import main
from fastbert.data.bpe import save_bpe, train_bpe
from fastbert.errors import InputError
from fastbert.models.gpt_heads import GPTForMultipleChoice, GPTForSequenceClassification
from fastbert.tasks import registry
from fastbert.tasks.base import Row
from fastbert.tasks.config import FinetuneConfig, TaskOptions
from fastbert.tasks.finetune import finetune
from fastbert.tasks.input_transforms import Transform
from fastbert.tasks.predict import predict

WORD = {word: index for index, word in enumerate(VOCAB)}
ROLES = Transform(start=100, delimiter=101, extract=102)
SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "initializer_range": 0.1}


@pytest.fixture
def words(word_directory):
    return fastbert.load_tokenizer(word_directory)


def ids(text: str) -> list[int]:
    return [WORD[word] for word in text.split()]


def encode(name: str, row: Row, tokenizer, max_seqlen: int = 32):
    task = registry.get(name)
    task.transform = ROLES
    return task, task.encode([row], tokenizer, max_seqlen)[0]


def sequences(task, example) -> list[list[int]]:
    batch, _ = task.collate([example])
    return [part.tolist() for part in batch.input_ids.split(batch.cu_seqlens.diff().tolist())]


def test_the_four_transforms_worked_by_hand(words):
    one = encode("sst2", Row("0", ("the film",), "1"), words)
    assert sequences(*one) == [[100, *ids("the film"), 102]]
    entailment = encode("rte", Row("0", ("the film is good", "a film"), "entailment"), words)
    assert sequences(*entailment) == [[100, *ids("the film is good"), 101, *ids("a film"), 102]]
    similarity = encode("stsb", Row("0", ("the film", "a book"), 4.0), words)
    a, b = ids("the film"), ids("a book")
    assert sequences(*similarity) == [[100, *a, 101, *b, 102], [100, *b, 101, *a, 102]]
    choices = encode("swag", Row("0", ("the film is", "good", "bad", "very dull", "a book"), "2"), words)
    context = ids("the film is")
    ends = ("good", "bad", "very dull", "a book")
    assert sequences(*choices) == [[100, *context, 101, *ids(end), 102] for end in ends]
    assert choices[0].collate([choices[1]])[1]["num_choices"] == 4
    assert [registry.get(name).similarity for name in ("mrpc", "qqp", "mnli", "qnli", "wnli")] == [True, True] + [
        False
    ] * 3


def test_long_texts_are_cut_and_the_three_tokens_stay(words):
    task, example = encode("rte", Row("0", ("the " * 20, "a film"), "entailment"), words, 10)
    assert sequences(task, example) == [[100, *[WORD["the"]] * 5, 101, *ids("a film"), 102]]
    assert example.truncated
    assert not encode("sst2", Row("0", ("the film",), "1"), words)[1].truncated
    pair = Row("0", ("the film", "a film"), "entailment")
    assert sequences(*encode("rte", pair, words, 5)) == [[100, WORD["the"], 101, WORD["a"], 102]]
    for short in (3, 4):  # with 4 one of the two texts would be empty
        with pytest.raises(InputError, match=f"hold the 3 tokens .* one of each text, at least 5, got {short}"):
            encode("rte", pair, words, short)


def test_next_words_of_a_batch_are_the_auxiliary_labels(words):
    task = registry.get("stsb")
    task.transform, task.auxiliary_lm = ROLES, 0.5
    rows = [Row("0", ("the film", "a book"), 4.0), Row("1", ("good", "bad film"), 1.0)]
    batch, keywords = task.collate(task.encode(rows, words, 32))
    assert (keywords["orders"], keywords["lm_weight"], keywords["labels"].tolist()) == (2, 0.5, [4.0, 1.0])
    assert len(batch.mlm_positions) == batch.num_tokens - 4
    assert torch.equal(batch.mlm_labels, batch.input_ids[batch.mlm_positions + 1])


def test_the_tokens_are_added_once_and_saved(word_directory, tmp_path):
    model = GPTForSequenceClassification.from_pretrained(word_directory, num_labels=3)
    size = len(VOCAB)
    roles = Transform.of(model.config)
    assert roles == Transform(WORD["[CLS]"], size, size + 1)  # it knows where texts begin
    table = model.get_input_embeddings().weight
    old = transformers.GPT2LMHeadModel.from_pretrained(word_directory).transformer.wte.weight
    assert len(table) == size + 2
    assert torch.equal(table[:size], old)
    assert 0.05 < float(table[size:].detach().std()) < 0.15
    model.save_pretrained(tmp_path)
    again = GPTForSequenceClassification.from_pretrained(tmp_path)
    assert Transform.of(again.config) == roles
    assert not again.load_report.missing
    assert torch.equal(again.get_input_embeddings().weight, table)


def test_losses_are_those_of_transformers_trunk_by_hand(word_directory, words):
    """Both orders added up, and L2 + 0.5 L1, without dropout."""
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPTForSequenceClassification.from_pretrained(word_directory, num_labels=1, **rates).train()
    task = registry.get("stsb")
    task.configure(TaskOptions(auxiliary_lm=0.5))
    task.adopt(model.config)
    rows = [Row("0", ("the film", "a book"), 4.0), Row("1", ("good", "bad film is"), 1.0)]
    batch, keywords = task.collate(task.encode(rows, words, 32))
    loss = model(batch, **keywords).loss

    theirs = transformers.GPT2LMHeadModel.from_pretrained(word_directory).eval()
    theirs.resize_token_embeddings(model.config.vocab_size)
    theirs.transformer.wte.weight.data.copy_(model.get_input_embeddings().weight)
    parts = [part[None] for part in batch.input_ids.split(batch.cu_seqlens.diff().tolist())]
    outs = [theirs(part, labels=part, output_hidden_states=True) for part in parts]
    states = torch.stack([out.hidden_states[-1][0, -1] for out in outs]).view(2, 2, -1).sum(1)
    expected = (
        ((states @ model.classifier.weight[0] + model.classifier.bias) - torch.tensor([4.0, 1.0])).square().mean()
    )
    count = [part.shape[1] - 1 for part in parts]
    lm = sum(out.loss * n for out, n in zip(outs, count, strict=True)) / sum(count)
    torch.testing.assert_close(loss, expected + 0.5 * lm, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.eval()(batch, **keywords).loss, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("counts", [(4, 4), (3, 4)])
def test_choices_are_scored_each_by_its_last_token(word_directory, words, counts):
    model = GPTForMultipleChoice.from_pretrained(word_directory)
    task = registry.get("swag")
    task.adopt(model.config)
    texts = ("the film is", "good", "very bad", "dull", "a book")
    rows = [Row(str(n), texts[: 1 + count], str(n)) for n, count in enumerate(counts)]
    batch, keywords = task.collate(task.encode(rows, words, 32))
    with torch.no_grad():
        out = model(batch, **keywords)
        last = model.transformer(batch).last_hidden_state[batch.cu_seqlens[1:].long() - 1]
        logits = model.classifier(last).flatten().split(counts)
    for found, scores in zip(out.logits, logits, strict=True):
        torch.testing.assert_close(found[: len(scores)], scores)
    losses = [torch.nn.functional.cross_entropy(scores, torch.tensor(n)) for n, scores in enumerate(logits)]
    torch.testing.assert_close(out.loss, sum(losses) / 2)


@pytest.mark.parametrize("auxiliary_lm", [0.0, 0.5])
def test_a_gpt_learns_a_word(word_directory, words, tmp_path, auxiliary_lm):
    torch.manual_seed(0)
    task, dev = registry.get("sst2"), rows_of(32, 2)
    model = task.model(word_directory)
    config = FinetuneConfig(epochs=4, batch_size=16, lr=5e-3, max_seqlen=16, auxiliary_lm=auxiliary_lm)
    result = finetune(task, model, words, rows_of(160, 1), dev, config, out=tmp_path / "run")
    assert result.best["accuracy"] == 1.0
    again = task.model(result.model_dir)
    task.adopt(again.config)
    examples = task.encode(dev, fastbert.load_tokenizer(result.model_dir), 16)
    assert predict(task, again, dev, examples) == result.predictions


def test_by_the_command_line_with_its_own_tokenizer(tmp_path, capsys):
    texts = ["a good film, a very good film", "a bad film, a very bad film"]
    torch.manual_seed(1)
    directory = tmp_path / "gpt"
    config = transformers.OpenAIGPTConfig(vocab_size=70, **SIZES)
    transformers.OpenAIGPTLMHeadModel(config).save_pretrained(directory)
    save_bpe(train_bpe(texts * 4, 70, byte_level=False), directory)
    lines = [f"{t.split(',')[n % 2].strip()}\t{1 - t.count('bad') // 2}" for n in range(8) for t in texts]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "\n".join(lines * 3) + "\n")
    train, run = str(tmp_path / "train.tsv"), str(tmp_path / "run")
    options = ["--epochs", "8", "--batch-size", "8", "--lr", "4e-3", "--max-seqlen", "16", "--auxiliary-lm", "0.5"]
    files = ["--model", str(directory), "--train", train, "--dev", train, "--out", run]
    assert not main(["finetune", "sst2", *files, *options])
    capsys.readouterr()
    assert not main(["evaluate", "sst2", "--model", run, "--data", train])
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ner", {}, "model_type must be 'bert', got 'gpt2'"),
        ("squad1", {}, "model_type must be 'bert', got 'gpt2'"),
        ("sst2", {"bilstm": 4}, "a BiLSTM stands on an encoder"),
    ],
)
def test_what_a_gpt_has_no_head_for_is_named(word_directory, name, options, said):
    task = registry.get(name)
    if name == "ner":
        task.learn([Row("0", ("a",), ["B-X"])])
    task.configure(TaskOptions(**options))
    with pytest.raises(InputError, match=said):
        task.model(word_directory)


def test_an_auxiliary_loss_needs_a_language_model():
    task = registry.get("sst2")
    task.configure(TaskOptions(auxiliary_lm=0.5))
    with pytest.raises(InputError, match="next words, got a bert"):
        task.adopt(fastbert.BertConfig())
    with pytest.raises(InputError, match="auxiliary_lm must be at least 0"):
        TaskOptions(auxiliary_lm=-1)
