"""The whole of `fastbert bench`: which sessions, in which order, and the files they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError
from . import results, variants, workloads
from .session import Session, SessionPlan

KINDS = ("inference", "training", "kernels", "data")


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


def run(
    kinds: Sequence[str],
    *,
    model: str | None = None,
    only: Sequence[str] = (),
    peers: Sequence[str] = (),
    preload: str | None = None,
    quick: bool = False,
    rounds: int | None = None,
    threads: int,
    corpus: Path | None = None,
    vocab: Path | None = None,
    mb: float | None = None,
    command: str,
    say: Callable[[str], None],
) -> dict:
    """Runs what is asked and returns the document that is written as JSON.

    Raises:
        InputError: an unknown workload or peer, a library to preload that is not there, or nothing to run.
    """
    variants.check_peers(peers)
    if preload is not None and not Path(preload).is_file():
        raise InputError(f"--preload: expected a shared library, got {preload}, which is no file")
    preload = str(Path(preload).resolve()) if preload else None
    todo = plans(kinds, model, only, quick)
    if only and not todo:
        of_kind = {"inference": workloads.INFERENCE, "training": workloads.TRAINING}
        there = [w.name for kind in kinds for w in of_kind.get(kind, ())]
        raise InputError(f"--only must be of {', '.join(there)} in bench {', '.join(kinds)}; got {', '.join(only)}")
    document = results.header(command, threads, preload) | {"sessions": []}
    rounds = rounds or (2 if quick else 7)
    for kind, name, chosen in todo:
        who = variants.choose(kind, tuple(peers), quick, preload)
        done = Session(SessionPlan(kind, name, chosen, who, rounds, threads), say).run()
        document["sessions"].append(results.session_dict(done))
    if not only and "kernels" in kinds:
        from . import kernels

        document["kernels"] = kernels.run(5 if quick else 15, threads, quick, say)
    if not only and "data" in kinds:
        from . import data

        document |= data.run(corpus, vocab, mb or (2.0 if quick else 20.0), threads, 1 if quick else 3, say)
    document["ratios"] = results.ratios(document["sessions"])
    return document
