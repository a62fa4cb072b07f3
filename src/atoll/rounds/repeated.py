"""What the loop of rounds needs from a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .stop import StopRule

__all__ = ["Repeated"]


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
