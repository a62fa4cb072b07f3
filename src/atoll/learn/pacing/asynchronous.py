"""Paces at which clients work on models of several versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checks import require_positive
from .base import Pacing
from .soundness import require_flexible

if TYPE_CHECKING:
    from ..learner import Learner
    from ..training import Training

__all__ = ["Asynchronous"]


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Pacing):
    """Base of the asynchronous pacings.

    Attributes:
        look_again: seconds after which a server that has nobody at work looks again for clients that are there.
    """

    look_again: float = 60.0

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, look_again=self.look_again)

    def check(self, job: Training, learner: Learner, data: Any) -> None:
        """Refuse what cannot be done when clients work on models of several versions."""
        del learner, data
        require_flexible(self, job)
