"""A tiny BERT made by transformers, with a vocabulary of words: what the tests of use and fine-tuning run on."""

from pathlib import Path

import torch

WORDS = "the a film book is was good great fine bad dull poor very not and of in it capital france paris . , !"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIALS, *WORDS.split()]
GOOD, BAD = ("good", "great", "fine"), ("bad", "dull", "poor")


def config(**changes):
    """transformers' configuration of the tiny model."""
    from transformers import BertConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    return BertConfig(**{"vocab_size": len(VOCAB), **sizes, "max_position_embeddings": 32, **changes})


def save(directory: Path, cls: str = "BertForMaskedLM", vocab=VOCAB, **changes) -> Path:
    """Saves a randomly initialised transformers model and its vocabulary; returns the directory."""
    import transformers

    torch.manual_seed(1)
    # Large initial weights: with BERT's 0.02 all logits are nearly equal and a wrong one could pass.
    model = getattr(transformers, cls)(config(vocab_size=len(vocab), initializer_range=0.2, **changes))
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    return directory


def rows_of(count: int, seed: int) -> list:
    """Rows of SST-2: sentences of different lengths whose label is one word in them."""
    from fastbert.tasks.base import Row

    generator = torch.Generator().manual_seed(seed)
    rows = []
    for index in range(count):
        a, b, c, d = torch.randint(0, 6, (4,), generator=generator).tolist()
        word = (GOOD + BAD)[a]
        text = f"the {('film', 'book')[b % 2]} {'is very ' * (c % 3)}{word}{' .' * (d % 4)}"
        rows.append(Row(str(index), (text,), str(int(word in GOOD))))
    return rows


def tagged_rows(count: int, seed: int) -> list:
    """Rows of NER: two to eight words, of which those of `GOOD` are entities."""
    from fastbert.tasks.base import Row

    generator = torch.Generator().manual_seed(seed)
    words = [*GOOD, *BAD, "the", "film", "is", "."]
    rows = []
    for index in range(count):
        chosen = tuple(words[int(i)] for i in torch.randint(0, 10, (2 + index % 7,), generator=generator))
        rows.append(Row(str(index), chosen, tuple("I-GOOD" if word in GOOD else "O" for word in chosen)))
    return rows
