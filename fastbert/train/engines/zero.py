"""Training under DeepSpeed: ZeRO stages 0 to 3, offload to the CPU, low precision with float32 master weights.

This adds what DeepSpeed lacks: a LAMB that knows where tensors lie in the flat shards (`layouts`), gradients weighted
by their share of the labels, and checkpoints that are verified before anything in them is unpickled.
"""

from __future__ import annotations

import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import CheckpointError, InputError
from ...optim import Lamb
from ...optim.base import global_norm
from ...optim.rates import lr_scale
from ...optim.sharded import ShardedLamb, ShardLayout
from .. import distributed
from ..distributed import World
from ..engine import LocalEngine
from . import deepspeed_config, universal

FOLDER, TAG = "deepspeed", "state"
# Groups of stages of which each can load the others' universal checkpoints in DeepSpeed 0.19; stage 0 has none.
_ALIKE = ((1, 2), (3,))


def load_deepspeed():
    """The module deepspeed. Raises InputError if it is not installed."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError:
        raise InputError(
            "this needs DeepSpeed (DS_BUILD_OPS=0 pip install 'fastbert[deepspeed]'), which is not installed"
        ) from None
    # Without this list DeepSpeed runs compilers to make one, and then takes a minute to build its own all-reduce.
    deepspeed.ops.__dict__.setdefault("__compatible_ops__", {})
    return deepspeed


class DeepSpeedEngine(LocalEngine):
    """`LocalEngine` in which DeepSpeed shards state over the ranks and makes the optimiser step.

    Args:
        model, precision, options: as in `LocalEngine`, without fp8.
        optimizer: over the whole parameters; a `Lamb` is replaced by a `ShardedLamb`.
        world: this process among those of the group, which is open.
        configuration: the result of `deepspeed_config.configuration`.

    Raises:
        InputError: DeepSpeed is not installed or does not support the precision on this machine, or LAMB does not know
            the layout of its shards.
    """

    gradients_in_place = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        world: World,
        configuration: dict,
        *,
        precision: str = "fp32",
        **options,
    ) -> None:
        deepspeed = load_deepspeed()
        computes = {"fp16": "is_fp16_supported", "bf16": "is_bf16_supported"}
        if precision in computes and not getattr(deepspeed.get_accelerator(), computes[precision])():
            raise InputError(
                f"precision {precision} does not go with DeepSpeed on this machine: it reports that the "
                f"{next(model.parameters()).device.type} does not support it"
            )
        if isinstance(optimizer, Lamb):
            optimizer = ShardedLamb.of(optimizer, dist.all_reduce)
        # DeepSpeed casts the weights and scales the loss, so `LocalEngine` is left at fp32.
        super().__init__(model, optimizer, on_device=False, **options)
        self.precision = precision
        self.world, self.configuration = world, configuration
        self.stage = deepspeed_config.stage(configuration)
        self.deepspeed, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)
        self.forward = self.deepspeed
        if self.stage == 3:
            for reader, parameter in _read_by_parents(model):
                deepspeed.zero.register_external_parameter(reader, parameter)
        self._unwritten = ""
        writer = self.deepspeed.checkpoint_engine
        writer.save = self._noting_failure(writer.save)
        self.deepspeed._copy_recovery_script = self._noting_failure(self.deepspeed._copy_recovery_script)
        # DeepSpeed averages gradients over the ranks, but losses are already weighted by their share of all labels.
        self._undo_average = float(world.size)
        if isinstance(optimizer, ShardedLamb):
            optimizer.layouts = layouts(self.deepspeed.optimizer, world)
            # DeepSpeed gives the optimiser one group at a time, with gradients that it has already clipped.
            optimizer.grad_norm = lambda: min(float(self.deepspeed.optimizer._global_grad_norm), self.clip)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Does nothing: under DeepSpeed the weights themselves are in the low precision."""
        yield

    def backward(self, compute_loss: Callable[[], Tensor], last: bool = True) -> Tensor:
        self.deepspeed.set_gradient_accumulation_boundary(last)
        with self.timer.part("forward"):
            loss = self._forward(compute_loss)
        with self.timer.part("backward"):
            self.deepspeed.backward(loss * self._undo_average, scale_wrt_gas=False)
        return loss.detach()

    def step(self, lr: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * lr_scale(group)
        before = self.loss_scale
        with self.timer.part("optimizer"):
            norm = self._take_step()
        self.loss_scale = float(getattr(self.deepspeed.optimizer, "loss_scale", 1.0))
        # DeepSpeed writes through `.data`, which does not change versions, on which caches of packed weights depend.
        torch.autograd.graph.increment_version(list(self.model.parameters()))
        self._count(norm, hopeless=self.loss_scale == before)
        return norm

    def _take_step(self) -> float:
        inner = self.deepspeed.optimizer
        if inner is self.optimizer:  # stage 0 in float32, where DeepSpeed only sums gradients
            norm = float(global_norm([p.grad for p in self.parameters if p.grad is not None]))
            if math.isfinite(norm):
                self.deepspeed.step()
            else:
                self.deepspeed.zero_grad()
            return norm
        scaler = getattr(inner, "loss_scaler", None)
        if hasattr(scaler, "raise_error_at_min_scale"):
            scaler.raise_error_at_min_scale = False  # it raises a bare Exception; `_count` raises TrainingDiverged
        self.deepspeed.step()
        if self.deepspeed.was_step_applied():
            return float(self.deepspeed.get_global_grad_norm())
        # DeepSpeed 0.19 does not clear the float32 sums of offloaded gradients, and would add to them.
        averaged = getattr(inner, "averaged_gradients", {})
        averaged.update(dict.fromkeys(averaged))
        return math.inf

    def leave_out(self) -> None:
        # The only way to make DeepSpeed discard gradients is to make them NaN. It takes that for an overflow and lowers
        # the loss scale, which is restored below.
        inner = self.deepspeed.optimizer
        scaler = getattr(inner, "loss_scaler", None) or getattr(inner, "loss_scale_config", None)
        scale = {} if scaler is None else dict(vars(scaler))
        found = _looked_at(inner, self.parameters)
        for values in found:
            values.fill_(math.nan)
        self._take_step()
        # Stage 3 pads tensors with zeros, which no gradient overwrites.
        for values in found:
            values.zero_()
        if scaler is not None:
            vars(scaler).update(scale)

    def reduce(self, values: Sequence[float]) -> list[float]:
        return distributed.total(values)

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """As in `LocalEngine`, but without tensors: each rank writes its shards itself, in `writing`."""
        form = {"world_size": self.world.size, "stage": self.stage, "precision": self.precision}
        return {}, {"deepspeed": form, **self._counters()}

    @contextmanager
    def writing(self) -> Iterator[Callable[[Path], None]]:
        told = []

        def write(directory: Path | None) -> None:
            told.append(directory)
            place = distributed.on_first(self.world, lambda: directory)
            if place is not None:
                self._save_shards(place)

        try:
            yield write
        finally:
            if not told:  # on ranks other than 0; or rank 0 failed before it had a directory, which the others wait for
                write(None)

    def _save_shards(self, place: Path) -> None:
        """Every rank writes its files. Raises CheckpointError on rank 0 if any of them could not."""
        unseen = "" if place.is_dir() else "it is not there: OUT must be one directory that all ranks share"
        problems = distributed.gathered(self.world, unseen)
        if not any(problems):
            self._unwritten = ""
            self.deepspeed.save_checkpoint(str(place / FOLDER), tag=TAG, save_latest=False)
            problems = distributed.gathered(self.world, self._unwritten)
        if self.world.first and any(problems):
            rank, problem = next((rank, problem) for rank, problem in enumerate(problems) if problem)
            raise CheckpointError(f"{place.with_suffix('')}: rank {rank} could not write its part: {problem}")

    def _noting_failure(self, write: Callable) -> Callable:
        """``write`` for DeepSpeed, with errors noted instead of raised: other ranks would wait for one that raised."""

        def noting(*arguments, **options) -> None:
            try:
                write(*arguments, **options)
            except (OSError, RuntimeError) as error:  # torch's file writer raises RuntimeError for any failure
                why = error.strerror if isinstance(error, OSError) else f"torch says {error}"
                self._unwritten = self._unwritten or f"the disk is full or fails ({why})"

        return noting

    def restore(self, path: Path, tensors: dict[str, Tensor], state: dict) -> None:
        if "deepspeed" not in state:
            raise CheckpointError(
                f"{path}: was written without DeepSpeed, expected one written under it; start a new run from its model"
            )
        saved, own = state["deepspeed"], self.state()[1]["deepspeed"]
        # Stage 0 shards nothing, so any number of ranks can load its files.
        whole = saved["stage"] == own["stage"] == 0 and saved["precision"] == own["precision"]
        if saved == own or whole:
            self._load(path / FOLDER, TAG, universal_form=False)
        else:
            self._check_convertible(path, saved)
            self._load_universal(path)
        self._restore_counters(state)

    def _check_convertible(self, path: Path, saved: dict) -> None:
        """Raises CheckpointError if DeepSpeed cannot convert between the stages, where it would end in a traceback."""
        stages = next((pair for pair in _ALIKE if saved["stage"] in pair), ())
        if self.stage not in stages:
            with_same = f"{' or '.join(map(str, stages))}, any number of ranks" if stages else "0 in the same precision"
            raise CheckpointError(
                f"{path}: was written under ZeRO stage {saved['stage']} in {saved['precision']}, from which DeepSpeed "
                f"goes on with stage {with_same}, got stage {self.stage} in {self.precision}; start a new run from its "
                "model"
            )

    def _load_universal(self, path: Path) -> None:
        """Loads what another number of ranks, stage or precision saved, by way of a temporary folder."""
        name = distributed.on_first(self.world, lambda: f"{path.name}.tmp-{uuid.uuid4().hex}")
        folder = path.with_name(name)
        try:
            distributed.on_first(self.world, lambda: universal.convert(path / FOLDER / TAG, folder / TAG))
            self._load(folder, TAG, universal_form=True)
        finally:
            distributed.barrier(self.world)
            if self.world.first:
                shutil.rmtree(folder, ignore_errors=True)

    def _load(self, folder: Path, tag: str, universal_form: bool) -> None:
        options, groups = self.deepspeed._config, self.optimizer.param_groups
        settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        options.load_universal_checkpoint = universal_form
        try:
            loaded, _ = self.deepspeed.load_checkpoint(str(folder), tag=tag)
        finally:
            options.load_universal_checkpoint = False
        if loaded is None:
            raise CheckpointError(f"{folder}: expected a DeepSpeed checkpoint, found none")
        # From a universal checkpoint, stage 3 gives every group the first one's settings: biases would decay.
        for group, own in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(own)

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """As in `LocalEngine`: float32 masters in place of low-precision weights and of shards."""
        if self.stage < 3 and self.precision == "fp32":
            yield
            return
        kept = {}
        for parameter in self.model.parameters():
            whole = self._master(parameter)
            if self.world.first and whole is not None:
                kept[parameter] = parameter.data
                parameter.data = whole.to(parameter.device)
        try:
            yield
        finally:
            for parameter, data in kept.items():
                parameter.data = data
            distributed.barrier(self.world)

    def _master(self, parameter: nn.Parameter) -> Tensor | None:
        inner = self.deepspeed.optimizer
        if hasattr(inner, "fp32_groups"):  # stage 0: whole copies
            for narrow, wide in zip(inner.fp16_groups, inner.fp32_groups, strict=True):
                for p, master in zip(narrow, wide, strict=True):
                    if p is parameter:
                        return master.detach()
            return None
        return load_deepspeed().utils.safe_get_full_fp32_param(parameter)


def _read_by_parents(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """(module, parameter) for parameters that a module reads from a child without calling it.

    ZeRO-3 only gathers the weights of modules that are called. fastbert's fused ops read norms and embedding tables in
    this way; a dense layer is called if it has hooks, as it has under ZeRO-3.
    """
    for parent in model.modules():
        for child in parent.children():
            if isinstance(child, nn.LayerNorm | nn.Embedding):
                yield from ((parent, parameter) for parameter in child.parameters())


def _looked_at(inner, parameters: list[Tensor]) -> list[Tensor]:
    """The tensors in which DeepSpeed looks for NaN: this rank's gradients or, if they are offloaded, their norms."""
    if norms := getattr(inner, "norm_for_param_grads", None):
        return list(norms.values())
    if averaged := getattr(inner, "averaged_gradients", None):
        return [gradient for gradients in averaged.values() for gradient in gradients or ()]
    return [p.grad for p in parameters if p.grad is not None]


def layouts(inner, world: World) -> dict[Tensor, ShardLayout]:
    """Where tensors lie in the flat shards of a DeepSpeed optimiser; empty if it keeps them whole.

    Args:
        inner: DeepSpeed's wrapper around the optimiser.

    Returns:
        the layout of each flat shard.

    Raises:
        InputError: the wrapper is of a class whose layout is not known here.
    """
    if hasattr(inner, "fp32_partitioned_groups_flat"):  # stage 3: every rank has a piece of every tensor
        found = {}
        for flat, group in zip(inner.fp32_partitioned_groups_flat, inner.fp16_groups, strict=True):
            room = [p.partition_numel() for p in group]
            begins = [world.rank * size for size in room]
            owned = [min(max(p.ds_numel - b, 0), size) for p, b, size in zip(group, begins, room, strict=True)]
            found[flat] = ShardLayout.of_pieces(owned, room)
        return found
    if hasattr(inner, "single_partition_of_fp32_groups"):  # stages 1 and 2: a range of all tensors laid end to end
        flats = inner.single_partition_of_fp32_groups
        sizes = [[meta.numel() for meta in group] for group in inner.round_robin_bit16_meta]
        places = zip(flats, sizes, inner.round_robin_bit16_offsets, strict=True)
        return {
            f: ShardLayout.of_range(s, world.rank * f.numel(), (world.rank + 1) * f.numel(), o) for f, s, o in places
        }
    if hasattr(inner, "fp32_groups") or isinstance(inner, ShardedLamb):
        return {}
    raise InputError(
        f"LAMB does not know where DeepSpeed's {type(inner).__name__} keeps its tensors, and cannot be used with it"
    )
