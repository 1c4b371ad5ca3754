"""An optimiser's state through a checkpoint: bit for bit, by parameter name, and only of this model."""

from __future__ import annotations

import pytest
import torch
from pretraining_runs import assert_same_bits

from fastbert.errors import CheckpointError
from fastbert.optim import AdamW, Lamb
from fastbert.train import checkpoint


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float32) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleDict({"a_b": torch.nn.Linear(4, 3)})
        self.out = torch.nn.Linear(3, 4)
        self.unused = torch.nn.Linear(2, 2)
        self.tied = torch.nn.Linear(3, 4)
        self.tied.weight = self.out.weight
        self.to(dtype)

    def loss(self, x):
        return (self.tied(self.out(self.inner["a_b"](x)).narrow(1, 0, 3)) ** 2).mean()


OPTIMIZERS = {
    "adamw": lambda params: AdamW(params, 1e-2),
    "lamb": lambda params: Lamb(params, 1e-2),
    "torch adamw": lambda params: torch.optim.AdamW(params, 1e-2),
    "torch sgd": lambda params: torch.optim.SGD(params, 1e-2, momentum=0.9),
}


def train(model: Net, optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).to(model.out.weight.dtype)
        optimizer.zero_grad()
        model.loss(x).backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_goes_on_bit_for_bit(tmp_path, name, dtype):
    torch.manual_seed(5)
    model = Net(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, range(4))
    tensors, numbers = checkpoint.optimizer_tensors(optimizer, list(model.named_parameters()))
    assert all(key.startswith("optimizer.") for key in tensors)
    assert not [key for key in tensors if "unused" in key]
    if "adamw" in name:
        assert "optimizer.exp_avg.inner.a_b.weight" in tensors
    path = checkpoint.save(tmp_path, 4, {**model.state_dict(), **tensors}, {"optimizer": numbers})

    resumed = Net(dtype)
    saved, state, _ = checkpoint.load(path)
    resumed.load_state_dict({key: value for key, value in saved.items() if not key.startswith("optimizer.")})
    other = OPTIMIZERS[name](resumed.parameters())
    checkpoint.restore_optimizer(other, list(resumed.named_parameters()), saved, state["optimizer"])
    again, numbers_again = checkpoint.optimizer_tensors(other, list(resumed.named_parameters()))
    assert_same_bits(again, {key: value.detach() for key, value in tensors.items()})
    assert numbers_again == numbers
    train(model, optimizer, range(4, 8))
    train(resumed, other, range(4, 8))
    for key, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key
    assert not torch.equal(resumed.out.weight, saved["out.weight"])  # it did train on


def test_restoring_forgets_what_was_there_before():
    model = Net()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, range(2))
    checkpoint.restore_optimizer(optimizer, list(model.named_parameters()), {}, {})
    assert not any(optimizer.state.get(p) for p in model.parameters())


def test_restored_state_is_a_copy():
    model = Net()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, range(1))
    tensors, numbers = checkpoint.optimizer_tensors(optimizer, list(model.named_parameters()))
    tensors = {key: value.clone() for key, value in tensors.items()}
    before = {key: value.clone() for key, value in tensors.items()}
    checkpoint.restore_optimizer(optimizer, list(model.named_parameters()), tensors, numbers)
    train(model, optimizer, range(1, 3))
    assert_same_bits(tensors, before)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"optimizer.exp_avg.out.weight": torch.zeros(2, 2)}, r"exp_avg of out\.weight must be \(4, 3\), got \(2, 2\)"),
        ({"optimizer.exp_avg.elsewhere.weight": torch.zeros(2, 2)}, r"got \['elsewhere\.weight'\]"),
        ({"optimizer.nonsense": torch.zeros(2, 2)}, "must be of this model's parameters"),
    ],
)
def test_state_of_another_model_is_refused(tensors, said):
    model = Net()
    with pytest.raises(CheckpointError, match=said):
        checkpoint.restore_optimizer(AdamW(model.parameters()), list(model.named_parameters()), tensors, {})
