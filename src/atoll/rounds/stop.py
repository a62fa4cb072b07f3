"""When a run of rounds ends, and from which round it keeps the model: stop rules, callbacks, the best model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest
from atoll.core.federation.scope import StopRun
from atoll.core.validation import Checked

from .history import History, lower_is_better

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = [
    "MaxTime",
    "Patience",
    "Repeated",
    "StopRule",
    "Target",
    "kept_best",
    "report_row",
    "require_watched",
    "rounds_done",
    "stop_reason",
]


class Repeated(Protocol):
    """What the loop needs from a job."""

    @property
    def rounds(self) -> int:
        """Maximum number of rounds."""
        ...

    @property
    def stop(self) -> Sequence[StopRule]:
        """Further stop rules."""
        ...

    @property
    def keep_best(self) -> str | None:
        """Name of a metric; the result is then the model of its best round."""
        ...

    @property
    def callbacks(self) -> Sequence[Callable[[dict[str, Any]], None]]:
        """Functions called with each round's record; one may raise ``StopRun``."""
        ...

    @property
    def checkpoint_every(self) -> int:
        """Rounds between checkpoints when a run folder is given."""
        ...


@dataclass(frozen=True)
class StopRule(Checked):
    """Base class: a pure function of the history, so that a resumed run stops where the first run would have."""

    def reason(self, history: History) -> str | None:
        """Return why the run should stop now, or ``None``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Target(StopRule):
    """Stop when a metric reaches a value.

    Attributes:
        metric: such as ``"test/accuracy"`` or ``"test/loss"``.
        value: at least this (at most, for losses and errors).
    """

    metric: str
    value: float

    def reason(self, history: History) -> str | None:
        """Return a reason once the target is reached."""
        value = history[-1].get(self.metric) if len(history) else None
        if value is None:
            return None
        reached = value <= self.value if lower_is_better(self.metric) else value >= self.value
        return f"{self.metric} = {value:.4g} reached the target {self.value:g}" if reached else None


@dataclass(frozen=True)
class MaxTime(StopRule):
    """Stop when the clock passes a budget of seconds."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError(f"seconds={self.seconds}", remedy="use a positive number")

    def reason(self, history: History) -> str | None:
        """Return a reason once the budget is spent."""
        if not len(history) or history[-1]["t_end"] < self.seconds:
            return None
        return f"{history[-1]['t_end']:.1f} s passed the budget of {self.seconds:g} s"


@dataclass(frozen=True)
class Patience(StopRule):
    """Stop when a metric has not improved for some evaluations.

    Attributes:
        metric: the metric to watch.
        evaluations: number of evaluations in a row without a new best.
        margin: smallest change that counts.
    """

    metric: str
    evaluations: int = 10
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise ConfigError(f"evaluations={self.evaluations}", remedy="use at least 1")

    def reason(self, history: History) -> str | None:
        """Return a reason if there was no improvement for too long."""
        values = [row[self.metric] for row in history if row.get(self.metric) is not None]
        sign = -1.0 if lower_is_better(self.metric) else 1.0
        best, since = float("-inf"), 0
        for value in values:
            if sign * value > best + self.margin:
                best, since = sign * value, 0
            else:
                since += 1
        return f"{self.metric} has not improved for {since} evaluations" if since >= self.evaluations else None


# ---------------------------------------------------------------------- the end of a run


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
        if name is None or name in history[-1] or name in history.names:  # usually the last row is enough
            continue
        if name not in dict(history[-1].get("undefined_metrics") or {}):  # else it is measured, and NaN so far
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
