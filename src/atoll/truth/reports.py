"""Reports: who says what about which task. A long table of (task, worker, label) of one party, or of all of them.

Names and labels are text, so "007" stays another label than "7". A worker counts once for a task: of repeated reports the first counts, and a warning says how many were left out. The order of
rows, the names of workers and the order of classes change no result.

`TaskLayout` is what all parties know before they begin: the tasks, what may be the truth of each, and how many workers there are at most. It gives every sum a fixed shape. `CodedReports` are a
party's reports as numbers of a layout; that is all that models see.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import level_outside
from atoll.core.errors import ConfigError, DataError, nearest
from atoll.core.redaction import private
from atoll.data.dataset import united
from atoll.data.readers.csv import table_of_csv

__all__ = ["CodedReports", "Reports", "TaskLayout", "Values", "pool_sites", "read_reports", "read_sites", "read_truth", "reports_of", "score_labels", "split_by_worker"]  # fmt: skip

Values = Literal["classes", "claims", "numbers"]
"""What labels are: one of the same classes for every task, claims that differ from task to task, or numbers."""

_COLUMNS = ("task", "worker", "label")
_CLAIMS = ("obj", "src", "value")
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reports:
    """The reports of one party, or of all: each a label that a worker gave to a task.

    Attributes:
        tasks: names of the tasks, in the order of their numbers.
        workers: names of the workers, sorted.
        labels: the labels that somebody gave: numbers by value, words alphabetically.
        task: number of the task, ``(reports,)``; sorted, and by worker within a task.
        worker: number of the worker, ``(reports,)``.
        label: number of the label, ``(reports,)``.
        repeated: how many rows were left out because their worker had a report on their task before.
        claims: whether labels are claims: a task's candidates are what somebody claims of it.
    """

    tasks: tuple[str, ...]
    workers: tuple[str, ...]
    labels: tuple[str, ...]
    task: Codes
    worker: Codes
    label: Codes
    repeated: int = 0
    claims: bool = False

    def __len__(self) -> int:
        return len(self.task)

    def __repr__(self) -> str:
        return f"Reports({len(self):,} of {len(self.workers):,} workers on {len(self.tasks):,} tasks, {len(self.labels):,} labels)"

    @cached_property
    def numbers(self) -> Floats:
        """The labels as numbers, ``(reports,)``.

        Raises:
            DataError: a label is no finite number; names it.
        """
        return _numbers(self.labels)[self.label]

    def layout(self, values: Values = "classes") -> TaskLayout:
        """Return the layout of these reports alone: all tasks, and the labels that occur.

        Args:
            values: what labels are for the model.

        Raises:
            DataError: there is only one class, or a number is none.
        """
        if values == "numbers":
            numbers = self.numbers
            return TaskLayout(self.tasks, low=float(numbers.min()), high=float(numbers.max()), workers=len(self.workers))  # fmt: skip
        if self.claims or values == "claims":
            pairs = np.unique(self.task * len(self.labels) + self.label)
            said = np.split(pairs % len(self.labels), np.searchsorted(pairs, np.arange(1, len(self.tasks)) * len(self.labels)))  # fmt: skip
            found = tuple(tuple(self.labels[code] for code in codes) for codes in said)
            return TaskLayout(self.tasks, candidates=found, workers=len(self.workers))
        return TaskLayout(self.tasks, classes=self.labels, workers=len(self.workers))

    def of_workers(self, names: Iterable[str]) -> Reports:
        """Return the reports of some workers; tasks and labels keep their numbers."""
        wanted = np.isin(np.array(self.workers), list(names))
        kept = wanted[self.worker]
        new = np.cumsum(wanted) - 1
        names = tuple(name for name, is_in in zip(self.workers, wanted.tolist(), strict=True) if is_in)
        return replace(self, workers=names, task=self.task[kept], worker=new[self.worker[kept]], label=self.label[kept], repeated=0)  # fmt: skip

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the reports as rows (task, worker, label)."""
        names = (self.tasks, self.workers, self.labels)
        columns = (self.task.tolist(), self.worker.tolist(), self.label.tolist())
        said = [[known[code] for code in codes] for known, codes in zip(names, columns, strict=True)]
        return list(zip(*said, strict=True))


@dataclass(frozen=True)
class TaskLayout:
    """What every party knows before the first sum: so all sums have the same shape, whoever reported on what.

    A *cell* is a task with one label that may be its truth. Cells lie one behind the other, task by task: with ``C`` classes, cell ``t C + c`` is class ``c`` of task ``t``.

    Attributes:
        tasks: names of the tasks.
        classes: the classes of all tasks; empty for claims and numbers.
        candidates: of claims, the labels that may be the truth of each task.
        low: the smallest number that a worker may report.
        high: the largest number.
        workers: how many workers there are at most, all parties together.

    Raises:
        DataError: there are no tasks, fewer than two classes, a task without candidates, or no range.
    """

    tasks: tuple[str, ...]
    classes: tuple[str, ...] = ()
    candidates: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    low: float = 0.0
    high: float = 0.0
    workers: int = 1

    def __post_init__(self) -> None:
        if not self.tasks:
            raise DataError("there are no tasks", where="TaskLayout", remedy="give at least one task")
        if len(self.classes) == 1:
            raise DataError(f"all labels are {private(self.classes[0])}: one class", where="TaskLayout", remedy="give reports with at least two different labels; with one, nothing is to be found out")  # fmt: skip
        for names, what in ((self.tasks, "task"), (self.classes, "class"), *((said, "candidate") for said in self.candidates)):  # fmt: skip
            if len(set(names)) < len(names):
                raise DataError(f"a {what} is named twice", where="TaskLayout", remedy="name each of them once")
        if self.candidates and (len(self.candidates) != len(self.tasks) or not all(self.candidates)):
            raise DataError("a task has no candidates", where="TaskLayout", remedy="give each task one or more candidates, in the order of the tasks")  # fmt: skip
        if not -math.inf < self.low <= self.high < math.inf:
            raise DataError(f"low={self.low}, high={self.high}", where="TaskLayout", remedy="give finite numbers, low below high")  # fmt: skip
        if self.workers < 1:
            raise ConfigError(f"workers={self.workers}", where="TaskLayout", remedy="use 1 or more")

    @property
    def values(self) -> Values:
        """What labels are."""
        return "classes" if self.classes else "claims" if self.candidates else "numbers"

    @cached_property
    def widths(self) -> Codes:
        """How many labels may be the truth of each task, ``(tasks,)``."""
        if self.candidates:
            return np.array([len(said) for said in self.candidates])
        return np.full(len(self.tasks), max(len(self.classes), 1))

    @cached_property
    def starts(self) -> Codes:
        """The first cell of each task, ``(tasks,)``."""
        return np.cumsum(self.widths) - self.widths

    @cached_property
    def owners(self) -> Codes:
        """The task of each cell, ``(cells,)``."""
        return np.repeat(np.arange(len(self.tasks)), self.widths)

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.widths.sum())

    def sum_tasks(self, cells: Floats) -> Floats:
        """Return the sums of cells by task, ``(cells,)`` to ``(tasks,)``."""
        return np.add.reduceat(cells, self.starts)

    def share_cells(self, logs: Floats) -> Floats:
        """Return ``softmax`` of each task's cells, ``(cells,)``."""
        top = np.maximum.reduceat(logs, self.starts)
        powers = np.exp(logs - top[self.owners])
        return powers / self.sum_tasks(powers)[self.owners]

    def names_of(self, task: int) -> tuple[str, ...]:
        """Return the labels that may be the truth of a task."""
        return self.candidates[task] if self.candidates else self.classes

    def code(self, reports: Reports) -> CodedReports:
        """Return a party's reports in the numbers of this layout.

        Raises:
            DataError: a report is on an unknown task, has a label that its task cannot have, or a number out of range.
        """
        places = {name: at for at, name in enumerate(self.tasks)}
        task = np.array([places.get(name, -1) for name in reports.tasks])[reports.task]
        if (task < 0).any():
            name = reports.tasks[reports.task[int(np.argmax(task < 0))]]
            raise DataError(f"task {private(name)} is not among the {len(self.tasks)} tasks", where="TaskLayout.code", remedy="leave out the reports on it, or have all parties agree on the tasks anew")  # fmt: skip
        shared = {"layout": self, "workers": reports.workers, "task": task, "worker": reports.worker}
        if self.values == "numbers":
            return CodedReports(**shared, number=self._scaled(reports.numbers))  # type: ignore[arg-type]
        if self.classes:
            known = {name: at for at, name in enumerate(self.classes)}
            label = np.array([known.get(name, -1) for name in reports.labels], dtype=np.int64)[reports.label]
        else:
            said = [{name: at for at, name in enumerate(names)} for names in self.candidates]
            label = np.array([said[t].get(reports.labels[c], -1) for t, c in zip(task.tolist(), reports.label.tolist(), strict=True)], dtype=np.int64)  # fmt: skip
        if (label < 0).any():
            at = int(np.argmax(label < 0))
            raise DataError(f"label {private(reports.labels[reports.label[at]])} of task {private(self.tasks[task[at]])} is not one that it may have", where="TaskLayout.code", remedy="correct the label, or have all parties agree on the labels anew")  # fmt: skip
        return CodedReports(**shared, cell=self.starts[task] + label)  # type: ignore[arg-type]

    def _scaled(self, numbers: Floats) -> Floats:
        """Numbers between 0 for ``low`` and 1 for ``high``: no offset or unit of the reports reaches a sum."""
        wrong = (numbers < self.low) | (numbers > self.high)
        if wrong.any():
            raise DataError(f"the number {private(float(numbers[np.argmax(wrong)]))} is not between {self.low:g} and {self.high:g}", where="TaskLayout.code", remedy="correct the report, or widen low and high for all parties")  # fmt: skip
        width = self.high - self.low
        return (numbers - self.low) / width if width > 0 else np.zeros_like(numbers)


@dataclass(frozen=True, eq=False)
class CodedReports:
    """Reports in the numbers of a layout: one array a column, whatever the number of workers.

    Attributes:
        layout: the layout.
        workers: names of the workers; they stay with the party.
        task: the task of each report, ``(reports,)``.
        worker: the worker of each report, ``(reports,)``.
        cell: the cell of each report, ``(reports,)``; empty for numbers.
        number: the number of each report, between 0 for the layout's ``low`` and 1 for its ``high``, ``(reports,)``; empty for labels.
    """

    layout: TaskLayout
    workers: tuple[str, ...]
    task: Codes
    worker: Codes
    cell: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    number: Floats = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def label(self) -> Codes:
        """The number of each report's label among those of its task, ``(reports,)``."""
        return self.cell - self.layout.starts[self.task]

    def by_task(self, values: Floats) -> Floats:
        """Return sums by task, ``(reports,)`` to ``(tasks,)``."""
        return np.bincount(self.task, values, len(self.layout.tasks)).astype(np.float64, copy=False)

    def by_cell(self, values: Floats) -> Floats:
        """Return sums by cell, ``(reports,)`` to ``(cells,)``."""
        return np.bincount(self.cell, values, self.layout.cells).astype(np.float64, copy=False)

    def by_worker(self, values: Floats) -> Floats:
        """Return sums by worker, ``(reports,)`` to ``(workers,)``."""
        return np.bincount(self.worker, values, len(self.workers)).astype(np.float64, copy=False)

    @property
    def reporters(self) -> Codes:
        """How many workers report on each task, ``(tasks,)``."""
        return np.bincount(self.task, minlength=len(self.layout.tasks))

    def choose(self, kept: NDArray[np.bool_] | Codes) -> CodedReports:
        """The reports of a choice, ``(reports,)`` or their numbers, of the same workers."""
        cell = self.cell[kept] if len(self.cell) else self.cell
        number = self.number[kept] if len(self.number) else self.number
        return CodedReports(self.layout, self.workers, self.task[kept], self.worker[kept], cell, number)

    def of_workers(self, there: NDArray[np.bool_]) -> CodedReports:
        """The reports of a choice of workers, ``(workers,)``, who are numbered anew."""
        part, places = self.choose(there[self.worker]), np.cumsum(there) - 1
        names = tuple(name for name, is_in in zip(self.workers, there.tolist(), strict=True) if is_in)
        return CodedReports(self.layout, names, part.task, places[part.worker], part.cell, part.number)

    def split_workers(self) -> list[CodedReports]:
        """The reports of each worker alone, in the order of the workers."""
        order = np.argsort(self.worker, kind="stable")
        ends = np.searchsorted(self.worker[order], np.arange(1, len(self.workers) + 1)).tolist()
        parts = (order[begin:end] for begin, end in itertools.pairwise([0, *ends]))
        return [
            replace(self.choose(part), workers=(name,), worker=np.zeros_like(part))
            for name, part in zip(self.workers, parts, strict=True)
        ]

    @cached_property
    def counts(self) -> Floats:
        """How many reports each worker has, ``(workers,)``."""
        return np.bincount(self.worker, minlength=len(self.workers)).astype(np.float64)

    def mean_by_worker(self, values: Floats, silent: Floats) -> Floats:
        """Return means by worker, and ``silent`` for workers without a report, ``(workers,)``."""
        return np.where(self.counts > 0, self.by_worker(values) / np.maximum(self.counts, 1), silent)


# ------------------------------------------------------------------ making and reading


def reports_of(table: Any, *, claims: bool | None = None) -> Reports:
    """Return reports of a long table.

    Args:
        table: a pandas DataFrame, a mapping or data set with the columns ``task``, ``worker`` and ``label`` (or ``obj``, ``src`` and ``value``, which are claims), rows of three, or `Reports`.
        claims: whether labels are claims; by default if the columns are named so.

    Raises:
        DataError: a column or a value is missing, there are no rows, or two values look the same as text.

    Warns:
        UserWarning: a worker reported on a task more than once; the first of these reports counts.

    Example:
        >>> reports_of([("t1", "ann", "yes"), ("t1", "bob", "no"), ("t2", "ann", "no")])
        Reports(3 of 2 workers on 2 tasks, 2 labels)
    """
    if isinstance(table, Reports):
        return table if claims is None else replace(table, claims=claims)
    names, columns = _three_columns(table)
    said = [_texts(values, name) for name, values in zip(names, columns, strict=True)]
    if len({len(one) for one in said}) > 1:
        raise DataError("the columns differ in length", where="reports", remedy="give one task, worker and label a row")
    if not said[0]:
        raise DataError("there are no reports", where="reports", remedy="give at least one row of task, worker and label")  # fmt: skip
    made = _reports(*said, claims=names == _CLAIMS if claims is None else claims)
    if made.repeated:
        many = f"{made.repeated:,} report{'s' if made.repeated > 1 else ''}"
        warnings.warn(f"{many} left out: their worker had reported on their task before, and the first report counts", UserWarning, stacklevel=level_outside())  # fmt: skip
    return made


def _reports(tasks: Sequence[str], workers: Sequence[str], labels: Sequence[str], *, claims: bool) -> Reports:
    known = [united([said]) for said in (tasks, workers, labels)]
    task, worker, label = (_codes(said, names) for said, names in zip((tasks, workers, labels), known, strict=True))
    _, first = np.unique(task * len(known[1]) + worker, return_index=True)  # in the order of tasks and workers
    columns = task[first], worker[first], label[first]
    return Reports(known[0], known[1], known[2], *columns, len(task) - len(first), claims)


def _codes(said: Sequence[str], names: Sequence[str]) -> Codes:
    places = {name: at for at, name in enumerate(names)}
    return np.array([places[one] for one in said], dtype=np.int64)


def _three_columns(table: Any) -> tuple[tuple[str, ...], list[Any]]:
    known = getattr(table, "columns", None)
    if known is None and isinstance(table, Mapping):
        known = table.keys()
    if known is None:
        try:
            rows = [tuple(row) for row in table]
        except TypeError:
            raise DataError(f"{type(table).__name__} is not a table of reports", where="reports", remedy="give a DataFrame, a mapping of columns, or rows of task, worker and label") from None  # fmt: skip
        if any(len(row) != 3 for row in rows):
            raise DataError("a row has not three values", where="reports", remedy="give rows of task, worker and label")
        return _COLUMNS, list(zip(*rows, strict=True)) or [(), (), ()]
    found = [str(name) for name in known]
    names = _CLAIMS if set(_CLAIMS) <= set(found) else _COLUMNS
    _require_columns(found, names, "reports")
    return names, [table[name] for name in names]


def _require_columns(found: Sequence[str], names: Sequence[str], where: str) -> None:
    absent = next((name for name in names if name not in found), None)
    if absent is not None:
        raise DataError(f"there is no column {absent!r}.{nearest(absent, found)}", where=where, remedy=f"name the columns {', '.join(names)}; found: {', '.join(map(private, found))}")  # fmt: skip


def _texts(values: Any, name: str) -> list[str]:
    """Values as text, where different values stay different."""
    raw = values.tolist() if hasattr(values, "tolist") else list(values)
    said = [str(value).strip() for value in raw]
    absent = next((at for at, (value, text) in enumerate(zip(raw, said, strict=True)) if value is None or value != value or not text or text in ("<NA>", "NaT")), None)  # fmt: skip
    if absent is not None:
        raise DataError(f"the {name} of row {absent + 1} is missing", where="reports", remedy="leave the row out: who did not report on a task has no row for it")  # fmt: skip
    kinds: dict[str, Any] = {}
    for value, text in zip(raw, said, strict=True):
        if kinds.setdefault(text, value) != value:
            raise DataError(f"column {name!r} has {private(text)} as {type(value).__name__} and as {type(kinds[text]).__name__}", where="reports", remedy="write one label in one way, for example all as text")  # fmt: skip
    return said


def _numbers(labels: Sequence[str], name: str = "label", instead: str = "use a model of classes, such as DawidSkene, or ") -> Floats:  # fmt: skip
    found = []
    for label in labels:
        try:
            number = math.nan if "_" in label else float(label)  # Python reads 1_200 as 1200, and nobody else does
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"the {name} {private(label)} is no number", where="reports", remedy=f"{instead}give numbers with a decimal point")  # fmt: skip
        found.append(number)
    return np.array(found)


def read_reports(path: str | Path) -> Reports:
    """Read reports from a CSV file, plain or gzip-compressed: columns ``task,worker,label``, or claims ``obj,src,value``.

    Raises:
        DataError: the file cannot be read, or see `reports_of`.
    """
    table = _read_words(path, _COLUMNS, _CLAIMS)
    return reports_of(table)


def read_sites(path: str | Path, site: str) -> dict[str, Reports]:
    """Read the reports of several sites from one CSV file.

    Args:
        path: the file, see `read_reports`.
        site: the column that says at which site a worker is.

    Returns:
        Site -> its reports, in the order of their names.

    Raises:
        DataError: there is no such column, or two sites claim one worker.
    """
    table = _read_words(path, (*_COLUMNS, site), (*_CLAIMS, site))
    at = np.array(_texts(table[site], site))
    parts = {name: {column: np.asarray(table[column])[at == name] for column in table} for name in united([at.tolist()])}  # fmt: skip
    found = {name: reports_of(part) for name, part in parts.items()}
    _require_own_workers(found)
    return found


def _read_words(path: str | Path, *choices: tuple[str, ...]) -> Mapping[str, Any]:
    """The columns of the first choice that the file has, as text."""
    whole = table_of_csv(path, text="all", holes=("",))  # NA and None may be labels
    names = next((names for names in choices if set(names) <= set(whole)), choices[0])
    _require_columns(list(whole), names, Path(path).name)
    return {name: whole[name] for name in names}


def read_truth(path: str | Path) -> dict[str, str]:
    """Read what is true, task -> label, from a CSV file with the columns ``task,truth``, or ``obj,value`` of claims.

    Raises:
        DataError: a column or a value is missing, or a task has two truths.
    """
    table = _read_words(path, ("task", "truth"), ("obj", "value"))
    (tasks, labels), names = (_texts(table[name], name) for name in table), list(table)
    found: dict[str, str] = {}
    for task, label in zip(tasks, labels, strict=True):
        if found.setdefault(task, label) != label:
            raise DataError(f"{names[0]} {private(task)} is {private(found[task])} and {private(label)}", where=Path(path).name, remedy="give one truth a task")  # fmt: skip
    return found


def read_scores(path: str | Path) -> dict[str, float]:
    """Read how well workers do, worker -> score, from a CSV file with the columns ``worker,score``; in order of name.

    Raises:
        DataError: a column or a value is missing, a score is no number, or a worker has two.
    """
    table = _read_words(path, ("worker", "score"))
    workers, scores = _texts(table["worker"], "worker"), _texts(table["score"], "score")
    found: dict[str, float] = {}
    for worker, said, score in zip(workers, scores, _numbers(scores, "score", ""), strict=True):
        if worker in found:
            raise DataError(f"worker {private(worker)} has two scores, {found[worker]:g} and {private(said)}", where=Path(path).name, remedy="give one score a worker")  # fmt: skip
        found[worker] = float(score)
    return dict(sorted(found.items()))


def split_by_worker(table: Any) -> dict[str, Reports]:
    """Return the reports of each worker alone, worker -> reports: every worker is a party.

    Example:
        >>> parts = split_by_worker([("t1", "ann", "yes"), ("t1", "bob", "no"), ("t2", "ann", "no")])
        >>> {name: len(part) for name, part in parts.items()}
        {'ann': 2, 'bob': 1}
    """
    whole = reports_of(table)
    order = np.argsort(whole.worker, kind="stable")
    parts = np.split(order, np.searchsorted(whole.worker[order], np.arange(1, len(whole.workers))))
    return {
        name: replace(whole, workers=(name,), task=whole.task[part], worker=np.zeros_like(part), label=whole.label[part], repeated=0)
        for name, part in zip(whole.workers, parts, strict=True)
    }  # fmt: skip


def pool_sites(sites: Mapping[str, Any]) -> Reports:
    """Return the reports of all sites in one table: what a comparison with all reports in one place needs.

    Raises:
        DataError: two sites claim one worker.
    """
    found = {name: reports_of(table) for name, table in sites.items()}
    _require_own_workers(found)
    rows = [row for one in found.values() for row in one.rows()]
    return reports_of(rows, claims=any(one.claims for one in found.values()))


def _require_own_workers(sites: Mapping[str, Reports]) -> None:
    homes: dict[str, str] = {}
    for site, reports in sites.items():
        for worker in reports.workers:
            if homes.setdefault(worker, site) != site:
                raise DataError(f"sites {homes[worker]!r} and {site!r} both claim worker {private(worker)}", where="reports", remedy="give each worker to one site, or name workers by site if they are two people")  # fmt: skip


# ------------------------------------------------------------------ how good a result is


def score_labels(shares: Mapping[str, Mapping[str, float]], truth: Mapping[str, str]) -> float:
    """Return the accuracy of labels: the part of the tasks with a known truth whose label is right. Of ``k`` labels that tie, each counts ``1/k``.

    Args:
        shares: task -> label -> its probability, or any score.
        truth: task -> what is true.

    Raises:
        DataError: nothing was reported on a task whose truth is given.

    Example:
        >>> score_labels({"t1": {"no": 0.2, "yes": 0.8}, "t2": {"no": 0.5, "yes": 0.5}}, {"t1": "yes", "t2": "no"})
        0.75
    """
    require_reported(shares, truth)
    right = 0.0
    for task, label in truth.items():
        row = shares[task]
        top = max(row.values())
        best = [name for name, share in row.items() if share >= top - 1e-9 * max(abs(top), 1e-300)]
        right += (label in best) / len(best)
    return right / len(truth)


def name_exact(truth: Mapping[str, str], reports: Reports) -> dict[str, str]:
    """Return what claims can be compared with: of a truth that nobody can claim, since it is a path from a value to those that contain it ("Oslo,Norway"), its first."""
    if not reports.claims:
        return dict(truth)
    known = set(reports.labels)
    return {task: value if value in known else value.partition(",")[0].strip() for task, value in truth.items()}


def require_reported(found: Iterable[str], truth: Mapping[str, Any]) -> None:
    """Refuse a truth about tasks that nobody reported on.

    Raises:
        DataError: names the first such task, and how many there are.
    """
    known = set(found)
    absent = [task for task in truth if task not in known]
    if absent or not truth:
        what = f"nobody reported on task {private(absent[0])}, one of {len(absent):,} with a truth" if absent else "there is no truth"  # fmt: skip
        raise DataError(what, where="truth", remedy="leave these tasks out of the truth, or check that it names tasks as the reports do")  # fmt: skip
