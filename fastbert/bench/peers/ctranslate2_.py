"""CTranslate2's encoder, which takes lists of ids and does not compute pads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import Adapter

_TYPES = {"fp32": "float32", "int8": "int8_float32"}


class Inference(Adapter):
    @classmethod
    def convert(cls, directory: Path, dtype: str) -> None:
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(directory)).convert(
            str(directory / f"ctranslate2-{dtype}"), quantization=None if dtype == "fp32" else "int8", force=True
        )

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        import ctranslate2

        self.encoder = ctranslate2.Encoder(
            str(directory / f"ctranslate2-{dtype}"),
            device="cpu",
            compute_type=_TYPES[dtype],
            intra_threads=threads,
            inter_threads=1,
        )

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        lengths = batch["attention_mask"].sum(1)
        kept = zip(batch["input_ids"], batch["token_type_ids"], lengths, strict=True)
        self.ids, self.types = [], []
        for ids, types, length in kept:
            self.ids.append(ids[:length].tolist())
            self.types.append(types[:length].tolist())

    def _forward(self):
        return self.encoder.forward_batch(self.ids, token_type_ids=self.types)

    def answer(self) -> dict[str, np.ndarray]:
        return {"hidden": np.array(self._forward().last_hidden_state)}

    def step(self) -> None:
        self._forward()
