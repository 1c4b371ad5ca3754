"""The Python examples of the pages, run as they stand in a directory with tiny models of the names that they use.

Those of docs/drop-in.md are in test_docs_drop_in.py; the blocks of docs/architecture.md are signatures.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from pretraining_runs import prepare_data
from tiny_bert import save

from fastbert import GPT2Config, GPTForPreTraining, _native
from fastbert.data.bpe import save_bpe, train_bpe
from fastbert.interop.convert import convert
from fastbert.interop.patch import is_patched

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"architecture.md", "drop-in.md"}
EXAMPLES = {
    f"{path.name}-{number}": code
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
    if path.name not in ELSEWHERE
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))
}


def make_gpt2(directory: Path) -> None:
    tokenizer = train_bpe(["a model reads"] * 4, 300)
    model = GPTForPreTraining(
        GPT2Config(vocab_size=tokenizer.get_vocab_size(), n_embd=32, n_layer=1, n_head=4, n_positions=48)
    )
    model.save_pretrained(directory)
    save_bpe(tokenizer, directory)


def make_squad(directory: Path) -> None:
    for name, count in (("dev-v1.1-articles01-36.json", 36), ("new_wiki_v1.0.json", 3)):
        articles = [{"title": f"{name} {number}", "paragraphs": []} for number in range(count)]
        (directory / name).write_text(json.dumps({"version": "1.1", "data": articles}))


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A directory with everything that an example reads; what an example sets for the whole process is set back."""
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger().level
    yield tmp_path
    logging.getLogger().setLevel(level)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example, desk):
    code = EXAMPLES[example]
    if ("quantize(" in code or "int8" in code) and _native.why_missing():
        pytest.skip("int8 needs the extension")
    if "word2vec" in code:
        pytest.importorskip("gensim")
        prepare_data(desk / "DATA")
    for name in ("bert-base-uncased", "model"):
        save(desk / name, "BertForSequenceClassification", num_labels=2, max_position_embeddings=128)
    if "NERSentences" in code:
        save(desk / "model", "BertForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"})
    for name in ("sentences", "all-MiniLM-L6-v2"):
        convert(desk / "model", desk / name, to="sentence-transformers")
    labelled = [f"{('fine', 'dull')[n % 2]} film\t{('good', 'bad')[n % 2]}" for n in range(40)]
    (desk / "train.tsv").write_text("text\tlabel\n" + "\n".join(labelled) + "\n")
    make_gpt2(desk / "gpt2")
    make_squad(desk)
    ids = torch.tensor([[2, 7, 3], [2, 3, 0]])
    names = {"directory": desk / "model", "input_ids": ids, "mask": (ids > 0).long()}
    exec(compile(code, example, "exec"), names)
    if "patch(" in code:
        assert any(is_patched(module) for module in names["model"].modules())
    if "encode([" in code and "vectors" in names:
        assert names["vectors"].shape == (2, 32)
    if "scores" in names:
        assert names["scores"].shape == (2, 2)
    if "answers" in names:
        assert set(names["answers"]) <= set(names["model"].config.id2label.values())
        assert len(names["answers"]) == 2
    if "finetune(" in code:
        assert (desk / "RUN" / "model" / "config.json").is_file()
        assert names["result"].best["accuracy"] >= 0
    if "zero_grad(" in code:
        assert all(p.grad is None or not p.grad.any() for p in names["model"].parameters())
    if "NERSentences" in code:
        assert {entity.type for entity in names["entities"]} <= {"PER"}
    if "word2vec" in code:
        assert (desk / "STATIC" / "config.json").is_file()
    if "dev.json" in code:
        assert len(json.loads((desk / "train.json").read_text())["data"]) == 33
        assert len(json.loads((desk / "dev.json").read_text())["data"]) == 6


def test_the_pages_have_their_examples():
    assert {name.split("-")[0].removesuffix(".md") for name in EXAMPLES} >= {"README", "cpu", "quantization", "use"}
