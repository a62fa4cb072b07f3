"""What a result shows of itself: an overview as text, and a plot of its measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.core.overview import Overview, format_count, human_bytes

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.rounds.history import History
    from atoll.simulation import Result

__all__ = ["of_result", "plot_history"]


_MEASURES = 6
_FEW = 1000  # clients whose names are looked through


def of_result(result: Result) -> Overview:
    """The result of a run in six lines, and what to know of it."""
    rows, job = result.metrics.rows, result.job
    rounds = f"{len(rows)} of {job.most_rounds}" if job.most_rounds else str(len(rows))
    engine = result.engine.get("name", "")
    workers = result.engine.get("workers")
    on = f"engine {engine}" + (f", {format_count(workers, 'worker')}" if workers else "")
    up, down = (human_bytes(result.bytes.get(f"bytes_{way}", 0)) for way in ("up", "down"))
    lines = {
        "rounds": f"{rounds}; ended: {result.reason}",
        "measured": _describe_measures(job, rows) or _say_why_nothing(result.data),
        **_describe_promise(result),
        **({"notices": "; ".join(result.notices)} if result.notices else {}),
        "sent": f"{up} up, {down} down",
        "took": f"{result.seconds:.3g} s on {on}",
        "next": ".metrics  .outcome  .to_pandas()  .plot()  .report()",
    }
    return Overview(f"Result of {job.title} on {_describe_data(result.data)}", lines)


def _describe_promise(result: Result) -> dict[str, str]:
    """What a privacy mechanism promises, and what is spent."""
    claim = getattr(result.prepared, "claim", None)
    if claim is None:
        return {}
    spent = next((row["epsilon"] for row in reversed(result.metrics.rows) if row.get("epsilon") is not None), None)
    return {"privacy": f"{claim}" + ("" if spent is None else f"; spent {spent:.4g}"), "mechanism": claim.how}


def _describe_data(data: Any) -> str:
    name = getattr(data, "name", "")
    if len(data) <= _FEW and name in getattr(
        data, "names", ()
    ):  # tables have their clients' names, and no name together
        name = ""
    return f"{name!r}, {format_count(len(data), 'client')}" if name else format_count(len(data), "client")


def _say_why_nothing(data: Any) -> str:
    if hasattr(data, "with_test") and getattr(data, "test", None) is None and getattr(data, "held_out", None) is None:
        return "nothing: there are no test rows; give them with test= or data.with_test(...), or let clients hold some out with data.with_held_out(0.2)"
    return "nothing"


def _describe_measures(job: Job, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(job.measures(rows).values()))
    if not any(name.startswith("test/") and name in row for row in rows for name in columns):  # clients alone measure
        ours = {name: f"clients/{name.partition('/')[2]}" for name in columns if name.startswith("test/")}
        columns = [ours.get(name, name) for name in columns]
    columns += [name for name in (rows[-1] if rows else ()) if name.count("/") == 1 and name not in columns]
    last = {name: next((row[name] for row in reversed(rows) if row.get(name) is not None), None) for name in columns}
    return ", ".join(f"{name} {value:.4g}" for name, value in [*_known_measures(last)][:_MEASURES])


def _known_measures(last: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in last.items() if isinstance(value, int | float)]


# Measures of a run by round, drawn with matplotlib.


def plot_history(history: History, job: Job, names: Sequence[str] = (), axes: Any = None) -> Any:
    """Draw measures by round.

    Args:
        history: the records.
        job: the job whose measures are drawn if there are no names.
        names: columns of the records.
        axes: matplotlib axes to draw into; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: no round has the column, or nothing was measured.
        MissingExtraError: matplotlib is not installed.
    """
    measured = set(history.names)
    chosen = list(names) or [name for name in dict.fromkeys(job.measures(history.rows).values()) if name in measured]
    if not chosen:
        raise ConfigError("nothing was measured", where="plot", remedy=f"name columns: {', '.join(history.names)}")
    columns = {name: history.column(name) for name in chosen}
    if axes is None:
        axes = need("matplotlib.pyplot", "report", "a plot", where="atoll.report").subplots()[1]
    for name, values in columns.items():
        points = [(row["round"], value) for row, value in zip(history.rows, values, strict=True) if value is not None]
        axes.plot([number for number, _ in points], [value for _, value in points], marker=".", label=name)
    axes.set_xlabel("round")
    axes.legend()
    return axes
