"""Stop rules: when a training ends."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .history import History, lower_is_better

__all__ = ["MaxTime", "Patience", "StopRule", "Target"]


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
