"""What privacy costs over one data set: accuracy against epsilon, for every mechanism."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, ConfigError
from atoll.core.persistence.files import write_bytes
from atoll.runs.folder import RunFolder

from .arms import run_study

if TYPE_CHECKING:
    from atoll.learn.private.base import Mechanism
    from atoll.learn.training import Training

    from .result import StudyResult

__all__ = ["CostPoint", "PrivacyCost", "privacy_cost"]


@dataclass(frozen=True)
class CostPoint:
    """One mechanism at one epsilon.

    Attributes:
        mechanism: its name.
        epsilon: the epsilon that was asked for.
        accuracy: mean accuracy on the common test set after the last round; NaN if the training was refused.
        spread: standard deviation over the seeds.
        claim: what the run promises, with unit, neighbours and adversary; or why it was refused.
    """

    mechanism: str
    epsilon: float
    accuracy: float
    spread: float
    claim: str


@dataclass(frozen=True)
class PrivacyCost:
    """Accuracy with and without privacy.

    Attributes:
        data: name of the data set.
        terms: clients, rounds, seeds, clip and delta of all runs.
        without: accuracy of the same training without privacy.
        spread: its standard deviation over the seeds.
        points: mechanisms at epsilons.
    """

    data: str
    terms: Mapping[str, Any]
    without: float
    spread: float
    points: tuple[CostPoint, ...]

    def plain(self) -> dict[str, Any]:
        """Return the study as plain values; a refused training has accuracy ``None``."""
        rows = [dataclasses.asdict(point) for point in self.points]
        rows = [{**row, "accuracy": None if math.isnan(row["accuracy"]) else row["accuracy"]} for row in rows]
        return {"data": self.data, **self.terms, "without": self.without, "points": rows}

    def __str__(self) -> str:
        lines = [f"{self.data}: accuracy {self.without:.3f} without privacy"]
        for point in self.points:
            found = point.claim if math.isnan(point.accuracy) else f"accuracy {point.accuracy:.3f}; {point.claim}"
            lines.append(f"{point.mechanism} at epsilon {point.epsilon:g}: {found}")
        return "\n".join(lines)

    def report(self, path: str | Path) -> Path:
        """Write a page with the plot and the table.

        Raises:
            MissingExtraError: Matplotlib or Jinja2 is not installed.
        """
        from atoll.report.figures import SERIES, figure
        from atoll.report.page import render

        def draw(axis: Any) -> None:
            for name, colour in zip(self._names, SERIES, strict=False):
                known = [p for p in self.points if p.mechanism == name and not math.isnan(p.accuracy)]
                xs, ys = [p.epsilon for p in known], [p.accuracy for p in known]
                axis.errorbar(xs, ys, yerr=[p.spread for p in known], color=colour, marker="o", capsize=2, label=name)
            axis.axhline(self.without, linestyle="--", linewidth=1.2, color=SERIES[-1], label="without privacy")
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter("")
            axis.set_xlabel("epsilon of the whole training")
            axis.set_title("accuracy on the common test set")
            axis.legend()

        drawn = figure("accuracy against epsilon", draw, size=(10.6, 3.8))
        page = render("privacy_cost.html.j2", study=self, figure=drawn)
        write_bytes(Path(path), page.encode("utf-8", "replace"))
        return Path(path)

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(point.mechanism for point in self.points))


def privacy_cost(
    data: Any,
    epsilons: Sequence[float] = (1.0, 4.0, 16.0),
    mechanisms: Sequence[str] = (),
    *,
    parties: int = 20,
    rounds: int = 10,
    seeds: int = 2,
    delta: float = 1e-5,
    clip: float = 1.0,
    batch: int = 32,
) -> PrivacyCost:
    """Train a linear classifier with every mechanism at every epsilon, on the same clients and rounds.

    All clients take part in every round with federated averaging of one epoch. Every run has the same rounds, clip and learning rate, so this says what privacy costs a
    training that is not tuned for it. A client's data are protected as a whole or by example, according to the mechanism: compare lines by their claims.

    Args:
        data: a data set with class labels, or federated data.
        epsilons: what a client may spend in the whole training.
        mechanisms: names in `atoll.learn.private`; by default all that these settings fit.
        parties: clients, if the data are not federated; the rows are dealt out at random.
        rounds: rounds of each training.
        seeds: runs of each training.
        delta: delta of all claims.
        clip: the clip of every mechanism.
        batch: expected mini-batch.

    Raises:
        ConfigError: a mechanism that does not exist, or a data set without classes.
    """
    import atoll

    clients = data if hasattr(data, "shard") else atoll.data.iid(data, parties=parties, seed=0)
    names = _list_mechanisms(mechanisms)
    base = atoll.Training(
        model=_model(clients),
        algorithm=atoll.FedAvg(lr=0.5, batch_size=batch),
        selection=atoll.Everyone(),
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
    )
    settings = {"delta": delta, "clip": clip}
    arms: dict[str, Training] = {"without": base}
    claims: dict[tuple[str, float], str] = {}
    for name, epsilon in itertools.product(names, epsilons):
        try:
            job = base.replace(privacy=_make_mechanism(name, epsilon, settings))
            claims[name, epsilon] = str(job.installed(clients, job.learner(clients)).claim)
            arms[_label_of(name, epsilon)] = job
        except AtollError as refused:
            claims[name, epsilon] = f"refused: {refused}"
    study = run_study(arms, clients, seeds=seeds, engine="inline", metric="test/accuracy", tell=lambda line: None)
    rows = {row["group"]: row for row in study.rows}
    points = [
        _point(name, epsilon, claims[name, epsilon], rows.get(_label_of(name, epsilon)), study)
        for name, epsilon in claims
    ]
    terms = {"clients": len(clients), "rounds": rounds, "seeds": seeds, "delta": delta, "clip": clip, "batch": batch}
    label = str(getattr(clients, "name", "") or "the data")
    return PrivacyCost(label, terms, rows["without"]["mean"], rows["without"]["sd"] or 0.0, tuple(points))


def _label_of(name: str, epsilon: float) -> str:
    return f"{name},epsilon={epsilon:g}"


def _point(name: str, epsilon: float, claim: str, row: Mapping[str, Any] | None, study: StudyResult) -> CostPoint:
    """Return a mechanism at an epsilon, or why its training was refused."""
    if row is None:
        return CostPoint(name, epsilon, math.nan, math.nan, claim)
    if row["failed"]:
        error = RunFolder(study.folder / row["failed"][0]).manifest()["error"]
        return CostPoint(name, epsilon, math.nan, math.nan, f"refused: {error['what']}")
    return CostPoint(name, epsilon, row["mean"], row["sd"] or 0.0, claim)


def _make_mechanism(name: str, epsilon: float, settings: dict[str, float]) -> Mechanism:
    import atoll.mechanisms as private

    kind = getattr(private, name)
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    return kind(epsilon=epsilon, **{key: value for key, value in settings.items() if key in known})  # type: ignore[no-any-return]


def _list_mechanisms(wanted: Sequence[str]) -> list[str]:
    """Return names of mechanisms; of all whose settings beside epsilon have defaults, or are the clip."""
    import atoll.mechanisms as private

    kinds = {name: getattr(private, name) for name in dir(private) if _mechanism(getattr(private, name))}
    bases = {base for kind in kinds.values() for base in kind.__mro__[1:]}
    every = [name for name, kind in kinds.items() if kind not in bases]
    for name in wanted:
        if name not in every:
            raise ConfigError(f"mechanism {name!r}", where="privacy_cost", remedy=f"use some of {', '.join(every)}")
    if wanted:
        return list(wanted)
    return [name for name in every if _list_required(kinds[name]) <= {"clip"}]


def _mechanism(part: Any) -> bool:
    from atoll.learn.private.base import Mechanism

    return isinstance(part, type) and issubclass(part, Mechanism) and part is not Mechanism


def _list_required(kind: Any) -> set[str]:
    none = dataclasses.MISSING
    return {f.name for f in dataclasses.fields(kind) if f.init and f.default is none and f.default_factory is none}


def _model(clients: Any) -> Any:
    import numpy as np

    import atoll

    first = clients.shard(0)
    labels = [np.asarray(clients.shard(i).y) for i in range(len(clients))]
    if any(y.dtype.kind not in "iu" for y in labels):
        raise ConfigError("targets are no classes", where="privacy_cost", remedy="use a data set with class labels")
    classes = 1 + max(int(y.max()) for y in labels if len(y))
    return atoll.models.linear(int(np.prod(np.shape(first.x)[1:])), classes)
