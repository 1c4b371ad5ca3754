"""`fastbert.patch` on torch.nn.TransformerEncoder: torch's outputs and gradients, its polarity of masks, its habits."""

from __future__ import annotations

import copy
import logging
import pickle

import hf_parity as hf
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched_key import Watched

import fastbert
from fastbert import rng
from fastbert.errors import BackendError, InputError
from fastbert.interop.patch import is_patched

B, S, E, HEADS = 4, 11, 32, 4


def stack(dtype=torch.float64, *, final_norm=False, layers=3, nested=False, **options) -> nn.TransformerEncoder:
    """torch's encoder with large random weights, biases and norms too."""
    torch.manual_seed(0)
    options = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True, "activation": "gelu", **options}
    norm = nn.LayerNorm(E) if final_norm else None
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(E, HEADS, **options), layers, norm=norm, enable_nested_tensor=nested
    )
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return encoder.to(dtype)


def pair(dtype=torch.float64, **options):
    theirs = stack(dtype, **options)
    return theirs, fastbert.patch(copy.deepcopy(theirs))


def ignored(kind: str) -> torch.Tensor | None:
    """(B, S) bool, True = ignore, as torch has it."""
    mask = hf.masks()[kind]
    return None if mask is None else mask == 0


def forms() -> dict[str, torch.Tensor]:
    """Masks of queries and keys by name."""
    torch.manual_seed(5)
    future = torch.ones(S, S, dtype=torch.bool).triu(1)
    some = torch.rand(S, S) < 0.3
    some.fill_diagonal_(False)
    return {
        "causal bool": future,
        "causal float": nn.Transformer.generate_square_subsequent_mask(S, dtype=torch.float64),
        "some bool": some,
        "some float": torch.randn(S, S, dtype=torch.float64),
        "of heads": torch.randn(B * HEADS, S, S, dtype=torch.float64),
        "causal of heads": future.expand(B * HEADS, S, S),
    }


def compare(theirs, ours, keep: torch.Tensor, dtype, *args, **kwargs) -> None:
    """Outputs at kept tokens, and the gradients of the input and of every parameter."""
    torch.manual_seed(2)
    x = torch.randn(B, S, E, dtype=dtype)
    weights = torch.randn(B, S, E, dtype=dtype)
    first = theirs.layers[0].self_attn.batch_first
    results = []
    for model in (theirs, ours):
        given = (x if first else x.transpose(0, 1)).detach().clone().requires_grad_()
        out = model(given, *args, **kwargs)
        assert out.shape == given.shape
        rows = out if first else out.transpose(0, 1)
        (rows * weights)[keep].sum().backward()
        gradients = [given.grad, *(p.grad for p in model.parameters())]
        results.append((rows.detach(), gradients))
    (wanted, right), (got, grads) = results
    hf.assert_near(got[keep], wanted[keep], dtype, "output")
    assert not got[~keep].any()
    names = ["src", *(name for name, _ in theirs.named_parameters())]
    for name, x, y in zip(names, grads, right, strict=True):
        assert x.isfinite().all(), name
        hf.assert_near_gradient(x, y, dtype, name, y)


every_stack = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])


@every_stack
@pytest.mark.parametrize("activation", ["relu", "gelu", nn.GELU("tanh"), F.gelu, nn.ReLU()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_and_gradients(norm_first, activation, dtype):
    theirs, ours = pair(dtype, norm_first=norm_first, activation=activation, final_norm=norm_first)
    keep = torch.ones(B, S, dtype=torch.bool)
    compare(theirs, ours, keep, dtype)


@every_stack
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["prefix", "left", "holes", "hole_at_first"])
@pytest.mark.parametrize("form", ["bool", "float"])
def test_padding_masks_of_torchs_polarity(norm_first, batch_first, kind, form):
    theirs, ours = pair(norm_first=norm_first, batch_first=batch_first)
    drop = ignored(kind)
    mask = drop if form == "bool" else torch.zeros(B, S, dtype=torch.float64).masked_fill(drop, float("-inf"))
    compare(theirs, ours, ~drop, torch.float64, src_key_padding_mask=mask)


@every_stack
@pytest.mark.parametrize("name", forms())
@pytest.mark.parametrize("padded", [False, True])
def test_masks_of_queries_and_keys(norm_first, name, padded):
    theirs, ours = pair(norm_first=norm_first)
    mask, drop = forms()[name], None
    keep = torch.ones(B, S, dtype=torch.bool)
    if padded:
        # Column 0 is kept, or a causal row would have no key: torch gives NaN there.
        keep = hf.masks()["holes"].bool()
        drop = ~keep
        if mask.is_floating_point():
            drop = torch.zeros(B, S, dtype=torch.float64).masked_fill(drop, float("-inf"))
        if name == "some bool":
            mask = mask.clone()
            mask[:, 0] = False
    compare(theirs, ours, keep, torch.float64, mask, drop)


def test_a_padding_mask_that_is_a_bias_of_keys():
    theirs, ours = pair()
    bias = torch.randn(B, S, dtype=torch.float64)
    compare(theirs, ours, torch.ones(B, S, dtype=torch.bool), torch.float64, src_key_padding_mask=bias)


def test_causal_masks_are_packed_and_others_are_not(monkeypatch):
    _, ours = pair()
    x, drop = torch.randn(B, S, E, dtype=torch.float64), ignored("prefix")
    seen = []
    attention = fastbert.ops.attention
    monkeypatch.setattr(
        fastbert.ops, "attention", lambda q, *a, **k: seen.append((len(q), k.get("causal"))) or attention(q, *a, **k)
    )
    ours(x, forms()["causal bool"], drop, is_causal=True)
    assert seen == [(int((~drop).sum()), True)] * 3
    ours(x, forms()["some bool"], drop)
    assert len(seen) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evaluation_keeps_the_shape_and_the_numbers(dtype):
    # torch cuts all-pad columns off in evaluation, by nested tensors: here the columns stay.
    theirs, ours = pair(dtype, nested=True)
    x = torch.randn(B, S, E, dtype=dtype)
    drop = ignored("prefix").clone()
    drop[:, -2:] = True
    wanted = theirs.train()(x, src_key_padding_mask=drop)
    ours.eval()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            got = ours(x, src_key_padding_mask=drop)
        assert got.shape == x.shape
        hf.assert_near(got[~drop], wanted[~drop], dtype, "evaluation")
        assert not got[drop].any()


def test_a_single_sequence_without_a_batch():
    theirs, ours = pair()
    x = torch.randn(S, E, dtype=torch.float64)
    drop = ignored("prefix")[1]
    wanted = theirs(x, src_key_padding_mask=drop)
    hf.assert_near(ours(x, src_key_padding_mask=drop)[~drop], wanted[~drop], torch.float64, "alone")


def test_a_row_of_pads_is_zero_and_finite():
    _, ours = pair()
    x = torch.randn(B, S, E, dtype=torch.float64, requires_grad=True)
    drop = ignored("empty_row")
    for mask in (None, forms()["some bool"]):
        out = ours(x, mask, drop)
        assert not out[drop.all(1)].any()
        out.sum().backward()
        assert x.grad.isfinite().all()


def test_layers_without_bias():
    theirs, ours = pair(bias=False)
    compare(theirs, ours, torch.ones(B, S, dtype=torch.bool), torch.float64)


def _another_width(encoder):
    layer = encoder.layers[1]
    layer.linear1, layer.linear2 = nn.Linear(E, 16), nn.Linear(16, E)


def _one_bias_less(encoder):
    encoder.layers[1].self_attn.out_proj.bias = None


@pytest.mark.parametrize("change", [_another_width, _one_bias_less])
def test_a_layer_that_differs_from_the_others(change):
    theirs, ours = pair(torch.float32)
    for model in (theirs, ours):
        torch.manual_seed(3)
        change(model)
    x = torch.randn(B, S, E)
    wanted = theirs(x)
    hf.assert_near(ours(x), wanted, torch.float32, "training")
    with torch.no_grad():
        hf.assert_near(ours.eval()(x), wanted, torch.float32, "evaluation")


@every_stack
def test_dropout_follows_the_seed_and_the_mode(norm_first):
    _, ours = pair(norm_first=norm_first, dropout=0.4)
    x = torch.randn(B, S, E, dtype=torch.float64)

    def runs(seed):
        torch.manual_seed(seed)
        return [ours(x).sum().item() for _ in range(2)]

    assert runs(1) == runs(1) != runs(2)
    assert runs(1)[0] != runs(1)[1]
    ours.eval()
    assert runs(1) == runs(2)


@every_stack
def test_every_dropout_has_a_place_of_its_own(norm_first):
    _, ours = pair(norm_first=norm_first, dropout=0.4)
    key = Watched(3, 1)
    with rng.use(key):
        ours(torch.randn(B, S, E, dtype=torch.float64))
        assert len(set(key.asked)) == len(key.asked) == 4 * len(ours.layers)
        ours.layers[1].eval()  # as layers are frozen
        ours(torch.randn(B, S, E, dtype=torch.float64))
    assert len(key.asked) == 4 * (2 * len(ours.layers) - 1)


def test_a_norm_with_an_epsilon_of_its_own():
    theirs, ours = pair(torch.float32)
    for model in (theirs, ours):
        model.eval().layers[1].norm2.eps = 0.5
    x = torch.randn(B, S, E)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", ["self_attn", "dropout", "dropout1", "dropout2"])
def test_each_dropout_drops_as_often_as_it_says(place):
    # E[dropout(x)] = x in what is linear in it: the mean over many draws comes near the pass without dropout.
    _, ours = pair(layers=1, norm_first=True)
    module = getattr(ours.layers[0], place)
    if place == "self_attn":
        module.dropout = 0.5
    else:
        module.p = 0.5
    x = torch.randn(1, 5, E, dtype=torch.float64)
    if place in ("self_attn", "dropout1"):  # what follows it is not linear: switched off
        with torch.no_grad():
            ours.layers[0].linear2.weight.zero_()
    with torch.no_grad():
        draws = torch.stack([ours(x) for _ in range(400)])
        expected = ours.eval()(x)
    spread = draws.std(0) / 20  # of the mean of 400
    assert (spread > 0).any()
    assert float(((draws.mean(0) - expected).abs() / spread.clamp(min=1e-12))[spread > 1e-9].mean()) < 1.2


def test_names_copies_pickles_and_the_way_back():
    theirs, ours = pair()
    assert isinstance(ours, nn.TransformerEncoder)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    x = torch.randn(B, S, E, dtype=torch.float64)
    with torch.no_grad():
        wanted = ours(x)
        for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert is_patched(twin)
            assert torch.equal(twin(x), wanted)
    assert type(fastbert.unpatch(ours)) is nn.TransformerEncoder
    assert vars(ours).keys() == vars(theirs).keys()


def test_changed_weights_are_followed():
    theirs, ours = pair(torch.float32)
    x = torch.randn(B, S, E)
    with torch.no_grad():
        ours(x)
        for model in (theirs, ours):
            model.layers[1].self_attn.in_proj_weight[:E] *= 2
            model.layers[0].linear1.weight.data += 0.01
        hf.assert_near(ours.eval()(x), theirs(x), torch.float32, "changed")


def test_inside_the_models_of_others():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, E)
            self.encoder = stack(torch.float32)
            self.head = nn.Linear(E, 3)

        def forward(self, ids):
            return self.head(self.encoder(self.embed(ids), src_key_padding_mask=ids == 0))

    tagger = Tagger()
    ids = torch.randint(1, 50, (B, S)) * hf.masks()["prefix"]
    with torch.no_grad():
        wanted = tagger(ids)
        assert fastbert.patch(tagger) is tagger
        hf.assert_near(tagger(ids)[ids > 0], wanted[ids > 0], torch.float32, "tagger")


def test_the_encoder_of_torchs_transformer():
    torch.manual_seed(0)
    theirs = nn.Transformer(E, HEADS, 2, 2, 48, dropout=0.0, batch_first=True).double()
    ours = fastbert.patch(copy.deepcopy(theirs))
    src, tgt = torch.randn(B, S, E, dtype=torch.float64), torch.randn(B, 5, E, dtype=torch.float64)
    drop = ignored("prefix")
    masks = {"src_key_padding_mask": drop, "memory_key_padding_mask": drop}
    hf.assert_near(ours(src, tgt, **masks), theirs(src, tgt, **masks), torch.float64, "Transformer")


def test_a_hook_inside_is_torchs_affair(caplog):
    theirs, ours = pair()
    seen = []
    ours.layers[1].linear1.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    x = torch.randn(B, S, E, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        hf.assert_near(ours(x), theirs(x), torch.float64, "hooked")
    assert seen == [(B, S, 48)]
    assert "torch's own code: there is a hook on its Linear" in caplog.text
    with fastbert.batch_invariant(), pytest.raises(BackendError, match="there is a hook on its Linear"):
        ours(x)


@pytest.mark.parametrize("cls", [nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.LayerNorm])
def test_a_forward_that_a_class_was_given_is_torchs_affair(cls, monkeypatch, caplog):
    theirs, ours = pair()
    x = torch.randn(B, S, E, dtype=torch.float64)
    plain, before = theirs(x), cls.forward
    monkeypatch.setattr(cls, "forward", lambda self, *args, **kwargs: before(self, *args, **kwargs).tanh())
    hf.assert_near(ours(x), theirs(x), torch.float64, "replaced")
    assert (plain - theirs(x)).abs().max() > 1e-3
    assert "torch's own code" in caplog.text
    if cls is nn.TransformerEncoder:
        with pytest.raises(InputError, match="expected the forward of torch's TransformerEncoder, got one of its own"):
            fastbert.patch(theirs)


class _Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("before", [True, False])
def test_dense_layers_of_someone_s_own_are_torchs_affair(before, caplog):
    """A subclass has the weight that a fused pass would read, and computes something else with it."""
    theirs, ours = stack(), stack()
    if not before:
        ours = fastbert.patch(ours)
    for encoder in (theirs, ours):
        torch.manual_seed(3)
        encoder.layers[1].linear2 = _Scaled(48, E, dtype=torch.float64)
    if before:
        with pytest.raises(InputError, match="expected plain dense layers, got _Scaled"):
            fastbert.patch(ours)
        return
    x = torch.randn(B, S, E, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        hf.assert_near(ours(x), theirs(x), torch.float64, "replaced")
    assert "torch's own code: expected plain dense layers, got _Scaled" in caplog.text


class _Halved(nn.Module):
    def forward(self, x):
        return x * 0.5


class _HalvedDropout(nn.Dropout):
    def forward(self, x):
        return x * 0.5


class _Sharper(nn.GELU):
    def forward(self, x):
        return super().forward(1.7 * x)


class _Squared(nn.ReLU):
    def forward(self, x):
        return super().forward(x) ** 2


OWN_PARTS = {
    "dropout": (_Halved, "expected torch's Dropout or Identity as dropout, got _Halved"),
    "dropout1": (_HalvedDropout, "expected torch's Dropout or Identity as dropout1, got _HalvedDropout"),
    "dropout2": (lambda: nn.Dropout1d(0.5), "expected torch's Dropout or Identity as dropout2, got Dropout1d"),
    "activation": (_Sharper, "expected relu or gelu as activation, got _Sharper"),
}


@pytest.mark.parametrize("name", OWN_PARTS)
@pytest.mark.parametrize("before", [True, False])
def test_dropouts_and_activations_of_someone_s_own_are_torchs_affair(before, name, caplog):
    """Stochastic depth and adapters stand in the place of dropouts; a subclass of GELU may compute anything."""
    make, said = OWN_PARTS[name]
    theirs, ours = stack(), stack()
    if not before:
        ours = fastbert.patch(ours)
    for encoder in (theirs, ours):
        setattr(encoder.layers[1], name, make())
    if before:
        with pytest.raises(InputError, match=said):
            fastbert.patch(ours)
        return
    x = torch.randn(B, S, E, dtype=torch.float64)
    for mode in (True, False):
        with caplog.at_level(logging.WARNING, logger="fastbert"):
            torch.manual_seed(4)
            wanted = theirs.train(mode)(x)
            torch.manual_seed(4)
            hf.assert_near(ours.train(mode)(x), wanted, torch.float64, f"training={mode}")
    assert said in caplog.text


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("activation", [_Squared, nn.ReLU, nn.GELU])
def test_modules_as_activation_and_no_dropouts(activation, mode):
    theirs, ours = stack(), stack()
    for encoder in (theirs, ours):
        for layer in encoder.layers:
            layer.dropout = layer.dropout1 = layer.dropout2 = nn.Identity()
            layer.activation = activation()
    if activation is _Squared:
        with pytest.raises(InputError, match="expected relu or gelu as activation, got _Squared"):
            fastbert.patch(ours)
        return
    x = torch.randn(B, S, E, dtype=torch.float64)
    hf.assert_near(fastbert.patch(ours).train(mode)(x), theirs.train(mode)(x), torch.float64, "no dropout")


@pytest.mark.parametrize("shape", [(S, S), (B * HEADS, S, S)])
@pytest.mark.parametrize("padded", [True, False])
def test_a_bias_that_begins_as_the_causal_mask_learns(shape, padded):
    theirs, ours = pair()
    x, drop = torch.randn(B, S, E, dtype=torch.float64), ignored("prefix") if padded else None
    found = []
    for encoder in (theirs, ours):
        bias = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        mask = nn.Transformer.generate_square_subsequent_mask(S, dtype=torch.float64) + bias
        out = encoder(x, mask, drop)
        (out[..., 0] if drop is None else out[~drop][:, 0]).sum().backward()
        found.append(bias.grad)
    if found[0] is not None or padded:  # torch leaves it out itself in one of the four
        hf.assert_near(found[1], found[0], torch.float64, "bias")
    assert found[1] is not None
    assert found[1].any()


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_result_lies_in_memory_as_torchs(batch_first, mode):
    theirs, ours = pair(batch_first=batch_first)
    x = torch.randn(5, 2, E, dtype=torch.float64)
    assert ours.train(mode)(x).stride() == theirs.train(mode)(x).stride()
    ours(x).view(-1, E)


def test_adapters_in_place_of_dense_layers():
    peft = pytest.importorskip("peft")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = stack(torch.float32)

        def forward(self, x):
            return self.encoder(x)

    def config():
        return peft.LoraConfig(target_modules=["linear1", "linear2"], init_lora_weights=False)

    def adapted():
        model = Model()
        torch.manual_seed(4)
        return peft.get_peft_model(model, config())

    theirs, ours = adapted(), Model()
    fastbert.patch(ours)
    torch.manual_seed(4)
    ours = peft.get_peft_model(ours, config())
    x = torch.randn(B, S, E)
    outs = theirs(x), ours(x)
    hf.assert_near(outs[1], outs[0], torch.float32, "adapted")
    for out in outs:
        out.square().sum().backward()
    gradients = [[p.grad for n, p in m.named_parameters() if "lora" in n] for m in (theirs, ours)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_parametrised_dense_layer_is_ours():
    theirs, ours = stack(), stack()
    for encoder in (theirs, ours):
        torch.nn.utils.parametrizations.weight_norm(encoder.layers[0].linear1)
    fastbert.patch(ours)
    x = torch.randn(B, S, E, dtype=torch.float64)
    hf.assert_near(ours(x), theirs(x), torch.float64, "parametrised")


def test_batch_invariant():
    _, ours = pair(torch.float32)
    x, drop = torch.randn(B, S, E), ignored("prefix")
    with torch.no_grad(), fastbert.batch_invariant():
        out = ours(x, src_key_padding_mask=drop)
        for row in range(B):
            n = int((~drop[row]).sum())
            assert torch.equal(ours(x[row : row + 1, :n])[0], out[row, :n])


class _OwnLayer(nn.TransformerEncoderLayer):
    def forward(self, src, **kwargs):
        return src


class _OwnStack(nn.TransformerEncoder):
    def forward(self, src):
        return src


def _with(change) -> nn.TransformerEncoder:
    encoder = stack()
    change(encoder)
    return encoder


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.TransformerEncoder(_OwnLayer(E, HEADS, batch_first=True), 1), "got _OwnLayer"),
        (lambda: _OwnStack(nn.TransformerEncoderLayer(E, HEADS, batch_first=True), 1), "got one of its own"),
        (lambda: stack(activation=F.silu), "expected relu or gelu as activation, got silu"),
        (lambda: _with(lambda e: setattr(e.layers[0].self_attn, "add_zero_attn", True)), "add_zero_attn"),
        (lambda: _with(lambda e: setattr(e.layers[0], "norm1", nn.Identity())), "expected LayerNorms"),
        (lambda: _with(lambda e: setattr(e.layers[1].self_attn, "batch_first", False)), "layers of one batch_first"),
        (lambda: _with(lambda e: setattr(e, "norm", nn.Linear(E, E))), "LayerNorm or None as norm, got Linear"),
    ],
)
def test_what_cannot_be_mapped_is_refused_in_one_sentence(make, said):
    encoder = make()
    with pytest.raises(InputError) as refused:
        fastbert.patch(encoder)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not is_patched(encoder)


def test_pads_are_not_computed_on_demand():
    with pytest.raises(InputError, match="for transformers' models"):
        fastbert.patch(stack(), pads="computed")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"src": torch.zeros(B, S, E + 1)}, "src must be"),
        ({"src_key_padding_mask": torch.zeros(B, S + 1).bool()}, "src_key_padding_mask must be"),
        ({"src_key_padding_mask": torch.zeros(B, S).long()}, "bool or floating"),
        ({"mask": torch.zeros(S, S + 1)}, "mask must be"),
        ({"is_causal": True}, "expected the causal mask beside it"),
    ],
)
def test_inputs_that_do_not_fit(given, said):
    _, ours = pair()
    with pytest.raises(InputError, match=said):
        ours(**{"src": torch.zeros(B, S, E, dtype=torch.float64), **given})


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gradients", [True, False])
def test_autocast_keeps_the_dtype(norm_first, gradients):
    theirs, ours = pair(torch.float32, norm_first=norm_first, layers=6)
    x = torch.randn(B, S, E)
    with torch.no_grad():
        exact = theirs.double()(x.double())
        theirs.float()
    with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
        found, wanted = ours(x), theirs(x)
    assert found.dtype == wanted.dtype == torch.float32
    # What is never normalised keeps its precision; states between post-norm layers are narrow.
    assert (found - exact).abs().max() < (1.5 if norm_first else 3.0) * (wanted - exact).abs().max()
