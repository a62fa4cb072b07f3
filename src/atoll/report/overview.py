"""A few lines about the result of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.overview import Overview, counted, human_bytes

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.simulation import Result

__all__ = ["of_result"]

_MEASURES = 4


def of_result(result: Result) -> Overview:
    """The result of a run in six lines."""
    rows, job = result.metrics.rows, result.job
    rounds = f"{len(rows)} of {job.most_rounds}" if job.most_rounds else str(len(rows))
    engine = result.engine.get("name", "")
    workers = result.engine.get("workers")
    on = f"engine {engine}" + (f", {counted(workers, 'worker')}" if workers else "")
    up, down = (human_bytes(result.bytes.get(f"bytes_{way}", 0)) for way in ("up", "down"))
    lines = {
        "rounds": f"{rounds}; ended: {result.reason}",
        "measured": _measured(job, rows) or "nothing",
        **_promised(result),
        "sent": f"{up} up, {down} down",
        "took": f"{result.seconds:.3g} s on {on}",
        "next": ".metrics  .outcome  .to_pandas()  .plot()  .report()",
    }
    return Overview(f"Result of {job.title} on {_data(result.data)}", lines)


def _promised(result: Result) -> dict[str, str]:
    """What a privacy mechanism promises, and what is spent."""
    claim = getattr(result.prepared, "claim", None)
    if claim is None:
        return {}
    spent = next((row["epsilon"] for row in reversed(result.metrics.rows) if row.get("epsilon") is not None), None)
    return {"privacy": f"{claim}" + ("" if spent is None else f"; spent {spent:.4g}"), "mechanism": claim.how}


def _data(data: Any) -> str:
    name = getattr(data, "name", "")
    return f"{name!r}, {counted(len(data), 'client')}" if name else counted(len(data), "client")


def _measured(job: Job, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(job.measures(rows).values()))
    last = {name: next((row[name] for row in reversed(rows) if row.get(name) is not None), None) for name in columns}
    return ", ".join(f"{name} {value:.4g}" for name, value in [*_known(last)][:_MEASURES])


def _known(last: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in last.items() if isinstance(value, int | float)]
