"""The transformers of a scikit-learn pipeline, fitted over all clients' rows without moving one.

A transformer's fit depends on little: a scaler's on means and variances or on quartiles, an encoder's on the values that occur, principal components on means and
covariances. The parties send these, and the server makes a few
*stand-in rows* that have the same ones (`atoll.models.estimators.fitting`). Fitting scikit-learn's own transformer to the stand-in rows gives what
fitting to all rows would give. Parties fit earlier steps to the stand-in rows that they receive, so only arrays travel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared
from atoll.core.requests.task import Task
from atoll.core.validation import Checked, require_parts
from atoll.fitting.ranks import RankSearch, rank_counts

from .base import dense

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = [
    "FitTransformers",
    "Needed",
    "StandInBlock",
    "make_listed_block",
    "make_quartile_block",
    "needs_of",
    "position_columns",
    "principal",
    "spread",
    "stand_in_rows",
]

# Stand-in rows: few rows that have what a transformer looks at in all parties' rows.
#
# Each block fills its columns for any number of rows from its least on, so that blocks of one step agree on one number: odd, and one more than a multiple of 4, where
# quartiles fall on rows.


Rows = NDArray[np.float64]


@dataclass(frozen=True)
class StandInBlock:
    """What some columns must have.

    Attributes:
        columns: their places.
        least: fewest rows.
        fill: number of rows -> the columns, ``(rows, columns)``.
    """

    columns: tuple[int, ...]
    least: int
    fill: Callable[[int], Rows]


def make_listed_block(column: int, values: Rows) -> StandInBlock:
    """A column with these values and no others."""
    return StandInBlock((column,), len(values), lambda rows: np.resize(values, rows)[:, None])


def spread(column: int, mean: float, std: float) -> StandInBlock:
    """A column with this mean and this standard deviation."""
    return _pairs((column,), np.array([mean]), np.array([[std]]), lambda rows: rows)


def principal(columns: tuple[int, ...], mean: Rows, covariance: Rows) -> StandInBlock:
    """Columns with these means and this sample covariance: pairs along its eigenvectors."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return _pairs(columns, mean, (vectors * np.sqrt(np.maximum(values, 0.0))).T, lambda rows: rows - 1)


def _pairs(columns: tuple[int, ...], mean: Rows, directions: Rows, share: Callable[[int], int]) -> StandInBlock:
    """Rows at the mean, and a pair at ``mean +- direction sqrt(share / 2)`` for each direction."""

    def fill(rows: int) -> Rows:
        made = np.tile(mean, (rows, 1))
        away = directions * np.sqrt(share(rows) / 2)
        made[: len(away)] += away
        made[len(away) : 2 * len(away)] -= away
        return made

    return StandInBlock(columns, 2 * len(directions) + 1, fill)


def make_quartile_block(column: int, quartiles: Rows) -> StandInBlock:
    """A column with these three quartiles, where there are ``4 k + 1`` rows."""

    def fill(rows: int) -> Rows:
        ranks = np.arange(rows) / (rows - 1)
        return np.asarray(quartiles[np.searchsorted([0.375, 0.625], ranks)])[:, None]

    return StandInBlock((column,), 5, fill)


def stand_in_rows(blocks: Sequence[StandInBlock], width: int) -> Rows:
    """The rows, ``(4 k + 1, width)``; columns of no block are 0."""
    most = max((block.least for block in blocks), default=1)
    rows = most + (1 - most) % 4
    made = np.zeros((rows, width))
    for block in blocks:
        made[:, list(block.columns)] = block.fill(rows)
    return made


# What a scikit-learn transformer needs to know about a column to be fitted.


_MOMENTS, _LIMITS, _VALUES, _NOTHING = "moments", "limits", "values", ""
_QUARTILES, _PRODUCTS = "quartiles", "products"
_WHAT = {
    "StandardScaler": _MOMENTS,
    "MinMaxScaler": _LIMITS,
    "MaxAbsScaler": _LIMITS,
    "OneHotEncoder": _VALUES,
    "OrdinalEncoder": _VALUES,
    "Binarizer": _NOTHING,
    "FunctionTransformer": _NOTHING,
    "Normalizer": _NOTHING,
    "PCA": _PRODUCTS,
    "PolynomialFeatures": _NOTHING,
    "RobustScaler": _QUARTILES,
}
_COUNTING = ("min_frequency", "max_categories")


@dataclass(frozen=True)
class Needed:
    """What a transformer needs.

    Attributes:
        who: the transformer's class.
        what: ``"moments"`` (means and variances), ``"quartiles"``, ``"products"`` (covariances), ``"limits"`` (smallest and largest values), ``"values"`` (all that occur),
            or nothing.
        columns: of these columns.
    """

    who: str
    what: str
    columns: tuple[int, ...]


def needs_of(step: Any, width: int | None) -> list[Needed]:
    """Return what a step needs of which columns, given the number of columns (``None``: columns are left out).

    Raises:
        ConfigError: the step cannot be fitted to summaries.
    """
    if step in (None, "passthrough", "drop"):
        return []
    if type(step).__name__ == "ColumnTransformer":
        needs = [
            _need(part, _places(columns, width)) for _, part, columns in step.transformers if not isinstance(part, str)
        ]
        _require_apart(needs)
        return needs
    return [_need(step, tuple(range(width or 0)))]


def _require_apart(needs: list[Needed]) -> None:
    """Refuse a column of which two transformers need different things: no stand-in rows have both.

    Raises:
        ConfigError: names the column and the transformers.
    """
    taken: dict[int, Needed] = {}
    for need in needs:
        for column in need.columns if need.what else ():
            other = taken.setdefault(column, need)
            if other.what != need.what or (need.what == _PRODUCTS and other is not need):
                raise ConfigError(
                    f"column {column} goes through {other.who} and {need.who} beside each other",
                    where="FitTransformers",
                    remedy="give each column to one transformer, or put them one after the other",
                )


def _need(step: Any, columns: tuple[int, ...]) -> Needed:
    name = type(step).__name__
    if name not in _WHAT:
        raise ConfigError(
            f"{name} cannot be fitted to means, covariances, quantiles, limits and values of columns",
            where="FitTransformers",
            remedy=f"use one of {', '.join(_WHAT)}, alone or in a ColumnTransformer; or fit {name} beforehand on rows that may be shared. "
            "Imputers are fitted by atoll.fitting.Fit(model=Columns(), impute=...), since a data set has no missing values",
        )
    for setting in _COUNTING:
        if getattr(step, setting, None) is not None:
            raise ConfigError(
                f"{name}({setting}={getattr(step, setting)}) depends on how often a value occurs",
                where="FitTransformers",
                remedy=f"leave {setting} out",
            )
    _refuse_settings(step, name)
    return Needed(name, _WHAT[name], columns)


def _refuse_settings(step: Any, name: str) -> None:
    """Refuse settings whose fit depends on more than the summaries.

    Raises:
        ConfigError: names the setting.
    """
    good: dict[str, tuple[bool, str]] = {}
    if name == "RobustScaler":
        good["quantile_range"] = (tuple(step.quantile_range) == (25.0, 75.0), "use the quartiles, (25.0, 75.0)")
    elif name == "PCA":
        exact = ("auto", "full", "covariance_eigh")
        good["svd_solver"] = (step.svd_solver in exact, f"use {', '.join(map(repr, exact))}: others draw at random")
        good["n_components"] = (step.n_components != "mle", "give a number of components, or a share of the variance")
    for setting, (fine, remedy) in good.items():
        if not fine:
            raise ConfigError(f"{name}({setting}={getattr(step, setting)!r})", where="FitTransformers", remedy=remedy)


def _places(columns: Any, width: int | None) -> tuple[int, ...]:
    if width is None:
        return ()
    chosen = np.arange(width)[[columns] if isinstance(columns, int) else columns]
    return tuple(np.atleast_1d(chosen).tolist())


def position_columns(step: Any, names: Sequence[str]) -> Any:
    """Return a step whose columns are positions: a name is replaced by its position in the data.

    Raises:
        ConfigError: there is no such column.
    """
    if type(step).__name__ != "ColumnTransformer":
        return step
    made = copy.copy(step)
    made.transformers = [(name, part, _positions(columns, names)) for name, part, columns in step.transformers]
    return made


def _positions(columns: Any, names: Sequence[str]) -> Any:
    if isinstance(columns, str):
        return [_position(columns, names)]
    if isinstance(columns, slice) or callable(columns):
        return columns
    listed = [columns] if isinstance(columns, int) else list(columns)
    return [_position(column, names) if isinstance(column, str) else column for column in listed]


def _position(column: str, names: Sequence[str]) -> int:
    if column not in names:
        raise ConfigError(
            f"no column {column!r}.{nearest(column, list(names))}",
            where="FitTransformers",
            remedy=f"name one of {', '.join(names)}" if names else "give positions: the data have no names of columns",
        )
    return list(names).index(column)


_KINDS = ("moments", "quartiles", "limits", "values")


@dataclass(frozen=True, kw_only=False)
class FitTransformers(Checked, Job):
    """Fit the transformers of a pipeline over all clients; the outcome is the pipeline, ready for `Training(model=...)`.

    ``StandardScaler``, ``RobustScaler`` and ``PCA`` need sums alone: numbers of rows, sums, sums of products around the means, and counts of values by leading bits.
    ``MinMaxScaler`` and ``MaxAbsScaler`` need each client's smallest and largest value of a column, and ``OneHotEncoder`` and ``OrdinalEncoder`` the values that occur at each
    client: the server sees those, so a secure reducer refuses them. A ``ColumnTransformer`` names columns by position, or by name if the data have names.

    Attributes:
        pipeline: the pipeline; it is not changed.
        reducer: how sums are combined.
    """

    kind: ClassVar[str] = "fit-transformers"
    one_form: ClassVar[bool] = True

    pipeline: Any = field(repr=False)
    reducer: Reducer = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_parts(self, {"reducer": (Reducer, "atoll.reducers.SecureAggregation()")})
        if not hasattr(self.pipeline, "steps") or len(self.pipeline.steps) < 2:
            raise ConfigError(
                f"pipeline is a {type(self.pipeline).__name__}",
                where="FitTransformers",
                remedy="give a sklearn.pipeline.Pipeline with transformers before its last step",
            )

    @property
    def most_rounds(self) -> int:
        """One record for each transformer."""
        return len(self.pipeline.steps) - 1

    def prepare(self, data: Any) -> Prepared:
        """Find out what each transformer needs.

        Raises:
            ConfigError: a transformer cannot be fitted to summaries.
            CompositionError: it needs more than sums, and the reducer is secure.
            DataError: the features are not a table of numbers.
        """
        seen = data.outline() if hasattr(data, "outline") else data
        rows = np.asarray(seen.shard(0)["x"])
        if rows.ndim != 2 or rows.dtype.kind not in "biuf":
            raise DataError(
                f"features of type {rows.dtype} and shape {rows.shape[1:]} are not columns of numbers",
                where="FitTransformers",
                remedy="give tables with one column a feature",
            )
        names = tuple(getattr(getattr(seen, "about", None), "features", ()))
        steps = [position_columns(copy.deepcopy(step), names) for _, step in self.pipeline.steps[:-1]]
        for step in steps:
            beyond = [need for need in needs_of(step, None) if need.what in ("limits", "values")]
            if beyond and self.reducer.secure:
                raise CompositionError(
                    f"{beyond[0].who} needs each client's {beyond[0].what}, which a secure reducer does not show",
                    where="FitTransformers",
                    remedy="use StandardScaler or RobustScaler, fit this transformer beforehand, or leave the reducer out",
                )
        return _PreparedTransformers(self, steps, rows.shape[1])


class _PreparedTransformers(Prepared):
    def __init__(self, job: FitTransformers, steps: Sequence[Any], columns: int) -> None:
        self.job, self.steps, self.columns = job, steps, columns
        self.sums = Task("atoll.models.estimators.fitting:sums", self._sums)
        self.spread = Task("atoll.models.estimators.fitting:spread", self._spread)
        self.products = Task("atoll.models.estimators.fitting:products", self._products)
        self.ranks = Task("atoll.models.estimators.fitting:ranks", self._ranks)
        self.seen = Task("atoll.models.estimators.fitting:seen", self._read_limits)
        self.tasks = (self.sums, self.spread, self.products, self.ranks, self.seen)

    # ---------------------------------------------------------------- at a party

    def _rows(self, island: Any, standing: Sequence[Rows]) -> Rows:
        """Return a party's rows as the next transformer sees them."""
        x = np.asarray(island.data["x"], dtype=np.float64)
        return self._through(x, standing) if len(x) else self._through(np.zeros((1, self.columns)), standing)[:0]

    def _through(self, x: Rows, standing: Sequence[Rows]) -> Rows:
        for step, rows in zip(self.steps, standing, strict=False):
            x = x if step in (None, "passthrough") else dense(_fit_step(step, rows).transform(x))
        return x

    def _sums(self, island: Any, message: Any) -> dict[str, Sum]:
        x = self._rows(island, message["standing"])
        return {"count": Sum(np.float64(len(x))), "sum": Sum(x.sum(axis=0))}

    def _spread(self, island: Any, message: Any) -> dict[str, Sum]:
        x = self._rows(island, message["standing"])
        return {"squares": Sum(((x - message["mean"]) ** 2).sum(axis=0))}

    def _products(self, island: Any, message: Any) -> dict[str, Sum]:
        """Sums of products around the means, of each group of columns."""
        x = self._rows(island, message["standing"]) - np.asarray(message["mean"])
        return {str(k): Sum(x[:, list(columns)].T @ x[:, list(columns)]) for k, columns in enumerate(message["groups"])}

    def _ranks(self, island: Any, message: Any) -> dict[str, Sum]:
        """Counts of the next bits of values around ranks, see `atoll.fitting.ranks`."""
        x = self._rows(island, message["standing"])
        return {"counts": Sum(rank_counts([x[:, c] for c in message["columns"]], message), role="side")}

    def _read_limits(self, island: Any, message: Any) -> dict[str, Rows]:
        """Return the limits or the distinct values of columns at this party."""
        x = self._rows(island, message["standing"])
        found = {str(c): np.array([x[:, c].min(), x[:, c].max()]) for c in message["limits"]} if len(x) else {}
        return {**found, **{str(c): np.unique(x[:, c]) for c in message["values"]}}

    # ---------------------------------------------------------------- at the server

    async def program(self, fed: Federation) -> Any:
        """Fit one transformer after the other; a checkpoint keeps the stand-in rows of those that are done."""
        state = await fed.restore({"standing": []})
        standing = [np.asarray(rows, dtype=np.float64) for rows in state["standing"]]
        for number in range(len(standing), len(self.steps)):
            width = self._through(np.zeros((1, self.columns)), standing).shape[1]
            rows = await self._stand_in(fed, needs_of(self.steps[number], width), width, standing)
            standing = [*standing, rows]
            fed.record({"transformer": self.job.pipeline.steps[number][0], "stand_in_rows": len(rows)})
            await fed.checkpoint({"standing": standing})
        pairs = zip(self.job.pipeline.steps, self.steps, standing, strict=False)
        fitted = [
            (name, step if step in (None, "passthrough") else _fit_step(step, rows)) for (name, _), step, rows in pairs
        ]
        return type(self.job.pipeline)([*fitted, copy.deepcopy(self.job.pipeline.steps[-1])])

    async def _stand_in(self, fed: Federation, needs: Sequence[Needed], width: int, standing: list[Rows]) -> Rows:
        """Return rows to which the transformer fits as to all parties' rows."""
        asked = {what: [c for need in needs if need.what == what for c in need.columns] for what in _KINDS}
        groups = [need.columns for need in needs if need.what == "products"]
        blocks: list[StandInBlock] = []
        if asked["moments"] or groups:
            count, mean = await self._means(fed, standing)
            message = {"standing": standing, "mean": mean}
            if asked["moments"]:
                told = await fed.sum(fed.parties, self.spread, message, reducer=self.job.reducer)
                std = np.sqrt(np.asarray(told["squares"]) / count)
                blocks += [spread(c, mean[c], std[c]) for c in asked["moments"]]
            if groups:
                message = {**message, "groups": [list(group) for group in groups]}
                told = await fed.sum(fed.parties, self.products, message, reducer=self.job.reducer)
                for k, group in enumerate(groups):
                    blocks.append(principal(group, mean[list(group)], np.asarray(told[str(k)]) / max(1.0, count - 1)))
        blocks += await self._quantiles(fed, asked, standing)
        blocks += await self._make_stand_ins(fed, asked, standing)
        return stand_in_rows(blocks, width)

    async def _means(self, fed: Federation, standing: list[Rows]) -> tuple[float, Rows]:
        first = await fed.sum(fed.parties, self.sums, {"standing": standing}, reducer=self.job.reducer)
        count = float(first["count"])
        if count < 1:
            raise _no_rows()
        return count, np.asarray(first["sum"]) / count

    async def _quantiles(
        self, fed: Federation, asked: Mapping[str, list[int]], standing: list[Rows]
    ) -> list[StandInBlock]:
        columns = asked["quartiles"]
        if not columns:
            return []
        search = RankSearch(len(columns), (0.25, 0.5, 0.75))
        while search.open:
            message = {"standing": standing, "columns": columns, **search.asked()}
            told = await fed.sum(fed.parties, self.ranks, message, reducer=self.job.reducer)
            search.take(np.asarray(told["counts"]))
        if search.sizes.min() < 1:
            raise _no_rows()
        return [make_quartile_block(c, row) for c, row in zip(columns, search.quantiles(), strict=True)]

    async def _make_stand_ins(
        self, fed: Federation, asked: Mapping[str, list[int]], standing: list[Rows]
    ) -> list[StandInBlock]:
        lists = {what: asked[what] for what in ("limits", "values")}
        if not any(lists.values()):
            return []
        told = await fed.ask_all(fed.parties, self.seen, {"standing": standing, **lists})
        found: list[StandInBlock] = []
        for c in (*lists["limits"], *lists["values"]):
            values = np.unique(np.concatenate([np.asarray(reply[str(c)]) for reply in told.values if str(c) in reply]))
            found.append(make_listed_block(c, values[[0, -1]] if c in lists["limits"] else values))
        return found

    def facts(self, outcome: Any) -> Mapping[str, Any]:
        """Return the names of the fitted transformers."""
        return {"result": {"transformers": [name for name, _ in outcome.steps[:-1]]}}


def _fit_step(step: Any, rows: Rows) -> Any:
    made = copy.deepcopy(step)
    if getattr(made, "svd_solver", None) == "auto":
        made.set_params(svd_solver="full")  # the same signs at every party
    return made.fit(rows)


def _no_rows() -> DataError:
    return DataError("no party has a row", where="FitTransformers", remedy="invite parties with rows")
