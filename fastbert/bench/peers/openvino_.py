"""OpenVINO: converted from torch; bf16 by its precision hint, int8 by NNCF's post-training quantisation."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from ..workloads import Workload, lognormal_lengths, make_batch
from . import PaddedInference

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# NNCF's own default of samples, here in padded pairs. Batches of a benchmark are drawn with other seeds than these.
_CALIBRATION_SEQUENCES, _AT_ONCE, _FIRST_SEED = 300, 2, 1000


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


def calibration(vocab_size: int, most: int) -> list[dict[str, np.ndarray]]:
    """Batches for the calibration: made like the measured ones, of other ids, with lengths of all workloads.

    Args:
        vocab_size: the model's.
        most: the length at which sequences are cut: the model's positions, up to BERT's 512.
    """
    lengths = lognormal_lengths(_CALIBRATION_SEQUENCES, median=30, sigma=1.0, least=4, most=most)
    parts = [lengths[begin : begin + _AT_ONCE] for begin in range(0, len(lengths), _AT_ONCE)]
    return [
        make_batch(Workload("calibration", "", "inference", part), vocab_size, seed=_FIRST_SEED + number)
        for number, part in enumerate(parts)
    ]


class Inference(PaddedInference):
    @classmethod
    def convert(cls, directory: Path, dtype: str) -> None:
        import openvino

        from ...config import BertConfig

        model = convert(directory)
        if dtype == "int8":
            import nncf

            config = BertConfig.from_pretrained(directory)
            batches = calibration(config.vocab_size, min(512, config.max_position_embeddings))
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

    def inputs_of(self, batch: dict[str, np.ndarray]) -> dict:
        import openvino

        inputs = {}
        for entry in self.inputs_of_model:
            (name,) = set(_INPUTS) & entry.get_names()
            inputs[entry] = openvino.Tensor(batch[name])
        return inputs

    def hidden(self, inputs: dict) -> np.ndarray:
        # Results of one call of several are copied, since the request computes the next ones in the same place.
        return self.request.infer(inputs, share_inputs=True, share_outputs=len(self.inputs) == 1)[0]
