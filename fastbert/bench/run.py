"""The whole of `fastbert bench`: which sessions, in which order, and the files they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from . import results, variants, workloads
from .session import Session, SessionPlan

KINDS = ("inference", "training", "kernels", "data")


@dataclass
class Request:
    """What is to be measured.

    Args:
        kinds: of `KINDS`.
        threads: of every variant.
        model: of `models.NAMES`; None as `plans` has it.
        only: workloads by name; empty for all, and then kernels and data too.
        peers: of `variants.PEERS`; empty for all.
        preload: a library; each bf16 and int8 peer runs a second time, with it.
        quick: a few minutes in place of an hour.
        rounds: turns of every variant on every workload.
        corpus, vocab, mb: of data, as `data.run` takes them.
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
    """(kind, model, workloads) of every session.

    Without a model: inference and training of base, and T1 of 4x256, where the vocabulary is most of the work; quick
    takes mini in place of all.

    Raises:
        InputError: ``only`` names a workload that is none.
    """
    known = {w.name: w for w in (*workloads.INFERENCE, *workloads.TRAINING)}
    for name in only:
        if name not in known:
            raise InputError(f"--only must be of {', '.join(known)}; got {name!r}")
    chosen = []
    for kind, of_kind in (("inference", workloads.INFERENCE), ("training", workloads.TRAINING)):
        if kind in kinds:
            chosen.append((kind, model or ("mini" if quick else "base"), of_kind))
    if "training" in kinds and model is None and not quick:
        chosen.append(("training", "4x256", workloads.TRAINING[:1]))
    kept = [(kind, name, [w for w in of_kind if not only or w.name in only]) for kind, name, of_kind in chosen]
    return [plan for plan in kept if plan[2]]


def run(request: Request, command: str, say: Callable[[str], None]) -> dict:
    """Runs what is asked and returns the document that is written as JSON, ``command`` in it.

    Raises:
        InputError: an unknown workload or peer, a library to preload that is not there, or nothing to run.
    """
    r = request
    variants.check_peers(r.peers)
    if r.preload is not None and not Path(r.preload).is_file():
        raise InputError(f"--preload: expected a shared library, got {r.preload}, which is no file")
    preload = str(Path(r.preload).resolve()) if r.preload else None
    todo = plans(r.kinds, r.model, r.only, r.quick)
    if r.only and not todo:
        of_kind = {"inference": workloads.INFERENCE, "training": workloads.TRAINING}
        there = [w.name for kind in r.kinds for w in of_kind.get(kind, ())]
        raise InputError(f"--only must be of {', '.join(there)} in bench {', '.join(r.kinds)}; got {', '.join(r.only)}")
    document = results.header(command, r.threads, preload) | {"sessions": []}
    rounds = r.rounds or (2 if r.quick else 7)
    for kind, name, chosen in todo:
        who = variants.choose(kind, tuple(r.peers), r.quick, preload)
        done = Session(SessionPlan(kind, name, chosen, who, rounds, r.threads), say).run()
        document["sessions"].append(results.session_dict(done))
    if not r.only and "kernels" in r.kinds:
        from . import kernels

        document["kernels"] = kernels.run(5 if r.quick else 15, r.threads, r.quick, say)
    if not r.only and "data" in r.kinds:
        from . import data

        mb = r.mb or (2.0 if r.quick else 20.0)
        document |= data.run(r.corpus, r.vocab, mb, r.threads, 1 if r.quick else 3, say)
    document["ratios"] = results.ratios(document["sessions"])
    return document
