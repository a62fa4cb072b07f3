"""What a request showed about the clients that answered, for the selection rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from ..local.reports import report_of
from ..selection import Seen
from ..selection.members import places_among

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.results import Combined

    from ..context import Context

__all__ = ["examples_of", "own_reports", "reports_of", "seen_of"]


def own_reports(context: Context, model: Tree) -> Callable[[str], Tree]:
    """Return what the server reports about its own data under a model."""

    def own(name: str) -> Tree:
        rows = context.test
        if rows is None:
            raise ConfigError(
                f"{type(context.selection).__name__} compares clients with the server's own data, but there is none",
                where="Training.selection",
                remedy="give the federated data set a `test` set",
            )
        return context.learner.report_of(model, rows, {name: context.selection.reports[name]})[name]

    return own


def reports_of(combined: Combined) -> dict[str, list[Tree]]:
    """Return the reports in replies: name -> one value per sender, in cohort order."""
    return {report_of(key): [part.value for part in parts] for key, parts in combined.of("report").items()}


def examples_of(combined: Combined) -> NDArray[np.float64]:
    """Return the rows behind each sender's reports, in cohort order; empty without reports."""
    parts: Any = next(iter(combined.of("report").values()), [])
    return np.array([part.weight for part in parts], dtype=np.float64)


def seen_of(number: int, combined: Combined, own: Callable[[str], Tree]) -> Seen:
    """Return what a request showed.

    Args:
        number: the round.
        combined: the replies.
        own: the server's report on its own data.
    """
    asked = combined.senders if combined.asked is None else combined.asked
    if combined.outcomes is None:
        seconds = np.zeros(len(combined.senders))
    else:
        seconds = combined.outcomes.seconds[places_among(asked.positions, combined.senders.positions)]
    return Seen(number, asked, combined.senders, seconds, reports_of(combined), {}, own, examples_of(combined))
