"""The stand-in itself: what it computes, and what it refuses as a GPU does."""

from __future__ import annotations

import pytest
import stand_in_gpu  # noqa: F401  (before torch)
import torch
import triton
import triton.language as tl
from torch import nn
from torch.autograd import forward_ad


def refused(call, words: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=words):
        call()


def arithmetic() -> None:
    """Forward, backward and update, and LSTMs, as on the CPU."""
    host = nn.ModuleList([nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3), nn.Linear(6, 2)])
    device = nn.ModuleList([nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3), nn.Linear(6, 2)])
    device.load_state_dict(host.state_dict())
    device.cuda()
    x = torch.randn(5, 3, 4)
    for model, given in ((host, x), (device, x.cuda())):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model[1](model[0](given)[0]).mean(0), given.new_zeros(3).long()).backward()
            optimizer.step()
    for ours, theirs in zip(device.parameters(), host.parameters(), strict=True):
        assert ours.device == torch.device("cuda", 0)
        torch.testing.assert_close(ours.cpu(), theirs)


def tensors_without_memory() -> None:
    """Zeros of forward mode; and TorchScript's lists of tensors or none."""
    x = torch.randn(3, 4, device="cuda")
    with forward_ad.dual_level():
        made = (forward_ad.make_dual(x, torch.ones_like(x)) * 2 + x.detach()).relu()
        assert forward_ad.unpack_dual(made).tangent.is_cuda
    assert (torch._efficientzerotensor((3,), device="cuda") + 1).tolist() == [1.0] * 3
    traced = torch.jit.trace(lambda x, i: x[i, 1:], (x, torch.tensor([2, 0], device="cuda")))
    assert torch.equal(traced(x, torch.tensor([1], device="cuda")), x[1:2, 1:])


def two_devices() -> None:
    x = torch.zeros(3, device="cuda")
    assert x.is_cuda
    assert torch.equal((x + torch.tensor(2.0)).cpu(), torch.full((3,), 2.0))  # numbers may come from the host
    refused(lambda: x + torch.zeros(3), "on the same device")
    refused(lambda: torch.cat([x, torch.zeros(3)]), "all tensors to be on")
    refused(lambda: nn.functional.embedding(torch.zeros(2, dtype=torch.long), x[None]), "all tensors to be on")
    refused(lambda: x.normal_(generator=torch.Generator()), "generator on cuda")
    refused(x.numpy, "cuda:0 device type tensor to numpy")
    assert torch.empty(8, device="cuda").isnan().all()
    torch.cuda.synchronize(torch.device("cuda"))  # the current one
    assert torch.zeros(2).pin_memory().is_pinned()
    assert not torch.zeros(2).is_pinned()


@triton.jit
def add_one(x, size: tl.constexpr):
    place = x + tl.arange(0, size)
    tl.store(place, tl.load(place) + 1)


def capture() -> None:
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 2
        y = x * 2
        add_one[(1,)](x, 4)
    assert x.tolist() == [0] * 4  # nothing is done yet
    graph.replay()
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([6] * 4, [10] * 4)
    refused(lambda: add_one[(1,)](torch.zeros(4), 4), "cannot be accessed from Triton")

    def captured(call) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call()

    pinned = torch.zeros(4).pin_memory()
    captured(lambda: x.copy_(pinned, non_blocking=True))
    for call in (x.tolist, lambda: float(x[0]), x.nonzero, lambda: x[x > 0], lambda: x.copy_(torch.zeros(4))):
        refused(lambda call=call: captured(call), "being captured")


torch.manual_seed(0)
arithmetic()
tensors_without_memory()
two_devices()
capture()
