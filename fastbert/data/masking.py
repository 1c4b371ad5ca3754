"""Masked-LM corruption (Devlin et al. 2019, section 3.1, task 1, and appendix A.1).

15 % of the tokens of a sample are chosen for prediction. Of these 80 % become [MASK], 10 % a random token, 10 % stay.
All of it is a pure function of (key of the sample, position in the sample), for whole batches at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import randomness

# The streams of random numbers of each token.
_CHOOSE, _ROUND, _MIX, _REPLACE = range(4)


@dataclass(frozen=True)
class Masker:
    """Chooses and corrupts tokens.

    Args:
        mlm_probability: the share of the maskable tokens to predict.
        mask_mix: the shares of the chosen ones that become [MASK], a random token, or stay; they add up to 1.
        max_predictions: the most tokens chosen in a sample, or None.
        whole_word: whether all pieces of a word are chosen together.
        mask_id: id of [MASK].
        replacements: (R,) the ids from which random replacements are drawn: the vocabulary without special tokens.
        maskable: (V,) bool, which ids may be chosen.
        continuation: (V,) bool, which ids continue a word ("##ing"); needed for whole_word.
    """

    mlm_probability: float
    mask_mix: tuple[float, float, float]
    max_predictions: int | None
    whole_word: bool
    mask_id: int
    replacements: np.ndarray
    maskable: np.ndarray
    continuation: np.ndarray | None = None

    def __call__(self, ids: np.ndarray, sample: np.ndarray, position: np.ndarray, keys: np.ndarray):
        """Corrupts a packed batch.

        Args:
            ids: (T,) int64.
            sample: (T,) int64, the sample (0..B-1) of each token, ascending.
            position: (T,) int64, each token's index in its sample.
            keys: (B,) uint64, one per sample.

        Returns:
            corrupted ids (T,), positions chosen (N,) ascending, their original ids (N,).
        """
        candidates = np.flatnonzero(self.maskable[ids])
        token_keys = randomness.key(keys[sample[candidates]], position[candidates])
        budget = self._budget(np.bincount(sample[candidates], minlength=len(keys)), keys)
        choose = self._choose_words if self.whole_word else self._choose_tokens
        taken = choose(ids, sample[candidates], candidates, token_keys, budget)
        positions, token_keys = candidates[taken], token_keys[taken]

        labels = ids[positions]
        draw = randomness.uniform(randomness.key(token_keys, _MIX))
        pick = randomness.uniform(randomness.key(token_keys, _REPLACE))
        random_ids = self.replacements[(pick * len(self.replacements)).astype(np.int64)]
        to_mask, to_random, _ = self.mask_mix
        corrupted = ids.copy()
        corrupted[positions] = np.where(
            draw < to_mask, self.mask_id, np.where(draw < to_mask + to_random, random_ids, labels)
        )
        return corrupted, positions, labels

    def _budget(self, maskable: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """How many tokens to choose in each sample: rounded up or down at random, so that the share is exact."""
        wanted = maskable * self.mlm_probability
        budget = np.floor(wanted + randomness.uniform(randomness.key(keys, _ROUND))).astype(np.int64)
        if self.mlm_probability > 0:
            budget = np.maximum(budget, 1)
        if self.max_predictions is not None:
            budget = np.minimum(budget, self.max_predictions)
        return np.minimum(budget, maskable)

    @staticmethod
    def _choose_tokens(ids, sample, candidates, token_keys, budget) -> np.ndarray:
        """The budget's worth of tokens with the smallest random numbers in each sample."""
        order = np.lexsort((randomness.uniform(randomness.key(token_keys, _CHOOSE)), sample))
        starts = np.searchsorted(sample, np.arange(len(budget)))
        rank = np.arange(len(order)) - starts[sample[order]]
        return np.sort(order[rank < budget[sample[order]]])

    def _choose_words(self, ids, sample, candidates, token_keys, budget) -> np.ndarray:
        """Whole words in random order, leaving out those that do not fit into the rest of the budget."""
        begins = ~self.continuation[ids[candidates]]
        begins[:1] = True
        # A segment whose front was cut can begin with "##ing", which is not part of the word before the [SEP].
        begins[1:] |= (candidates[1:] != candidates[:-1] + 1) | (sample[1:] != sample[:-1])
        first = np.flatnonzero(begins)
        size = np.diff(np.append(first, len(candidates)))
        order = np.lexsort((randomness.uniform(randomness.key(token_keys[first], _CHOOSE)), sample[first]))
        left = budget.copy()
        taken = []
        for word in order:
            owner = sample[first[word]]
            if size[word] <= left[owner]:
                left[owner] -= size[word]
                taken.append(np.arange(first[word], first[word] + size[word]))
        return np.sort(np.concatenate(taken)) if taken else np.empty(0, dtype=np.int64)
