"""When a training ends and what it then gives: stop rules, callbacks, the best model. Every round loop asks here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError, nearest
from atoll.core.tree import Tree

from .by_device import by_device
from .history import History, lower_is_better

if TYPE_CHECKING:
    from atoll.core.federation import Federation

    from .training import Trained, Training

__all__ = ["StopTraining", "kept_best", "report_row", "require_watched", "stop_reason", "trained"]


class StopTraining(Exception):  # noqa: N818 - a request, not an error
    """Raised by a callback to stop after this round."""


def stop_reason(job: Training, history: History) -> str | None:
    """Why the training is over after these rounds; ``None`` when it goes on."""
    for rule in job.stop:
        reason = rule.reason(history)
        if reason is not None:
            return reason
    return f"all {job.rounds} rounds are done" if len(history) >= job.rounds else None


def require_watched(job: Training, history: History) -> None:
    """Refuse to go on where a stop rule or ``keep_best`` looks at what is never measured; asked once everything was measured that will be.

    Raises:
        ConfigError: no round so far has it.
    """
    rules = [(f"Training.stop, {type(rule).__name__}", getattr(rule, "metric", None)) for rule in job.stop]
    for where, name in [*rules, ("Training.keep_best", job.keep_best)]:
        if (
            name is not None and name not in history[-1] and name not in history.names
        ):  # the last row nearly always tells
            known = [one for one in history.names if isinstance(history[-1].get(one), float)]
            raise ConfigError(
                f"metric {name!r} is not measured in this training.{nearest(name, known)}",
                where=where,
                remedy=f"use one of {', '.join(known)}",
            )


def report_row(fed: Federation, job: Training, row: dict[str, Any]) -> str | None:
    """Record a round and tell the callbacks; the reason if one of them asks to stop."""
    fed.record(row)
    try:
        for callback in job.callbacks:
            callback(row)
    except StopTraining as stop:
        return str(stop) or "a callback asked to stop"
    return None


def kept_best(job: Training, best: Any, row: dict[str, Any], params: Tree, number: int) -> Any:
    """The best round so far by ``keep_best``, with its model; ``best`` before it."""
    value = row.get(job.keep_best or "")
    if value is None:
        return best
    sign = -1.0 if lower_is_better(job.keep_best or "") else 1.0
    if best is not None and sign * best["value"] >= sign * value:
        return best
    return {"value": float(value), "round": number, "params": params}


def trained(fed: Federation, job: Training, best: Any, params: Tree, reason: str) -> Trained:
    """What the training gives: the best round's model with ``keep_best``, else the last one."""
    from .training import Trained

    history = History(fed.records)
    chosen = best if job.keep_best else None
    params, number = (chosen["params"], chosen["round"]) if chosen else (params, len(history))
    return Trained(params, history, reason, number, by_device(fed))
