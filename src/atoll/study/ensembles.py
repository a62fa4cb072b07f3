"""Is an ensemble worth it? One model, the same model as wide as all leaves, opt-in data alone, and every way to join leaves, on the same test rows."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import DataError
from atoll.learn.round.evaluation import Evaluation
from atoll.runs.folder import RunFolder

from .arms import run_study, seeds_of

if TYPE_CHECKING:
    from atoll.data import Islands
    from atoll.ensemble import Federated
    from atoll.report.groups import Difference

__all__ = ["EnsembleArms", "compare_ensemble"]

_ENSEMBLE, _OPT_IN = "ensemble", "opt_in_alone"
_MEASURES = ("auc", "accuracy")


@dataclass(frozen=True)
class EnsembleArms:
    """What each arm scores.

    Attributes:
        values: arm -> ``auc`` and ``accuracy`` -> seed -> score: ``baseline`` is one model of all clients, ``wide`` one with the width of all leaves, ``opt_in_alone`` one of
            the rows that the server has, ``own_leaf`` the leaf of the row's user, and the others ways to join.
        parameters: numbers of ``baseline``, ``ensemble`` and ``wide``.
        epsilon: what a user of the ensemble loses: ``leaves``, ``aggregator`` and ``total``; ``None`` where nothing is promised.
        opt_in: how many users gave their rows to the server.
        folder: the study's folder, with a run folder for each training and seed.
        search: what the ensemble of the first seed has chosen itself, see `atoll.ensemble.SearchRecord`; empty without a search.
    """

    values: Mapping[str, Mapping[str, Mapping[int, float]]]
    parameters: Mapping[str, int]
    epsilon: Mapping[str, float | None]
    opt_in: int
    folder: Path = field(repr=False)
    search: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Arm -> mean ``auc`` and ``accuracy`` over the seeds."""
        return {
            arm: {name: statistics.fmean(found.values()) for name, found in each.items()}
            for arm, each in self.values.items()
        }

    def differences(self, measure: str = "auc", against: str = "baseline") -> list[Difference]:
        """How each arm differs from another, in pairs of the same seed, with 95 % intervals where there are several seeds.

        Args:
            measure: ``auc`` or ``accuracy``.
            against: the other arm.
        """
        from atoll.report.groups import compare_values

        first = against, self.values[against][measure]
        return [compare_values((arm, each[measure]), first) for arm, each in self.values.items() if arm != against]

    def sections(self) -> list[dict[str, Any]]:
        """Return the arms as a section of a report: a table, and how each arm's AUC differs from one model's, with intervals where there are several seeds."""
        from atoll.report.groups import shown_difference

        found = {one.group: one for one in self.differences()}
        rows = [
            [arm, *(f"{one[name]:.4f}" for name in _MEASURES), shown_difference(found[arm]) if arm in found else ""]
            for arm, one in self.scores.items()
        ]
        table = {"head": ["arm", *_MEASURES, "auc against baseline"], "rows": rows}
        told = {arm: one for arm, one in found.items() if one.low is not None and one.high is not None}
        if told:
            ends = {name: [getattr(one, name) for one in told.values()] for name in ("low", "high")}
            values = [one.mean for one in told.values()]
            picture = {"name": "auc against baseline, 95 % intervals over seeds", "kind": "intervals", "labels": list(told), "values": values, **ends, "line": 0.0}  # fmt: skip
        else:
            series = [{"name": "auc", "values": [one["auc"] for one in self.scores.values()]}]
            picture = {"name": "auc", "kind": "bars", "flat": True, "labels": list(self.scores), "series": series}
        seeds = len(self.values["baseline"]["auc"])
        text = (
            f"Means of {seeds} seeds, in pairs of one seed."
            if seeds > 1
            else "One seed: it says nothing of how far another would be."
        )
        return [{"title": "Against one model", "text": text, "tables": [table], "figures": [picture]}]

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the ensemble's run with the first seed, with all arms; return its path.

        Args:
            path: the file; by default ``report.html`` in that run's folder.
        """
        from atoll.report import write_report

        first = next(iter(self.values["baseline"]["auc"]))
        return write_report(RunFolder(self.folder / f"{_ENSEMBLE}_seed-{first}"), path, more=self.sections())


def compare_ensemble(
    job: Federated,
    islands: Islands | Callable[[int], Islands],
    wide: Any = None,
    *,
    seeds: int | Iterable[int] = 3,
    folder: str | Path | None = None,
    **study: Any,
) -> EnsembleArms:
    """Train an ensemble and its rivals on the same users, under the same seeds, mechanism and number of rounds.

    Every rival trains on the users that train leaves, not on opt-in users, but for ``opt_in_alone``, which trains on these alone, without noise.

    Args:
        job: the ensemble.
        islands: its data, with test rows; or a function of the seed that gives them, with the same users.
        wide: the model with the width of all leaves; ``None`` leaves the arm out.
        seeds: the number of seeds, or the seeds.
        folder: the study's folder, which a second call continues; see `run_study`.
        study: further arguments of `run_study`, such as ``engine`` and ``parallel``.

    Raises:
        DataError: there are no test rows, or a training failed.
    """
    chosen = seeds_of(seeds)

    def load(seed: int) -> Islands:
        found: Any = islands(seed) if callable(islands) else islands
        return found  # type: ignore[no-any-return]

    first = load(chosen[0])
    if first.test is None or not len(first.test):
        raise DataError(
            "there are no test rows, on which the arms are compared",
            where="compare_ensemble",
            remedy="give islands with test rows: islands.with_test(rows)",
        )
    job.prepare(first)  # refuses what makes no ensemble before its rivals train
    names = [str(name) for name in first.names]
    away = set(job.draw_opt_in(names))
    measures: list[Any] = [auc]
    plain = job.leaf.replace(evaluation=Evaluation(every=job.leaf.rounds, metrics=measures))
    models = {"baseline": job.leaf.model, **({} if wide is None else {"wide": wide})}
    arms = {arm: plain.replace(model=model) for arm, model in models.items()}
    root = Path(tempfile.mkdtemp(prefix="atoll-study-")) if folder is None else Path(folder)

    def run(trainings: Mapping[str, Any], among: Sequence[int] | None) -> None:
        data = islands if among is None else lambda seed: load(seed).subset(among)
        run_study(trainings, data, seeds=chosen, folder=root, **study)

    run(arms, [place for place, name in enumerate(names) if name not in away] if away else None)
    if away:
        alone = plain.replace(privacy=None, budget=None)
        run({_OPT_IN: alone}, [place for place, name in enumerate(names) if name in away])
    run({_ENSEMBLE: job}, None)
    values = {arm: _scores_of(_last_rows(root, arm, chosen)[0]) for arm in (*arms, *([_OPT_IN] if away else []))}
    joined, told = _last_rows(root, _ENSEMBLE, chosen)
    for arm in sorted(name for name, found in told.items() if isinstance(found, Mapping) and "auc" in found):
        values[arm] = _scores_of(joined, f"{arm}/")
    parameters = {arm: _count(model) for arm, model in models.items()}
    made = EnsembleArms(
        values, {**parameters, _ENSEMBLE: told["parameters"]}, told["epsilon"], len(away), root, told.get("search", {})
    )
    if folder is None:
        weakref.finalize(made, shutil.rmtree, root, ignore_errors=True)
    return made


def auc(scores: Any, labels: Any) -> float:
    """The area under the curve of test rows, as the ensemble counts it."""
    import torch

    from atoll.ensemble.joining import log_probabilities, probabilities_of
    from atoll.ensemble.model import score_probabilities

    return score_probabilities(probabilities_of(log_probabilities(torch.tensor(scores))), labels)["auc"]


def _last_rows(root: Path, arm: str, seeds: Sequence[int]) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Return the last row of an arm's run with each seed, and the plain facts of the first run's result.

    Raises:
        DataError: a run failed.
    """
    from atoll.report.facts import facts_of

    rows, told = {}, dict[str, Any]()
    for seed in seeds:
        facts = facts_of(RunFolder(root / f"{arm}_seed-{seed}"))
        if facts.status != "finished":
            error = facts.error or {}
            raise DataError(
                f"the arm {arm!r} has no result with seed {seed}: {error.get('what', facts.status)}",
                where="compare_ensemble",
                remedy=error.get("remedy") or "call it again with the same folder: it continues what was stopped",
            )
        rows[seed] = facts.rows[-1]
        told = told or dict(facts.result or {})
    return rows, told


def _scores_of(rows: Mapping[int, Mapping[str, Any]], begin: str = "test/") -> dict[str, dict[int, float]]:
    """Return measure -> seed -> score of the rows of an arm."""
    return {name: {seed: float(row[f"{begin}{name}"]) for seed, row in rows.items()} for name in _MEASURES}


def _count(model: Any) -> int:
    """Return how many numbers a model trains."""
    from torch import nn

    from atoll.torch import seeded

    made = model if isinstance(model, nn.Module) else seeded(model, 0)
    return sum(one.numel() for one in made.parameters())
