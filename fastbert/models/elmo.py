"""ELMo (Peters et al. 2018): two language models of LSTM layers, one in each direction, over words read as characters.

Both directions share the vectors of words and the softmax layer (section 3.1). A token's hidden state in a layer is
the concatenation of both directions' states, each of which has read the token itself: the forward one everything up to
it, the backward one everything from it on. A token is therefore predicted from the forward state of the token before it
and from the backward state of the token after it, neither of which has seen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import ops, rng
from ..data.characters import characters_of_sentences
from ..elmo_config import ElmoConfig
from ..errors import InputError
from ..modules.bilm import ProjectedLSTM
from ..modules.character_cnn import CharacterCNN, Highway
from ..modules.elmo import ElmoEmbeddings, ElmoEncoder
from ..modules.linear import apply_linear
from ..outputs import BertModelOutput, PreTrainingOutput
from ..packing import PackedBatch, cu_seqlens_from_lengths
from .checks import check_range
from .pretrained import PreTrainedModel


class ElmoPreTrainedModel(PreTrainedModel):
    """Base class of `ElmoModel` and `ElmoForPreTraining`: their configuration and first weights."""

    config: ElmoConfig
    config_class = ElmoConfig
    base_model_prefix = "elmo"
    _no_split_modules: ClassVar[list[str]] = ["ElmoEmbeddings", "ProjectedLSTM"]
    # A step reads lengths on the host, so it cannot be captured in a CUDA graph.
    fixed_shapes = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Scales every matrix by the number of its inputs, so that signals keep their size in models of any size."""
        if isinstance(module, CharacterCNN):
            nn.init.uniform_(module.embeddings.weight, -1.0, 1.0)
            for convolution in module.convolutions:
                convolution.weight.normal_(0.0, convolution.weight[0].numel() ** -0.5)
                convolution.bias.zero_()
            _start(module.projection)
        elif isinstance(module, Highway):
            module.reset_parameters(module.gate.in_features**-0.5)
        elif isinstance(module, ProjectedLSTM):
            _start_lstm(module)

    def get_input_embeddings(self) -> nn.Module:
        """The module that computes words' vectors from characters; it has no table with a row per word."""
        return self.base_model.embeddings

    def resize_token_embeddings(self, *_args, **_kwargs: Any) -> nn.Module:
        """Raises InputError: the vocabulary is a table of characters, which cannot be resized."""
        raise InputError("an ELMo's vocabulary is its table of characters: make a new model from another tokenizer")


class ElmoModel(ElmoPreTrainedModel):
    """The two language models without their softmax layer.

    Args:
        config: sizes, and the characters of the vocabulary (`fastbert.data.characters.character_table`), which are
            also part of the weights.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.embeddings = ElmoEmbeddings(self.config)
        self.encoder = ElmoEncoder(self.config)
        self.post_init()

    def states(
        self, batch: PackedBatch, characters: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor], rng.DropoutKey | None]:
        """The states (T, P) of every layer, the words' vectors first, of the forward and of the backward direction; and
        the dropout key."""
        _check_batch(batch, characters, self.config)
        key = rng.current() if self.training else None
        x = self.embeddings(batch.input_ids, characters)
        return *self.encoder(x, batch.cu_seqlens, key), key

    def forward(
        self,
        batch: PackedBatch,
        *,
        characters: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BertModelOutput | tuple[Any, ...]:
        """Encodes a batch.

        Args:
            batch: packed; its positions and segments are not read.
            characters: (T, W) of words that need not be of the vocabulary, in place of ``batch.input_ids``
                (`of_words`).
            output_hidden_states: whether every layer's states are returned, not only the last one's.

        Returns:
            ``last_hidden_state`` (T, H); ``hidden_states``, L+1 of them, of which the first has the words' vectors
            twice, so that all can be mixed (section 3.2).

        Raises:
            InputError: not a packed batch, or an id or characters that do not fit.
        """
        forward, backward, _ = self.states(batch, characters)
        keep = self._wants("output_hidden_states", output_hidden_states)
        both = [torch.cat(pair, 1) for pair in zip(forward, backward, strict=True)][0 if keep else -1 :]
        output = BertModelOutput(last_hidden_state=both[-1], hidden_states=tuple(both) if keep else None)
        return self._as_asked(output, return_dict)

    def of_words(self, sentences: Sequence[Sequence[str]], **options: Any) -> tuple[PackedBatch, BertModelOutput]:
        """Encodes whole words, whether a vocabulary has them or not, by their characters.

        Args:
            sentences: lists of words; marks for the start and the end of a sentence are added.
            options: those of `forward`.

        Returns:
            the batch, whose ids have no meaning, and its output.

        Raises:
            InputError: a sentence is a string and not a list of words.
        """
        if any(isinstance(sentence, str) for sentence in (sentences, *sentences)):
            raise InputError(f"sentences must be lists of words, one a sentence, got {sentences!r:.100}")
        characters, lengths = characters_of_sentences(sentences, self.config.max_characters)
        ids = torch.zeros(len(characters), dtype=torch.int64)
        bounds = cu_seqlens_from_lengths(torch.from_numpy(lengths))
        longest = int(lengths.max()) if len(lengths) else 0
        batch = PackedBatch(ids, ids, ids, bounds, longest).to(self.device)
        return batch, self(batch, characters=torch.from_numpy(characters).to(self.device), **options)


class ElmoForPreTraining(ElmoPreTrainedModel):
    """Both language models with the softmax layer that they share, (V, P) for projections of P.

    Args:
        config: an `ElmoConfig`, as for `ElmoModel`.

    Raises:
        InputError: the configuration is of another kind of model.

    Ref:
        Peters et al. 2018, section 3.1.

    ``last_layer`` is there for the trainer and changes nothing: every token is predicted.
    """

    last_layer = "all"
    next_sentence = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(self.config)
        self.decoder = nn.Linear(self.config.projection_size, self.config.vocab_size)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.decoder:
            _start(module)

    @property
    def layers(self) -> nn.ModuleList:
        """The layers of the forward direction, for callers that look at one direction."""
        return self.elmo.encoder.forward_layers

    def get_output_embeddings(self) -> nn.Linear:
        """The softmax layer, weight (V, P)."""
        return self.decoder

    def forward(self, batch: PackedBatch, *, return_dict: bool | None = None) -> PreTrainingOutput | tuple[Any, ...]:
        """The losses of both directions.

        Args:
            batch: packed and not masked. ``mlm_positions`` are the indices of the tokens that have a next token and
                ``mlm_labels`` those next tokens (objective "causal"); None computes them.

        Returns:
            ``loss`` = ``mlm_loss``, the mean of both directions' cross-entropy in nats; ``mlm_logits`` (N, V) of the
            forward direction for ``mlm_labels``. The backward direction predicts the token at each of the N places from
            the state of the next token. Sentences of one token have nothing to predict and are left out. If the batch
            gives N = 0 places, the mean is 0/0, NaN.

        Raises:
            InputError: labels that are not the next tokens, or none given and no sentence of two tokens.
        """
        forward, backward, key = self.elmo.states(batch)
        places = _places_with_next(batch)
        labels = batch.input_ids.index_select(0, places + 1)
        _check_next(labels, batch.mlm_labels)
        encoder, last = self.elmo.encoder, self.config.num_hidden_layers
        logits = []
        for side, (states, rows) in enumerate(((forward[-1], places), (backward[-1], places + 1))):
            logits.append(apply_linear(self.decoder, encoder.dropout(states, last, side, key).index_select(0, rows)))
        before = batch.input_ids.index_select(0, places)
        loss = (ops.cross_entropy(logits[0], labels) + ops.cross_entropy(logits[1], before)) / 2
        return self._as_asked(PreTrainingOutput(loss=loss, mlm_loss=loss, mlm_logits=logits[0]), return_dict)


def _places_with_next(batch: PackedBatch) -> Tensor:
    """(N,) int64, the indices of the tokens that are not the last of their sequence."""
    if batch.mlm_positions is not None:
        return batch.mlm_positions
    inner = torch.ones(batch.num_tokens, dtype=torch.bool, device=batch.input_ids.device)
    inner[batch.cu_seqlens[1:][batch.cu_seqlens.diff() > 0].long() - 1] = False
    places = inner.nonzero().flatten()
    if not places.numel():
        raise InputError(
            f"expected a sentence of at least two tokens, got {batch.num_sequences} of one or none: there is no next "
            "token to predict"
        )
    return places


def _check_next(labels: Tensor, given: Tensor | None) -> None:
    """Raises InputError for labels that are not the next tokens; like ids, they are not checked on a GPU."""
    if given is not None and labels.device.type == "cpu" and not torch.equal(labels, given):
        raise InputError("an ELMo predicts next tokens, so its batches need the objective causal, got other labels")


def _check_batch(batch: PackedBatch, characters: Tensor | None, config: ElmoConfig) -> None:
    if not isinstance(batch, PackedBatch):
        raise InputError(f"an ELMo takes a PackedBatch, got {type(batch).__name__}")
    if characters is not None:
        widest = max(width for width, _ in config.character_filters)
        if characters.dim() != 2 or characters.shape[0] != batch.num_tokens or characters.shape[1] < widest:
            raise InputError(
                f"characters must be (T, W), W at least {widest}, T {batch.num_tokens}, got {tuple(characters.shape)}"
            )
        check_range("characters", characters, config.num_characters, "num_characters is")
    else:
        check_range("input_ids", batch.input_ids, config.vocab_size, "the vocabulary has")


def _start(linear: nn.Linear) -> None:
    linear.weight.normal_(0.0, linear.in_features**-0.5)
    linear.bias.zero_()


def _start_lstm(layer: ProjectedLSTM) -> None:
    """Initialises an LSTM as torch does, but with forget gates that keep the cell's state."""
    layer.reset_parameters()
    for bias in (layer.bias_ih_l0, layer.bias_hh_l0):
        bias.zero_()
    layer.bias_ih_l0[layer.hidden_size : 2 * layer.hidden_size] = 1.0  # torch's order: input, forget, cell, output
