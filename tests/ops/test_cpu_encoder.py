"""The whole encoder in one native call: against the layers one by one and against the reference in float64."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading

import pytest
import torch
from close import assert_close
from gemm_calls import linear_in_two_parts
from levels import INT8_LEVELS, LEVELS, TILES, threads
from torch import nn

import fastbert
from fastbert import BertConfig, BertEncoder, BertModel, _native, ops, reference
from fastbert.errors import InputError
from fastbert.modules import stack
from fastbert.modules.quantized_linear import QuantizedLinear
from fastbert.reference.encoder import _STEPS as STEPS

pytestmark = pytest.mark.skipif(_native.why_missing() is not None, reason=str(_native.why_missing()))

LENGTHS = (51, 1, 0, 24, 130)


def small_encoder(dtype=torch.float32, **changes) -> BertEncoder:
    torch.manual_seed(5)
    sizes = {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 200, "num_hidden_layers": 3}
    sizes["layer_norm_eps"] = 1e-3  # large enough to be missed
    encoder = BertEncoder(BertConfig(**{**sizes, "vocab_size": 40, **changes}))
    for p in encoder.parameters():
        nn.init.normal_(p, 1.0 if p.dim() == 1 else 0.0, 0.1)
    return encoder.to(dtype).eval()


def batch(hidden=96, lengths=LENGTHS, dtype=torch.float32):
    torch.manual_seed(6)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return torch.randn(int(cu_seqlens[-1]), hidden, dtype=dtype), cu_seqlens, max(lengths)


def parameters(encoder: BertEncoder) -> tuple[ops.LayerParameters, ...]:
    modules = list(encoder.layer)
    return stack._plain_parameters(modules, stack._Stack(), stack._kind(modules, encoder.config))


def run(encoder: BertEncoder, x, cu_seqlens, max_seqlen) -> torch.Tensor:
    with torch.no_grad():
        return encoder(x, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen).last_hidden_state


@pytest.fixture
def restore_isa():
    before = _native.isa()
    yield
    _native.extension().set_isa(before)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("act", "biased"), [("gelu", False), ("gelu_new", False), ("gelu", True)])
def test_every_state_is_right(level, dtype, act, biased, restore_isa):
    _native.extension().set_isa(level)
    encoder = small_encoder(dtype, hidden_act=act)
    x, cu_seqlens, max_seqlen = batch(dtype=dtype)
    options = {"nheads": 3, "eps": encoder.config.layer_norm_eps, "approximate": encoder.config.gelu_approximate}
    options["bias"] = 2 * torch.randn(3, 2 * max_seqlen + 3) if biased else None
    layers = parameters(encoder)
    with torch.no_grad(), fastbert.backend("cpu"):
        states = ops.encoder(x, layers, cu_seqlens, max_seqlen, keep_states=True, **options)
        (last,) = ops.encoder(x, layers, cu_seqlens, max_seqlen, **options)
    layers = [ops.LayerParameters(*(t.detach() for t in layer)) for layer in layers]
    same = reference.encoder(x, layers, cu_seqlens, max_seqlen, **options)
    wide = [ops.LayerParameters(*(t.double() for t in layer)) for layer in layers]
    true = reference.encoder(x.double(), wide, cu_seqlens, max_seqlen, **options)
    assert len(states) == len(true) == 3
    assert torch.equal(states[-1], last)
    for number, (ours, truth, rounded) in enumerate(zip(states, true, same, strict=True)):
        assert_close(ours, truth, rounded, what=f"state {number}")


@pytest.mark.parametrize("level", INT8_LEVELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8", "int8, bf16"])
@pytest.mark.parametrize("count", [1, 2])
def test_chosen_rows_have_the_bits_of_all_rows(level, precision, count, restore_isa):
    """In any order, again and again, in groups of sequences by thread (two threads) and in one."""
    _native.extension().set_isa(level)
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.float32}.get(precision, torch.bfloat16)
    encoder = small_encoder(dtype)
    if "int8" in precision:
        encoder = fastbert.quantize(encoder)
    lengths = (51, 1, 0, 24, 130, 24, 0, 111, 99, 20)  # 230 tokens a thread: unequal shares would be one group
    x, cu_seqlens, max_seqlen = batch(lengths=lengths, dtype=dtype)
    options = {"nheads": 3, "eps": encoder.config.layer_norm_eps}
    rows = torch.tensor([459, 0, 51, 52, 52, 52, 76, 206, 205, 229, 230, 230, 340, 439, 458, 1, 0])
    every = torch.randperm(len(x)).repeat(2)  # more than a block of rows
    with torch.no_grad(), fastbert.backend("cpu"), threads(count):
        (whole,) = ops.encoder(x, parameters(encoder), cu_seqlens, max_seqlen, **options)
        for chosen in (rows, every, rows[:0]):
            (found,) = ops.encoder(x, parameters(encoder), cu_seqlens, max_seqlen, rows=chosen, **options)
            assert torch.equal(found, whole[chosen])


def test_rows_that_are_not_there_are_refused():
    encoder, (x, cu_seqlens, longest) = small_encoder(num_hidden_layers=1), batch(lengths=(5, 3))
    options = {"nheads": 3, "eps": 1e-3}

    def call(rows, **more):
        ops.encoder(x, parameters(encoder), cu_seqlens, longest, rows=rows, **options, **more)

    with torch.no_grad():
        for rows in (torch.tensor([8]), torch.tensor([0, -1])):
            with pytest.raises(InputError, match=r"rows must be among the 8 tokens of x, got \["):
                call(rows)
        with pytest.raises(InputError, match=r"expected rows \(R,\) int64 without keep_states, got \(1,\) int32$"):
            call(torch.tensor([1], dtype=torch.int32))
        with pytest.raises(InputError, match=r"got \(1,\) int64 with it$"):
            call(torch.tensor([1]), keep_states=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_longer_than_a_block_of_rows_is_right(dtype):
    """The feed-forward block takes 512 rows at a time."""
    encoder, given = small_encoder(dtype, num_hidden_layers=1), batch(lengths=(530, 3), dtype=dtype)
    with fastbert.backend("cpu"):
        ours = run(encoder, *given)
    with fastbert.backend("reference"):
        same = run(encoder, *given)
        true = run(encoder.double(), given[0].double(), *given[1:])
    assert_close(ours, true, same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("keep_states", [False, True])
def test_opcheck(keep_states, dtype):
    encoder, (x, cu_seqlens, _) = small_encoder(dtype), batch(lengths=(5, 0, 3), dtype=dtype)
    tensors = [t.detach() for layer in parameters(encoder) for t in layer]
    arguments = (x, tensors, cu_seqlens, 3, 1e-3, "tanh", keep_states, torch.randn(3, 9) if keep_states else None)
    assert set(torch.library.opcheck(torch.ops.fastbert.encoder, arguments).values()) == {"SUCCESS"}


def test_int8_weights_may_begin_anywhere(calls):
    """The kernels read them where they are, by 64 bytes."""
    encoder, given = fastbert.quantize(small_encoder()), batch()
    expected = run(encoder, *given)
    linear = encoder.layer[1].attention.self.key
    moved = torch.zeros(linear.packed.numel() + 64, dtype=torch.uint8)
    shift = next(shift for shift in (1, 2) if (moved.data_ptr() + shift) % 64)
    linear.packed = moved[shift : shift + linear.packed.numel()].copy_(linear.packed)
    assert torch.equal(run(encoder, *given), expected)
    assert calls == [1, 1]


def test_int8_weights_beside_vectors_of_another_dtype(calls):
    encoder = fastbert.quantize(small_encoder())
    run(encoder, *batch(dtype=torch.bfloat16))
    assert calls == [1]


def test_int8_weights_that_do_not_lie_together(calls):
    encoder, given = fastbert.quantize(small_encoder()), batch()
    expected = run(encoder, *given)
    linear = encoder.layer[1].output.dense
    linear.packed = torch.stack([linear.packed, linear.packed], 1)[:, 0]
    assert torch.equal(run(encoder, *given), expected)
    assert calls == [1, 1]


@pytest.mark.parametrize("level", ["scalar", "neon_dot"])
def test_without_vector_instructions_products_are_torchs(monkeypatch, restore_isa, calls, level):
    """Ours took five times as long there (docs/LOG.md). By name the op serves, and int8, which torch has not, too."""
    given = batch()
    plain, int8 = small_encoder(), fastbert.quantize(small_encoder())
    _native.extension().set_isa("scalar")
    monkeypatch.setattr(_native, "isa", lambda: level)  # the two differ in int8 alone
    by_layers = run(plain, *given)
    assert calls == []
    with fastbert.backend("cpu"):
        torch.testing.assert_close(run(plain, *given), by_layers)
    assert calls == [1]
    run(int8, *given)
    assert calls == [1, 1]


def test_float32_in_two_parts(restore_isa, monkeypatch):
    """Where torch's switch asks for it and there are tiles: every state as exact as by three products of parts."""
    _native.extension().set_isa(TILES)
    encoder = small_encoder()
    x, cu_seqlens, max_seqlen = batch()
    packed = ops.PackedEncoder()
    options = {"nheads": 3, "eps": encoder.config.layer_norm_eps, "approximate": encoder.config.gelu_approximate}

    def states() -> list[torch.Tensor]:
        layers = parameters(encoder)
        return ops.encoder(x, layers, cu_seqlens, max_seqlen, keep_states=True, packed=packed, **options)

    with torch.no_grad(), fastbert.backend("cpu"):
        plain = states()
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
        before = states()
        assert sorted(packed.held) == ["cpu", "cpu, two parts"]
        encoder.layer[1].output.dense.weight.mul_(1.5)
        after = states()
    assert not torch.equal(before[0], plain[0])  # else the switch has done nothing
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[2], after[2])
    layers = [ops.LayerParameters(*(t.detach() for t in layer)) for layer in parameters(encoder)]
    steps = STEPS._replace(product=linear_in_two_parts)
    same = reference.encoder(x, layers, cu_seqlens, max_seqlen, **options, steps=steps)
    wide = [ops.LayerParameters(*(t.double() for t in layer)) for layer in layers]
    true = reference.encoder(x.double(), wide, cu_seqlens, max_seqlen, **options)
    for number, (ours, truth, rounded) in enumerate(zip(after, true, same, strict=True)):
        assert_close(ours, truth, rounded, what=f"state {number}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [200, 80, 33])
@pytest.mark.parametrize("lengths", [(530, 97), (70,), (300, 1, 290, 120)])
def test_wide_activations_as_tiles(dtype, wide, lengths, restore_isa, monkeypatch):
    """One product leaves them as the rows of the next: with columns left over, in one block of rows and in two, by one
    thread, by two that share a product and by two with sequences of their own."""
    _native.extension().set_isa(TILES)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    encoder = small_encoder(dtype, intermediate_size=wide, num_hidden_layers=1)
    x, cu_seqlens, max_seqlen = batch(lengths=lengths, dtype=dtype)
    options = {"nheads": 3, "eps": encoder.config.layer_norm_eps, "approximate": encoder.config.gelu_approximate}
    layers = [ops.LayerParameters(*(t.detach() for t in layer)) for layer in parameters(encoder)]
    found = []
    for count in (1, 2):
        with torch.no_grad(), fastbert.backend("cpu"), threads(count):
            found += ops.encoder(x, layers, cu_seqlens, max_seqlen, **options)
    assert torch.equal(*found)
    steps = STEPS._replace(product=linear_in_two_parts) if dtype == torch.float32 else STEPS
    (same,) = reference.encoder(x, layers, cu_seqlens, max_seqlen, **options, steps=steps)
    exact = [ops.LayerParameters(*(t.double() for t in layer)) for layer in layers]
    (true,) = reference.encoder(x.double(), exact, cu_seqlens, max_seqlen, **options)
    assert_close(found[0], true, same)


def test_the_module_takes_the_one_call(calls):
    encoder = small_encoder()
    given = batch()
    with fastbert.backend("cpu"):  # else the layers serve at the level "scalar"
        ours = run(encoder, *given)
    assert calls == [1]
    with fastbert.backend("reference"):
        torch.testing.assert_close(ours, run(encoder, *given))
    assert calls == [1]
    with torch.no_grad(), fastbert.backend("cpu"):
        out = encoder(given[0], cu_seqlens=given[1], max_seqlen=given[2], output_hidden_states=True)
    assert len(out.hidden_states) == 4
    assert torch.equal(out.hidden_states[0], given[0])
    assert torch.equal(out.last_hidden_state, ours)
    assert len(calls) == 2


def test_a_layer_that_comes_twice(calls):
    """Its weights are packed once, as those of ALBERT are, whose layers come in order."""
    encoder = small_encoder()
    encoder.layer[2] = encoder.layer[0]
    given = batch()
    with fastbert.backend("cpu"):
        ours = run(encoder, *given)
    with fastbert.backend("reference"):
        torch.testing.assert_close(ours, run(encoder, *given))
    assert calls == [1]


def test_a_padded_batch_too(calls):
    encoder = small_encoder()
    x, mask = torch.randn(3, 9, 96), torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    with torch.no_grad():
        with fastbert.backend("cpu"):
            ours = encoder(x, mask).last_hidden_state
        with fastbert.backend("reference"):
            torch.testing.assert_close(ours, encoder(x, mask).last_hidden_state)
    assert len(calls) == 1


@pytest.mark.parametrize("why", ["training", "hook on a layer", "hook on a linear", "forward replaced", "adapter"])
def test_otherwise_the_layers_are_called_one_by_one(why, calls):
    encoder = small_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    given, seen = batch(), []
    expected = run(encoder, *given)
    calls.clear()
    if why == "training":
        encoder.train()
    elif why == "hook on a layer":
        encoder.layer[1].register_forward_hook(lambda *_: seen.append(1) and None)
    elif why == "hook on a linear":
        encoder.layer[1].attention.self.key.register_forward_hook(lambda *_: seen.append(1) and None)
    elif why == "forward replaced":
        plain = encoder.layer[2].intermediate.forward
        encoder.layer[2].intermediate.forward = lambda x: seen.append(1) or plain(x)
    elif why == "adapter":
        linear = encoder.layer[0].attention.self.query
        encoder.layer[0].attention.self.query = nn.Sequential(linear)
    out = run(encoder, *given)
    torch.testing.assert_close(out, expected)
    assert calls == []
    assert seen or ("hook" not in why and why != "forward replaced")


CHANGES = {
    "an optimiser's step": lambda p: torch.optim.SGD([p], lr=1.0).step(),
    "in place": lambda p: p.mul_(1.5),
    "through .data": lambda p: p.data.mul_(1.5),
    "through numpy": lambda p: p.detach().numpy().__imul__(1.5),
    "another tensor": lambda p: setattr(p, "data", p.data * 1.5),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", ["layer.1.attention.self.value.weight", "layer.2.output.LayerNorm.bias"])
def test_weights_are_packed_again_when_they_change(how, name):
    encoder = small_encoder()
    given = batch()
    before = run(encoder, *given)
    assert torch.equal(before, run(encoder, *given))
    parameter = encoder.get_parameter(name)
    parameter.grad = torch.ones_like(parameter)
    with torch.no_grad():
        CHANGES[how](parameter)
    after = run(encoder, *given)
    assert not torch.allclose(before, after)
    with fastbert.backend("reference"):
        torch.testing.assert_close(after, run(encoder, *given))


def _transposed(layer, put):
    put(layer.attention.self.query, "weight", lambda w: w.t())


def _fewer_neurons(layer, put):
    for name in ("weight", "bias"):
        put(layer.intermediate.dense, name, lambda x: x[:120])
    put(layer.output.dense, "weight", lambda w: w[:, :120])


def _one_number(layer, put):
    put(layer.output.LayerNorm, "weight", lambda x: x[:1].expand(96))


@pytest.mark.parametrize("change", [_transposed, _fewer_neurons, _one_number])
@pytest.mark.parametrize("how", ["through .data", "another parameter"])
def test_a_view_of_what_was_packed_is_packed_again(change, how):
    """It has the address and the version of the weight that it was made from, as when neurons are pruned by a slice."""
    encoder, given = small_encoder(), batch()
    before = run(encoder, *given)

    def put(module, name, view):
        if how == "through .data":
            getattr(module, name).data = view(getattr(module, name).data)
        else:
            setattr(module, name, nn.Parameter(view(getattr(module, name).detach())))

    for layer in encoder.layer:
        change(layer, put)
    after = run(encoder, *given)
    assert not torch.allclose(before, after)
    with fastbert.backend("reference"):
        torch.testing.assert_close(after, run(encoder, *given))


@pytest.mark.parametrize("whole", [True, False], ids=["encoder", "attention"])
def test_bounds_on_another_device_are_not_read(whole):
    """Their address means nothing here."""
    x, bounds, longest = batch()
    layers, heads = parameters(small_encoder()), x.view(-1, 3, 32)

    def compute(bounds):
        if whole:
            return ops.encoder(x, layers, bounds, longest, nheads=3, eps=1e-3)
        return ops.attention(heads, heads, heads, bounds, longest)

    compute(bounds)
    with pytest.raises(InputError, match="on the meta device"):
        compute(bounds.to("meta"))


def test_heads_larger_than_the_kernels_take():
    """A row of 1024 numbers does not fit into attention's scratch, whose end it overwrote."""
    encoder, given = small_encoder(hidden_size=1024, num_attention_heads=1, num_hidden_layers=1), batch(1024)
    got = run(encoder, *given)
    with fastbert.backend("reference"):  # scores of 1024 products
        torch.testing.assert_close(got, run(encoder, *given), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("nheads", [-3, 0, 5])
def test_heads_that_do_not_divide_the_hidden_units(nheads):
    with pytest.raises(InputError, match=f"heads that divide 96 hidden units, got {nheads}$"):
        ops.encoder(batch()[0], parameters(small_encoder()), *batch()[1:], nheads=nheads, eps=1e-3)


@pytest.mark.parametrize("given", [{"rows": torch.zeros(2).long()}, {"bias": torch.zeros(3, 2047)}], ids=" ".join)
def test_rows_and_a_bias_on_another_device_are_not_read(given):
    (x, *bounds), layers = batch(), parameters(small_encoder())
    with torch.no_grad():
        ops.encoder(x, layers, *bounds, nheads=3, eps=1e-3, **given)
        with pytest.raises(InputError, match="on the meta device"):
            ops.encoder(x, layers, *bounds, nheads=3, eps=1e-3, **{k: t.to("meta") for k, t in given.items()})


def test_rows_may_lie_apart():
    (x, *bounds), layers = batch(), parameters(small_encoder())
    apart = torch.tensor([[4, 0], [1, 9], [7, 2]])[:, 0]
    with torch.no_grad():
        got, expected = (ops.encoder(x, layers, *bounds, nheads=3, eps=1e-3, rows=r) for r in (apart, apart.clone()))
    assert torch.equal(got[0], expected[0])


def test_a_tenth_of_a_weight_written_through_data_is_seen():
    """As pruning by a mask does it, which leaves the version as it was."""
    encoder, given = small_encoder(), batch()
    weight = encoder.layer[1].attention.self.value.weight
    for seed in range(10):
        run(encoder, *given)
        weight.data.mul_(torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) > 0.1)
        after = run(encoder, *given)
        with fastbert.backend("reference"):
            torch.testing.assert_close(after, run(encoder, *given))


@pytest.mark.parametrize("name", ["attention.self.value.bias", "intermediate.dense.bias", "output.LayerNorm.weight"])
def test_one_number_of_a_vector_written_through_data_is_seen(name):
    """As those write it who ask what one channel is for."""
    encoder = small_encoder(hidden_size=768, num_attention_heads=12, intermediate_size=1000, num_hidden_layers=1)
    given = batch(768, (5, 3))
    parameter = encoder.layer[0].get_parameter(name)
    for index in (1, 308, 381, parameter.numel() - 1):
        before = run(encoder, *given)
        parameter.data[index] += 4
        after = run(encoder, *given)
        assert not torch.allclose(before, after)
        with fastbert.backend("reference"):
            torch.testing.assert_close(after, run(encoder, *given))


def test_one_number_of_a_matrix_that_torch_writes_is_seen():
    """By the count of changes: of a large matrix some numbers alone are looked at."""
    encoder = small_encoder(hidden_size=768, num_attention_heads=12, intermediate_size=1000, num_hidden_layers=1)
    given, weight = batch(768, (5, 3)), encoder.layer[0].intermediate.dense.weight
    for row, column in ((0, 1), (301, 411), (999, 766)):
        before = run(encoder, *given)
        with torch.no_grad():
            weight[row, column] += 40
        after = run(encoder, *given)
        assert not torch.allclose(before, after)
        with fastbert.backend("reference"):
            torch.testing.assert_close(after, run(encoder, *given))


def test_an_epsilon_that_changes_is_followed(calls):
    encoder, given = small_encoder(), batch()
    before = run(encoder, *given)
    encoder.config.layer_norm_eps = 0.5
    for module in encoder.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.5
    after = run(encoder, *given)
    assert len(calls) == 2
    assert not torch.allclose(before, after)
    with fastbert.backend("reference"):
        torch.testing.assert_close(after, run(encoder, *given))


def test_another_gelu_or_number_of_heads_is_followed():
    """Of one stack of weights, by whoever calls the op."""
    layers, packed = parameters(small_encoder()), ops.PackedEncoder()
    x, *bounds = batch()
    options = {"nheads": 4, "eps": 1e-12}
    with torch.no_grad(), fastbert.backend("cpu"):
        for change in ({}, {"nheads": 2}, {"approximate": "tanh"}, {"eps": 0.5}):
            options |= change
            alone = ops.encoder(x, layers, *bounds, **options)[0]
            assert torch.equal(ops.encoder(x, layers, *bounds, **options, packed=packed)[0], alone), options


@pytest.mark.parametrize("bytes_", [1, 7, 8, 9, 4096, 16383, 16384])
def test_any_byte_of_a_small_buffer_changes_its_fingerprint(bytes_):
    buffer, fingerprint = torch.zeros(bytes_, dtype=torch.uint8), _native.extension().fingerprint
    before = fingerprint(buffer.data_ptr(), bytes_)
    for i in range(0, bytes_, max(1, bytes_ // 500)):
        buffer[i] = 1
        assert fingerprint(buffer.data_ptr(), bytes_) != before, i
        buffer[i] = 0
    assert fingerprint(buffer.data_ptr(), bytes_) == before


def test_heads_are_those_that_the_layers_were_built_with(calls):
    """As where one configuration builds a second model, of other heads."""
    encoder, given = small_encoder(), batch()
    before = run(encoder, *given)
    encoder.config.num_attention_heads = 4
    assert torch.equal(run(encoder, *given), before)
    assert len(calls) == 2
    encoder.layer[1].attention.self.num_attention_heads = 6
    encoder.layer[1].attention.self.attention_head_size = 16
    mixed = run(encoder, *given)
    assert len(calls) == 2
    assert not torch.allclose(mixed, before)


def test_a_training_step_then_inference_again():
    model = BertModel(small_encoder().config).eval()
    ids = torch.randint(5, 40, (2, 12))
    with torch.no_grad():
        model(ids)
    model.train()
    optimizer = fastbert.optim.AdamW(model.parameters(), lr=1e-2)
    model(ids).last_hidden_state.square().sum().backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        ours = model(ids).last_hidden_state
        with fastbert.backend("reference"):
            torch.testing.assert_close(ours, model(ids).last_hidden_state)


def test_a_used_model_is_copied_and_pickled():
    encoder = small_encoder()
    given = batch()
    expected = run(encoder, *given)
    twin = copy.deepcopy(encoder)
    with torch.no_grad():
        twin.layer[0].output.dense.weight.zero_()
    assert torch.equal(run(encoder, *given), expected)
    assert not torch.equal(run(twin, *given), expected)
    assert torch.equal(run(pickle.loads(pickle.dumps(encoder)), *given), expected)


def test_the_same_bits_for_one_and_two_threads_and_over_runs():
    encoder = small_encoder()
    given = batch(lengths=(300, 20, 80))
    expected = run(encoder, *given)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for _ in range(5):
                assert torch.equal(run(encoder, *given), expected)
    finally:
        torch.set_num_threads(before)


# Groups of whole sequences, each through all layers on a thread; and one so long that threads share the steps.
SHORT = [*range(20, 60), 0, 1, 0, *range(70, 30, -2), 0]
UNEVEN = [700, *range(1, 40)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("lengths", [SHORT, UNEVEN], ids=["short", "uneven"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_sequences_have_the_bits_of_each_alone(level, lengths, dtype, restore_isa):
    _native.extension().set_isa(level)
    encoder = small_encoder(dtype)
    x, cu_seqlens, max_seqlen = batch(lengths=lengths, dtype=dtype)
    packed = ops.PackedEncoder()

    def states(x, cu_seqlens, max_seqlen):
        options = {"nheads": 3, "eps": encoder.config.layer_norm_eps, "approximate": "none"}
        with torch.no_grad(), fastbert.backend("cpu"):
            layers = parameters(encoder)
            return ops.encoder(x, layers, cu_seqlens, max_seqlen, keep_states=True, packed=packed, **options)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        bounds = cu_seqlens.tolist()
        each = [x[a:b] for a, b in itertools.pairwise(bounds) if b > a]
        alone = [states(one, torch.tensor([0, len(one)], dtype=torch.int32), len(one)) for one in each]
        expected = [torch.cat(parts) for parts in zip(*alone, strict=True)]
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for number, state in enumerate(states(x, cu_seqlens, max_seqlen)):
                assert torch.equal(state, expected[number]), (threads, number)
    finally:
        torch.set_num_threads(before)


def test_two_python_threads_at_once():
    encoder = small_encoder()
    inputs = [batch(lengths=(40 + n, 7)) for n in range(4)]
    expected = [run(copy.deepcopy(encoder), *given) for given in inputs]
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            if not torch.equal(run(encoder, *inputs[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recorded", [True, False])
def test_states_have_the_dtype_that_autocast_gives_to_products(dtype, recorded):
    (x, *bounds), layers = batch(), parameters(small_encoder())
    with torch.autocast("cpu", dtype), torch.set_grad_enabled(recorded):
        (got,) = ops.encoder(x.requires_grad_(recorded), layers, *bounds, nheads=3, eps=1e-3)
    assert got.dtype == dtype
    if recorded:
        got.sum().backward()
        assert x.grad.dtype == x.dtype


def test_a_float16_model_under_an_autocast_to_bfloat16():
    encoder = small_encoder(torch.float16).eval()
    x, *bounds = batch(dtype=torch.float16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got = run(encoder, x, *bounds)
        with fastbert.backend("reference"):
            expected = run(encoder, x, *bounds)
    torch.testing.assert_close(got.float(), expected.float(), rtol=0, atol=0.1)


def test_no_tokens_at_all():
    x, cu_seqlens, _ = batch(lengths=(0, 0))
    assert run(small_encoder(), x, cu_seqlens, 0).shape == (0, 96)


@pytest.mark.parametrize("bounds", [[0, 5], [0, 3, 2, 6], [1, 6], [0, 7]])
def test_bounds_that_do_not_fit_are_refused(bounds):
    encoder = small_encoder()
    with pytest.raises(InputError, match="cu_seqlens must ascend from 0 to the 6 tokens"):
        run(encoder, torch.randn(6, 96), torch.tensor(bounds, dtype=torch.int32), 6)


def test_shapes_that_do_not_fit_are_named():
    encoder = small_encoder()
    layers = list(parameters(encoder))
    layers[1] = layers[1]._replace(out_bias=torch.zeros(7))
    with pytest.raises(InputError, match=r"expected out_bias of layer 1 \(96,\), got \(7,\)"):
        ops.encoder(*batch()[:1], layers, *batch()[1:], nheads=3, eps=1e-12)


def test_data_of_another_shape_is_refused_after_a_call_too():
    """What was checked is known again by the tensors, and these are the same."""
    encoder, given = small_encoder(), batch()
    with fastbert.backend("cpu"):
        run(encoder, *given)
        weight = encoder.layer[1].output.dense.weight
        weight.data = torch.randn(96, 7)
        with pytest.raises(InputError, match=r"expected out_weight of layer 1 \(96, \d+\), got \(96, 7\)"):
            run(encoder, *given)
        encoder.layer[1].output.dense.weight = torch.nn.Parameter(torch.randn(96, 8))
        with pytest.raises(InputError, match=r"expected out_weight of layer 1 \(96, \d+\), got \(96, 8\)"):
            run(encoder, *given)


def int8_encoder(**changes) -> BertEncoder:
    return fastbert.quantize(small_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes))


@pytest.mark.parametrize("level", INT8_LEVELS)
@pytest.mark.parametrize(
    ("act", "wide", "lengths"),
    # One group of the second product's inputs, not whole; two; three, whole.
    [("gelu", 200, LENGTHS), ("gelu_new", 330, LENGTHS), ("gelu", 640, LENGTHS), ("gelu", 200, SHORT)],
)
def test_int8_weights_give_the_bits_of_the_layers_one_by_one(
    level, act, wide, lengths, restore_isa, calls, monkeypatch
):
    """Those are held to the reference in tests/ops/test_cpu_int8.py; a step of a quantised value may not depend on who
    computed the float before it, so nothing but equality says that the call is right."""
    _native.extension().set_isa(level)
    encoder, given = int8_encoder(hidden_act=act, intermediate_size=wide), batch(lengths=lengths)
    lone = sum(lengths[: lengths.index(1)])  # the one token of its sequence
    given[0][lone] = float("nan")
    whole = run(encoder, *given)
    assert calls == [1]
    with threads(2):
        two = run(encoder, *given)
    monkeypatch.setattr(stack, "_plain_parameters", lambda *_, **__: None)
    parts = run(encoder, *given)
    assert calls == [1, 1]
    bad = torch.zeros(len(whole), dtype=torch.bool)
    bad[lone] = True
    for states in (whole, two, parts):
        assert torch.equal(states.isnan(), bad[:, None].expand_as(states))
        assert torch.equal(states[~bad], whole[~bad])


def assert_bits_of_the_layers(encoder, given, calls, monkeypatch):
    whole = run(encoder, *given)
    assert calls == [1]
    monkeypatch.setattr(stack, "_plain_parameters", lambda *_, **__: None)
    assert torch.equal(run(encoder, *given), whole)
    assert calls == [1]


def test_int8_of_a_sequence_longer_than_a_block_of_rows(calls, monkeypatch):
    encoder = int8_encoder(num_hidden_layers=1, intermediate_size=64)
    assert_bits_of_the_layers(encoder, batch(lengths=(520, 30)), calls, monkeypatch)


@pytest.mark.parametrize("kept", [([5], [9], [5]), ([5], [5], [9]), ([5], [5, 9], [5]), ([5, 9], [5], [5]), ([5],) * 3])
def test_int8_projections_that_leave_other_inputs_as_they_are(kept, calls, monkeypatch):
    """Only where all three leave the same ones do they share quantised rows."""
    plain = small_encoder(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder, (x, *rest) = fastbert.quantize(copy.deepcopy(plain)), batch()
    x[:, [5, 9]] *= 50
    own, theirs = encoder.layer[0].attention.self, plain.layer[0].attention.self
    for name, columns in zip(("query", "key", "value"), kept, strict=True):
        setattr(own, name, QuantizedLinear(getattr(theirs, name), torch.tensor(columns)))
    assert_bits_of_the_layers(encoder, (x, *rest), calls, monkeypatch)


@pytest.mark.parametrize("level", INT8_LEVELS)
def test_int8_has_attention_in_bfloat16_where_that_is_faster(level, restore_isa):
    extension = _native.extension()
    extension.set_isa(level)
    faster = level.startswith(("avx512_bf16_pairs", "avx512_winograd", "amx"))
    assert extension.has_bf16_attention() == faster
    x, encoder = batch()[0], int8_encoder()
    assert ops.int8_attention_dtype(x) == (torch.bfloat16 if faster else torch.float32)
    assert ops.int8_attention_dtype(x.bfloat16()) == torch.bfloat16
    with fastbert.backend("reference"):
        assert ops.int8_attention_dtype(x) == torch.float32
    got = run(encoder, *batch())
    extension.set_isa("scalar")
    plain = run(encoder, *batch())
    assert got.dtype == torch.float32
    # Where a float before it is rounded otherwise, a quantised value may be a step off.
    assert float((got - plain).norm() / plain.norm()) < 1 / 254


def test_int8_weights_by_the_reference():
    encoder, (x, cu_seqlens, max_seqlen) = int8_encoder(), batch()
    options = {"nheads": 3, "eps": encoder.config.layer_norm_eps}
    (ours,) = ops.encoder(x, parameters(encoder), cu_seqlens, max_seqlen, **options)
    with fastbert.backend("reference"):
        (true,) = ops.encoder(x, parameters(encoder), cu_seqlens, max_seqlen, **options)
    # Where the two round a sum differently, an input of the next layer may be one of its 254 steps off.
    assert float((ours - true).norm() / true.norm()) < 1 / 254


def test_bfloat16_states_between_int8_weights(calls):
    encoder, given = int8_encoder(), batch()
    ours = run(encoder.bfloat16(), given[0].bfloat16(), *given[1:])
    assert calls == [1]
    assert ours.dtype == torch.bfloat16
    whole = run(encoder.float(), *given)
    assert float((ours.float() - whole).norm() / whole.norm()) < 0.02


def test_int8_in_some_dense_layers_goes_layer_by_layer(calls):
    encoder, plain = int8_encoder(), small_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder.layer[1].output.dense = plain.layer[1].output.dense
    run(encoder, *batch())
    assert calls == []
    mixed = [parameters(plain)[0], *parameters(int8_encoder())[1:]]
    with pytest.raises(InputError, match="expected query_weight of layer 1 floating"), torch.no_grad():
        ops.encoder(batch()[0], mixed, *batch()[1:], nheads=3, eps=1e-12)


def test_int8_weights_of_another_size_are_refused():
    layers = parameters(int8_encoder())
    wrong = layers[0]._replace(key_weight=ops.pack_int8(torch.randn(96, 90)))
    with pytest.raises(InputError, match=r"expected key_weight of layer 0 packed from \(96, 96\), got \(96, 90\)"):
        ops.encoder(batch()[0], [wrong, *layers[1:]], *batch()[1:], nheads=3, eps=1e-12)
