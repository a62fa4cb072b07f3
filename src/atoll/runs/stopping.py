"""Stopping in order: Ctrl-C and SIGTERM end a run after the current round, with a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["INTERRUPTED", "Stopping"]

INTERRUPTED = "interrupted"


class Stopping:
    """A listener to a run's records that ends the run after a request.

    Args:
        tell: called once, with a line for the user, at the first signal.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.asked = False
        self._tell = tell

    def __call__(self, row: dict[str, Any]) -> None:
        """Stop after this round if requested."""
        from atoll.core.federation.ending import StopRun

        del row
        if self.asked:
            raise StopRun(INTERRUPTED)

    def ask(self) -> None:
        """Request a stop after the current round."""
        self.asked = True

    @contextlib.contextmanager
    def signals(self, *numbers: int) -> Iterator[None]:
        """Listen to signals (SIGINT and SIGTERM by default). A second one stops at once, and the last checkpoint counts.

        Only the main thread can listen. In any other thread this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = numbers or (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._heard) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: Any) -> None:
        del frame
        if self.asked:
            raise KeyboardInterrupt
        self.ask()
        if self._tell is not None:
            name = signal.Signals(number).name
            self._tell(f"{name}: stopping after this round; once more stops at once")
