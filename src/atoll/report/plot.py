"""Measures of a run by round, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError
from atoll.core.extras import need

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.rounds.history import History

__all__ = ["plot_history"]


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
