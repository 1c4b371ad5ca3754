"""ELMo against hand-worked values, a plain one of the tests, and what each direction may not see."""

from __future__ import annotations

import math

import elmo_by_hand
import numpy as np
import pytest
import torch
from watched_key import Watched

from fastbert import PackedBatch, rng
from fastbert.data import characters
from fastbert.elmo_config import ElmoConfig
from fastbert.errors import InputError
from fastbert.models.elmo import ElmoForPreTraining, ElmoModel
from fastbert.modules.bilm import ProjectedLSTM
from fastbert.modules.character_cnn import CharacterCNN, Highway
from fastbert.modules.lstm import Order
from fastbert.modules.scalar_mix import ScalarMix

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "river", "##side", "café", "x" * 60]
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 6,
    "lstm_size": 5,
    "character_embedding_size": 3,
    "character_filters": [[1, 2], [2, 3], [4, 2]],
    "max_characters": 12,
    "hidden_dropout_prob": 0.0,
}
SENTENCES = [[2, 5, 7, 8, 3], [2, 3], [2, 6, 7, 5, 7, 9, 10, 3], [2]]


def config(**changes) -> ElmoConfig:
    found = ElmoConfig(**{**SIZES, **changes})
    found.characters = table(found.max_characters)
    return found


def table(max_characters: int = 12) -> torch.Tensor:
    return torch.from_numpy(characters.characters_of(VOCABULARY, max_characters))


def pretraining(**changes) -> ElmoForPreTraining:
    """A model whose gates and biases are not at their start."""
    torch.manual_seed(1)
    model = ElmoForPreTraining(config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def batch_of(sentences=SENTENCES) -> PackedBatch:
    return PackedBatch.from_sequences(sentences)


def test_characters_are_bytes_between_the_ends_of_a_word():
    rows = characters.characters_of(["the", "é", "[CLS]", "[SEP]", "", "abcdef"], 6)
    assert rows.tolist() == [
        [258, 116, 104, 101, 259, 260],
        [258, 0xC3, 0xA9, 259, 260, 260],
        [258, 256, 259, 260, 260, 260],
        [258, 257, 259, 260, 260, 260],
        [258, 259, 260, 260, 260, 260],
        [258, 97, 98, 99, 100, 259],
    ]
    assert characters.characters_of(["word"]).shape == (1, 50)
    with pytest.raises(InputError, match="max_characters must be at least 3"):
        characters.characters_of(["word"], 2)


def test_table_has_a_row_for_every_id():
    from fastbert.data.tokenizer import build_tokenizer
    from fastbert.data.vocab_files import Normalisation

    tokenizer = build_tokenizer({token: index for index, token in enumerate(VOCABULARY)}, Normalisation())
    np.testing.assert_array_equal(characters.character_table(tokenizer, 12), table().numpy())


def test_highway_by_hand():
    layer = Highway(2)
    with torch.no_grad():
        layer.transform.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        layer.transform.bias.copy_(torch.tensor([0.5, 0.0]))
        layer.gate.weight.zero_()
        layer.gate.bias.copy_(torch.tensor([0.0, math.log(3.0)]))  # gates of 1/2 and 3/4
        # 1/2 (2 + 0.5) + 1/2 * 2 = 2.25;  3/4 relu(-4) + 1/4 * 4 = 1.
        torch.testing.assert_close(layer(torch.tensor([[2.0, 4.0]])), torch.tensor([[2.25, 1.0]]))


def test_convolution_takes_the_largest_window_by_hand():
    cnn = CharacterCNN(4, 1, [(2, 1)], 0, 1, pad=3)
    with torch.no_grad():
        cnn.embeddings.weight.copy_(torch.tensor([[1.0], [-2.0], [3.0], [0.0]]))
        cnn.convolutions[0].weight.copy_(torch.tensor([[[2.0, -1.0]]]))
        cnn.convolutions[0].bias.fill_(0.5)
        cnn.projection.weight.fill_(10.0)
        cnn.projection.bias.fill_(1.0)
        # Windows of 0 1 2: 2*1+2 = 4, -4-3 = -7, 6-0 = 6, and 0 over pads: 10 (6 + 0.5) + 1 = 66.
        # Of 1 alone: -4 and 0 over pads: 10 * 0.5 + 1 = 6, from the pads.
        found = cnn(torch.tensor([[0, 1, 2, 3, 3, 3, 3], [1, 3, 3, 3, 3, 3, 3]]))
    assert found.tolist() == [[66.0], [6.0]]


def test_mix_by_hand():
    mix = ScalarMix(2)
    layers = torch.tensor([[[3.0, 0.0]], [[6.0, 9.0]]])
    torch.testing.assert_close(mix(layers), torch.tensor([[4.5, 4.5]]))  # at the start the mean
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([0.0, math.log(2.0)]))  # shares of 1/3 and 2/3
        mix.gamma.fill_(2.0)
    torch.testing.assert_close(mix(list(layers)), torch.tensor([[10.0, 12.0]]))
    torch.testing.assert_close(mix.weights, torch.tensor([1 / 3, 2 / 3]))
    mix.layer_norm = True
    # (3, 0) and (6, 9) become (1, -1) and (-1, 1): 2 (1/3 - 2/3) = -2/3.
    torch.testing.assert_close(mix(layers), torch.tensor([[-2 / 3, 2 / 3]]))


def test_mix_is_learned():
    """d/ds_j = gamma a_j (g . h_j - sum_k a_k g . h_k), d/dgamma = g . sum_j a_j h_j, for the gradient g of the sum."""
    mix, layers = ScalarMix(3), torch.arange(6.0).view(3, 1, 2)
    mix(layers).sum().backward()
    torch.testing.assert_close(mix.scalars.grad, torch.tensor([(1 - 5) / 3, 0.0, (9 - 5) / 3]))
    torch.testing.assert_close(mix.gamma.grad, torch.tensor(5.0))


@pytest.mark.parametrize("clips", [(None, None), (0.4, 0.3), (0.4, None)])
def test_states_loss_and_gradients_are_those_of_a_plain_elmo(clips):
    """In float64 to rounding; in float32 as torch holds float32 to it."""
    options = {"lstm_cell_clip": clips[0], "lstm_projection_clip": clips[1]}
    by_hand = dict(zip(("cell_clip", "projection_clip"), clips, strict=True))
    model = pretraining(**options)
    weights = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    truth = elmo_by_hand.loss(weights, SENTENCES, table(), 2, **by_hand)
    gradients = dict(zip(weights, torch.autograd.grad(truth, weights.values()), strict=True))

    model(batch_of()).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), gradients[name], rtol=1.3e-6, atol=1e-5)  # float32's own

    model.zero_grad()
    out = model.double()(batch_of())
    torch.testing.assert_close(out.loss, truth)
    out.loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])
    weights = {name.removeprefix("elmo."): p for name, p in model.named_parameters()}
    hidden = model.elmo(batch_of(), output_hidden_states=True).hidden_states
    assert [tuple(layer.shape) for layer in hidden] == [(16, 6)] * 3
    for layer in range(3):
        parts = []
        for ids in SENTENCES:
            forward, backward = elmo_by_hand.states(weights, table()[ids], 2, **by_hand)
            parts.append(torch.cat([forward[layer], backward[layer]], 1))
        torch.testing.assert_close(hidden[layer], torch.cat(parts))


def test_packed_is_one_by_one():
    model = pretraining().double()
    together = model.elmo(batch_of(), output_hidden_states=True).hidden_states
    alone = [model.elmo(batch_of([ids]), output_hidden_states=True).hidden_states for ids in SENTENCES]
    for layer, states in enumerate(together):
        torch.testing.assert_close(states, torch.cat([one[layer] for one in alone]))
    sentences, counts = SENTENCES[:3], [4, 1, 7]
    losses = [float(model(batch_of([ids])).loss.detach()) for ids in sentences]
    mean = sum(n * one for n, one in zip(counts, losses, strict=True)) / sum(counts)
    assert float(model(batch_of(sentences)).loss.detach()) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("clip", [None, 3.0])
@pytest.mark.parametrize("place", range(8))
def test_no_direction_sees_what_it_predicts(place, clip):
    """Changing a token moves neither the forward states before it nor the backward ones after it: those that predict
    it and everything on the other side; and it moves its own and all on this side."""
    # In float64, whose rounding, which may depend on where operands lie in memory, is far below any movement.
    model = pretraining(lstm_cell_clip=clip).double()
    ids = SENTENCES[2]
    changed = [*ids[:place], 4, *ids[place + 1 :]]
    # A neighbour on each side, whose states must not move at all.
    one = model.elmo.states(batch_of([[2, 5, 3], ids, [2, 6, 3]]))
    two = model.elmo.states(batch_of([[2, 5, 3], changed, [2, 6, 3]]))
    for layer in range(3):
        forward = ((one[0][layer] - two[0][layer]).abs() > 1e-10).any(1).tolist()
        backward = ((one[1][layer] - two[1][layer]).abs() > 1e-10).any(1).tolist()
        numbers = range(len(ids))
        if layer:
            own = [n >= place for n in numbers], [n <= place for n in numbers]
        else:
            own = ([n == place for n in numbers],) * 2
        assert forward == [False] * 3 + own[0] + [False] * 3
        assert backward == [False] * 3 + own[1] + [False] * 3


def test_logits_are_of_the_labels_of_causal_batches():
    model = pretraining()
    batch = batch_of()
    places = torch.tensor([0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13])
    labelled = PackedBatch.from_sequences(SENTENCES, mlm_positions=places, mlm_labels=batch.input_ids[places + 1])
    one, two = model(batch), model(labelled)
    torch.testing.assert_close(one.loss, two.loss, rtol=0, atol=0)
    states = model.elmo.states(batch)[0][-1]
    torch.testing.assert_close(two.mlm_logits, model.decoder(states[places]))
    masked = PackedBatch.from_sequences(SENTENCES, mlm_positions=places, mlm_labels=batch.input_ids[places])
    with pytest.raises(InputError, match="need the objective causal"):
        model(masked)


def test_words_outside_the_vocabulary_are_read_by_their_characters():
    model = pretraining().elmo
    batch, out = model.of_words([["a", "river"], ["café"]], output_hidden_states=True)
    known = model(batch_of([[2, 5, 7, 3], [2, 9, 3]]), output_hidden_states=True)
    assert batch.cu_seqlens.tolist() == [0, 4, 7]
    for one, two in zip(out.hidden_states, known.hidden_states, strict=True):
        torch.testing.assert_close(one, two)
    rivers = model.of_words([["a", "rivers"]])[1].last_hidden_state
    assert not torch.allclose(rivers[2], out.last_hidden_state[2])
    for text in ("a river", ["a river"], [["a"], "river"]):
        with pytest.raises(InputError, match=r"sentences must be lists of words, one a sentence, got .*river"):
            model.of_words(text)


def test_empty_batches_and_bad_ones():
    model = pretraining()
    assert model.elmo(batch_of([[]])).last_hidden_state.shape == (0, 6)
    with pytest.raises(InputError, match="takes a PackedBatch, got Tensor"):
        model(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match=r"input_ids must be between 0 and 10 \(the vocabulary has 11\), got 11"):
        model(batch_of([[2, 11, 3]]))
    with pytest.raises(InputError, match=r"characters must be \(T, W\)"):
        model.elmo(batch_of([[2, 3]]), characters=torch.zeros(2, 3, dtype=torch.int64))


def test_a_sentence_of_one_token_has_no_loss():
    model = pretraining()
    both = model(batch_of([[2, 5, 7, 3], [5], [7]]))
    assert both.loss.item() == pytest.approx(model(batch_of([[2, 5, 7, 3]])).loss.item(), rel=1e-6)
    for sentences in ([[5], [7]], [[5]], [[]]):
        with pytest.raises(InputError, match=f"at least two tokens, got {len(sentences)} of one or none: there is no"):
            model(batch_of(sentences))


def test_new_gates_remember_and_carry():
    """Of an LSTM the gates that forget begin open, in torch's order input, forget, cell, output; those of a highway at
    -2, so that most of x goes through."""
    model = ElmoForPreTraining(config())
    for layer in (*model.elmo.encoder.forward_layers, *model.elmo.encoder.backward_layers):
        gates = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().view(4, -1)
        assert torch.equal(gates, torch.tensor([0.0, 1.0, 0.0, 0.0])[:, None].expand_as(gates))
    for highway in model.elmo.embeddings.cnn.highways:
        assert set(highway.gate.bias.tolist()) == {-2.0}


def test_dropout_is_each_directions_own_and_repeatable():
    model = pretraining(hidden_dropout_prob=0.5).train()
    with rng.use(rng.DropoutKey(3, 1)):
        one, two = model(batch_of()).loss, model(batch_of()).loss
    with rng.use(rng.DropoutKey(3, 2)):
        other = model(batch_of()).loss
    assert one == two != other
    key, x, encoder = rng.DropoutKey(3, 1), torch.ones(50, 6), model.elmo.encoder
    masks = [encoder.dropout(x, number, side, key) for number in range(3) for side in range(2)]
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6
    # A pass drops at the input of each layer and after the last, and takes no place twice.
    key = Watched(3, 1)
    with rng.use(key):
        model(batch_of())
    assert len(set(key.asked)) == len(key.asked) == 2 * (model.config.num_hidden_layers + 1)
    assert model.eval()(batch_of()).loss == model(batch_of()).loss


def test_activation_checkpointing_gives_the_same_gradients():
    gradients = []
    for on in (False, True):
        model = pretraining(hidden_dropout_prob=0.3).train()
        if on:
            model.gradient_checkpointing_enable()
        with rng.use(rng.DropoutKey(3, 1)):
            model(batch_of()).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("name", "layers", "hidden"), [("elmo-mini", 4, 256), ("elmo-4x512", 4, 512), ("elmo-base", 12, 768)]
)
def test_named_sizes_are_those_of_a_bert(name, layers, hidden):
    found = ElmoConfig.from_name(name)
    assert found.hidden_size == hidden
    assert found.lstm_parameters() == pytest.approx(12 * layers * hidden**2, rel=0.01)


def test_parameters_are_counted():
    model = pretraining(num_hidden_layers=3)
    assert sum(p.numel() for p in model.elmo.parameters()) == model.config.num_parameters()
    assert model.num_parameters() == model.config.num_parameters() + 3 * len(VOCABULARY) + len(VOCABULARY)
    words = sum(p.numel() for p in model.elmo.embeddings.parameters())
    assert model.num_parameters(exclude_embeddings=True) == model.num_parameters() - words


def test_the_published_model_has_the_papers_93_6_million():
    """Published as 93.6 million parameters, softmax apart, with its 261 characters and one bias a gate."""
    published = ElmoConfig.from_name("elmo")
    assert (published.projection_size, published.num_filters) == (512, 2048)
    # torch has two biases a gate: one of them is taken off.
    assert published.num_parameters() - 2 * 2 * 4 * 4096 == pytest.approx(93.6e6, rel=5e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 7}, "hidden_size must be even"),
        ({"lstm_size": 3}, "half of it below lstm_size"),
        ({"character_filters": [[1]]}, "character_filters must be pairs"),
        ({"character_filters": [[13, 1]]}, "at most max_characters 12 wide, got 13"),
        ({"num_highway_layers": -1}, "num_highway_layers must be an integer"),
        ({"lstm_cell_clip": 0.0}, "lstm_cell_clip must be a number"),
        ({"num_characters": 200}, "num_characters must be at least 261"),
        ({"vocab_size": 0}, "vocab_size must be an integer"),
        ({"pad_token_id": 99}, "pad_token_id must be an id below"),
        ({"model_type": "bert"}, "model_type must be 'elmo'"),
    ],
)
def test_sizes_that_do_not_fit(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_table_of_another_vocabulary_is_refused():
    other = config()
    other.characters = torch.cat([table(), table()])
    with pytest.raises(InputError, match=r"characters must be \(11, 12\)"):
        ElmoModel(other)


def test_steps_are_torchs_lstm():
    """Which computes the layer on a GPU: states and gradients."""
    torch.manual_seed(0)
    layer = ProjectedLSTM(4, 7, 3).double()
    lengths = [3, 0, 6, 1, 6]
    order = Order(torch.tensor([0, 3, 3, 9, 10, 16], dtype=torch.int32), backwards=False)
    x = torch.randn(16, 4, dtype=torch.float64)
    ours = layer(x, order)
    parts = [part for part in x.split(lengths) if len(part)]
    theirs = torch.cat([torch.nn.LSTM.forward(layer, part)[0] for part in parts])
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    one = torch.autograd.grad((ours * weights).sum(), list(layer.parameters()))
    two = torch.autograd.grad((theirs * weights).sum(), list(layer.parameters()))
    torch.testing.assert_close(one, two)
    assert torch.equal(order.tokens, order.places.argsort())
    assert order.batch_sizes.tolist() == [4, 3, 3, 2, 2, 2]
    backwards = Order(torch.tensor([0, 3, 5], dtype=torch.int32), backwards=True)
    assert backwards.tokens.tolist() == [2, 4, 1, 3, 0]
