"""The table of variants: every library in every dtype that it offers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..errors import InputError
from .peers import EACH, LABELLED, SORTED
from .workloads import Workload


@dataclass(frozen=True)
class Variant:
    """A library in one dtype, called in one way.

    Args:
        name: as in the tables; unique among those of a kind.
        peer: its name for ``--peers``.
        adapter: "module:Class", see `peers.load`.
        dtype: "fp32", "bf16" or "int8", which decides the error limit and the peak.
        needs: the modules that must be installed.
        ours: whether it is fastbert.
        slow_start: whether its first run takes minutes, so that ``--quick`` leaves it out.
        memory: roughly the memory of its process, as a multiple of the weights' float32 bytes.
        ways: further ways to call it, each of which `choose` makes a variant.
        preload: the value of LD_PRELOAD, or None.
        missing: the reason why it cannot run, if known beforehand, or None.
        way: how the library is called, of those in `peers`; None for the whole batch in one call.
        of: the name of the variant that is the same but for its way, in whose process it runs; None for its own.
    """

    name: str
    peer: str
    adapter: str
    dtype: str
    needs: tuple[str, ...] = ()
    ours: bool = False
    slow_start: bool = False
    memory: float = 2.5
    ways: tuple[str, ...] = ()
    preload: str | None = None
    missing: str | None = None
    way: str | None = None
    of: str | None = None

    @property
    def converts(self) -> bool:
        """Whether the library needs the model in another format, to which it must be converted first."""
        return self.peer in ("onnxruntime", "openvino", "ctranslate2")

    @property
    def process(self) -> str:
        """The name of the variant in whose process it runs."""
        return self.of or self.name

    def runs_on(self, workload: Workload) -> bool:
        """Whether its way differs from one call of the whole batch on this workload."""
        return workload.mixed or self.way not in (SORTED, EACH)

    def called(self, way: str, missing: str | None = None) -> Variant:
        """The same library called in another way, in the same process, so that its weights are in memory once."""
        return replace(self, name=f"{self.name}, {way}", way=way, of=self.name, missing=missing)


_HF, _ORT, _OV, _CT2 = (f".{name}_:Inference" for name in ("transformers", "onnxruntime", "openvino", "ctranslate2"))
_COMPILED = ".transformers_:CompiledInference"
_torch, _onnx = ("transformers",), ("onnxruntime", "onnx", "transformers")
_openvino, _ctranslate2 = ("openvino", "transformers"), ("ctranslate2", "transformers")
_WAYS = (SORTED, EACH)  # of libraries that compute the pads of a batch

INFERENCE = (
    Variant("fastbert fp32", "fastbert", ".fastbert_:Inference", "fp32", ours=True),
    Variant("fastbert bf16", "fastbert", ".fastbert_:Inference", "bf16", ours=True),
    Variant("fastbert int8", "fastbert", ".fastbert_:Inference", "int8", ours=True),
    Variant("fastbert reference fp32", "reference", ".fastbert_:ReferenceInference", "fp32", ours=True),
    Variant("transformers eager fp32", "eager", ".transformers_:EagerInference", "fp32", _torch),
    Variant("transformers sdpa fp32", "sdpa", _HF, "fp32", _torch, ways=_WAYS),
    Variant("transformers sdpa bf16", "sdpa", _HF, "bf16", _torch, ways=_WAYS),
    Variant("torch.compile fp32", "compile", _COMPILED, "fp32", _torch, slow_start=True, memory=6.0, ways=_WAYS),
    Variant("torch.compile bf16", "compile", _COMPILED, "bf16", _torch, slow_start=True, memory=4.0, ways=_WAYS),
    Variant("ONNX Runtime fp32", "onnxruntime", _ORT, "fp32", _onnx, ways=_WAYS),
    Variant("ONNX Runtime int8", "onnxruntime", _ORT, "int8", _onnx, ways=_WAYS),
    Variant("OpenVINO fp32", "openvino", _OV, "fp32", _openvino, ways=_WAYS),
    Variant("OpenVINO bf16", "openvino", _OV, "bf16", _openvino, ways=_WAYS),
    Variant("OpenVINO int8", "openvino", _OV, "int8", (*_openvino, "nncf"), ways=_WAYS),
    Variant("CTranslate2 fp32", "ctranslate2", _CT2, "fp32", _ctranslate2),
    Variant("CTranslate2 int8", "ctranslate2", _CT2, "int8", _ctranslate2),
)

_HF_TRAINING, _COMPILED_TRAINING = ".transformers_:Training", ".transformers_:CompiledTraining"
TRAINING = (
    Variant("fastbert fp32", "fastbert", ".fastbert_:Training", "fp32", ours=True, memory=7.5),
    Variant("fastbert bf16", "fastbert", ".fastbert_:Training", "bf16", ours=True, memory=7.5),
    Variant("fastbert reference fp32", "reference", ".fastbert_:ReferenceTraining", "fp32", ours=True, memory=7.5),
    Variant("transformers fp32", "sdpa", _HF_TRAINING, "fp32", _torch, memory=7.5, ways=(LABELLED,)),
    Variant("transformers bf16", "sdpa", _HF_TRAINING, "bf16", _torch, memory=7.5, ways=(LABELLED,)),
    Variant("torch.compile fp32", "compile", _COMPILED_TRAINING, "fp32", _torch, slow_start=True, memory=7.5),
    Variant("torch.compile bf16", "compile", _COMPILED_TRAINING, "bf16", _torch, slow_start=True, memory=7.5),
)

TRUTH = {
    "inference": Variant("truth", "truth", ".fastbert_:ReferenceInference", "fp64", ours=True),
    "training": Variant("truth", "truth", ".fastbert_:ReferenceTraining", "fp64", ours=True),
}

# What `--peers` may name. "fastbert" always runs.
PEERS = ("reference", "eager", "sdpa", "compile", "onnxruntime", "openvino", "ctranslate2")


def check_peers(peers: Iterable[str]) -> None:
    """Raises InputError for a name that is not a peer's."""
    for name in peers:
        if name not in PEERS:
            raise InputError(f"--peers must be of {', '.join(PEERS)}; got {name!r}")


def why_missing(variant: Variant) -> str | None:
    """None, or the reason why a variant cannot run here."""
    for module in variant.needs:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (pip install 'fastbert[bench]')"
    if variant.ours and variant.dtype == "int8":
        import fastbert

        if not hasattr(fastbert, "quantize"):
            return "this fastbert has no int8 inference"
    return None


def choose(kind: str, peers: tuple[str, ...], quick: bool, preload: str | None) -> list[Variant]:
    """The variants of a run: fastbert's, then the peers', with ``missing`` set for those that cannot run.

    Args:
        kind: "inference" or "training".
        peers: some of `PEERS`; empty for all.
        quick: whether to leave out variants that take minutes to start.
        preload: a library, with which each bf16 and int8 variant of a peer is listed a second time, or None.
    """
    chosen = []
    for variant in INFERENCE if kind == "inference" else TRAINING:
        if peers and variant.peer not in (*peers, "fastbert"):
            continue
        missing = why_missing(variant)
        if missing is None and quick and variant.slow_start and not peers:
            missing = "takes minutes to compile: left out by --quick"
        chosen += _called(replace(variant, missing=missing), quick and not peers)
        if preload and not variant.ours and variant.dtype != "fp32":
            again = replace(variant, name=f"{variant.name} + preload", preload=preload, missing=missing)
            chosen += _called(again, quick and not peers)
    return chosen


def _called(variant: Variant, quick: bool) -> Iterator[Variant]:
    """A variant and, if it can run, those of its further ways."""
    yield variant
    for way in () if variant.missing else variant.ways:
        yield variant.called(way, "one of two such ways: left out by --quick" if quick and way == EACH else None)
