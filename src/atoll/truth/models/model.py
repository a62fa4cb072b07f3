"""`TruthModel`: what a worker adds to each task, what the sums mean, and what a worker learns from them.

A model is three functions over arrays. A step goes so::

    party    contribute(step, state, reports, broadcast) ──► arrays that add up over workers and parties
    server   combine(step, layout, sums, broadcast)              ──► the next broadcast
    party    learn(step, state, reports, broadcast)      ──► the next state of its workers

Arrays of a state have an axis of workers, so one worker, a site with many, and a whole table are the same code. The shapes of what adds up follow from the layout alone (`TruthModel.terms`): a task on which
a worker said nothing gets zeros, so nobody can tell what it reported on. ``terms`` also bounds every entry of one worker, from which a protocol takes its prime and scale, so that no sum overflows.

States never leave the party: a confusion matrix, an ability or a weight tells how reliable somebody is.

A server may see fewer workers in a step than before. `blend_broadcast` then keeps a part of what it knew; models do not know of it. A task on which nobody who is there reported keeps its truth.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.validation import Checked

from ..reports import CodedReports, Reports, TaskLayout, Values, reports_of

__all__ = ["EVIDENCE", "Arrays", "Floats", "Term", "TruthFit", "TruthModel", "blend_broadcast", "fit_reports"]

Floats = NDArray[np.float64]
Arrays = dict[str, Floats]
"""Named arrays: a state, a broadcast or sums."""

EVIDENCE = 2.0**-24
"""A report's log-likelihoods lie at least so far below zero. So a sum of zeros means that nobody reported, in floating point and in fixed point of 24 bits or more."""


class Term(NamedTuple):
    """One array of a step's sums.

    Attributes:
        shape: its shape.
        bound: the largest absolute value of an entry of one worker. A site's entries are within ``bound`` times its workers.
        signed: whether entries may be negative: sums with noise are brought back to what they can be.
    """

    shape: tuple[int, ...]
    bound: float
    signed: bool = True


@dataclass(frozen=True, kw_only=True)
class TruthModel(Checked):
    """Base class of models that find the truth in reports.

    Args:
        iterations: most iterations after the opening steps.
        tolerance: a fit of a table ends when every entry of the truth moves by less than this in an iteration: a probability, or a part of the numbers' range. 0 makes all iterations.

    Attributes:
        values: what reports may be.
        opening: steps before the first iteration.
        steps: steps of an iteration; each is one sum over all workers.

    Raises:
        ConfigError: a setting is out of range.
    """

    values: ClassVar[tuple[Values, ...]] = ("classes",)
    opening: ClassVar[tuple[str, ...]] = ()
    steps: ClassVar[tuple[str, ...]] = ("truth",)

    iterations: int = 10
    tolerance: float = 1e-5
    _last: TruthFit | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ConfigError(f"iterations={self.iterations}", remedy="use 0 or more")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance={self.tolerance}", remedy="use 0 or more, below 1")

    # ------------------------------------------------------------------ the three functions

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Return what adds up in a step: its shapes and bounds."""
        raise NotImplementedError

    def start(self, layout: TaskLayout) -> Arrays:
        """Return the broadcast before the first step; ``truth`` is ``(cells,)`` of labels and ``(tasks,)`` of numbers."""
        return {"truth": 1.0 / layout.widths[layout.owners]}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Return the state of workers before the first step, ``(workers, ...)`` each."""
        raise NotImplementedError

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Return what these workers add, as `terms` says."""
        raise NotImplementedError

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """Return the next broadcast, of sums over all workers who are there."""
        raise NotImplementedError

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Return what these workers know about themselves after a broadcast; those without reports keep their state."""
        del step, reports, broadcast
        return state

    def shares(self, layout: TaskLayout, broadcast: Arrays) -> Floats:
        """Return the probability of each cell, ``(cells,)``; of numbers, the truth in their unit, ``(tasks,)``."""
        if layout.values == "numbers":
            return layout.low + broadcast["truth"] * (layout.high - layout.low)
        return broadcast["truth"]

    def require_layout(self, layout: TaskLayout) -> None:
        """Refuse a layout whose reports the model cannot read.

        Raises:
            CompositionError: names the kind of reports, and models that can.
        """
        if layout.values not in self.values:
            instead = {"classes": "DawidSkene", "claims": "TDH or OneCoin", "numbers": "CRH"}[layout.values]
            raise CompositionError(f"{type(self).__name__} reads {' and '.join(self.values)}, and these reports are {layout.values}", where=type(self).__name__, remedy=f"use a model for {layout.values}, such as {instead}")  # fmt: skip

    def step_names(self) -> Iterator[tuple[int, str]]:
        """Iterate over all steps: the iteration, 0 for the opening, and the step's name."""
        yield from ((0, step) for step in self.opening)
        yield from ((number, step) for number in range(1, self.iterations + 1) for step in self.steps)

    # ------------------------------------------------------------------ for people with a table

    def fit(self, table: Any) -> Self:
        """Fit the model to a table of all reports in one place, see `reports_of`.

        Raises:
            AtollError: the table cannot be read, or its labels are of another kind than the model's.
        """
        object.__setattr__(self, "_last", fit_reports(self, reports_of(table), table=table))
        return self

    def fit_predict(self, table: Any) -> Any:
        """Return the truth of each task: a Series by task if the table is a DataFrame, else a dictionary.

        Labels are the table's own values. A Series has the tasks in the order in which they first appear.
        """
        return self.fit(table).fitted.predictions()

    def fit_predict_proba(self, table: Any) -> Any:
        """Return the probability of each label, see `probas_`."""
        return self.fit(table).probas_

    @property
    def fitted(self) -> TruthFit:
        """What the last fit found.

        Raises:
            ConfigError: nothing was fitted.
        """
        if self._last is None:
            raise ConfigError(f"{type(self).__name__} has not been fitted", where=type(self).__name__, remedy="call fit_predict with a table first")  # fmt: skip
        return self._last

    @property
    def probas_(self) -> Any:
        """The probability of each label by task: a DataFrame with a column a class if the table is one, else task -> label -> probability."""
        return self.fitted.probabilities()

    @property
    def priors_(self) -> Any:
        """How often each class is true: a Series by label if the table is a DataFrame, else label -> part."""
        fit = self.fitted
        if not fit.layout.classes:
            raise CompositionError(f"{fit.layout.values} have no common classes", where="priors_", remedy="use probas_")
        known = fit.broadcast.get("priors")
        priors = fit.shares.reshape(len(fit.layout.tasks), -1).mean(axis=0) if known is None else known
        return fit.by_label(dict(zip(fit.layout.classes, priors.tolist(), strict=True)), "prior")

    @property
    def errors_(self) -> Any:
        """The confusion of each worker: how probable each label is when each class is true. A DataFrame by worker and label with a column a class if the table is one, else worker -> label -> class -> probability.

        Raises:
            CompositionError: the model has no confusion of workers.
        """
        fit = self.fitted
        return fit.by_confusion(self.confusions(fit.layout, fit.state))

    @property
    def skills_(self) -> Any:
        """How reliable each worker is, in the model's own measure: a Series by worker if the table is a DataFrame, else worker -> number."""
        fit = self.fitted
        return fit.by_worker(self.skills(fit.layout, fit.state))

    @property
    def n_iter_(self) -> int:
        """How many iterations the last fit made."""
        return self.fitted.iterations

    def confusions(self, layout: TaskLayout, state: Arrays) -> Floats:
        """Return the confusion of workers, ``(workers, labels, classes)``."""
        del layout, state
        raise CompositionError(f"{type(self).__name__} has no confusion of workers", where="errors_", remedy="use DawidSkene, OneCoin or MACE")  # fmt: skip

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """Return how reliable workers are, ``(workers,)``."""
        del layout, state
        raise CompositionError(f"{type(self).__name__} does not say how reliable workers are", where="skills_", remedy="use OneCoin or CRH")  # fmt: skip


def blend_broadcast(new: Arrays, old: Arrays, weight: float) -> Arrays:
    """Return ``weight new + (1 - weight) old``, entry by entry: a step that only some workers made moves the broadcast a part of the way (FedTruthFinder, equation 27).

    Args:
        new: what `TruthModel.combine` made of the sums.
        old: the broadcast before.
        weight: ``(alive / all)^alpha``, between 0 and 1; 1 takes the new one.

    Raises:
        ConfigError: the weight is not between 0 and 1.
    """
    if not 0 <= weight <= 1:
        raise ConfigError(f"weight={weight}", where="blend_broadcast", remedy="use a number from 0 to 1")
    if weight == 1:
        return new
    return {name: weight * value + (1 - weight) * old[name] if name in old else value for name, value in new.items()}


def fit_reports(
    model: TruthModel, reports: Reports | CodedReports, *, layout: TaskLayout | None = None, table: Any = None
) -> TruthFit:
    """Fit a model to all reports in one place.

    Args:
        model: the model.
        reports: all reports, or those in the numbers of a layout.
        layout: the layout; by default that of the reports.
        table: the table that the reports come from, for results in its form.

    Raises:
        AtollError: the model cannot read such reports.
    """
    if isinstance(reports, CodedReports):
        layout = reports.layout
    elif layout is None:
        layout = reports.layout("numbers" if model.values == ("numbers",) else "claims" if reports.claims else "classes")  # fmt: skip
    model.require_layout(layout)
    coded = reports if isinstance(reports, CodedReports) else layout.code(reports)
    state, broadcast = model.start_workers(layout, len(coded.workers)), model.start(layout)
    made, before = 0, broadcast["truth"]
    for number, step in model.step_names():
        sums = model.contribute(step, state, coded, broadcast)
        broadcast = model.combine(step, layout, sums, broadcast)
        state = model.learn(step, state, coded, broadcast)
        if number and step == model.steps[-1]:
            made = number
            if number > 1 and np.abs(broadcast["truth"] - before).max() < model.tolerance:
                break
        if step in (model.steps[-1], *model.opening):
            before = broadcast["truth"]
    return TruthFit(model, layout, coded, state, broadcast, made, table)


@dataclass(frozen=True, eq=False)
class TruthFit:
    """What a model found in reports.

    Attributes:
        model: the model.
        layout: tasks and labels.
        reports: the reports.
        state: what the model knows of each worker.
        broadcast: what it knows of each task.
        iterations: iterations made.
        table: the table that the reports come from.
    """

    model: TruthModel
    layout: TaskLayout
    reports: CodedReports
    state: Arrays
    broadcast: Arrays
    iterations: int
    table: Any = field(default=None, repr=False)

    @cached_property
    def shares(self) -> Floats:
        """The probability of each cell, or each task's number."""
        return self.model.shares(self.layout, self.broadcast)

    @property
    def truth(self) -> dict[str, Any]:
        """Task -> its label, or its number. Of labels that tie, the first."""
        if self.layout.values == "numbers":
            return dict(zip(self.layout.tasks, self.shares.tolist(), strict=True))
        return {task: max(row, key=row.__getitem__) for task, row in self.by_task().items()}

    @property
    def confidence(self) -> dict[str, float]:
        """Task -> the probability of its label.

        Raises:
            CompositionError: the truth is numbers.
        """
        return {task: max(row.values()) for task, row in self.by_task().items()}

    def by_task(self) -> dict[str, dict[str, float]]:
        """Task -> label -> probability.

        Raises:
            CompositionError: the truth is numbers.
        """
        if self.layout.values == "numbers":
            raise CompositionError("numbers have no probabilities", where=type(self.model).__name__, remedy="use fit_predict")  # fmt: skip
        rows = np.split(self.shares, self.layout.starts[1:])
        return {
            task: dict(zip(self.layout.names_of(at), row.tolist(), strict=True))
            for at, (task, row) in enumerate(zip(self.layout.tasks, rows, strict=True))
        }

    # ------------------------------------------------------------------ in the form of the table

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        """The columns of a DataFrame; empty if the table is none."""
        if type(self.table).__module__.partition(".")[0] != "pandas":
            return ()
        return ("obj", "src", "value") if {"obj", "src", "value"} <= set(self.table.columns) else ("task", "worker", "label")  # fmt: skip

    def _own(self, column: int) -> dict[str, Any]:
        """Text -> the table's own value, of a column of the DataFrame."""
        return {str(value).strip(): value for value in self.table[self._columns[column]].drop_duplicates()}

    def predictions(self) -> Any:
        """The truth of each task, see `TruthModel.fit_predict`."""
        if not self._columns:
            return self.truth
        pd: Any = importlib.import_module("pandas")
        tasks, truth = self._own(0), self.truth
        own = {} if self.layout.values == "numbers" else self._own(2)
        index = pd.Index(tasks.values(), name=self._columns[0])
        return pd.Series([own.get(truth[task], truth[task]) for task in tasks], index=index, name="agg_label")

    def probabilities(self) -> Any:
        """The probability of each label, see `TruthModel.probas_`."""
        rows = self.by_task()
        if not self._columns:
            return rows
        pd: Any = importlib.import_module("pandas")

        tasks = self._own(0)
        made = pd.DataFrame([rows[task] for task in tasks], index=pd.Index(tasks.values(), name=self._columns[0])).fillna(0.0)  # fmt: skip
        labels = self._own(2)
        if self.layout.classes:
            made = made[list(self.layout.classes)]
        made.columns = pd.Index([labels[name] for name in made.columns], name=self._columns[2])
        return made

    def by_label(self, values: Mapping[str, float], name: str) -> Any:
        """Values by label."""
        return self._series(values, 2, name)

    def by_worker(self, values: Floats) -> Any:
        """Values by worker, ``(workers,)``."""
        return self._series(dict(zip(self.reports.workers, values.tolist(), strict=True)), 1, "skill")

    def _series(self, values: Mapping[str, float], column: int, name: str) -> Any:
        if not self._columns:
            return dict(values)
        pd: Any = importlib.import_module("pandas")

        own = self._own(column)
        index = pd.Index([own[key] for key in values], name=self._columns[column])
        return pd.Series(list(values.values()), index=index, name=name)

    def by_confusion(self, values: Floats) -> Any:
        """Confusions, ``(workers, labels, classes)``: of a DataFrame, those labels that a worker gave."""
        classes, workers = self.layout.classes, self.reports.workers
        if not self._columns:
            return {
                worker: {label: dict(zip(classes, row, strict=True)) for label, row in zip(classes, rows, strict=True)}
                for worker, rows in zip(workers, values.tolist(), strict=True)
            }
        pd: Any = importlib.import_module("pandas")

        people, labels = self._own(1), self._own(2)
        pairs = np.unique(self.reports.worker * len(classes) + self.reports.label)
        index = pd.MultiIndex.from_tuples([(people[workers[pair // len(classes)]], labels[classes[pair % len(classes)]]) for pair in pairs.tolist()], names=self._columns[1:])  # fmt: skip
        rows = values.reshape(-1, len(classes))[pairs]
        return pd.DataFrame(rows, index=index, columns=pd.Index([labels[name] for name in classes], name=self._columns[2]))  # fmt: skip
