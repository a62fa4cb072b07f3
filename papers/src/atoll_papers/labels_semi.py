"""Semi-supervised federated learning on MNIST, against what "Federated Learning without Full Labels: A Survey" says in words; it has no experiment."""

from __future__ import annotations

import math
from typing import Any

from atoll.reproduce import Claim, Entry, Lab

from .semi.settings import at_server, by_predictions, forgetting, labelled_alone, of_classes, taught, with_pool
from .semi.trainings import TrialSize, scores

__all__ = ["ENTRY"]

SERVER = TrialSize(rows=10_000, parties=20, cohort=5, rounds=40, seeds=2, warm_up=250, pooled=True)
"""Of the trainings whose labels lie at the server."""
FULL = TrialSize(rows=2000, parties=10, cohort=5, rounds=20, seeds=2, warm_up=150)
QUICK = TrialSize(rows=300, parties=3, cohort=2, rounds=2, seeds=1, warm_up=10)
_VIEWS = ("no", "weak", "strong")


def _run(lab: Lab, quick: bool) -> list[Claim]:
    scale = QUICK if quick else FULL
    return [
        *_server(lab, QUICK if quick else SERVER),
        *_forgetting(lab, scale),
        *_classes(lab, scale),
        *_bandit(lab, scale),
        *_predictions(lab, scale),
    ]


def _last(rows: list[dict[str, Any]] | None) -> list[float] | None:
    return None if rows is None else [float(row["last"]["test/accuracy"]) for row in rows]


def _shown(values: list[float] | None) -> str:
    return "-" if values is None else " ".join(f"{value:.3f}" for value in values)


def _above(claim: str, high: list[float] | None, low: list[float] | None, note: str, part: str) -> Claim:
    """Judge that the first scores are higher, seed by seed; undecided if seeds disagree."""
    if high is None or low is None:
        return Claim(claim, None, None, None, note, part)
    over = [a > b for a, b in zip(high, low, strict=True)]
    known = not any(math.isnan(value) for value in (*high, *low))
    holds = all(over) if known and (all(over) or not any(over)) else None
    return Claim(claim, None, f"{_shown(high)} > {_shown(low)}", holds, note, part)


def _server(lab: Lab, scale: TrialSize) -> list[Claim]:
    part = "40 labels at the server"
    alone = {view: _last(scores(lab, f"alone-{view}", scale, labelled_alone(scale, view))) for view in _VIEWS}
    known = [values for values in alone.values() if values is not None]
    best = [max(each) for each in zip(*known, strict=True)] if len(known) == len(_VIEWS) else None
    semi, match = (
        _last(scores(lab, f"server-{name}", scale, at_server(scale, name))) for name in ("SemiFL", "FedMatch")
    )
    views = ", ".join(f"{view} views {_shown(values)}" for view, values in alone.items())
    return [
        _above("unlabelled rows help: SemiFL is above labels alone", semi, best, f"test accuracies by seed; the best of {views}", part),
        _above("SemiFL is more competitive than FedMatch", semi, match, "FedMatch's weights are its authors'; test accuracies by seed", part),
    ]  # fmt: skip


def _forgetting(lab: Lab, scale: TrialSize) -> list[Claim]:
    begins = _last(scores(lab, "taught", scale, taught(scale)))
    ends = _last(scores(lab, "forgetting", scale, forgetting(scale)))
    claim = "rounds on unlabelled rows alone forget what labels taught"
    note = "before the first and after the last such round; each client's own pseudo-labels (FixMatch)"
    return [_above(claim, begins, ends, note, "40 labels, then none")]


def _classes(lab: Lab, scale: TrialSize) -> list[Claim]:
    part = "Every client labels two classes"
    found = {
        name: _last(scores(lab, f"classes-{name}", scale, of_classes(scale, name)))
        for name in ("FedPU", "FedMatch", "labels")
    }
    return [
        _above("FedPU outperforms FedMatch where clients label a part of the classes", found["FedPU"], found["FedMatch"], "test accuracies by seed", part),
        _above("FedPU's risk is better than cross-entropy of labelled rows alone", found["FedPU"], found["labels"], "which is what its authors' code trains", part),
    ]  # fmt: skip


def _bandit(lab: Lab, scale: TrialSize) -> list[Claim]:
    part = "100 labels at clients, unlabelled rows at the server"
    arms = {"few": (0.2, 0.95), "all": (1.0, 0.95), "bandit": (None, None)}
    rows = {name: scores(lab, f"pool-{name}", scale, with_pool(scale, *arm)) for name, arm in arms.items()}
    right = {name: _last(found) for name, found in rows.items()}
    cost = {
        name: None if found is None else [sum(r["bytes_up"] for r in one["rounds"]) / 1e6 for one in found]
        for name, found in rows.items()
    }
    used = {tau: None if rows["bandit"] is None else [_used(one, tau) for one in rows["bandit"]] for tau in (0.7, 0.95)}
    return [
        _above("fewer clients a round cost accuracy", right["all"], right["few"], "all against a fifth of the clients, threshold .95", part),
        _above("fewer clients a round cost less communication", cost["all"], cost["few"], "megabytes up in all rounds", part),
        _above("a higher threshold leaves out more of the server's rows", used[0.7], used[0.95], "mean share of rows above .7 and above .95, in the bandit's rounds", part),
        _balanced(right, cost, part),
    ]  # fmt: skip


def _balanced(right: dict[str, list[float] | None], cost: dict[str, list[float] | None], part: str) -> Claim:
    """Judge the bandit against the fixed settings, seed by seed."""
    claim = "a bandit over both balances accuracy and cost"
    note = "holds if it is within 2 points of the best fixed setting, with less traffic than all clients"
    few, every, own = right["few"], right["all"], right["bandit"]
    dear, cheap = cost["all"], cost["bandit"]
    if few is None or every is None or own is None or dear is None or cheap is None:
        return Claim(claim, None, None, None, note, part)
    good = [own[i] >= max(few[i], every[i]) - 0.02 and cheap[i] < dear[i] for i in range(len(own))]
    ours = f"accuracy {_shown(own)}, {_megabytes(cheap)} MB up, against {_shown(every)}, {_megabytes(dear)} MB"
    return Claim(claim, None, ours, all(good) if all(good) or not any(good) else None, note, part)


def _used(one: dict[str, Any], tau: float) -> float:
    """Return the mean share of the pool's rows above a threshold, over the rounds with it."""
    values = [row["pool_used"] for row in one["rounds"] if row.get("tau") == tau]
    return sum(values) / len(values) if values else float("nan")


def _megabytes(values: list[float] | None) -> str:
    return "-" if values is None else " ".join(f"{value:.2f}" for value in values)


def _predictions(lab: Lab, scale: TrialSize) -> list[Claim]:
    part = "Predictions in place of parameters"
    rows = {
        name or "models": scores(lab, f"predictions-{name or 'models'}", scale, by_predictions(scale, name))
        for name in ("after", "before", "never", "")
    }
    right = {name: _last(found) for name, found in rows.items()}
    bytes_up = {
        name: None if found is None else [float(one["last"]["bytes_up"]) for one in found]
        for name, found in rows.items()
    }
    return [
        _above("entropy reduction helps: sharpened means teach better than plain means", right["after"], right["never"], "ERA with T = .1 after the mean", part),
        _above("sharpening each client's prediction, as the survey has it, is as good as sharpening the mean", right["before"], right["after"], "the survey's order against the paper's", part),
        _above("predictions cost less communication than parameters", bytes_up["models"], bytes_up["after"], "bytes up in a round, of all clients", part),
        _above("averaging models is more accurate at this size", right["models"], right["after"], "ours, for scale; not a claim of the survey", part),
    ]  # fmt: skip


ENTRY = Entry(
    name="labels-semi",
    title="Few labels: SemiFL, FedMatch, FedPU, AdaFedSemi and DS-FL on MNIST, against labels alone",
    source='Jin, Liu, Chen, Yang. "Federated Learning without Full Labels: A Survey". IEEE Data Engineering Bulletin 2023, section 3',
    run=_run,
    needs="MNIST in ATOLL_DATA",
    data=("mnist",),
)
