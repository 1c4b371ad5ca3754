"""GPT and GPT-2: decoders of one stack, pre-trained on next words (Radford et al. 2018, section 3.1; 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .. import ops, rng
from ..errors import InputError
from ..gpt_config import GPTConfig
from ..modules import hooks
from ..modules.decoder import GPTBlock
from ..modules.graphs import uncompiled_with_mask
from ..modules.layout import PackedLayout
from ..modules.linear import apply_linear
from ..modules.norm import apply_norm
from ..outputs import BertModelOutput, CausalLMOutput
from ..packing import PackedBatch
from ..rng import EMBEDDING_SITE, DropoutKey
from . import gpt_files
from .bert import Encoded, encoded_by
from .checks import check_tensors
from .inputs import open_tokens
from .pretrained import PreTrainedModel
from .pretraining_heads import check_targets, word_loss


class GPTPreTrainedModel(PreTrainedModel):
    """Base class of `GPTModel` and of the models that add a head to it.

    Args:
        config: a `GPTConfig` or `GPT2Config`, or any object with the fields of transformers' OpenAIGPTConfig or
            GPT2Config.
    """

    config: GPTConfig
    config_class = GPTConfig
    base_model_prefix = gpt_files.PREFIX
    trunk = ("wte.", "wpe.", "tokens_embed.", "positions_embed.", "h.", "ln_f.")
    _no_split_modules: ClassVar[list[str]] = ["GPTBlock"]

    def post_init(self) -> None:
        super().post_init()
        if self.config.pre_norm:
            # "We scale the weights of residual layers at initialization by 1 / sqrt(N)" (Radford et al. 2019, 2.3).
            with torch.no_grad():
                for name, weight in self.named_parameters():
                    if name.endswith("c_proj.weight"):
                        nn.init.normal_(weight, std=self.config.initializer_range / (2 * self.config.n_layer) ** 0.5)

    @classmethod
    def tensors_from_file(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file under the names, and in the shapes, that our modules have."""
        return gpt_files.from_file(state)

    @classmethod
    def tensors_to_file(cls, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `tensors_from_file`: the tensors that `save_pretrained` writes for those of ``state_dict``."""
        return gpt_files.to_file(state)

    def _word_embeddings(self) -> tuple[nn.Module, str]:
        return self.base_model, self.base_model.names[0]

    def _stack(self) -> nn.Module:
        return self.base_model

    def get_output_embeddings(self) -> nn.Linear | None:
        return getattr(self, "lm_head", None)

    def set_output_embeddings(self, decoder: nn.Linear) -> None:
        if not hasattr(self, "lm_head"):
            raise InputError(f"{type(self).__name__} has no output embeddings")
        self.lm_head = decoder

    def tie_weights(self, *_args, **_kwargs: Any) -> None:
        """Makes the language-model head share the word embeddings' weight, if the configuration says so."""
        head, words = self.get_output_embeddings(), self.get_input_embeddings()
        if head is None:
            return
        if self.config.tie_word_embeddings:
            head.weight = words.weight
        elif head.out_features != words.num_embeddings:  # the vocabulary has grown: old rows are kept
            new = nn.Linear(head.in_features, words.num_embeddings, bias=False)
            new.to(head.weight)
            self._init_weights(new)
            with torch.no_grad():
                kept = min(head.out_features, words.num_embeddings)
                new.weight[:kept] = head.weight[:kept]
            new.weight.requires_grad_(head.weight.requires_grad)
            self.lm_head = new
        self.lm_head.out_features = words.num_embeddings


class GPTModel(GPTPreTrainedModel):
    """The decoder with its embeddings.

    Args:
        config: a `GPTConfig` for layers that normalise after each branch, a `GPT2Config` for those that do before.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        config = self.config
        # Word and position embeddings go by other names in transformers' two classes.
        self.names = ("wte", "wpe") if config.pre_norm else ("tokens_embed", "positions_embed")
        self.add_module(self.names[0], nn.Embedding(config.vocab_size, config.n_embd))
        self.add_module(self.names[1], nn.Embedding(config.n_positions, config.n_embd))
        self.h = nn.ModuleList(GPTBlock(config, index) for index in range(config.n_layer))
        if config.pre_norm:
            self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False
        self.post_init()

    @uncompiled_with_mask
    def encode(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        **unknown: Any,
    ) -> Encoded:
        """Computes what `forward` does, but leaves it packed, for heads. Takes the arguments of `forward`."""
        if unknown:
            raise InputError(f"unknown argument of the model: {', '.join(sorted(unknown))}")
        hooks.look_for_replaced()
        config = self.config
        key = rng.current() if self.training else None
        keep_states = self._wants("output_hidden_states", output_hidden_states)
        tokens = open_tokens(
            config, key, input_ids, inputs_embeds, attention_mask, None, position_ids, cu_seqlens, max_seqlen
        )
        hidden = self.embed(tokens.input_ids, tokens.position_ids, key, tokens.inputs_embeds)
        hidden, states = self.run(hidden, tokens.layout, key, tokens.shape.show if keep_states else None)
        return Encoded(tokens, hidden, None, tuple(states) if states else None, None)

    def embed(
        self,
        input_ids: Tensor | None,
        position_ids: Tensor,
        key: DropoutKey | None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """dropout(word + position), (T,) -> (T, H). There is no LayerNorm, so `ops.embedding` cannot be used."""
        words, positions = (getattr(self, name) for name in self.names)
        x = words(input_ids) if inputs_embeds is None else inputs_embeds
        x = x + positions(position_ids)
        return ops.dropout(x, key.site(self.config.embd_pdrop, EMBEDDING_SITE) if key else None)

    def run(
        self,
        x: Tensor,
        layout: PackedLayout,
        key: DropoutKey | None,
        show: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Applies the layers to tokens (T, H).

        Args:
            show: as in `BertEncoder.run`; None keeps no states.

        Returns:
            the last hidden state (T, H), normalised in a GPT-2; and every hidden state as ``show`` makes it, the input
            first, or None.
        """
        states = []
        if show is not None:
            shown, x = show(x)
            states.append(shown)
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for index, block in enumerate(self.h):
            moved = () if getattr(block, "index", index) == index else (index,)
            if recompute:
                x = ops.checkpoint(block, x, layout, key, *moved)
            else:
                x = block(x, layout, key, *moved)
            if index == len(self.h) - 1 and self.config.pre_norm:
                x = apply_norm(self.ln_f, x)
            if show is not None:
                shown, x = show(x)
                states.append(shown)
        return x, states or None

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        return_dict: bool | None = None,
        encoded: list[Encoded] | None = None,
        **options: Any,
    ) -> BertModelOutput | tuple[Any, ...]:
        """Encodes a batch from left to right; no pad token is computed.

        Args:
            input_ids: (B, S) int64; or (T,) or (1, T) with ``cu_seqlens``; or a `PackedBatch` and nothing else, whose
                token types are ignored.
            attention_mask: (B, S), non-zero = keep; it may have holes or left padding; or 4-D, as in `BertModel`.
            position_ids: in the shape of input_ids; by default the column of each token, whatever the mask says.
            options: ``inputs_embeds`` (B, S, H) in place of input_ids; ``output_hidden_states``; ``cu_seqlens`` (B+1,)
                and ``max_seqlen`` for packed tokens.
            return_dict: False returns a tuple, as in transformers; None does what the configuration says.
            encoded: for the heads: a list to which the result of `encode` is added (`encoded_by`).

        Returns:
            ``last_hidden_state`` (B, S, H), zeros at masked tokens, or (T, H) or (1, T, H) for packed tokens; if asked
            for, ``hidden_states``, the embeddings and then each layer's states.

        Raises:
            InputError: an id is outside its table, a sequence is longer than n_positions, or shapes do not fit.
        """
        made = self.encode(input_ids, attention_mask, position_ids, **options)
        if encoded is not None:
            encoded.append(made)
        hidden = made.tokens.unpack(made.hidden)
        output = BertModelOutput(last_hidden_state=hidden, hidden_states=made.hidden_states)
        return self._as_asked(output, return_dict)


class GPTForPreTraining(GPTPreTrainedModel):
    """The decoder and its language-model head, whose weight (V, H) is the word embedding's unless the configuration
    says otherwise (``tie_word_embeddings``).

    Args:
        config: a `GPTConfig` or a `GPT2Config`, as for `GPTModel`.

    Raises:
        InputError: the configuration is of another kind of model.

    Ref:
        Radford et al. 2018, section 3.1; Radford et al. 2019, section 2.3.

    ``last_layer`` is an option of BERT's pre-training and has no effect here: all tokens of a sequence but one have a
    next token, so the last layer is computed for all of them.
    """

    last_layer = "all"
    next_sentence = False

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.transformer = GPTModel(self.config)
        self.lm_head = nn.Linear(self.config.n_embd, self.config.vocab_size, bias=False)
        self.post_init()

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder's layers."""
        return self.transformer.h

    @property
    def architecture(self) -> str:
        """The class named in config.json, by which other libraries recognise the model: transformers'."""
        return "GPT2LMHeadModel" if self.config.pre_norm else "OpenAIGPTLMHeadModel"

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states (N, H) -> logits of the next token (N, V), in their dtype."""
        return apply_linear(self.lm_head, hidden)

    def forward(
        self,
        input_ids: Tensor | PackedBatch | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        output_logits: bool | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> CausalLMOutput | tuple[Any, ...]:
        """Inputs are those of `GPTModel.forward`.

        Args:
            labels: int64 in the shape of input_ids, usually input_ids themselves, as in transformers: the logits at a
                token are compared with the label of the next token of its sequence; -100 = not predicted. Masked tokens
                predict nothing. A `PackedBatch` holds its own labels, at ``mlm_positions``.
            output_logits: True computes ``logits`` even if there are labels.

        Returns:
            ``loss`` = ``mlm_loss``: (), the mean next-word cross-entropy; ``mlm_logits``: (N, V) at the labelled
            tokens; ``logits``: (B, S, V) or (T, V), zeros at masked tokens, without labels or if asked for.

        Raises:
            InputError: inputs or labels do not fit.
        """
        check_targets(input_ids)
        encoded = encoded_by(self.transformer, input_ids, attention_mask, position_ids, **options)
        following = None
        if labels is not None:
            check_tensors(labels=labels)
            following = torch.full_like(labels, -100)
            following[..., :-1] = labels[..., 1:]
            tokens = encoded.tokens
            following = tokens.pack(following)
            if tokens.shape.packing is None:  # packed: the token after a sequence's last one is not of that sequence
                last = tokens.cu_seqlens[1:][tokens.cu_seqlens.diff() > 0].long() - 1
                following = following.index_fill(0, last, -100)
        loss, at_labels, logits = word_loss(
            self.logits, self.lm_head.out_features, encoded, following, input_ids, output_logits
        )
        output = CausalLMOutput(loss, logits, encoded.hidden_states, None, at_labels, loss)
        return self._as_asked(output, return_dict)

    def generate(
        self,
        prompts: Tensor | Sequence[Sequence[int]],
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor | list[list[int]]:
        """Continues prompts, greedily or by sampling.

        Args:
            prompts: (B, S) int64, or ragged sequences of ids.
            attention_mask: (B, S), non-zero = keep, for prompts with padding.
            options: ``max_new_tokens``, ``do_sample``, ``temperature``, ``top_k``, ``top_p``, ``seed``,
                ``eos_token_id``, ``pad_token_id``, ``use_cache``, as in `fastbert.models.generation.generate`.

        Returns:
            for a tensor (B, S + new) int64, the prompts first; for sequences a list of ids for each prompt.

        Raises:
            InputError: a prompt is empty, an option is out of range, or the model has too few positions.
        """
        from .generation import generate

        return generate(self, prompts, attention_mask, **options)
