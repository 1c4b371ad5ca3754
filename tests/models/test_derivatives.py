"""Derivatives beyond the first and transforms of torch.func are those of transformers; docs/drop-in.md."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import Tensor, func, nn
from torch.utils.checkpoint import checkpoint

import fastbert
from fastbert import rng

SIZES = {
    **{"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 16},
}
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


class _OfEmbeddings(nn.Module):
    """(2, 5, H) embeddings to a sum over kept tokens that no LayerNorm makes constant."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        states = self.model(inputs_embeds=x, attention_mask=MASK).last_hidden_state
        return ((3 * states).sin() * MASK[..., None] * torch.linspace(-1, 1, 24)).sum()


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, attn_implementation="eager")
    theirs = transformers.BertModel(config).eval()
    ours = fastbert.BertModel(fastbert.BertConfig(**SIZES)).eval()
    ours.load_state_dict(theirs.state_dict())
    found = {"theirs": theirs, "ours": ours, "patched": fastbert.patch(copy.deepcopy(theirs))}
    return {name: _OfEmbeddings(model) for name, model in found.items()}


X = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))
DIRECTION = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(2))


def _slope(model: nn.Module) -> tuple[Tensor, Tensor]:
    x = X.clone().requires_grad_()
    return x, torch.autograd.grad(model(x), x, create_graph=True)[0]


def _penalty(model: nn.Module) -> Tensor:
    x, slope = _slope(model)
    return torch.autograd.grad(slope.square().sum(), x)[0]


def _checkpointed(model: nn.Module, reentrant: bool) -> Tensor:
    x = X.clone().requires_grad_()
    checkpoint(model, x, use_reentrant=reentrant).backward()
    return x.grad


def _at_a_point(model: nn.Module):
    return lambda a: model(X + torch.cat([a, torch.zeros(21)]))


TRANSFORMS = {
    "grad": lambda model: func.grad(model)(X),
    "vjp": lambda model: func.vjp(model, X)[1](torch.ones(()))[0],
    "jvp": lambda model: func.jvp(model, (X,), (DIRECTION,))[1],
    "jacrev": lambda model: func.jacrev(_at_a_point(model))(torch.zeros(3)),
    "jacfwd": lambda model: func.jacfwd(_at_a_point(model))(torch.zeros(3)),
    "hessian": lambda model: func.hessian(_at_a_point(model))(torch.zeros(3)),
    "vmap": lambda model: func.vmap(model)(torch.stack([X, 2 * X])),
    "functional_call": lambda model: func.functional_call(
        model, {name: 1.01 * p.detach() for name, p in model.named_parameters()}, (X,)
    ),
    "checkpoint": lambda model: _checkpointed(model, False),
    "checkpoint, reentrant": lambda model: _checkpointed(model, True),
}


@pytest.mark.parametrize("kind", ["ours", "patched"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_those_of_transformers(models, name, kind):
    wanted, got = (TRANSFORMS[name](models[which]).detach() for which in ("theirs", kind))
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["ours", "patched"])
def test_a_checkpointed_pass_from_ids(models, kind, reentrant):
    """Its embedding is computed again too."""
    ids, found = torch.arange(10).reshape(2, 5) + 7, []
    for model in (models["theirs"].model, models[kind].model):
        model.zero_grad()

        def run(scale: Tensor, model: nn.Module = model) -> Tensor:
            states = model(ids, attention_mask=MASK).last_hidden_state
            return ((scale * states).sin() * MASK[..., None]).sum()

        checkpoint(run, torch.tensor(3.0, requires_grad=True), use_reentrant=reentrant).backward()
        found.append(model.embeddings.word_embeddings.weight.grad)
    assert found[0].abs().max() > 1e-3
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5 * found[0].abs().max().item())


@pytest.mark.parametrize("kind", ["ours", "patched"])
def test_second_derivatives_are_those_of_transformers(models, kind):
    wanted, (x, slope) = _penalty(models["theirs"]), _slope(models[kind])
    got = torch.autograd.grad(slope.square().sum(), x)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("kind", ["ours", "patched"])
def test_hessians_by_autograd(models, kind, vectorize):
    """torch.autograd.functional takes for zero what does not depend on its input."""
    at, start = _at_a_point, torch.zeros(3)
    wanted = torch.autograd.functional.hessian(at(models["theirs"]), start)
    got = torch.autograd.functional.hessian(at(models[kind]), start, vectorize=vectorize)
    assert wanted.abs().min() > 1e-3
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("kind", ["ours", "patched"])
def test_a_third_derivative(models, kind):
    def third(model: nn.Module) -> Tensor:
        x, slope = _slope(model)
        (second,) = torch.autograd.grad((slope * DIRECTION).sum(), x, create_graph=True)
        return torch.autograd.grad((second * DIRECTION).sum(), x)[0]

    wanted, got = third(models["theirs"]), third(models[kind])
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())


def _hessian_times(model: nn.Module, loss, direction: dict[str, Tensor]) -> dict[str, Tensor]:
    """By two backward passes, as AdaHessian and influence functions take it."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(loss(), list(named.values()), create_graph=True)
    along = sum((slope * direction[name]).sum() for name, slope in zip(named, slopes, strict=True))
    return dict(zip(named, torch.autograd.grad(along, list(named.values())), strict=True))


def _assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == wanted.keys()
    largest = max(p.abs().max().item() for p in wanted.values())
    assert largest > 1e-3
    for name, one in wanted.items():
        torch.testing.assert_close(got[name], one, rtol=tolerance, atol=tolerance * largest, msg=name)


def _in_training(model: nn.Module):
    """The loss of pre-training, always with the same words dropped."""
    ids, kinds = torch.randint(5, 60, (2, 5)), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    labels = torch.where(torch.rand(2, 5) < 0.5, ids, -100)
    labels[0, 0] = ids[0, 0]

    def loss() -> Tensor:
        with rng.use(rng.DropoutKey(5, 6)):
            given = {"attention_mask": MASK, "token_type_ids": kinds, "labels": labels}
            return model(ids, **given, next_sentence_label=torch.tensor([0, 1])).loss

    return loss


@pytest.mark.parametrize("how", ["layers", "checkpointed", "autocast", "frozen"])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_the_hessian_of_pretraining_times_a_vector(p, how):
    config = fastbert.BertConfig(**{**SIZES, "hidden_dropout_prob": p, "attention_probs_dropout_prob": p})
    model = fastbert.BertForPreTraining(config).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    if how == "checkpointed":
        model.bert.encoder.gradient_checkpointing = True
    if how == "frozen":
        model.bert.embeddings.requires_grad_(False)
        model.bert.encoder.layer[0].output.requires_grad_(False)
    loss, direction = _in_training(model), {name: torch.randn_like(p) for name, p in model.named_parameters()}
    with fastbert.backend("reference"):
        wanted = _hessian_times(model, loss, direction)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        got = _hessian_times(model, loss, direction)
    _assert_same(got, wanted, 0.05 if how == "autocast" else 1e-4)


@pytest.mark.parametrize("mask", [MASK, MASK.flip(1)], ids=["prefix", "left"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_the_hessian_of_a_patched_models_loss_times_a_vector(train, mask):
    """A pooler that may read masked tokens takes the padded path."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, attn_implementation="eager")
    theirs = transformers.BertForSequenceClassification(config).train(train)
    ours = fastbert.patch(copy.deepcopy(theirs))
    ids, direction = torch.randint(5, 60, (2, 5)), {n: torch.randn_like(p) for n, p in theirs.named_parameters()}

    def loss(model: nn.Module):
        return lambda: model(ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss

    wanted, got = (_hessian_times(model, loss(model), direction) for model in (theirs, ours))
    _assert_same(got, wanted, 1e-4)


def test_the_first_gradients_of_a_recorded_backward_pass_are_the_same_bits(models):
    model = models["ours"].model.train()
    ids = torch.arange(10).reshape(2, 5) + 7
    total = model(ids, attention_mask=MASK).last_hidden_state.sin().sum()
    plain, recorded = (
        torch.autograd.grad(total, list(model.encoder.parameters()), create_graph=graph, retain_graph=True)
        for graph in (False, True)
    )
    models["ours"].eval()
    for one, other in zip(plain, recorded, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_each_example(masked, train):
    """In training too, which draws nothing where nothing is dropped."""
    model = fastbert.BertForSequenceClassification(fastbert.BertConfig(**SIZES)).train(train)
    ids, labels = torch.randint(5, 60, (3, 5)), torch.tensor([0, 1, 1])
    masks = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]) if masked else torch.ones_like(ids)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict, ids: Tensor, mask: Tensor, label: Tensor) -> Tensor:
        given = (ids[None], mask[None] if masked else None)
        return func.functional_call(model, weights, given, {"labels": label[None]}).loss

    found = func.vmap(func.grad(loss), in_dims=(None, 0, 0, 0))(weights, ids, masks, labels)
    for row in range(3):
        model.zero_grad()
        alone = slice(row, row + 1)
        model(ids[alone], masks[alone] if masked else None, labels=labels[alone]).loss.backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(found[name][row], p.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(("randomness", "alike"), [("same", True), ("different", False)])
def test_what_examples_drop_under_vmap_is_as_asked(randomness, alike):
    model = fastbert.BertModel(fastbert.BertConfig(**{**SIZES, "attention_probs_dropout_prob": 0.5})).train()
    ids = torch.arange(5, 10).repeat(2, 1, 1)
    found = func.vmap(lambda ids: model(ids).last_hidden_state, randomness=randomness)(ids)
    assert torch.allclose(found[0], found[1], atol=1e-6) is alike


def test_a_key_that_was_given_holds_under_a_transform_too():
    model = fastbert.BertModel(fastbert.BertConfig(**{**SIZES, "hidden_dropout_prob": 0.5})).train()
    ids = torch.arange(5, 10)[None]
    with rng.use(rng.DropoutKey(5, 6)):
        wanted = model(ids).last_hidden_state
        got, _ = func.vjp(lambda scale: scale * model(ids).last_hidden_state, torch.tensor(1.0))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_mask_that_wants_a_gradient_has_all_tokens_computed_under_a_transform_too(models):
    mask = torch.zeros(2, 1, 1, 5).masked_fill(MASK[:, None, None] == 0, -1e4).requires_grad_()

    def states(x: Tensor) -> Tensor:
        return models["ours"].model(inputs_embeds=x, attention_mask=mask).last_hidden_state

    wanted = states(X)
    assert wanted[1, 3:].all()
    torch.testing.assert_close(func.vjp(states, X)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["ours", "patched"])
def test_gradients_of_many_outputs_at_once_are_those_one_by_one(models, kind):
    x = X.clone().requires_grad_()
    states = models[kind].model(inputs_embeds=x, attention_mask=MASK).last_hidden_state.flatten()[:3]
    given = [x, models[kind].model.encoder.layer[0].attention.self.query.weight]
    got = torch.autograd.grad(states, given, torch.eye(3), is_grads_batched=True, retain_graph=True)
    for row in range(3):
        for many, one in zip(got, torch.autograd.grad(states[row], given, retain_graph=True), strict=True):
            torch.testing.assert_close(many[row], one, rtol=1e-5, atol=1e-6)


LEFT = MASK.flip(1)


@pytest.mark.parametrize("mask", [None, MASK, LEFT], ids=["full", "prefix", "left"])
def test_a_state_of_a_model_has_the_gradient_of_transformers(models, mask):
    """At the tokens that are kept: of others transformers' have one too, and ours are zeros that nothing reads."""
    kept = torch.ones_like(MASK) if mask is None else mask
    x, weights = torch.randn(2, 5, 24), torch.randn(2, 5, 24) * kept[..., None]
    found = {}
    for name, of in models.items():
        out = of.model(inputs_embeds=x, attention_mask=mask, output_hidden_states=True)
        found[name] = torch.autograd.grad((out.last_hidden_state * weights).sum(), out.hidden_states)
    for name in ("ours", "patched"):
        for got, wanted in zip(found[name], found["theirs"], strict=True):
            torch.testing.assert_close(got[kept.bool()], wanted[kept.bool()], rtol=1e-4, atol=1e-6)


def test_a_state_of_packed_tokens_has_that_of_the_padded(models):
    model, weights = models["ours"].model, torch.randn(5, 24)
    bounds = torch.tensor([0, 5], dtype=torch.int32)
    found = []
    for given, more in ((X[:1], {}), (X[:1], {"cu_seqlens": bounds}), (X[0], {"cu_seqlens": bounds})):
        out = model(inputs_embeds=given, output_hidden_states=True, **more)
        found.append(torch.autograd.grad((out.last_hidden_state * weights).sum(), out.hidden_states))
        assert [state.shape for state in out.hidden_states] == [given.shape] * 3
    for wanted, row, flat in zip(*found, strict=True):
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(flat, wanted[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("form", ["padded", "prefix", "left", "packed", "packed row"])
def test_a_state_of_an_encoder_has_the_gradient_of_the_layers_above_it(form):
    """Those that the caller was given, as transformers' have it."""
    torch.manual_seed(0)
    encoder = fastbert.BertEncoder(fastbert.BertConfig(**SIZES)).double().eval()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    mask = {"prefix": MASK, "left": LEFT}.get(form)
    options = {"attention_mask": mask} if form[:6] != "packed" else {"cu_seqlens": torch.tensor([0, 4, 10])}
    x = {"packed": x.flatten(0, 1), "packed row": x.flatten(0, 1)[None]}.get(form, x)
    weights = torch.randn_like(x) * (1 if mask is None else mask[..., None])

    def loss(encoder: nn.Module, x: Tensor, **more: bool):
        out = encoder(x, **options, **more)
        return (out.last_hidden_state * weights).sum(), out.hidden_states

    total, states = loss(encoder, x.requires_grad_(), output_hidden_states=True)
    got = torch.autograd.grad(total, states)
    assert len(states) == 3
    for number, (state, gradient) in enumerate(zip(states, got, strict=True)):
        above = copy.deepcopy(encoder)
        above.layer = above.layer[number:]
        leaf = state.detach().requires_grad_()
        wanted = torch.autograd.grad(loss(above, leaf)[0], leaf)[0] if number < 2 else weights
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-11)
