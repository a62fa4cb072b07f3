"""Semi-supervised federated learning on MNIST, against what "Federated Learning without Full Labels: A Survey" says in words; it has no experiment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError
from atoll.reproduce import Claim, Entry, Lab, NotKept

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Islands
    from atoll.learn import Training

__all__ = [
    "ENTRY",
    "Make",
    "TrialSize",
    "at_server",
    "by_predictions",
    "digits",
    "forgetting",
    "labelled_alone",
    "network",
    "of_classes",
    "scores",
    "taught",
    "with_pool",
]


# ------------------------------------------------------------------ data, network, and one training


@dataclass(frozen=True)
class TrialSize:
    """How large the trainings are.

    Attributes:
        rows: unlabelled rows of all clients.
        parties: clients.
        cohort: clients of a round.
        rounds: rounds.
        seeds: repetitions, with other labels and clients each.
        warm_up: steps on labels before the first round, if they are at the server.
        pooled: whether the network pools, which is slower and more accurate.
    """

    rows: int
    parties: int
    cohort: int
    rounds: int
    seeds: int
    warm_up: int
    pooled: bool = False


def digits(scale: TrialSize, seed: int, alpha: float = 0.5) -> Islands:
    """Return MNIST, divided among clients by class (Dirichlet), with 2,000 test rows."""
    import atoll.data

    whole = atoll.data.open("mnist")
    if whole.test is None:
        raise DataError("MNIST has no test rows here", where="ATOLL_DATA", remedy="add the files t10k-*")
    rows = Rng(seed).child("rows").generator().permutation(len(whole))[: scale.rows]
    made = atoll.data.dirichlet(whole.take(rows), parties=scale.parties, alpha=alpha, seed=seed)
    return made.with_test(whole.test.take(np.arange(2000)))


def network(pooled: bool = False) -> nn.Module:
    """Return three convolutions of 8, 16 and 32 channels with group normalisation: each with a stride, or with one pooling in place of two strides."""
    from torch import nn

    if pooled:
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, 2, 2), nn.GroupNorm(4, 8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 1, 1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
        )  # fmt: skip
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.GroupNorm(4, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def scores(
    lab: Lab, name: str, scale: TrialSize, make: Callable[[int], tuple[Training, Islands]]
) -> list[dict[str, Any]] | None:
    """Return the rows of the last round of each seed's training; ``None`` if one is not kept and nothing may be trained.

    Raises:
        Interrupted: the user asked to stop; finished trainings are kept.
    """
    try:
        return [
            lab.scores(f"{name}-{scale.rows}-{scale.rounds}-{seed}", partial(_one, make, seed))
            for seed in range(scale.seeds)
        ]
    except NotKept:
        return None


def _one(make: Callable[[int], tuple[Training, Islands]], seed: int) -> dict[str, Any]:
    import atoll

    job, data = make(seed)
    result = atoll.simulate(job, data, engine="batched", seed=seed, progress=False)
    rows = [{k: v for k, v in row.items() if isinstance(v, int | float)} for row in result.metrics]
    return {"last": rows[-1], "rounds": [{k: r.get(k) for k in _KEPT if k in r} for r in rows]}


_KEPT = ("test/accuracy", "bytes_up", "bytes_down", "share", "tau", "reward", "pool_used", "labelled_loss", "replied")


# ------------------------------------------------------------------ trainings by name: each returns a job and its data for a seed

Make = Callable[[int], tuple["Training", "Islands"]]
_LABELS = 40
_STEPS: dict[str, Any] = {"lr": 0.03, "steps": 12, "batch_size": 48}


def _job(scale: TrialSize, algorithm: Any, **parts: Any) -> Training:
    import atoll

    settings = {"selection": atoll.Uniform(scale.cohort), "rounds": scale.rounds, **parts}
    model = partial(network, scale.pooled)
    return atoll.Training(model=model, algorithm=algorithm, evaluation=atoll.Evaluation(every=1), **settings)


def _on_any_rows(method: Any) -> Any:
    """Return the method without its demand for a label of every class at clients: what the survey says is about rows that lack them."""
    return type(method.__name__, (method,), {"label_holders": ()})


def _view(name: str) -> Any:
    from atoll import views

    return None if name == "no" else getattr(views, name)("images")


def labelled_alone(scale: TrialSize, view: str) -> Make:
    """Train on the server's labels alone, through ``"no"``, ``"weak"`` or ``"strong"`` views, with as many steps as `at_server` takes: those of a client and those on labels."""
    import atoll
    from atoll.data import Islands, unlabel
    from atoll.labels import Supervised

    def make(seed: int) -> tuple[Training, Islands]:
        few = unlabel(digits(scale, seed), keep=_LABELS, at="server", seed=seed)
        alone = Islands.from_datasets([few.others["labels"]]).with_test(few.test)
        steps = (scale.warm_up + (12 + 12) * scale.rounds) // scale.rounds
        method = Supervised(view=_view(view), **{**_STEPS, "steps": steps}, horizon=scale.rounds)
        return _job(scale, method, selection=atoll.Everyone()), alone

    return make


def at_server(scale: TrialSize, method: str) -> Make:
    """Labels at the server, all other rows at clients without labels."""
    from atoll.data import unlabel
    from atoll.labels import FedMatch, SemiFL

    def make(seed: int) -> tuple[Training, Islands]:
        few = unlabel(digits(scale, seed), keep=_LABELS, at="server", seed=seed)
        shared = {**_STEPS, "warm_up": scale.warm_up, "horizon": scale.rounds}
        made = SemiFL(**shared) if method == "SemiFL" else FedMatch(labels_at="server", **shared)
        return _job(scale, made), few

    return make


def taught(scale: TrialSize) -> Make:
    """The model with which `forgetting` begins: a third of the rounds on the server's labels alone, through weak views."""

    def make(seed: int) -> tuple[Training, Islands]:
        job, alone = labelled_alone(scale, "weak")(seed)
        return replace(job, rounds=max(1, scale.rounds // 3)), alone

    return make


def forgetting(scale: TrialSize) -> Make:
    """Learn from labels first; then clients train on unlabelled rows alone, on their own pseudo-labels."""
    import atoll
    from atoll.data import unlabel
    from atoll.labels import FixMatch

    def make(seed: int) -> tuple[Training, Islands]:
        job, alone = taught(scale)(seed)
        begin = atoll.simulate(job, alone, engine="batched", seed=seed, progress=False)
        rest = unlabel(digits(scale, seed), keep=_LABELS, at="server", seed=seed)  # the labels stay where nobody asks
        return replace(_job(scale, _on_any_rows(FixMatch)(**_STEPS)), model=begin.model), rest

    return make


def of_classes(scale: TrialSize, method: str) -> Make:
    """Every client labels its rows of two classes."""
    from atoll.data import unlabel
    from atoll.labels import FedMatch, FedPU, Supervised

    def make(seed: int) -> tuple[Training, Islands]:
        some = unlabel(digits(scale, seed, alpha=100.0), keep=2, at="classes", seed=seed)
        made: Any = {"FedPU": FedPU, "FedMatch": FedMatch, "labels": Supervised}[method]
        return _job(scale, _on_any_rows(made)(**_STEPS, horizon=scale.rounds)), some

    return make


def with_pool(scale: TrialSize, share: float | None, tau: float | None) -> Make:
    """100 labels at clients, a quarter as many unlabelled rows as theirs at the server; a fixed share and threshold, or the bandit's."""
    import atoll
    from atoll.data import unlabel
    from atoll.labels import AdaFedSemi, AdaptiveRounds

    def make(seed: int) -> tuple[Training, Islands]:
        few = unlabel(digits(scale, seed), keep=100, at="rows", seed=seed)
        pool = digits(replace(scale, rows=scale.rows // 4, parties=1), seed + 100)
        rows = unlabel(pool, keep=0, at="none", seed=seed).pooled().with_test(None)
        method = AdaFedSemi(tau=tau or 0.9, **_STEPS)
        parts: dict[str, Any] = {"selection": atoll.Uniform(share)} if share else {}
        parts |= (
            {}
            if share
            else {
                "topology": AdaptiveRounds(shares=(0.2, 0.5, 1.0), taus=(0.7, 0.95), window=1),
                "selection": atoll.Uniform(1.0),
            }
        )
        return _job(scale, method, **parts), few.with_others({"pool": rows})

    return make


def by_predictions(scale: TrialSize, order: str) -> Make:
    """All labels at clients with few classes each; they exchange predictions of a public pool, or models (``order=""``)."""
    import atoll
    from atoll.algorithms import FedAvg
    from atoll.labels import DSFL

    def make(seed: int) -> tuple[Training, Islands]:
        data = digits(scale, seed, alpha=0.3)
        pool = digits(replace(scale, rows=scale.rows // 4, parties=1), seed + 100).pooled().with_test(None)
        parts: dict[str, Any] = (
            {"topology": DSFL(rows=min(400, len(pool)), order=order, epochs=2, batch_size=50)} if order else {}
        )
        return _job(
            scale, FedAvg(lr=0.1, epochs=1, batch_size=20), selection=atoll.Everyone(), **parts
        ), data.with_public(pool)

    return make


# ------------------------------------------------------------------ verdicts

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
