"""All of `fastbert bench`: the sessions, their order, and the files that they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from . import pool, results, variants, workloads
from .session import Session, SessionPlan

KINDS = ("inference", "training", "kernels", "data")


@dataclass
class Request:
    """What is to be measured.

    Args:
        kinds: some of `KINDS`.
        threads: the number of threads of every variant.
        model: one of `models.NAMES`; None for those of `plans`.
        only: the names of workloads; empty for all, and then for kernels and data too.
        peers: some of `variants.PEERS`; empty for all.
        preload: a library with which each bf16 and int8 peer runs a second time, or None.
        quick: whether to take a few minutes instead of an hour.
        rounds: the turns of every variant on every workload.
        corpus, vocab, mb: the arguments of `data.run`.
    """

    kinds: Sequence[str]
    threads: int
    model: str | None = None
    only: Sequence[str] = ()
    peers: Sequence[str] = ()
    preload: str | None = None
    quick: bool = False
    rounds: int | None = None
    corpus: Path | None = None
    vocab: Path | None = None
    mb: float | None = None


def plans(
    kinds: Sequence[str], model: str | None, only: Sequence[str], quick: bool
) -> list[tuple[str, str, list[workloads.Workload]]]:
    """The (kind, model, workloads) of every session.

    The default models are base for inference and training, and 4x256 for T1, where the vocabulary is most of the work;
    with ``quick``, only mini.

    Raises:
        InputError: ``only`` names a workload that these kinds do not have.
    """
    of_kinds = {"inference": workloads.INFERENCE, "training": workloads.TRAINING}
    of_kinds = {kind: found for kind, found in of_kinds.items() if kind in kinds}
    known = [w.name for found in of_kinds.values() for w in found]
    for name in only:
        if name not in known:
            where = "" if len(of_kinds) == 2 else f" in bench {', '.join(kinds)}"
            raise InputError(f"--only must be of {', '.join(known) or 'none'}{where}; got {name!r}")
    chosen = [(kind, model or ("mini" if quick else "base"), found) for kind, found in of_kinds.items()]
    if "training" in kinds and model is None and not quick:
        chosen.append(("training", "4x256", workloads.TRAINING[:1]))
    kept = [(kind, name, [w for w in of_kind if not only or w.name in only]) for kind, name, of_kind in chosen]
    return [plan for plan in kept if plan[2]]


def run(request: Request, command: str, say: Callable[[str], None]) -> dict:
    """Runs the benchmarks and returns the document to be written as JSON, which includes ``command``.

    Raises:
        InputError: a workload or a peer is unknown, the library to preload cannot be, or there is nothing to run.
    """
    variants.check_peers(request.peers)
    if request.preload is not None and not Path(request.preload).is_file():
        raise InputError(f"--preload: expected a shared library, got {request.preload}, which is not a file")
    preload = str(Path(request.preload).resolve()) if request.preload else None
    if preload is not None and (why := pool.why_not_preloaded(preload)) is not None:
        raise InputError(
            "--preload: expected a library that LD_PRELOAD takes (no blanks or colons in its path), got "
            f"{preload}: {why}"
        )
    todo = plans(request.kinds, request.model, request.only, request.quick)
    document = results.header(command, request.threads, preload) | {"peers": list(request.peers), "sessions": []}
    rounds = request.rounds or (2 if request.quick else 7)
    for kind, name, chosen in todo:
        who = variants.choose(kind, tuple(request.peers), request.quick, preload)
        done = Session(SessionPlan(kind, name, chosen, who, rounds, request.threads), say).run()
        document["sessions"].append(results.session_dict(done))
    if not request.only and "kernels" in request.kinds:
        from . import kernels

        document["kernels"] = kernels.run(5 if request.quick else 15, request.threads, request.quick, say)
    if not request.only and "data" in request.kinds:
        from . import data

        mb = request.mb or (2.0 if request.quick else 20.0)
        document |= data.run(request.corpus, request.vocab, mb, request.threads, 1 if request.quick else 3, say)
    document["ratios"] = results.ratios(document["sessions"])
    return document
