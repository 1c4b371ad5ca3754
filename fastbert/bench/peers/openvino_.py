"""OpenVINO: converted from torch; bf16 by its precision hint, int8 by NNCF's post-training quantisation."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from . import Adapter

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_CALIBRATION_BATCHES = 8


def convert(directory: Path):
    """transformers' BertModel as an openvino.Model."""
    import openvino
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(directory, add_pooling_layer=False, attn_implementation="sdpa").eval()
    ids = torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return openvino.convert_model(model, example_input=dict.fromkeys(_INPUTS, ids))


def _calibration(vocab_size: int) -> list[dict[str, np.ndarray]]:
    """Batches for the calibration, with other ids than the measured ones."""
    rng = np.random.default_rng(99)
    shape = (4, 64)
    ones, zeros = np.ones(shape, np.int64), np.zeros(shape, np.int64)
    return [
        dict(zip(_INPUTS, (rng.integers(vocab_size // 2, vocab_size, shape), ones, zeros), strict=True))
        for _ in range(_CALIBRATION_BATCHES)
    ]


class Inference(Adapter):
    @classmethod
    def convert(cls, directory: Path, dtype: str) -> None:
        import openvino

        from ...config import BertConfig

        model = convert(directory)
        if dtype == "int8":
            import nncf

            batches = _calibration(BertConfig.from_pretrained(directory).vocab_size)
            model = nncf.quantize(model, nncf.Dataset(batches), model_type=nncf.ModelType.TRANSFORMER)
        openvino.save_model(model, directory / f"openvino-{dtype}.xml", compress_to_fp16=False)

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        import openvino

        properties = {
            "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bf16" else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = openvino.Core().compile_model(directory / f"openvino-{dtype}.xml", "CPU", properties)
        self.request = compiled.create_infer_request()
        self.inputs_of_model = compiled.inputs

    def prepare(self, batch: dict[str, np.ndarray]) -> None:
        import openvino

        self.inputs = {}
        for entry in self.inputs_of_model:
            (name,) = set(_INPUTS) & entry.get_names()
            self.inputs[entry] = openvino.Tensor(batch[name])

    def answer(self) -> dict[str, np.ndarray]:
        self.step()
        return {"hidden": self.request.get_output_tensor(0).data.copy()}

    def step(self) -> None:
        self.request.infer(self.inputs, share_inputs=True)
