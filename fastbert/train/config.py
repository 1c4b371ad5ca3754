"""The recipe of a pre-training run, from YAML and to YAML; importable without torch."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Literal

from ..data.config import SampleConfig
from ..errors import InputError
from ..hardware import MOST_PROCESSES
from ..options import check_above_zero, check_at_least_one, check_choices, check_seed, fitted_options
from ..text_files import read_yaml
from .deepspeed_options import DeepSpeedOptions
from .phase_options import MOST, MOST_MICRO_BATCHES, Phase, check_phases

# Options that do not change a run's results: where things are, and how often they are written and reported.
NEUTRAL = {
    "data", "cache", "cache_gb", "verify_data", "out", "save_every", "keep", "async_save", "save_errors", "log_every",
    "stall_minutes", "wandb", "num_workers", "resume",
}  # fmt: skip

# A smaller epsilon is 0 in float32, which would be the divisor in the update of a weight that never had a gradient.
_LEAST_EPS = 1e-37

# With a shorter limit stacks would be written all the time, also while the interpreter's data are inconsistent; more
# than a year overflows the system's timer.
_STALL_MINUTES = (0.001, 366 * 24 * 60)


@dataclass(kw_only=True)
class PretrainConfig:
    """BERT's recipe (Devlin et al. 2019, appendix A.2) with the sizes left to the user."""

    data: str = ""
    """Directory that `fastbert prepare` made, or its address on a file system that fsspec knows (s3://...)."""
    cache: str = ""
    """Directory for downloaded shards, if --data is an address; by default $FASTBERT_CACHE or ~/.cache/fastbert."""
    cache_gb: float = 1000.0
    """The most gigabytes of downloaded shards to keep; beyond that, the least recently used is removed."""
    verify_data: bool = True
    """Check every file of the data against its SHA-256 at the start, about a second per gigabyte; fetched shards are
    checked when they arrive."""
    out: str = ""
    """The run directory: config.yaml, metrics.jsonl, tensorboard/, checkpoints/, model/, report.html, loss.png."""
    model: str = "base"
    """A size (base, large, 4x256, ...) for new weights, or a model directory to continue from. With
    samples.objective causal, a new BERT reads from left to right."""
    position_embedding_type: Literal["absolute", "sinusoidal"] = "absolute"
    """Positions of new weights: learned, or the fixed sinusoids of Vaswani et al. 2017, section 3.5."""
    init: Literal["bert", "small"] = "bert"
    """How new weights are initialised: as BERT's, or so that a small model on a small corpus learns within minutes
    (fastbert.train.initialisation)."""
    token_budget: int = 4096
    """The most tokens in a micro-batch; there is no padding, so all of them are computed."""
    accumulate: int = 1
    """Micro-batches (batches whose gradients are added up) in a step."""
    steps: int | None = None
    """Optimiser steps."""
    epochs: float | None = None
    """Passes over the data, instead of --steps. If no option says how long to train: 40, as in the paper."""
    max_minutes: float | None = None
    """Minutes of training. Without --steps and --epochs the learning rate follows the clock. With one of them, training
    ends with whichever comes first, and the learning rate falls earlier if that will be the clock. A run that the clock
    ended cannot be repeated exactly; one that was fast enough can."""
    lr: float = 1e-4
    """Peak learning rate."""
    schedule: Literal["linear", "poly", "constant"] = "linear"
    """How the learning rate falls after the warm-up."""
    warmup: float = 0.01
    """Share of the training in which the learning rate rises."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """lamb scales Adam's direction tensor by tensor, for large batches."""
    lamb_variant: Literal["nvlamb", "apex", "clamped"] = "nvlamb"
    """nvlamb scales all but biases and LayerNorm, as NVIDIA does; apex scales every tensor; clamped keeps the scale
    within [0.01, 0.3] and has no bias correction, as DeepSpeed does for BERT (fastbert.optim.Lamb)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the moments."""
    eps: float = 1e-6
    """Adam's epsilon."""
    weight_decay: float = 0.01
    """Decoupled weight decay; none on biases and LayerNorm."""
    correct_bias: bool = False
    """Adam's bias correction, which BERT's optimiser leaves out."""
    clip: float = 1.0
    """Largest norm of the gradients; larger ones are scaled down to it."""
    precision: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """bf16 and fp16 multiply in these types and keep fp32 weights; fp16 also scales the loss; fp8 is bf16 with
    8-bit products in the encoder's dense layers (GPUs from Ada and Hopper on)."""
    cuda_graph: Literal["auto", "on", "off"] = "auto"
    """Pad every batch to token_budget tokens and run each step as one captured CUDA graph; auto = if possible. On a
    CPU, on pads the batches, without a graph."""
    deepspeed: str | None = None
    """Train under DeepSpeed with this JSON configuration (docs/distributed.md); "auto" values are filled in."""
    zero: int | None = None
    """Train under DeepSpeed with this stage of ZeRO, 0 to 3; its configuration goes to --out."""
    offload: bool = False
    """With --zero 1, 2 or 3: optimiser state in the CPU's memory, and with 3 parameters too."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass: less memory, a third more arithmetic."""
    last_layer: Literal["needed", "all"] = "needed"
    """The tokens for which the last layer is computed: those that a loss reads, or all. The losses are the same; with
    objective causal the loss reads nearly all of them, and all are computed."""
    dropout: float | None = None
    """Dropout rate everywhere, in place of the model's own."""
    seed: int = 0
    """Seed of new weights and dropout; samples.seed is for pairs, masks and order."""
    eval_every: int = 500
    """Steps between evaluations on the held-out documents."""
    eval_tokens: int = 65536
    """Held-out tokens that an evaluation reads."""
    save_every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints kept besides the best."""
    async_save: bool = False
    """Write checkpoints while training continues, from a copy of weights and moments, for which the process needs
    memory."""
    save_errors: Literal["stop", "continue"] = "stop"
    """If a checkpoint cannot be written, for example because the disk is full: stop = end the run; continue = report it
    and train on. The last checkpoint of a run always has to be written."""
    spike_sigma: float | None = None
    """Skip a step whose loss is more than this many standard deviations above the mean of the last
    spike_window losses."""
    spike_window: int = 100
    """How many losses a spike is compared with."""
    log_every: int = 10
    """Steps between two lines of the log."""
    stall_minutes: float | None = 30.0
    """If no step ends for this long, write the stacks of all threads to stall-RANK.txt in --out; None = never."""
    wandb: str | None = None
    """Also log to this project of Weights & Biases; WANDB_MODE=offline keeps the log on this machine."""
    num_workers: int = 0
    """Processes that prepare batches; 0 prepares them in the training process."""
    resume: str | None = None
    """auto = continue from the newest valid checkpoint of --out, or start anew; or a checkpoint directory. With the
    same kernels and as many threads as before, the run ends with the same bits as one that was never interrupted. What
    differs from before, options too, is reported."""
    samples: SampleConfig = field(default_factory=SampleConfig)
    """How samples are made."""
    phases: tuple[Phase, ...] = ()
    """Phases with their own length, batch and rate (fastbert.train.phase_options); from a recipe or a YAML file."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "token_budget", "accumulate", "steps")
        check_at_least_one(self, "eval_every", "eval_tokens", "save_every", "log_every", "keep")
        check_above_zero(self, "epochs", "max_minutes", "lr", "cache_gb", most=MOST)
        check_seed(self)
        if self.accumulate > MOST_MICRO_BATCHES:
            raise InputError(f"accumulate must be at most {MOST_MICRO_BATCHES}, got {self.accumulate}")
        if self.steps is not None and self.epochs is not None:
            raise InputError("expected steps or epochs, got both")
        if not 0 <= self.num_workers <= MOST_PROCESSES:
            raise InputError(f"num_workers must be between 0 and {MOST_PROCESSES}, got {self.num_workers}")
        self._check_arithmetic()
        self._check_watches()
        DeepSpeedOptions(self.deepspeed, self.zero, self.offload)
        self.phases = tuple(self.phases)
        check_phases(self.phases, self.steps, self.epochs, self.max_minutes)
        check_choices(self)

    def _check_arithmetic(self) -> None:
        """Raises InputError for numbers with which no update of the weights can be computed."""
        if not 0 <= self.weight_decay <= MOST:
            raise InputError(f"weight_decay must be at least 0 and at most {MOST:g}, got {self.weight_decay}")
        if not _LEAST_EPS <= self.eps <= MOST:
            raise InputError(f"eps must be between {_LEAST_EPS:g} and {MOST:g}, got {self.eps}")
        if not 0 <= self.warmup <= 1:
            raise InputError(f"warmup is a share of the training, between 0 and 1, got {self.warmup}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas must be two numbers, at least 0 and below 1, got {self.betas}")
        if not self.clip > 0:
            raise InputError(f"clip must be above 0, got {self.clip}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InputError(f"dropout must be at least 0 and below 1, got {self.dropout}")

    def _check_watches(self) -> None:
        """Raises InputError for limits that do not work for detecting stalls or spikes."""
        low, high = _STALL_MINUTES
        if self.stall_minutes is not None and not low <= self.stall_minutes <= high:
            raise InputError(f"stall_minutes must be none or between {low:g} and {high}, got {self.stall_minutes}")
        if self.spike_window < 2 or (self.spike_sigma is not None and not self.spike_sigma > 0):
            raise InputError(
                f"spike_sigma must be above 0 and spike_window at least 2, got {self.spike_sigma} and "
                f"{self.spike_window}"
            )

    def batch_limits(self, max_seqlen: int) -> list[tuple[int, int]]:
        """(longest sample, token budget) of every phase, in tokens.

        Args:
            max_seqlen: the longest sample of the run, for phases that do not set their own.

        Raises:
            InputError: a budget is too small for the longest sample.
        """
        parts = self.phases or (None,)
        limits = [
            (getattr(part, "max_seqlen", None) or max_seqlen, getattr(part, "token_budget", None) or self.token_budget)
            for part in parts
        ]
        for longest, budget in limits:
            if budget < longest:
                raise InputError(f"token_budget must hold a sample of max_seqlen {longest} tokens, got {budget}")
        return limits

    def options(self) -> dict:
        """Every option by its name on the command line, such as ``samples.max_seqlen``; of phases, what they set."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        samples = dataclasses.asdict(values.pop("samples"))
        phases = {f"phase {number}": phase.said() for number, phase in enumerate(values.pop("phases"), 1)}
        return {**values, **{f"samples.{name}": value for name, value in samples.items()}, "phases": phases}

    def to_yaml(self) -> str:
        """The text that `from_yaml` reads; of phases, what they set."""
        import yaml

        values = _plain(dataclasses.asdict(self))
        values["phases"] = [_plain(phase.said()) for phase in self.phases]
        return yaml.safe_dump(values, sort_keys=False)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike) -> PretrainConfig:
        """Reads a YAML file. Raises InputError for a key that no field has, or a value that does not fit."""
        return cls.from_mapping(read_yaml(path), path)

    @classmethod
    def from_mapping(cls, values: dict, path: str | os.PathLike) -> PretrainConfig:
        """Makes one from the content of a YAML file, or of a part of it; ``path`` is named in errors."""
        values = dict(values)
        samples, phases = values.pop("samples", None) or {}, values.pop("phases", None) or []
        if not isinstance(samples, dict):
            raise InputError(f"{path}: expected samples to be a mapping of options, got {type(samples).__name__}")
        if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
            raise InputError(f"{path}: expected phases to be a list of mappings of options, got {phases!r:.60}")
        return cls(
            **fitted_options(values, cls, path),
            samples=SampleConfig(**fitted_options(samples, SampleConfig, f"{path}, samples")),
            phases=tuple(
                Phase(**fitted_options(phase, Phase, f"{path}, phase {number}"))
                for number, phase in enumerate(phases, 1)
            ),
        )


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value
