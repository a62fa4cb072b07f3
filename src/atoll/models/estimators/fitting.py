"""The transformers of a scikit-learn pipeline, fitted over all clients' rows without moving one.

A transformer's fit depends on little: a scaler's on means and variances or on quartiles, an encoder's on the values that occur, principal components on means and
covariances. The parties send these, and the server makes a few
*stand-in rows* that have the same ones (`atoll.models.estimators.stand_in`). Fitting scikit-learn's own transformer to the stand-in rows gives what
fitting to all rows would give. Parties fit earlier steps to the stand-in rows that they receive, so only arrays travel.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared
from atoll.core.requests.task import Task
from atoll.core.validation import Checked, require_parts
from atoll.fitting.ranks import RankSearch, rank_counts

from .needs import Needed, needs_of, positioned
from .pipeline import dense
from .stand_in import StandInBlock, listed, principal, quartered, spread, stand_in_rows

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["FitTransformers"]

Rows = NDArray[np.float64]
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
        require_parts(self, {"reducer": (Reducer, "atoll.core.federation.reducer.Plain()")})
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
        steps = [positioned(copy.deepcopy(step), names) for _, step in self.pipeline.steps[:-1]]
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
        self.seen = Task("atoll.models.estimators.fitting:seen", self._seen)
        self.tasks = (self.sums, self.spread, self.products, self.ranks, self.seen)

    # ---------------------------------------------------------------- at a party

    def _rows(self, island: Any, standing: Sequence[Rows]) -> Rows:
        """Return a party's rows as the next transformer sees them."""
        x = np.asarray(island.data["x"], dtype=np.float64)
        return self._through(x, standing) if len(x) else self._through(np.zeros((1, self.columns)), standing)[:0]

    def _through(self, x: Rows, standing: Sequence[Rows]) -> Rows:
        for step, rows in zip(self.steps, standing, strict=False):
            x = x if step in (None, "passthrough") else dense(_fitted(step, rows).transform(x))
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

    def _seen(self, island: Any, message: Any) -> dict[str, Rows]:
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
            (name, step if step in (None, "passthrough") else _fitted(step, rows)) for (name, _), step, rows in pairs
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
        blocks += await self._met(fed, asked, standing)
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
        return [quartered(c, row) for c, row in zip(columns, search.quantiles(), strict=True)]

    async def _met(self, fed: Federation, asked: Mapping[str, list[int]], standing: list[Rows]) -> list[StandInBlock]:
        lists = {what: asked[what] for what in ("limits", "values")}
        if not any(lists.values()):
            return []
        told = await fed.ask_all(fed.parties, self.seen, {"standing": standing, **lists})
        found: list[StandInBlock] = []
        for c in (*lists["limits"], *lists["values"]):
            values = np.unique(np.concatenate([np.asarray(reply[str(c)]) for reply in told.values if str(c) in reply]))
            found.append(listed(c, values[[0, -1]] if c in lists["limits"] else values))
        return found

    def facts(self, outcome: Any) -> Mapping[str, Any]:
        """Return the names of the fitted transformers."""
        return {"result": {"transformers": [name for name, _ in outcome.steps[:-1]]}}


def _fitted(step: Any, rows: Rows) -> Any:
    made = copy.deepcopy(step)
    if getattr(made, "svd_solver", None) == "auto":
        made.set_params(svd_solver="full")  # the same signs at every party
    return made.fit(rows)


def _no_rows() -> DataError:
    return DataError("no party has a row", where="FitTransformers", remedy="invite parties with rows")
