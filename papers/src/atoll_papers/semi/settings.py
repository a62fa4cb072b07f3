"""The trainings of `labels-semi`, by name: each returns a job and its data for a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .trainings import TrialSize, digits, network

if TYPE_CHECKING:
    from atoll.data import Islands
    from atoll.learn import Training

__all__ = ["Make", "at_server", "by_predictions", "forgetting", "labelled_alone", "of_classes", "taught", "with_pool"]

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
    from atoll.labels import views

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
    from atoll.labels import DSFL
    from atoll.learn.algorithms import FedAvg

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
