"""BertModel and BertEncoder against transformers' with the same weights, under every mask, values and gradients."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import hf_parity as hf
import pytest
import torch
import transformers
from torch import nn
from transformers.models.bert.modeling_bert import BertEmbeddings, BertEncoder

import fastbert
from fastbert.errors import BackendError, InputError
from fastbert.modules.said import say_once
from fastbert.packing import PackedBatch

DTYPES = (torch.float32, torch.float64)


def _loss(output, kept, with_pooler=True):
    """A random projection of all that a caller may read: kept tokens, and the pooled vector of rows that have one."""
    generator = torch.Generator().manual_seed(9)
    hidden = output.last_hidden_state
    weights = torch.randn(hidden.shape, generator=generator, dtype=torch.float64).to(hidden.dtype)
    loss = (hidden * weights)[kept].sum()
    if with_pooler:
        pooled = output.pooler_output
        weights = torch.randn(pooled.shape, generator=generator, dtype=torch.float64).to(pooled.dtype)
        loss = loss + (pooled * weights)[kept.any(1)].sum()
    return loss


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp64"])
@pytest.mark.parametrize("mask_name", hf.MASKS)
def test_outputs_and_gradients(mask_name, dtype, activation):
    theirs, ours = hf.pair("BertModel", dtype, hidden_act=activation)
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    expected = theirs(**hf.inputs(), attention_mask=mask, output_hidden_states=True)
    got = ours(**hf.inputs(), attention_mask=mask, output_hidden_states=True)
    hf.assert_near(got.last_hidden_state[kept], expected.last_hidden_state[kept], dtype, "last_hidden_state")
    rows = kept.any(1)
    hf.assert_near(got.pooler_output[rows], expected.pooler_output[rows], dtype, "pooler_output")
    assert got.pooler_output.isfinite().all()
    assert not got.last_hidden_state[~kept].any(), "a masked token must come back as zeros"
    assert len(got.hidden_states) == len(expected.hidden_states) == 4
    for level, (x, y) in enumerate(zip(got.hidden_states, expected.hidden_states, strict=True)):
        hf.assert_near(x[kept], y[kept], dtype, f"hidden_states[{level}]")
    _loss(expected, kept).backward()
    _loss(got, kept).backward()
    hf.assert_same_gradients(ours, theirs, dtype)


@pytest.mark.parametrize("mask_name", ["left", "hole_at_first"])
def test_a_model_without_pooler_packs_left_padding(mask_name, caplog):
    torch.manual_seed(1)
    config = hf.hf_config()
    theirs = transformers.BertModel(config, add_pooling_layer=False).train()
    ours = fastbert.BertModel(config, add_pooling_layer=False).train()
    ours.load_state_dict(theirs.state_dict())
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    with _rows_of_products() as rows:
        got = ours(**hf.inputs(), attention_mask=mask)
    assert got.pooler_output is None
    assert rows == {int(kept.sum())}
    expected = theirs(**hf.inputs(), attention_mask=mask)
    hf.assert_near(got.last_hidden_state[kept], expected.last_hidden_state[kept], torch.float32, "last_hidden_state")
    _loss(expected, kept, with_pooler=False).backward()
    _loss(got, kept, with_pooler=False).backward()
    hf.assert_same_gradients(ours, theirs, torch.float32)


@pytest.mark.parametrize("mask_name", ["left", "hole_at_first"])
def test_left_padding_under_a_pooler_is_said_once(mask_name, caplog):
    say_once.cache_clear()
    _, ours = hf.pair("BertModel")
    for _ in range(2):
        ours(**hf.inputs(), attention_mask=hf.masks()["prefix"])
        ours(**hf.inputs(), attention_mask=hf.masks()[mask_name])
    said = [record for record in caplog.records if record.name == "fastbert"]
    assert [record.levelname for record in said] == ["WARNING"]
    assert "takes the padded reference path" in said[0].message
    assert "the first token of a sequence is masked (left padding)" in said[0].message


@pytest.mark.parametrize("kind", [torch.bool, torch.int32, torch.float32])
def test_a_mask_of_any_kind_of_number(kind):
    _, ours = hf.pair("BertModel")
    mask = hf.masks()["holes"]
    expected = ours(**hf.inputs(), attention_mask=mask).last_hidden_state
    assert torch.equal(ours(**hf.inputs(), attention_mask=mask.to(kind)).last_hidden_state, expected)


def test_positions_and_embeddings_given_by_the_caller():
    theirs, ours = hf.pair("BertModel")
    mask = hf.masks()["holes"]
    kept = hf.kept_tokens(mask)
    positions = torch.randint(0, 24, (hf.BATCH, hf.LENGTH))
    embeds = torch.randn(hf.BATCH, hf.LENGTH, 32)
    for given in ({"input_ids": hf.inputs()["input_ids"]}, {"inputs_embeds": embeds}):
        for where in (positions, positions[:1], None):
            expected = theirs(**given, attention_mask=mask, position_ids=where).last_hidden_state
            got = ours(**given, attention_mask=mask, position_ids=where).last_hidden_state
            hf.assert_near(got[kept], expected[kept], torch.float32, "last_hidden_state")


@pytest.mark.parametrize("mask_name", ["prefix", "left", "holes"])
def test_a_4d_mask_that_names_keys_is_packed(mask_name):
    theirs, ours = hf.pair("BertModel")
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    expected = theirs(**hf.inputs(), attention_mask=mask)
    as_bool = kept[:, None, None, :].expand(-1, 1, hf.LENGTH, -1)
    as_number = torch.zeros(as_bool.shape).masked_fill(~as_bool, torch.finfo(torch.float32).min)
    for given in (as_bool, as_number, as_number[:, :, :1]):
        with _rows_of_products() as rows:
            got = ours(**hf.inputs(), attention_mask=given)
        hf.assert_near(got.last_hidden_state[kept], expected.last_hidden_state[kept], torch.float32, "hidden")
        hf.assert_near(got.pooler_output, expected.pooler_output, torch.float32, "pooler_output")
        if mask_name != "left":
            assert rows == {int(kept.sum()), hf.BATCH}


def _under_ready_mask(theirs, mask):
    """Its parts in a row: transformers 4 takes no 4-D mask at the model's door."""
    hidden = theirs.encoder(theirs.embeddings(**hf.inputs()), attention_mask=mask)[0]
    return SimpleNamespace(last_hidden_state=hidden, pooler_output=theirs.pooler(hidden))


def test_any_other_4d_mask_takes_the_padded_path():
    theirs, ours = hf.pair("BertModel")
    # Each token sees itself, those before it, and what a random matrix adds.
    allowed = torch.rand(hf.BATCH, 1, hf.LENGTH, hf.LENGTH, generator=torch.Generator().manual_seed(3)) < 0.3
    allowed |= torch.ones(hf.LENGTH, hf.LENGTH).tril().bool()
    additive = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    bias = additive + torch.randn(additive.shape, generator=torch.Generator().manual_seed(4))
    for given in (additive, bias):
        theirs.zero_grad()
        ours.zero_grad()
        expected = _under_ready_mask(theirs, given)
        got = ours(**hf.inputs(), attention_mask=given)
        everything = torch.ones(hf.BATCH, hf.LENGTH, dtype=torch.bool)
        hf.assert_near(got.last_hidden_state, expected.last_hidden_state, torch.float32, "last_hidden_state")
        _loss(expected, everything).backward()
        _loss(got, everything).backward()
        hf.assert_same_gradients(ours, theirs, torch.float32)
    hf.assert_near(
        ours(**hf.inputs(), attention_mask=allowed).last_hidden_state,
        _under_ready_mask(theirs, additive).last_hidden_state,
        torch.float32,
        "bool mask",
    )


@pytest.mark.parametrize("mask_name", hf.MASKS)
def test_attention_probabilities(mask_name):
    theirs, ours = hf.pair("BertModel")
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    expected = theirs(**hf.inputs(), attention_mask=mask, output_attentions=True)
    got = ours(**hf.inputs(), attention_mask=mask, output_attentions=True)
    hf.assert_near(got.last_hidden_state[kept], expected.last_hidden_state[kept], torch.float32, "last_hidden_state")
    assert not got.last_hidden_state[~kept].any()
    assert len(got.attentions) == 3
    for x, y in zip(got.attentions, expected.attentions, strict=True):
        by_query, truth = x.transpose(1, 2)[kept], y.transpose(1, 2)[kept]
        hf.assert_near(by_query, truth, torch.float32, "attentions")


def _packed(mask):
    """The kept tokens of `hf.inputs`, end to end, with their columns as positions."""
    kept = hf.kept_tokens(mask)
    lengths = kept.sum(1)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)])
    columns = torch.arange(hf.LENGTH).expand(hf.BATCH, -1)[kept]
    given = hf.inputs()
    return PackedBatch(given["input_ids"][kept], given["token_type_ids"][kept], columns, cu_seqlens, int(lengths.max()))


@pytest.mark.parametrize("mask_name", ["none", "prefix", "holes", "empty_row"])
def test_packed_tokens_are_encoded_as_in_the_rectangle(mask_name):
    theirs, ours = hf.pair("BertModel")
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    expected = theirs(**hf.inputs(), attention_mask=mask)
    batch = _packed(mask)
    got = ours(batch)
    assert got.last_hidden_state.shape == (int(kept.sum()), 32)
    hf.assert_near(got.last_hidden_state, expected.last_hidden_state[kept], torch.float32, "last_hidden_state")
    rows = kept.any(1)
    hf.assert_near(got.pooler_output[rows], expected.pooler_output[rows], torch.float32, "pooler_output")
    # The same under transformers' names for packed arguments, as (1, T).
    theirs_names = {"cu_seq_lens_q": batch.cu_seqlens, "cu_seq_lens_k": batch.cu_seqlens}
    lengths = {"max_length_q": batch.max_seqlen, "max_length_k": batch.max_seqlen}
    ids = {"input_ids": batch.input_ids[None], "token_type_ids": batch.token_type_ids[None]}
    row = ours(**ids, position_ids=batch.position_ids[None], **theirs_names, **lengths)
    assert torch.equal(row.last_hidden_state[0], got.last_hidden_state)


def test_packed_positions_count_from_zero_in_each_sequence():
    theirs, ours = hf.pair("BertModel")
    mask = hf.masks()["prefix"]
    batch = _packed(mask)
    got = ours(batch.input_ids, token_type_ids=batch.token_type_ids, cu_seqlens=batch.cu_seqlens)
    expected = theirs(**hf.inputs(), attention_mask=mask).last_hidden_state[hf.kept_tokens(mask)]
    hf.assert_near(got.last_hidden_state, expected, torch.float32, "last_hidden_state")


def test_an_empty_sequence_is_pooled_as_zeros():
    """In the middle, where the next one's token is in its place, and at the end, where no token is."""
    _, ours = hf.pair("BertModel")
    tokens = hf.inputs()["input_ids"].flatten()[:5]
    full = ours(tokens, cu_seqlens=torch.tensor([0, 3, 5]))
    got = ours(tokens, cu_seqlens=torch.tensor([0, 3, 3, 5, 5]))
    assert torch.equal(got.last_hidden_state, full.last_hidden_state)
    hf.assert_near(got.pooler_output[[0, 2]], full.pooler_output, torch.float32, "pooler_output")
    hf.assert_near(got.pooler_output[[1, 3]], ours.pooler.dense.bias.tanh().expand(2, -1), torch.float32, "of zeros")


class _rows_of_products(torch.utils._python_dispatch.TorchDispatchMode):
    """Records how many rows every dense product inside the block has, as the set of them (forward and backward)."""

    def __enter__(self):
        self.rows = set()
        super().__enter__()
        return self.rows

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.rows.add(args[-2].shape[0])
        elif str(function) == "fastbert.linear.default":  # where the CPU kernels take float32's products
            self.rows.add(args[0].shape[:-1].numel())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mask_name", ["prefix", "holes", "empty_row"])
def test_no_pad_token_is_computed(mask_name):
    _, ours = hf.pair("BertModel")
    mask = hf.masks()[mask_name]
    num_tokens = int(hf.kept_tokens(mask).sum())
    assert num_tokens not in (hf.BATCH, hf.BATCH * hf.LENGTH)
    with _rows_of_products() as rows:
        ours(**hf.inputs(), attention_mask=mask)
    assert rows == {num_tokens, hf.BATCH}  # the layers; the pooler
    with _rows_of_products() as rows:
        fastbert.BertForMaskedLM(ours.config).train()(**hf.inputs(), attention_mask=mask)
    assert rows == {num_tokens}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("mask_name", hf.MASKS)
def test_the_encoder_inside_a_transformers_model(mask_name, attention):
    mask = hf.masks()[mask_name]
    kept = hf.kept_tokens(mask)
    theirs, _ = hf.pair("BertModel", attention=attention)
    swapped, _ = hf.pair("BertModel", attention=attention)
    encoder = fastbert.BertEncoder(swapped.config).train()
    encoder.load_state_dict(swapped.encoder.state_dict(), strict=True)
    swapped.encoder = encoder
    expected = theirs(**hf.inputs(), attention_mask=mask)
    got = swapped(**hf.inputs(), attention_mask=mask)
    hf.assert_near(got.last_hidden_state[kept], expected.last_hidden_state[kept], torch.float32, "last_hidden_state")
    rows = kept.any(1)
    hf.assert_near(got.pooler_output[rows], expected.pooler_output[rows], torch.float32, "pooler_output")
    _loss(expected, kept).backward()
    _loss(got, kept).backward()
    hf.assert_same_gradients(swapped, theirs, torch.float32)


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions"])
def test_the_encoder_inside_a_transformers_model_that_is_asked_for_more(name):
    """transformers 5 collects these from its own layers; 4 takes what the encoder returns."""
    swapped, _ = hf.pair("BertModel", attention="eager")
    swapped.encoder = fastbert.BertEncoder(swapped.config).eval()
    if transformers.__version__.startswith("4."):
        states = swapped(**hf.inputs(), **{name: True})
        assert len(states[-1]) == swapped.config.num_hidden_layers + (name == "output_hidden_states")
    else:
        with pytest.raises(InputError, match=r"would return none of this encoder's: use fastbert\.patch"):
            swapped(**hf.inputs(), **{name: True})


class _Ranker(nn.Module):
    """Someone's own module around transformers' encoder, which it calls in its own way."""

    def __init__(self, config, form):
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.score = nn.Linear(config.hidden_size, 1)
        self.form = form

    def forward(self, input_ids, keep):
        mask = keep[:, None, None]
        if self.form == "additive":
            mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)
        out = self.encoder(self.embeddings(input_ids), attention_mask=mask)
        return self.score(out[0]).squeeze(-1) + self.score(out.last_hidden_state[:, :1]).squeeze(-1)


@pytest.mark.parametrize("form", ["additive", "bool"])
@pytest.mark.parametrize("mask_name", ["prefix", "left", "holes"])
def test_the_encoder_inside_someones_own_module(mask_name, form):
    config = hf.hf_config(attn_implementation="sdpa" if form == "bool" else "eager")
    torch.manual_seed(0)
    theirs = _Ranker(config, form).double().train()
    for layer in theirs.encoder.layer:
        torch.nn.init.normal_(layer.attention.self.query.weight, std=0.4)
    ours = copy.deepcopy(theirs)
    ours.encoder = fastbert.BertEncoder(config).double().train()
    ours.encoder.load_state_dict(theirs.encoder.state_dict(), strict=True)
    keep = hf.masks()[mask_name].bool()
    wanted, got = (model(hf.inputs()["input_ids"], keep) for model in (theirs, ours))
    hf.assert_near(got[keep], wanted[keep], torch.float64, "scores")
    weights = torch.randn(keep.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for scores in (wanted, got):
        (scores * weights)[keep].sum().backward()
    hf.assert_same_gradients(ours, theirs, torch.float64)


def test_the_encoder_alone_padded_and_packed():
    theirs, _ = hf.pair("BertModel")
    encoder = fastbert.BertEncoder(theirs.config).eval()
    encoder.load_state_dict(theirs.encoder.state_dict(), strict=True)
    mask = hf.masks()["prefix"]
    kept = hf.kept_tokens(mask)
    x = torch.randn(hf.BATCH, hf.LENGTH, 32)
    additive = torch.zeros(hf.BATCH, 1, 1, hf.LENGTH).masked_fill(~kept[:, None, None], torch.finfo(x.dtype).min)
    expected = theirs.eval().encoder(x, attention_mask=additive).last_hidden_state[kept]
    padded = encoder(x, mask).last_hidden_state
    hf.assert_near(padded[kept], expected, torch.float32, "padded")
    assert not padded[~kept].any()
    batch = _packed(mask)
    hf.assert_near(encoder(x[kept], cu_seqlens=batch.cu_seqlens)[0], expected, torch.float32, "packed (T, H)")
    names = {"cu_seq_lens_q": batch.cu_seqlens, "cu_seq_lens_k": batch.cu_seqlens, "max_length_q": batch.max_seqlen}
    row = encoder(x[kept][None], None, **names).last_hidden_state
    assert row.shape == (1, int(kept.sum()), 32)
    hf.assert_near(row[0], expected, torch.float32, "packed (1, T, H)")
    states = encoder(x, mask, output_hidden_states=True, return_dict=False)[1]
    assert len(states) == 4
    assert torch.equal(states[0][kept], x[kept])


# transformers' names for keys and values kept: up to 5.23, and from 5.24 on.
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_encoder_keeps_no_keys_and_values_under_either_name(name):
    encoder = fastbert.BertEncoder(hf.hf_config()).eval()
    x = torch.randn(hf.BATCH, hf.LENGTH, 32)
    output = encoder(x, **{name: None})
    assert getattr(output, name) is None
    assert name not in output
    with pytest.raises(InputError, match=f"^{name} is not supported by an encoder: expected None, got object$"):
        encoder(x, **{name: object()})


@pytest.mark.parametrize("name", ["mask", "key_padding_mask", "src_key_padding_mask", "encoder_attention_mask"])
def test_a_mask_under_another_name_is_refused(name):
    encoder = fastbert.BertEncoder(hf.hf_config()).eval()
    x, mask = torch.randn(hf.BATCH, hf.LENGTH, 32), hf.masks()["prefix"]
    with pytest.raises(InputError, match=name):
        encoder(x, **{name: mask})
    with pytest.raises(InputError, match=r"^unknown argument of the encoder: is_causal$"):
        encoder(x, is_causal=True)
    # What transformers' model hands on is no one's mask.
    idle = {"use_cache": True, "position_ids": torch.arange(hf.LENGTH), "num_items_in_batch": torch.tensor(3)}
    assert torch.equal(encoder(x, mask, **idle, is_causal=False, new_in_some_release=None)[0], encoder(x, mask)[0])


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (torch.ones(4, 1, 1, 11, dtype=torch.int64), "must be bool .* or floating .*, got torch.int64"),
        (torch.ones(3, 1, 1, 11, dtype=torch.bool), "must be .*, got .3, 1, 1, 11."),
        (torch.ones(4, 1, 5, 11, dtype=torch.bool), "must be .*, got .4, 1, 5, 11."),
    ],
)
def test_a_4d_mask_that_could_mean_two_things_is_refused(mask, reason):
    _, ours = hf.pair("BertModel")
    with pytest.raises(InputError, match=reason):
        ours(**hf.inputs(), attention_mask=mask)


def test_derivatives_in_forward_mode_are_those_of_the_reference():
    _, ours = hf.pair("BertModel", torch.float64)
    torch.manual_seed(4)
    point, direction = torch.randn(2, 2, 5, 32, dtype=torch.float64).unbind()
    step = 1e-6
    with torch.no_grad():
        found = torch.func.jvp(lambda x: ours(inputs_embeds=x)[0], (point,), (direction,))[1]
        ends = (ours(inputs_embeds=point + sign * step * direction)[0] for sign in (1, -1))
        wanted = (next(ends) - next(ends)) / (2 * step)
    assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max()
    with pytest.raises(BackendError, match=r"'cpu' .* cannot serve an export, forward-mode"), fastbert.backend("cpu"):
        torch.func.jvp(lambda x: ours(inputs_embeds=x)[0], (point,), (direction,))
