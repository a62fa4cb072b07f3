"""The progress of a training on stderr: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from atoll.report.page import human_bytes

__all__ = ["Rounds"]

_LINES = 20
"""Plain lines that a whole training writes at least, if it has so many rounds."""
_PATIENCE = 5.0
"""Seconds without a line after which there is one."""


class Rounds:
    """Shows rounds as they end.

    Args:
        console: where to.
        total: rounds at most.
        title: what is being trained.
    """

    def __init__(self, console: Console, total: int, title: str) -> None:
        self.console = console
        self.total = total
        self.title = title
        self.live = console.is_terminal
        self._bar = Progress(
            SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"), TimeRemainingColumn(compact=True), console=console, transient=False,
        )  # fmt: skip
        self._bytes = 0
        self._first = 0
        self._begin = self._said = time.monotonic()
        self._seen: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self.live:
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, news="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self._bar.stop()

    def begin(self, done: int) -> None:
        """Rounds that were done before."""
        self._first = done
        self._begin = time.monotonic()
        if self.live:
            self._bar.update(self._task, completed=done)
        elif done:
            self.console.print(f"{self.title}: going on after round {done}")

    def record(self, row: dict[str, Any]) -> None:
        """A round has ended."""
        number = int(row["round"])
        self._bytes += int(row.get("bytes_up", 0)) + int(row.get("bytes_down", 0))
        for name in ("test/accuracy", "test/loss", "test/rmse", "loss"):
            if row.get(name) is not None:
                self._seen[name] = float(row[name])
        for client, why in (row.get("rejected_clients") or {}).items():
            self.console.print(
                f"round {number}: the reply of {client} was rejected: {why}", markup=False, soft_wrap=True
            )
        if self.live:
            self._bar.update(self._task, completed=number, news=self._news())
        elif self._due(number):
            self._said = time.monotonic()
            line = f"{self.title}: round {number}/{self.total}  {self._news()}  {self._left(number)}"
            self.console.print(line, markup=False, soft_wrap=True)

    def _due(self, number: int) -> bool:
        every = max(1, self.total // _LINES)
        return number in (1, self.total) or number % every == 0 or time.monotonic() - self._said > _PATIENCE

    def _news(self) -> str:
        said = []
        if "test/accuracy" in self._seen:
            said.append(f"accuracy {100 * self._seen['test/accuracy']:.1f} %")
        elif "test/rmse" in self._seen:
            said.append(f"RMSE {self._seen['test/rmse']:.4g}")
        loss = self._seen.get("test/loss", self._seen.get("loss"))
        if loss is not None:
            said.append(f"loss {loss:.3f}")
        said.append(f"sent {human_bytes(self._bytes)}")
        return "  ".join(said)

    def _left(self, number: int) -> str:
        done = max(1, number - self._first)
        seconds = (time.monotonic() - self._begin) / done * (self.total - number)
        return f"about {seconds:.0f} s left" if number < self.total else "done"
