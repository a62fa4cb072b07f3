"""Runs that people watch and stop: their progress, and an end after the current round, with a checkpoint, on Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.job import Job
    from atoll.report.progress import Rounds

__all__ = ["INTERRUPTED", "Stopping", "Watch", "own_display", "watching"]


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
        from atoll.core.federation.scope import StopRun

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


# What a caller of ``simulate`` sees of the run: its progress, and where Ctrl-C stopped it.


_own: ContextVar[bool] = ContextVar("own display", default=False)

Record = Callable[[dict[str, Any]], None]
Restore = Callable[[Sequence[dict[str, Any]]], None]


class Watch:
    """Listens to a run: passes on its records, shows them, and ends the run after the record during which Ctrl-C was pressed.

    Args:
        job: the job.
        rounds: the display, if there is one.
        on_record: the caller's own listener; it is called first.
        on_restore: the caller's listener for the records that a resumed run continues from.
    """

    def __init__(self, job: Job, rounds: Rounds | None, on_record: Record | None, on_restore: Restore | None) -> None:
        self.stopping = Stopping(tell=_print_line)
        self._job, self._rounds = job, rounds
        self._on_record, self._on_restore = on_record, on_restore
        self._stopped = False

    def record(self, row: dict[str, Any]) -> None:
        """Pass on a record, and stop after it if requested.

        Raises:
            StopRun: Ctrl-C was pressed, or the caller's listener requested a stop.
        """
        if self._rounds is not None:
            self._rounds.record(row)
        if self._on_record is not None:
            self._on_record(row)
        self._stopped = self.stopping.asked
        self.stopping(row)

    def restore(self, rows: Sequence[dict[str, Any]]) -> None:
        """Pass on the records that a resumed run continues from."""
        if self._rounds is not None:
            self._rounds.begin(len(rows))
        if self._on_restore is not None:
            self._on_restore(rows)

    def explain(self, fed: Federation, folder: Path | None) -> None:
        """Print where an interrupted run ended, and how to continue it."""
        if not self._stopped:
            return
        most = self._job.most_rounds
        done = f"stopped after round {len(fed.records)}" + ("" if most is None else f" of {most}")
        if folder is None:
            _print_line(f"{done}. Without folder=... there is no checkpoint to resume from")
        else:
            _print_line(f"{done}. To continue, make the same call with folder={str(folder)!r}, resume=True")


@contextlib.contextmanager
def own_display() -> Iterator[None]:
    """Mark the code inside as having its own display: ``simulate`` then shows progress only on request."""
    token = _own.set(True)
    try:
        yield
    finally:
        _own.reset(token)


@contextlib.contextmanager
def watching(job: Job, on_record: Record | None, on_restore: Restore | None, progress: bool | None) -> Iterator[Watch]:
    """Listen to the run inside, and to SIGINT.

    A handler of the caller stays in place, and an ignored signal stays ignored.

    Args:
        job: the job.
        on_record: called with each record.
        on_restore: called with the records that a resumed run continues from.
        progress: see ``simulate``.
    """
    with contextlib.ExitStack() as stack:
        watch = Watch(job, stack.enter_context(_choose_display(progress, job)), on_record, on_restore)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            stack.enter_context(watch.stopping.signals(signal.SIGINT))
        yield watch


def _choose_display(progress: bool | None, job: Job) -> contextlib.AbstractContextManager[Rounds | None]:
    """The display, if there is one; rich is loaded only then."""
    if progress is False or (progress is None and (_own.get() or not _may_show())):
        return contextlib.nullcontext()
    from atoll.report.progress import displayed

    return displayed(progress, job)


def _may_show() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _print_line(line: str) -> None:
    sys.stderr.write(f"atoll: {line}\n")
