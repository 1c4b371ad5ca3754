"""The polysemy test of a study's rows: how well the pre-trained models tell the senses of words apart."""

from __future__ import annotations

from pathlib import Path

from .. import hardware
from ..data.tokenizer import load_tokenizer
from . import polysemy
from .pretrained import check_weights, step_at
from .run import Work


def measure(work: Work, out: Path) -> dict:
    """Runs `polysemy.compare` on the last layer of every model, under the name of the first row that has it, and draws
    the picture for the first seed.

    Returns:
        strict JSON: accuracy and silhouette of every row, a value per seed; chance; the first seed's table of words.

    Raises:
        DataError: weights in the cache are not those that a pre-training wrote.
    """
    from ..models.encoders import load_encoder

    study = work.study
    first = study.seeds[0]
    models = {(work.model_of[row.name, first].key, row.at): row for row in reversed(study.rows)}
    own = [row for row in study.rows if row in models.values()]  # several rows may use one model in different ways
    rows: dict[str, dict[str, list[float]]] = {row.name: {"accuracy": [], "silhouette": []} for row in own}
    words, chance = [], 0.0
    for number, seed in enumerate(study.seeds):
        embedders = {}
        for row in own:
            model = work.model_of[row.name, seed]
            step = step_at(model.config, row.at)
            check_weights(model, step)
            directory = model.model_at(step)
            encoder = load_encoder(directory).to(hardware.default_device())
            embedders[row.name] = polysemy.word_embedder(encoder, load_tokenizer(directory))
        found = polysemy.compare(embedders, out if number == 0 else None)
        if number == 0:
            words = [list(line) for line in found.table()]
        for name, means in found.means().items():
            rows[name]["accuracy"].append(means["accuracy"])
            rows[name]["silhouette"].append(means["silhouette"])
            chance = means["chance"]
    return {"rows": rows, "chance": chance, "words": words}
