"""The input transforms of GPT (Radford et al. 2018, section 3.3 and figure 1): rows as sequences that end in an extract
token, whose state the classifier reads.

    one text            start  text  extract
    a pair              start  premise  delimiter  hypothesis  extract
    a pair, similarity  both orders of it; their states are added
    choices             start  context  delimiter  choice  extract, for each choice
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..data.truncation import kept_tokens, side_of
from ..errors import InputError
from .encoding import encodings_of, private_copy

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Transform:
    """The ids of the special tokens in a GPT's inputs."""

    start: int
    delimiter: int
    extract: int

    @classmethod
    def of(cls, config: Any) -> Transform | None:
        """The transform of a model's configuration; None for a model that reads rows as BERT does.

        Raises:
            InputError: a GPT without these tokens (`models.gpt_heads.GPTHead.add_task_tokens` adds them).
        """
        if not hasattr(config, "extract_token_id"):
            return None
        ids = [getattr(config, f"{name}_token_id") for name in ("start", "delimiter", "extract")]
        if None in ids:
            raise InputError(f"a {config.model_type} needs start, delimiter and extract tokens for a task, got {ids}")
        return cls(*ids)

    def sequences(self, texts: Sequence[Sequence[str]], tokenizer: Tokenizer, max_seqlen: int) -> list[Ids]:
        """Encodes rows of one text or a pair as at most max_seqlen ids; if a pair is too long, tokens of its longer
        text are dropped first.

        Raises:
            InputError: max_seqlen has no room for one token of each text.
        """
        most = max(map(len, texts), default=1)
        special = 1 + most
        if max_seqlen < special + most:
            raise InputError(
                f"max_seqlen must hold the {special} tokens that a transform adds and one of each text, at least "
                f"{special + most}, got {max_seqlen}"
            )
        encoder, side = private_copy(tokenizer), side_of(tokenizer)
        inputs = [row[0] if len(row) == 1 else tuple(row) for row in texts]
        made = []
        for row, encoding in zip(texts, encodings_of(inputs, encoder, add_special_tokens=False), strict=True):
            kept = kept_tokens(encoding, max_seqlen - special, side)
            found, owners = encoding.ids, encoding.sequence_ids
            places = range(len(found)) if kept is None else kept.tolist()
            ids = [self.start]
            for number in range(len(row)):
                ids += [self.delimiter] if number else []
                ids += [found[place] for place in places if owners[place] == number]
            made.append(Ids([*ids, self.extract], kept is not None))
        return made


@dataclass(frozen=True)
class Ids:
    """One sequence, and whether tokens were cut off to fit."""

    ids: list[int]
    truncated: bool
