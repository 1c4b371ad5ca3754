"""The base class of all models: loading, saving, resizing, tying, checkpointing, with the interface of transformers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from typing_extensions import Self

from ..config import BertConfig
from ..errors import CheckpointError, InputError
from ..model_config import ModelConfig, read_config_file
from ..modules.embeddings import SinusoidalEmbedding
from ..modules.quantized_linear import check_trainable
from ..weights.kin import as_bert
from ..weights.loading import LoadReport, canonical_keys, check_unquantized, is_complete, load_into, warnings_held
from ..weights.reading import read_state_dict
from ..weights.saving import same_files, save_directory, tokenizer_files
from .loading_options import check_fields, check_saving_options, without_loading_options


class _WithoutInitialWeights(TorchFunctionMode):
    """Makes torch.nn.init leave parameters uninitialised: drawing them takes ten times as long as reading a file."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


class PreTrainedModel(nn.Module):
    """Base class of the models and of their heads.

    Args:
        config: a `BertConfig`, or any object with the fields of transformers' BertConfig; of another kind of model, its
            own configuration.
    """

    config: ModelConfig
    config_class: type[ModelConfig] = BertConfig
    base_model_prefix = "bert"
    # Prefixes of the base model's parts, which every file must have, whatever head it was saved with.
    trunk: ClassVar[tuple[str, ...]] = ("embeddings.", "encoder.")
    supports_gradient_checkpointing = True
    takes_packed_batches = True
    # Tells transformers' Trainer that a loss is the mean over its own batch, whatever else a step accumulates.
    accepts_loss_kwargs = False
    _no_split_modules: ClassVar[list[str]] = ["BertEmbeddings", "BertLayer"]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = self.config_class.from_hf(config)
        # Where the tokenizer's files are, so that save_pretrained can write them beside the weights.
        self.tokenizer_source: Path | None = None
        # What from_pretrained found and did not find: commands refuse to use a model whose head is random.
        self.load_report: LoadReport | None = None
        # Names of parameters that were neither loaded nor trained: save_pretrained leaves them out.
        self.untrained: frozenset[str] = frozenset()

    def train(self, mode: bool = True) -> Self:
        """Sets the mode. Raises InputError for training with int8 weights; the model is unchanged then."""
        check_trainable(self, mode)
        return super().train(mode)

    def post_init(self) -> None:
        """Initialises the weights as BERT does and ties the decoder to the word embeddings."""
        self.apply(self._init_weights)
        self.tie_weights()

    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding) and module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    @property
    def architecture(self) -> str:
        """The class named in config.json, by which other libraries recognise the model."""
        return type(self).__name__

    @classmethod
    def from_config(cls, config: ModelConfig, **kwargs: Any) -> Self:
        """A model with new weights, in training mode; the name that transformers' Auto classes have for it.

        Args:
            config: a configuration of the class's kind.
            kwargs: of the constructor, such as ``add_pooling_layer``.

        Raises:
            InputError: the configuration is of another kind of model.
        """
        return cls(config, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | os.PathLike[str],
        *,
        dtype: torch.dtype | str | None = None,
        config: ModelConfig | None = None,
        ignore_mismatched_sizes: bool = False,
        **overrides: Any,
    ) -> Self:
        """Reads a model directory in Hugging Face's form: config.json and weights.

        Args:
            directory: holds config.json and model.safetensors (in shards, too) or pytorch_model.bin; or
                bert_config.json and a TensorFlow checkpoint. Nothing is downloaded, so a name on a hub is not enough.
            dtype: of the parameters: float32 by default, "auto" for that of the file. ``torch_dtype`` is the same.
            config: in place of the directory's config.json.
            ignore_mismatched_sizes: whether a head of another size than the directory's, as for a task with other
                labels, may start with new weights; embeddings and encoder have to fit in any case.
            overrides: fields of the configuration (``num_labels=3``), or ``add_pooling_layer``. Options of
                transformers' loading that change nothing here are ignored; unknown names are refused.

        Returns:
            the model in evaluation mode. A head that the directory lacks gets new weights, and a warning says so.

        Raises:
            InputError: the configuration does not fit, or an option is unknown.
            CheckpointError: weights are missing, damaged or of another shape.
        """
        init = {name: overrides.pop(name) for name in ("add_pooling_layer",) if name in overrides}
        dtype = overrides.pop("torch_dtype", None) if dtype is None else dtype
        overrides = without_loading_options(overrides)
        if config is None:
            check_fields(overrides, cls.config_class, read_config_file(directory)[1])
            config = cls.config_class.from_pretrained(directory, **overrides)
        else:
            config = cls.config_class.from_hf(config)
            check_fields(overrides, cls.config_class, config.to_dict())
            config = cls.config_class.from_dict(config.to_dict(), **overrides) if overrides else config
        check_unquantized(config, directory)
        state = cls.tensors_from_file(as_bert(read_state_dict(directory), Path(directory)))
        _check_size(config, state, directory)
        names = {"prefix": cls.base_model_prefix, "trunk": cls.trunk}
        with _WithoutInitialWeights():
            model = cls(config, **init)
        if not is_complete(model, state, **names):
            model = cls(config, **init)
        # Also if none was given: the modules have torch's default dtype, which the program may have changed.
        model.to(_dtype_of(dtype, state))
        model.load_report = load_into(
            model, state, ignore_mismatched_sizes=ignore_mismatched_sizes, source=directory, **names
        )
        for module in model.modules():
            if isinstance(module, SinusoidalEmbedding):  # the file's table may be one of learned positions
                module.reset()
        model.tie_weights()
        model.tokenizer_source = Path(directory).absolute()  # the program may change its working directory
        return model.eval()

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        **options: Any,
    ) -> Path:
        """Writes config.json, model.safetensors and the tokenizer's files; transformers can load the directory.

        The tokenizer is that of the directory that the model was read from. If the new directory has the same tokenizer
        with added tokens, as transformers' ``tokenizer.save_pretrained`` writes them, that is kept.

        Args:
            directory: made if it does not exist.
            is_main_process: False writes nothing, for all but one of several processes.
            state_dict: tensors to write in place of the model's own, such as those gathered from sharded training.
            options: those of transformers' saving that change nothing here are ignored.

        Returns:
            the directory.

        Raises:
            InputError: an option has a value that is not supported.
            CheckpointError: a file cannot be written.
        """
        check_saving_options(options)
        if is_main_process:
            if self.untrained:
                state = self.state_dict(keep_vars=True) if state_dict is None else state_dict
                state_dict = {name: tensor for name, tensor in state.items() if name not in self.untrained}
            source = None if self._has_more_tokens(Path(directory)) else self.tokenizer_source
            save_directory(self, directory, self.config.to_dict(), source, state=state_dict)
        return Path(directory)

    def _has_more_tokens(self, directory: Path) -> bool:
        """Whether a directory has the tokenizer that the model was read with, and tokens that were added to it."""
        there, known = tokenizer_files(directory), tokenizer_files(self.tokenizer_source)
        if not (there and known) or same_files(there, known):  # reading a large tokenizer takes seconds
            return False
        from ..data.tokenizer import is_extended  # the library of tokenizers is slow to import

        with warnings_held():  # of the source they were shown when the model was read
            return is_extended(directory, self.tokenizer_source, self.config.vocab_size)

    @classmethod
    def tensors_from_file(cls, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of a file under the names, and in the shapes, that our modules have."""
        return canonical_keys(state, cls.base_model_prefix)

    @classmethod
    def tensors_to_file(cls, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that `save_pretrained` writes for those of ``state_dict``: the inverse of `tensors_from_file`."""
        return state

    def _wants(self, name: str, given: bool | None) -> bool:
        """An option of a call, such as ``output_hidden_states``: as given, or for None as the configuration has it."""
        return bool(getattr(self.config, name) if given is None else given)

    def _as_asked(self, output, return_dict: bool | None):
        """The output object, or its tuple if ``return_dict``, or without it the configuration, says so."""
        return output if self._wants("return_dict", return_dict) else output.to_tuple()

    @property
    def base_model(self) -> nn.Module:
        """The model below the head; the model itself if it has no head."""
        return getattr(self, self.base_model_prefix, self)

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next(self._tensors()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first floating-point parameter."""
        return next(p.dtype for p in self._tensors() if p.is_floating_point())

    def _tensors(self) -> Iterator[torch.Tensor]:
        """The parameters; in a copy that DataParallel made, the tensors in their place, which are attributes."""
        yield from self.parameters()
        for module in self.modules():
            if getattr(module, "_is_replica", False):
                yield from (x for x in vars(module).values() if isinstance(x, torch.Tensor))

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of parameters (numbers, not tensors); tied ones count once.

        Args:
            only_trainable: leaves out those that require no gradient.
            exclude_embeddings: leaves out all tables of embeddings (words, positions, token types), and what is tied
                to them, as transformers does.
        """
        tables = [self.get_input_embeddings(), *(m for m in self.modules() if isinstance(m, nn.Embedding))]
        embeddings = {id(p) for table in tables for p in table.parameters()} if exclude_embeddings else set()
        chosen = (p for p in self.parameters() if id(p) not in embeddings)
        return sum(p.numel() for p in chosen if p.requires_grad or not only_trainable)

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings, weight (V, H)."""
        return getattr(*self._word_embeddings())

    def set_input_embeddings(self, embeddings: nn.Embedding) -> None:
        """Replaces the word embeddings, weight (V, H), and ties the decoder to them (`tie_weights`).

        If a tied model, or one without a decoder, gets another number of rows, ``config.vocab_size`` and the decoder's
        bias follow; new biases are 0, as in transformers.
        """
        setattr(*self._word_embeddings(), embeddings)
        rows = getattr(embeddings, "num_embeddings", self.config.vocab_size)
        if rows != self.config.vocab_size and (self.config.tie_word_embeddings or self.get_output_embeddings() is None):
            self.config.vocab_size = self.base_model.config.vocab_size = rows
            owner = self._decoder_owner()
            if owner is not None:
                bias = nn.functional.pad(owner.bias.detach(), (0, rows - len(owner.bias)))
                owner.bias = nn.Parameter(bias, owner.bias.requires_grad)
        self.tie_weights()

    def _word_embeddings(self) -> tuple[nn.Module, str]:
        """The module that holds the word embeddings, and their name in it."""
        return self.base_model.embeddings, "word_embeddings"

    def _decoder_owner(self) -> nn.Module | None:
        """The masked-LM head; None if the model has none."""
        return getattr(getattr(self, "cls", None), "predictions", None)

    def get_output_embeddings(self) -> nn.Linear | None:
        """The layer that computes the vocabulary's logits, weight (V, H); None if the model has none."""
        owner = self._decoder_owner()
        return None if owner is None else owner.decoder

    def set_output_embeddings(self, decoder: nn.Linear) -> None:
        """Replaces the layer that computes the vocabulary's logits, weight (V, H) and bias (V,).

        Raises:
            InputError: the model has no such layer.
        """
        owner = self._decoder_owner()
        if owner is None:
            raise InputError(f"{type(self).__name__} has no output embeddings")
        owner.decoder = decoder
        owner.bias = decoder.bias

    def tie_weights(self, *_args, **_kwargs: Any) -> None:
        """Makes the decoder share the word embeddings' weight, if the configuration says so."""
        owner = self._decoder_owner()
        if owner is None:
            return
        if self.config.tie_word_embeddings:
            owner.decoder.weight = self.get_input_embeddings().weight
        owner.decoder.bias = owner.bias

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, **_kwargs: Any
    ) -> nn.Embedding:
        """Changes the size of the vocabulary; old rows are kept, new ones are initialised like a new model's.

        ``config.vocab_size`` and the decoder are changed too.

        Args:
            new_num_tokens: the new number of rows; None keeps it.
            pad_to_multiple_of: rounds the number up to a multiple of this.

        Returns:
            the word embeddings, weight (rows, H): a new module if the size has changed, which an existing optimiser
            does not know. What was frozen stays frozen.

        Raises:
            InputError: a number is below 1.
        """
        old = self.get_input_embeddings()
        if pad_to_multiple_of is not None:
            if pad_to_multiple_of < 1:
                raise InputError(f"pad_to_multiple_of must be at least 1, got {pad_to_multiple_of}")
            size = old.num_embeddings if new_num_tokens is None else new_num_tokens
            new_num_tokens = -(-size // pad_to_multiple_of) * pad_to_multiple_of
        if new_num_tokens is None or new_num_tokens == old.num_embeddings:
            return old
        if new_num_tokens < 1:
            raise InputError(f"new_num_tokens must be at least 1, got {new_num_tokens}")
        kept = min(new_num_tokens, old.num_embeddings)
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        padding = old.padding_idx if old.padding_idx is not None and old.padding_idx < new_num_tokens else None
        new = nn.Embedding(new_num_tokens, old.embedding_dim, padding_idx=padding, **like)
        self._init_weights(new)
        new.weight.requires_grad_(old.weight.requires_grad)
        owner = self._decoder_owner()
        with torch.no_grad():
            new.weight[:kept] = old.weight[:kept]
            if owner is not None:
                decoder = nn.Linear(old.embedding_dim, new_num_tokens, **like)
                self._init_weights(decoder)
                decoder.weight[:kept] = owner.decoder.weight[:kept]
                decoder.bias[:kept] = owner.decoder.bias[:kept]
                decoder.weight.requires_grad_(owner.decoder.weight.requires_grad)
                decoder.bias.requires_grad_(owner.decoder.bias.requires_grad)
                owner.decoder, owner.bias = decoder, decoder.bias
        setattr(*self._word_embeddings(), new)
        self.config.vocab_size = self.base_model.config.vocab_size = new_num_tokens
        self.tie_weights()
        return new

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **_kwargs: Any) -> None:
        """Keeps only each layer's input for the backward pass and recomputes the rest; the arguments are ignored."""
        self._stack().gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Keeps all activations for the backward pass again."""
        self._stack().gradient_checkpointing = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether training keeps only each layer's input for the backward pass."""
        return self._stack().gradient_checkpointing

    def _stack(self) -> nn.Module:
        """The module that calls the layers one after the other."""
        return self.base_model.encoder

    # transformers has both names.
    activation_checkpointing_enable = gradient_checkpointing_enable
    activation_checkpointing_disable = gradient_checkpointing_disable
    is_activation_checkpointing = is_gradient_checkpointing


def _dtype_of(asked: torch.dtype | str | None, state: Mapping[str, torch.Tensor]) -> torch.dtype:
    """The dtype of the parameters that `from_pretrained` was asked for."""
    if asked is None:
        return torch.float32
    if asked == "auto":
        # The first floating one's: an ELMo's file may begin with its table of characters.
        return next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    named = getattr(torch, asked, None) if isinstance(asked, str) else asked
    if not isinstance(named, torch.dtype):
        raise InputError(f"dtype must be a torch dtype or its name, or 'auto', got {asked!r}")
    return named


def _check_size(config: ModelConfig, state: dict[str, torch.Tensor], source) -> None:
    """Raises CheckpointError for far too few weights, before memory is allocated for the sizes in config.json. If fewer
    are missing, `load_into` names them."""
    held = sum(tensor.numel() for tensor in state.values())
    if config.num_parameters() > 2 * held + 10**7:
        raise CheckpointError(
            f"{source}: expected about {config.num_parameters()} parameters, as its config.json has it, got weights "
            f"of {held}"
        )
