"""ONNX Runtime: the model exported by torch, fused by ONNX Runtime's own optimiser, int8 by its dynamic quantiser."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from . import PaddedInference

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(directory: Path, path: Path) -> None:
    """Writes transformers' BertModel as an ONNX graph with dynamic batch and sequence sizes."""
    import torch
    from transformers import BertModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel.from_pretrained(
                directory, add_pooling_layer=False, attn_implementation="eager"
            ).eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(input_ids, attention_mask, token_type_ids).last_hidden_state

    ids = torch.ones(2, 8, dtype=torch.int64)
    sizes = {0: "batch", 1: "sequence"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The tracing exporter, whose graphs ONNX Runtime's fusions recognise.
        torch.onnx.export(
            Hidden(),
            (ids, ids, ids),
            str(path),
            input_names=list(_INPUTS),
            output_names=["hidden"],
            dynamic_axes=dict.fromkeys((*_INPUTS, "hidden"), sizes),
            opset_version=17,
            dynamo=False,
        )


class Inference(PaddedInference):
    @classmethod
    def convert(cls, directory: Path, dtype: str) -> None:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.transformers import optimizer

        from ...config import BertConfig

        config = BertConfig.from_pretrained(directory)
        plain, fused = directory / f"plain-{dtype}.onnx", directory / f"onnxruntime-{dtype}.onnx"
        export(directory, plain)
        optimised = optimizer.optimize_model(
            str(plain),
            model_type="bert",
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
        )
        optimised.save_model_to_file(str(fused))
        if dtype == "int8":
            quantize_dynamic(
                str(fused),
                str(fused),
                per_channel=True,
                weight_type=QuantType.QInt8,
                # ONNX's type inference does not know the fused operators.
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        super().__init__(directory, dtype, threads)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(directory / f"onnxruntime-{dtype}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        # The optimiser changes some inputs to int32.
        inputs = self.session.get_inputs()
        self.types = {entry.name: np.int32 if "int32" in entry.type else np.int64 for entry in inputs}

    def inputs_of(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: batch[name].astype(dtype) for name, dtype in self.types.items()}

    def hidden(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return self.session.run(None, inputs)[0]
