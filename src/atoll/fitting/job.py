"""`Fit`: the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, NonPrivate
from atoll.core.exposure import Explanation
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared, name_of
from atoll.core.rooms import part_names
from atoll.core.validation import Checked, require_parts
from atoll.data.units import ColumnExtent, measure_tables
from atoll.statistics.columns import table_of

from .contacts import Contacts
from .method import FitMethod
from .rows import count_left_out

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from .fitted import FittedModel

__all__ = ["Fit"]

_WORDS = {
    "impute": ("", "mean", "median", "most_frequent"),
    "scale": ("", "standard", "minmax", "robust"),
    "encode": ("", "onehot", "dummy", "ordinal"),
}


@dataclass(frozen=True, kw_only=True)
class Fit(Checked, Job):
    """Fit a model that follows from sums over rows: clusters, mixtures, components, naive Bayes, linear models, survival.

    Parties hold tables, data sets or frames. Each contact adds up a few arrays over all parties, so the result is that of all rows in one place, up to
    rounding, wherever the method's own page says so. The outcome is a `FittedModel`, which gives a scikit-learn estimator.

    Attributes:
        model: what to fit, such as `KMeans`.
        columns: features, in order; by default all columns but the label and those of the method.
        label: column to predict.
        categories: the values of a column of categories, where they are agreed; otherwise the parties tell those that at least ``min_count`` of their rows have.
        impute: what fills missing numbers: ``"mean"``, ``"median"`` or ``"most_frequent"``; categories get the most frequent. By default missing values are refused; but one-hot, a row without a category has none of its values.
        scale: ``"standard"`` (mean and standard deviation), ``"minmax"`` (smallest and largest value) or ``"robust"`` (median and quartiles) for columns of numbers.
        encode: categories become ``"onehot"`` features, ``"dummy"`` features (without the first value, to which coefficients then compare the others, as R does) or one ``"ordinal"``
            feature. An unknown value is all zeros, or -1. By default dummies where the method's coefficients are not penalised (`GLM`, `Ridge`, `Cox`), one-hot otherwise.
        min_count: the smallest number of rows behind what a party tells. What has fewer is left out, as each method says. ``None`` is the largest that the
            parties' policies require, 1 if none does.
        reducer: how replies are combined; with a secure reducer the server sees only sums, exactly.
        rounds: most contacts of the method.
        quorum: smallest number of parties; by default all must reply.
    """

    kind: ClassVar[str] = "fit"
    missing_features: ClassVar[bool] = True
    reads: ClassVar[str] = "table"
    method: ClassVar[str] = "model"

    model: FitMethod
    columns: Sequence[str] = ()
    label: str = ""
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    impute: str = ""
    scale: str = ""
    encode: str = ""
    min_count: int | None = None
    reducer: Reducer = field(default_factory=Plain)
    rounds: int = 300
    quorum: int | None = None

    def __post_init__(self) -> None:
        require_parts(
            self,
            {
                "model": (FitMethod, "atoll.fitting.KMeans(clusters=3)"),
                "reducer": (Reducer, "atoll.reducers.SecureAggregation()"),
            },
        )
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ConfigError(f"{name}={getattr(self, name)!r}", remedy=f"use one of {', '.join(map(repr, words))}")
        if isinstance(self.columns, str):
            raise ConfigError(f"columns={self.columns!r}", remedy="give a list of names, such as columns=['age']")
        if (
            (self.min_count is not None and self.min_count < 1)
            or self.rounds < 1
            or (self.quorum is not None and self.quorum < 1)
        ):
            raise ConfigError(
                f"min_count={self.min_count}, rounds={self.rounds}, quorum={self.quorum}",
                remedy="use whole numbers of at least 1",
            )
        if bool(self.model.target) != bool(self.label):
            name = type(self.model).__name__
            wants, remedy = (
                ("needs a label", "give label='...', the column to predict")
                if self.model.target
                else ("takes no label", "leave it out")
            )
            raise CompositionError(f"label={self.label!r}: {name} {wants}", where="Fit.label", remedy=remedy)
        both = next((name for name in self.columns if name in (self.label, *self.model.extra)), None)
        if both is not None:
            what = "the label" if both == self.label else f"a column of {type(self.model).__name__} itself"
            raise ConfigError(
                f"columns={list(self.columns)!r}: {both!r} is {what}",
                where="Fit.columns",
                remedy="leave it out of columns: a model that sees it learns nothing else",
            )
        if self.scale == "minmax" and self.least_rows > 1:
            raise ConfigError(
                "scale='minmax' with min_count: the smallest and the largest value are those of single rows",
                remedy="use scale='standard' or scale='robust'",
            )
        self._require_sums()

    def _require_sums(self) -> None:
        """Refuse what the server cannot compute from sums, or numbers with noise, alone."""
        noised = self.model.events() is not None
        if not (self.reducer.secure or noised):
            return
        reducer = "epsilon" if noised else type(self.reducer).__name__
        if self.impute == "most_frequent" and not set(self.columns) <= set(self.categories):
            raise CompositionError(
                f"impute='most_frequent' counts the values of columns of numbers, which {reducer} does not show",
                where="Fit.impute",
                remedy="use impute='median', or name the values of each column in categories=",
            )
        names = [*self.model.grouped, *([self.label] if self.model.target == "class" else [])]
        missing = [name for name in names if name not in self.categories]
        if missing:
            raise CompositionError(
                f"the values of {missing[0]!r} are not known, and {reducer} does not show what parties have",
                where="Fit.categories",
                remedy=f"agree on them: categories={{{missing[0]!r}: [...]}}",
            )

    @property
    def coding(self) -> str:
        """How categories become features."""
        return self.encode or self.model.coding

    @property
    def least_rows(self) -> int:
        """The minimum count; 1 until the parties have said what they require."""
        return self.min_count or 1

    @property
    def most_rounds(self) -> int | None:
        """Not known: a method ends when it has converged."""
        return None

    def names(self) -> tuple[str, ...]:
        """The kind and the method, which a site's policy can allow or refuse."""
        return (*super().names(), name_of(type(self.model)))

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind and all methods."""
        return (*super().known_names(), *part_names("fit method"))

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees what of the rows, and what is told singly."""
        parties = clients or (len(data) if data is not None else 0)
        name = type(self.model).__name__
        seen = self.reducer.exposures(parties or 2)
        notes = [f"each contact of {name} adds up arrays over a party's rows; no row leaves it"]
        if self.model.singly and not self.reducer.secure:
            notes.append(
                f"the server sees each party's {' and '.join(sorted(self.model.singly))}, if the settings ask for them"
            )
        noise = self.model.events()
        if noise is None and not self.reducer.secure:
            notes.append(
                "the server sees the kind of each party's columns and the values of its categories; between sites also roughly where its numbers lie, and how often -99 or 999 stands far from the others"
            )
        if noise is None:
            notes.append("no differential privacy: sums are exact")
        else:
            notes.append(f"differential privacy of each row: {noise[0]}")
        if self.least_rows > 1 and noise is None:
            notes.append(f"what stands for fewer than {self.least_rows} rows of a party is not told")
        return Explanation(self.title, parties, seen, notes=tuple(notes))

    def prepare(self, data: Any) -> Prepared:
        """Nothing needs to be known of the data; of data sets it is known which of their features are codes of text."""
        return _PreparedFit(self, getattr(getattr(data, "about", None), "categories", None) or {}, data)


class _PreparedFit(Prepared):
    def __init__(self, job: Fit, codes: Mapping[str, tuple[str, ...]], data: Any = None) -> None:
        self.job, self.codes, self.data = job, codes, data
        self.contacts = Contacts(job.model)
        self.tasks = self.contacts.tasks
        self.lost: list[str] = []
        self.noted: list[str] = []

    async def program(self, fed: Federation) -> FittedModel:
        """Agree on columns, prepare them, and fit."""
        from .program import fitted

        return await fitted(fed, self.job, self.contacts, at_sites=hasattr(self.data, "outline"))

    def outcome(self, value: FittedModel) -> FittedModel:
        """Return the model, which knows the codes of text."""
        numbers = value.layout.numbers
        self.lost = [*self._name_lost_rows(value), *self._name_numbers_as_classes(value)]
        self.noted = [str(note) for note in value.told.get("notes", ())]
        words = {name: words for name, words in self.codes.items() if name in numbers}
        return replace(
            value, codes=words, extents=self._measure_extents([name for name in numbers if name not in words])
        )

    def _measure_extents(self, numbers: Sequence[str]) -> dict[str, ColumnExtent]:
        """Where the numbers of the rows lie, with which new rows are compared; nothing beside noise, nor where the rows are at their sites."""
        if self.data is None or self.job.model.events() or hasattr(self.data, "outline") or not len(self.data):
            return {}
        tables = [table_of(self.data.shard(place)) for place in range(len(self.data))]
        return {name: extent for name, extent in measure_tables(tables, numbers).items() if extent.many}

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return which replies did not count, and once there is an outcome, which rows, and what the method notes of its numbers, such as columns that depend on each other."""
        return [*super().notices(rows), *self.lost, *self.noted]

    def _name_lost_rows(self, value: FittedModel) -> list[str]:
        """Say how many rows were left out, and how many have none of a column's values; between sites what the counts of rows tell, and nothing beside noise."""
        layout, told, data = value.layout, value.told, self.data
        lacking = " or ".join(name for name in (layout.label, *layout.extra) if name)
        if data is None or self.job.model.events() or not len(data):
            return []
        if hasattr(data, "outline"):  # the rows are at their sites
            rows, bare = int(np.sum(data.sizes)), {}
            known = "rows" in told and self.job.quorum is None and lacking
            lost = rows - int(told["rows"]) - int(told.get("withheld", 0)) if known else 0
        else:
            tables = [data.shard(place) for place in range(len(data))]
            counts = [count_left_out(one, layout) for one in tables]
            rows, lost = sum(map(len, map(table_of, tables))), sum(count for count, _ in counts)
            bare = {name: sum(one[name] for _, one in counts) for name in counts[0][1]}
        why = f"{lost} of {rows} rows were left out: {lacking} is missing there, or has a value that was not agreed on"
        return [*([why] if lost > 0 else [])] + [
            f"{count} of {rows} rows have none of the values of {name}: all of its columns are 0 there"
            for name, count in bare.items()
            if count
        ]

    def _name_numbers_as_classes(self, value: FittedModel) -> list[str]:
        """Say that a label of several whole numbers was taken for classes, which have no order: counts and amounts are often meant."""
        label, classes = self.job.label, value.layout.classes
        if self.job.model.target != "class" or label in self.job.categories or len(classes) < 3:
            return []
        if not all(name.removeprefix("-").isdecimal() for name in classes):
            return []
        many = len(classes)
        said = f"the label {label!r} has {many} whole numbers, which count as {many} classes without an order"
        instead = "for counts use GLM(family='poisson') (atoll fit glm --set family=poisson), for amounts Ridge (atoll fit ridge)"
        return [f"{said}: {instead}; if they are classes, list them: categories={{{label!r}: [...]}} (--categories)"]

    def most(self, rows: int) -> Sequence[Event]:
        """Return the method's noise, or one release without any."""
        del rows
        return self.job.model.events() or (NonPrivate(what=f"sums for {type(self.job.model).__name__}"),)

    def facts(self, outcome: FittedModel) -> Mapping[str, Any]:
        """Return what is short of the parameters."""
        return {"result": outcome.plain(short=True)}

    def sections(self, outcome: FittedModel) -> Sequence[Mapping[str, Any]]:
        """Return coefficients, curves, clusters or components, as tables and pictures."""
        from .page import sections_of

        return sections_of(outcome)

    def files(self, outcome: FittedModel) -> Mapping[str, bytes]:
        """Return the model as JSON."""
        return {"fit.json": outcome.to_json()}
