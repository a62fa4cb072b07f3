"""The survey's sentences about federated self-supervision, on digits without labels.

The survey (its section on self-supervised learning without labels) has words and no numbers. We judge its words by probes on what each method learned. One data set,
one encoder, untuned settings and two seeds: a difference below two standard errors of the seeds' differences, or below a point, decides nothing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from atoll.reproduce import Claim, Entry, Lab

from .selfsupervised.runs import BASES, SelfRun, judged_runs

__all__ = ["ENTRY"]

Scores = dict[str, list[float]]
_POINT = 0.01


def _run(lab: Lab, quick: bool) -> list[Claim]:
    seeds, rounds = ((0,), 3) if quick else ((0, 1), 8)
    found: Scores = {}
    for run in judged_runs(quick):
        values = [_kept(lab, run, seed, rounds) for seed in seeds]
        found[run.key] = [value for value in values if value is not None]
    return [*_shown(judged_runs(quick), found), *_judged(found)]


def _kept(lab: Lab, run: SelfRun, seed: int, rounds: int) -> float | None:
    """Return the accuracy of a run, read back if it was done before; ``None`` if it was not and nothing may be trained."""
    file = lab.folder / "accuracies.json"
    known: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and not lab.fresh else {}
    key = f"{run.key}, seed {seed}, {rounds} rounds"
    if key not in known and not lab.kept:
        began = time.perf_counter()
        known[key] = run.accuracy(seed, rounds)
        lab.seconds += time.perf_counter() - began
        _write(file, known)
    return known.get(key)


def _write(file: Path, known: dict[str, float]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")


def _text(values: list[float]) -> str | None:
    return (
        None
        if not values
        else f"{np.mean(values):.3f}" + ("" if len(values) < 2 else f" ({min(values):.3f} to {max(values):.3f})")
    )


def _shown(runs: list[SelfRun], found: Scores) -> list[Claim]:
    """Show accuracies; there is nothing to judge."""
    return [Claim.figure(run.key, _text(found[run.key]), part="Accuracy of a probe with 100 labels") for run in runs]


def _compared(claim: str, found: Scores, better: list[str], worse: list[str], note: str = "") -> Claim:
    """Judge that the sum of some scores exceeds that of others: with seeds, by two standard errors of the paired differences and one point."""
    sides = [[found.get(key, []) for key in keys] for keys in (better, worse)]
    sizes = {len(values) for side in sides for values in side}
    if sizes != {max(sizes)} or max(sizes) == 0:
        return Claim(claim, None, None, None, note, part="The survey's sentences")
    high, low = (np.sum(side, axis=0) for side in sides)
    gaps = high - low
    error = 2 * gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else np.inf
    holds = None if abs(gaps.mean()) < max(error, _POINT) else bool(gaps.mean() > 0)
    return Claim(
        claim,
        None,
        f"{gaps.mean():+.3f}",
        holds,
        note or "difference of mean accuracies",
        part="The survey's sentences",
    )


def _judged(found: Scores) -> list[Claim]:
    """Judge the survey's sentences."""
    skewed = {method: SelfRun(method).key for method in (*BASES, "FedU", "FedEMA", "FedX", "supervised", "untrained")}
    iid = {method: SelfRun(method, skewed=False).key for method in ("FedSimCLR", "supervised")}
    claims = [
        _compared(
            f"{method} learns: its features beat those of the untrained encoder",
            found,
            [skewed[method]],
            [skewed["untrained"]],
        )
        for method in (*BASES, "FedU", "FedEMA", "FedX")
    ]
    claims.append(
        _compared(
            "skew hurts self-supervised learning more than supervised learning",
            found,
            [iid["FedSimCLR"], skewed["supervised"]],
            [skewed["FedSimCLR"], iid["supervised"]],
            "loss of FedSimCLR's probe from iid rows to two classes a client, less the same loss of supervised accuracy",
        )
    )
    claims += [
        _compared(f"BYOL is the best base: it beats {other}", found, [skewed["FedBYOL"]], [skewed[other]])
        for other in BASES
        if other != "FedBYOL"
    ]
    claims += [
        _compared(
            "FedEMA is at least FedU",
            found,
            [skewed["FedEMA"]],
            [skewed["FedU"]],
            "it holds only if FedEMA is better, and fails only if it is worse",
        ),
        _compared("FedX adds to FedSimCLR", found, [skewed["FedX"]], [skewed["FedSimCLR"]]),
        _compared(
            "small mini-batches hurt SSFL",
            found,
            [SelfRun("SSFL", batch=64).key],
            [SelfRun("SSFL", batch=16).key],
            "64 against 16 rows, as many rows in all; the averaged network",
        ),
    ]
    orchestra = next(run.key for run in judged_runs(True) if run.once)
    claims.append(
        _compared(
            "Orchestra learns from clients that never return",
            found,
            [orchestra],
            [skewed["untrained"]],
            "every client takes part once, with 16 rows or more; FedU, FedEMA, SSFL and FedMoCo are refused there",
        )
    )
    return claims


ENTRY = Entry(
    name="labels-self",
    title="Self-supervised learning at clients: the survey's sentences, on digits without labels",
    source="Survey of federated learning, part on learning without full labels, section on self-supervision; FedU, FedEMA, FedX, Orchestra",
    run=_run,
)
