"""Does a model tell the senses of a word apart? Words with two meanings, with eight sentences for each.

The vectors that a model gives a word in its sentences are compared by their cosines. With a model that knows the
senses, the nearest other sentence has the same sense (leave-one-out accuracy), and the two groups are separated
(silhouette, Rousseeuw 1987: 1 = far apart, 0 = mixed). A static vector is the same in all sentences and reaches chance:
7 of the 15 other sentences have the same sense.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from ..errors import DataError, InputError
from ..result_files import write_json
from ..tasks.files import read_lines
from ..tasks.metrics import silhouette
from ..tasks.results import write_table
from ..train.plots import new_figure, save_figure

Embed = Callable[[Sequence[str], str], np.ndarray]
"""(sentences, word) -> (sentences, H): the word's vector in each sentence."""

DATA = Path(__file__).parent / "polysemy.tsv"

# Cosines that differ by less are equal: equal vectors come out of a model with different rounding.
_TIE = 1e-5


@dataclass(frozen=True)
class Use:
    """A word in a sentence, in one of its senses."""

    word: str
    sense: str
    sentence: str


@dataclass(frozen=True)
class Neighbour:
    """The sentence whose vector is nearest to that of another."""

    sentence: str
    sense: str
    nearest: str
    nearest_sense: str
    cosine: float


@dataclass(frozen=True)
class Separation:
    """How well a model separates the senses of a word.

    Args:
        accuracy: the share of sentences whose nearest other sentence has the same sense; several equally near ones
            count by the share of them that do.
        chance: the accuracy of equal vectors.
        silhouette: the mean over sentences, with cosine distances, -1 to 1.
        neighbours: the nearest other sentence of each sentence.
        points: (sentences, 2) the first two principal components, for the picture.
    """

    model: str
    word: str
    senses: tuple[str, ...]
    accuracy: float
    chance: float
    silhouette: float
    neighbours: tuple[Neighbour, ...]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Polysemy:
    """The results of the test.

    Args:
        separations: one for each model and word.
        paths: the files that were written.
    """

    separations: tuple[Separation, ...]
    paths: tuple[Path, ...] = ()

    def means(self) -> dict[str, dict[str, float]]:
        """The mean accuracy, chance and silhouette of each model over the words."""
        found: dict[str, dict[str, float]] = {}
        for model in dict.fromkeys(s.model for s in self.separations):
            own = [s for s in self.separations if s.model == model]
            names = ("accuracy", "chance", "silhouette")
            found[model] = {name: float(np.mean([getattr(s, name) for s in own])) for name in names}
        return found

    def table(self) -> list[Sequence]:
        """A header, a line for each word with each model's accuracy and silhouette, and a line of means."""
        models = list(dict.fromkeys(s.model for s in self.separations))
        lines: list[Sequence] = [("word", *(f"{model} {what}" for model in models for what in ("1-NN", "silhouette")))]
        for word in dict.fromkeys(s.word for s in self.separations):
            own = {s.model: s for s in self.separations if s.word == word}
            lines.append((word, *(v for model in models for v in (own[model].accuracy, own[model].silhouette))))
        means = self.means()
        lines.append(("mean", *(means[model][what] for model in models for what in ("accuracy", "silhouette"))))
        return lines


def read_uses(path: Path = DATA) -> list[Use]:
    """Reads the sentences from a tab-separated file with a header and the columns word, sense, sentence.

    Raises:
        DataError: the file is not UTF-8, there are other columns, or a word does not occur exactly once in its
            sentence.
    """
    columns, uses = [field.name for field in fields(Use)], []
    for number, line in read_lines(path):
        if not line:
            continue
        row = line.split("\t")
        if len(row) != len(columns) or (number == 1 and row != columns):
            what = f"the header {columns}" if number == 1 else f"{len(columns)} columns"
            raise DataError(f"{path}, line {number}: expected {what}, separated by tabs, got {row!r:.200}")
        if number > 1:
            uses.append(Use(*row))
    for use in uses:
        word_span(use.sentence, use.word)
    return uses


def word_span(sentence: str, word: str) -> tuple[int, int]:
    """The start and end of a word in a sentence, in characters. Raises DataError unless it occurs exactly once."""
    # Not \b, which does not match after a word such as "C++".
    found = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", sentence, re.IGNORECASE))
    if len(found) != 1:
        raise DataError(f"expected the word {word!r} once in a sentence, got {len(found)} in {sentence!r:.200}")
    return found[0].span()


def word_embedder(model, tokenizer, layers: str = "last") -> Embed:
    """A function that gives a model's vectors of a word: the means over its pieces.

    Args:
        model: a model for `tasks.features.token_features`.
        tokenizer: the model's tokenizer.
        layers: one of `tasks.features.LAYERS`.
    """
    from ..tasks.features import token_features

    def embed(sentences: Sequence[str], word: str) -> np.ndarray:
        vectors = []
        for sentence, found in zip(sentences, token_features(model, tokenizer, sentences, layers), strict=True):
            begin, end = word_span(sentence, word)
            offsets = tokenizer.encode(sentence).offsets
            own = [number for number, (first, last) in enumerate(offsets) if first < end and last > begin]
            vectors.append(found.values[own].mean(0))
        return np.stack(vectors)

    return embed


def compare(
    models: Mapping[str, Embed], out: Path | None = None, words: Sequence[str] | None = None, uses: Sequence[Use] = ()
) -> Polysemy:
    """Runs the test.

    Args:
        models: name -> a function that gives the vectors of a word.
        out: a directory for polysemy.json, polysemy.tsv and polysemy.png; None writes nothing.
        words: the words to test; None for all.
        uses: sentences in place of ours.

    Raises:
        InputError: there are no models, a word does not exist or does not have two senses with two sentences each, or a
            model does not give one vector per sentence.
    """
    if not models:
        raise InputError("expected models to compare, got none")
    uses = list(uses) or read_uses()
    words = _checked(words, uses)
    separations = []
    for name, embed in models.items():
        for word in words:
            own = [use for use in uses if use.word == word]
            vectors = np.asarray(embed([use.sentence for use in own], word), dtype=np.float64)
            if vectors.ndim != 2 or len(vectors) != len(own) or not np.isfinite(vectors).all():
                raise InputError(f"{name} must give {len(own)} finite vectors for {word!r}, got shape {vectors.shape}")
            separations.append(separate(name, own, vectors))
    found = Polysemy(tuple(separations))
    return found if out is None else Polysemy(found.separations, tuple(_write(found, Path(out))))


def _checked(words: Sequence[str] | None, uses: Sequence[Use]) -> Sequence[str]:
    """The words, by default all in ``uses``. Raises InputError if one has not two senses with two sentences each."""
    known = list(dict.fromkeys(use.word for use in uses))
    for word in words or ():
        if word not in known:
            raise InputError(f"word must be one of {', '.join(known)}, got {word!r:.100}")
    words = words or known
    for word in words:
        counts = Counter(use.sense for use in uses if use.word == word)
        if len(counts) < 2 or min(counts.values()) < 2:
            said = ", ".join(f"{sense} {count}" for sense, count in counts.items())
            raise InputError(f"expected two senses of {word!r:.100} with at least two sentences each, got {said}")
    return words


def separate(model: str, uses: Sequence[Use], vectors: np.ndarray) -> Separation:
    """Computes the separation of vectors (n, H) of one word's uses, at least two for each sense."""
    senses = np.array([use.sense for use in uses])
    distances = _distances(vectors)
    others = distances + np.where(np.eye(len(uses), dtype=bool), np.inf, 0.0)
    nearest = others == others.min(1, keepdims=True)
    same = senses[:, None] == senses[None]
    counts = same.sum(1) - 1
    neighbours = [
        Neighbour(use.sentence, use.sense, uses[k].sentence, uses[k].sense, float(1 - distances[i, k]))
        for i, (use, k) in enumerate(zip(uses, others.argmin(1), strict=True))
    ]
    return Separation(
        model,
        uses[0].word,
        tuple(dict.fromkeys(senses.tolist())),
        float(((nearest & same).sum(1) / nearest.sum(1)).mean()),
        float((counts / (len(uses) - 1)).mean()),
        silhouette(distances, senses),
        tuple(neighbours),
        tuple(map(tuple, _principal_components(vectors).tolist())),
    )


def _of_length_one(vectors: np.ndarray) -> np.ndarray:
    """(n, H), each divided by its norm; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def _distances(vectors: np.ndarray) -> np.ndarray:
    """(n, n), one minus the cosine, rounded to multiples of `_TIE` so that equal vectors have equal distances."""
    units = _of_length_one(vectors)
    distances = np.round((1.0 - units @ units.T) / _TIE) * _TIE
    np.fill_diagonal(distances, 0.0)
    return np.maximum(distances, 0.0)


def _principal_components(vectors: np.ndarray) -> np.ndarray:
    """The first two principal components (n, 2) of vectors of norm 1; zeros if they do not differ."""
    units = _of_length_one(vectors)
    units = units - units.mean(0)
    u, s, _ = np.linalg.svd(units, full_matrices=False)
    points = np.zeros((len(units), 2))
    count = min(2, len(s))
    points[:, :count] = u[:, :count] * np.where(s[:count] > _TIE, s[:count], 0.0)
    return points


def _write(found: Polysemy, out: Path) -> list[Path]:
    paths = [out / name for name in ("polysemy.json", "polysemy.tsv", "polysemy.png")]
    write_json({"means": found.means(), "separations": [asdict(s) for s in found.separations]}, paths[0])
    write_table(found.table(), paths[1])
    picture(found, paths[2])
    return paths


def picture(found: Polysemy, path: Path) -> Path:
    """Draws a panel for every model (columns) and word (rows): its uses by their first two principal components."""
    models = list(dict.fromkeys(s.model for s in found.separations))
    words = list(dict.fromkeys(s.word for s in found.separations))
    figure = new_figure(figsize=(2.6 * len(models) + 0.4, 2.3 * len(words) + 0.6), layout="constrained")
    axes = figure.subplots(len(words), len(models), squeeze=False)
    for separation in found.separations:
        ax = axes[words.index(separation.word)][models.index(separation.model)]
        points = np.array(separation.points)
        for sense, marker in zip(separation.senses, itertools.cycle("ox^svD"), strict=False):
            own = [n.sense == sense for n in separation.neighbours]
            ax.scatter(*points[own].T, s=18, marker=marker, label=sense)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.margins(0.12)
        ax.set_title(
            f"{separation.model}: {separation.word}\n1-NN {separation.accuracy:.2f}, "
            f"silhouette {separation.silhouette:.2f}",
            fontsize=8,
        )
        if separation.model == models[0]:
            ax.legend(fontsize=6, loc="best")
    return save_figure(figure, path)
