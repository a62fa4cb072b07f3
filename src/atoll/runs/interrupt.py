"""Ctrl-C while a simulation runs in Python: it ends after the round, and says how to go on."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .stopping import Stopping

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Interrupt"]


class Interrupt:
    """Ends a run after the record during which Ctrl-C was pressed.

    Args:
        on_record: the caller's own listener; it is called first.
    """

    def __init__(self, on_record: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._on_record = on_record
        self._stopping = Stopping(tell=_tell)
        self._stopped = False

    def record(self, row: dict[str, Any]) -> None:
        """Pass a record on, and stop after it if asked.

        Raises:
            StopRun: Ctrl-C was pressed, or the caller's listener wants to stop.
        """
        if self._on_record is not None:
            self._on_record(row)
        self._stopped = self._stopping.asked
        self._stopping(row)

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Listen to SIGINT. A handler of the caller's own stays in place, and so does a signal that is ignored."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            return self._stopping.signals(signal.SIGINT)
        return contextlib.nullcontext()

    def explain(self, fed: Federation, most: int | None, folder: Path | None) -> None:
        """Say where an interrupted run ended, and how to go on."""
        if not self._stopped:
            return
        done = f"stopped after round {len(fed.records)}" + ("" if most is None else f" of {most}")
        if folder is None:
            _tell(f"{done}. Without folder=... there is no checkpoint to resume from")
        else:
            _tell(f"{done}. To go on, make the same call with folder={str(folder)!r}, resume=True")


def _tell(line: str) -> None:
    sys.stderr.write(f"atoll: {line}\n")
