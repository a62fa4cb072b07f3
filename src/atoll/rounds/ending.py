"""When a run of rounds ends, and from which round it keeps the model: stop rules, callbacks, the best model."""

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

__all__ = ["kept_best", "report_row", "require_watched", "rounds_done", "stop_reason"]


def stop_reason(stop: Sequence[StopRule], rounds: int | None, history: History) -> str | None:
    """Return why a run ends after these rounds; ``None`` if it goes on.

    Args:
        stop: the job's stop rules; the first that holds gives the reason.
        rounds: maximum number of rounds; ``None`` sets no limit.
        history: the rounds so far.
    """
    for rule in stop:
        reason = rule.reason(history)
        if reason is not None:
            return reason
    return rounds_done(rounds, len(history))


def rounds_done(rounds: int | None, done: int) -> str | None:
    """Return why a run ends after as many rounds; ``None`` if it goes on."""
    return f"all {rounds} rounds are done" if rounds is not None and done >= rounds else None


def require_watched(job: Repeated, history: History) -> None:
    """Refuse a stop rule or ``keep_best`` on a metric that is never measured. Called once every metric has been measured.

    Raises:
            ConfigError: no round so far has the metric.
    """
    kind = type(job).__name__
    rules = [(f"{kind}.stop, {type(rule).__name__}", getattr(rule, "metric", None)) for rule in job.stop]
    for where, name in [*rules, (f"{kind}.keep_best", job.keep_best)]:
        if name is not None and name not in history[-1] and name not in history.names:  # usually the last row is enough
            known = [one for one in history.names if isinstance(history[-1].get(one), float)]
            untested = name.startswith("test/") and not any(one.startswith("test/") for one in known)
            what = f"metric {name!r} is not measured in this training"
            raise ConfigError(
                f"{what}: there are no test rows, or they are not evaluated"
                if untested
                else f"{what}.{nearest(name, known)}",
                where=where,
                remedy="give the islands test rows: islands.with_test(rows)"
                if untested
                else f"use one of {', '.join(known)}",
            )


def report_row(fed: Federation, job: Repeated, row: dict[str, Any]) -> str | None:
    """Record a round and call the callbacks; return the reason if a callback or a reader of the records asks to stop."""
    fed.record(row)
    fed.announce("round_ends", row=row)
    try:
        for callback in job.callbacks:
            callback(row)
    except StopRun as stop:
        return str(stop) or "a callback asked to stop"
    return fed.ending


def kept_best(metric: str | None, best: Any, row: dict[str, Any], model: Tree, number: int) -> Any:
    """Return the best round so far by a metric, with its model; ``best`` is the previous one."""
    value = row.get(metric or "")
    if value is None:
        return best
    sign = -1.0 if lower_is_better(metric or "") else 1.0
    if best is not None and sign * best["value"] >= sign * value:
        return best
    return {"value": float(value), "round": number, "params": model}
