"""python compiled.py: a compiled training step by the Triton kernels, in one graph, against the eager one."""

from __future__ import annotations

import stand_in_gpu  # noqa: F401  (before torch)
import torch
from torch.overrides import BaseTorchFunctionMode

from fastbert import BertConfig, BertForPreTraining, PackedBatch


def main() -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16, "max_position_embeddings": 16}
    model = BertForPreTraining(BertConfig(vocab_size=32, num_hidden_layers=1, **sizes)).cuda().train()
    batch = PackedBatch.from_sequences(
        [torch.arange(5, 12), torch.arange(5, 9)],
        mlm_positions=torch.tensor([0, 7]), mlm_labels=torch.tensor([3, 4]), nsp_labels=torch.tensor([0, 1]),
    ).to("cuda")  # fmt: skip
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")

    def step(model) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    with BaseTorchFunctionMode():  # op by op, as the compiler takes them, and not a layer at a time
        expected = [x.clone() for x in step(model)]
    for got, wanted in zip(step(compiled), expected, strict=True):
        assert torch.equal(got, wanted), (got, wanted)
    print("equal")


main()
