"""Mean and standard deviation of each feature over all parties' rows, computed from sums alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError, DataError
from atoll.core.event import Event, NonPrivate
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, Prepared
from atoll.core.message import ArraySpec, ScalarSpec
from atoll.core.persistence.json_lines import as_json
from atoll.core.requests.task import TaskSchema, task
from atoll.core.validation import Checked, require_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

__all__ = ["Statistics", "Summary"]


_ROW = ArraySpec("float64", (None,))
_COUNTED = TaskSchema(ScalarSpec(type(None)), {"count": Sum(ArraySpec("float64", ())), "sum": Sum(_ROW)})


@task(schema=_COUNTED)
def counted(island: Any, message: Any) -> dict[str, Sum]:
    """The number of rows and the sums of each feature at one party: a number and ``(features,)``."""
    del message
    x = _numbers(island)
    return {"count": Sum(np.float64(len(x))), "sum": Sum(x.sum(axis=0))}


@task(schema=TaskSchema(_ROW, {"squares": Sum(_ROW)}))
def spread(island: Any, mean: NDArray[np.float64]) -> dict[str, Sum]:
    """Sums of squared distances from the common means at one party, ``(features,)``."""
    return {"squares": Sum(((_numbers(island) - mean) ** 2).sum(axis=0))}


def _numbers(island: Any) -> NDArray[np.float64]:
    return np.asarray(island.data["x"], dtype=np.float64)


@dataclass(frozen=True)
class Summary:
    """The result of `Statistics`.

    Attributes:
        features: names of the features.
        count: number of rows.
        mean: mean of each feature, ``(features,)``.
        std: standard deviation of each feature, ``sqrt(sum (x - mean)^2 / count)``, ``(features,)``.
    """

    features: Sequence[str]
    count: int
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def table(self) -> dict[str, dict[str, float]]:
        """Map each feature to its numbers."""
        rows = zip(self.features, self.mean.tolist(), self.std.tolist(), strict=True)
        return {name: {"mean": mean, "std": std} for name, mean, std in rows}


@dataclass(frozen=True, kw_only=True)
class Statistics(Checked, Job):
    """Summaries of all features.

    Parties send sums, in two contacts: first counts and sums, then squared distances from the common means. The result equals that of all rows
    in one place, up to rounding. One contact with sums of squares would lose digits if a mean is large.

    Two runs whose parties differ in one reveal that party's sums: ``min_count`` protects a small population, not a party.

    Attributes:
        min_count: with fewer rows in total, only their number is revealed.
        reducer: how replies are combined; with a secure reducer the server sees only sums.
    """

    kind: ClassVar[str] = "statistics"
    one_form: ClassVar[bool] = True

    min_count: int = 1
    reducer: Reducer = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_parts(self, {"reducer": (Reducer, "atoll.core.federation.reducer.Plain()")})
        if self.min_count < 1:
            raise ConfigError(f"min_count={self.min_count}", where="Statistics", remedy="use at least 1")

    @property
    def most_rounds(self) -> int:
        """One record a contact, so two."""
        return 2

    def prepare(self, data: Any) -> Prepared:
        """Read the names of the features from the form of the data.

        Raises:
            DataError: the features are not a table of numbers.
        """
        seen = data.outline() if hasattr(data, "outline") else data
        rows = np.asarray(seen.shard(0)["x"])
        if rows.ndim != 2 or rows.dtype.kind not in "biuf":
            raise DataError(
                f"features of type {rows.dtype} and shape {rows.shape[1:]} are not columns of numbers",
                where="Statistics",
                remedy="give tables with one column a feature",
            )
        names = tuple(seen.about.features) or tuple(f"x{i}" for i in range(rows.shape[1]))
        return _PreparedStatistics(self, names)


class _PreparedStatistics(Prepared):
    def __init__(self, job: Statistics, features: Sequence[str]) -> None:
        self.job, self.features = job, features

    async def program(self, fed: Federation) -> Summary:
        """Request the two sums; a checkpoint keeps the first before the second begins.

        Raises:
            DataError: there are fewer rows than ``min_count``.
        """
        nothing = np.zeros(len(self.features))
        state = await fed.restore({"count": 0.0, "sum": nothing, "squares": nothing})
        if len(fed.records) < 1:
            first = await fed.sum(fed.parties, counted, reducer=self.job.reducer)
            state = {**state, "count": float(first["count"]), "sum": np.asarray(first["sum"])}
            fed.record({"contact": "counts", "parties": len(first.senders)})
            await fed.checkpoint(state)
        count = int(state["count"])
        if count < self.job.min_count:
            raise DataError(
                f"all parties together have {count} rows, and min_count is {self.job.min_count}",
                where="Statistics",
                remedy="ask for fewer rows, or invite more parties",
            )
        mean = state["sum"] / count
        if len(fed.records) < 2:
            second = await fed.sum(fed.parties, spread, mean, reducer=self.job.reducer)
            state = {**state, "squares": np.asarray(second["squares"])}
            fed.record({"contact": "spread", "parties": len(second.senders)})
            await fed.checkpoint(state)
        return Summary(self.features, count, mean, np.sqrt(state["squares"] / count))

    def most(self, rows: int) -> Sequence[Event]:
        """Return one release without noise."""
        del rows
        return (NonPrivate(what="counts, sums and squares of columns"),)

    def facts(self, outcome: Summary) -> Mapping[str, Any]:
        """Return the table."""
        return {"result": {"count": outcome.count, "features": outcome.table()}}

    def files(self, outcome: Summary) -> Mapping[str, bytes]:
        """Return the table as JSON."""
        return {"statistics.json": as_json(self.facts(outcome)["result"], indent=1).encode()}
