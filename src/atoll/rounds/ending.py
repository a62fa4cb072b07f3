"""When a run of rounds ends, and which round's model it keeps: stop rules, callbacks, the best model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest
from atoll.core.federation.ending import StopRun

from .history import History, lower_is_better

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.core.federation.federation import Federation

    from .repeated import Repeated
    from .stop import StopRule

__all__ = ["kept_best", "report_row", "require_watched", "stop_reason"]


def stop_reason(stop: Sequence[StopRule], rounds: int | None, history: History) -> str | None:
    """Why a run is over after these rounds; ``None`` when it goes on.

    Args:
        stop: its stop rules; the first that holds gives the reason.
        rounds: most rounds; ``None`` sets no limit.
        history: the rounds so far.
    """
    for rule in stop:
        reason = rule.reason(history)
        if reason is not None:
            return reason
    return f"all {rounds} rounds are done" if rounds is not None and len(history) >= rounds else None


def require_watched(job: Repeated, history: History) -> None:
    """Refuse to go on where a stop rule or ``keep_best`` looks at what is never measured; asked once everything was measured that will be.

    Raises:
        ConfigError: no round so far has it.
    """
    kind = type(job).__name__
    rules = [(f"{kind}.stop, {type(rule).__name__}", getattr(rule, "metric", None)) for rule in job.stop]
    for where, name in [*rules, (f"{kind}.keep_best", job.keep_best)]:
        if (
            name is not None and name not in history[-1] and name not in history.names
        ):  # the last row nearly always tells
            known = [one for one in history.names if isinstance(history[-1].get(one), float)]
            raise ConfigError(
                f"metric {name!r} is not measured in this training.{nearest(name, known)}",
                where=where,
                remedy=f"use one of {', '.join(known)}",
            )


def report_row(fed: Federation, job: Repeated, row: dict[str, Any]) -> str | None:
    """Record a round and tell the callbacks; the reason if one of them, or whoever is told of the run's records, asks to stop."""
    fed.record(row)
    try:
        for callback in job.callbacks:
            callback(row)
    except StopRun as stop:
        return str(stop) or "a callback asked to stop"
    return fed.ending


def kept_best(metric: str | None, best: Any, row: dict[str, Any], model: Tree, number: int) -> Any:
    """The best round so far by a metric, with its model; ``best`` before it."""
    value = row.get(metric or "")
    if value is None:
        return best
    sign = -1.0 if lower_is_better(metric or "") else 1.0
    if best is not None and sign * best["value"] >= sign * value:
        return best
    return {"value": float(value), "round": number, "params": model}
