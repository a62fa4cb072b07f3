"""A bar that fills while rounds end: on a terminal, and in a notebook."""

from __future__ import annotations

import html
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

__all__ = ["NotebookBar", "TerminalBar"]

_OFTEN = 0.1
"""Minimum number of seconds between two updates of a notebook, each of which is a message to the browser."""


class TerminalBar:
    """A line on a terminal.

    Args:
        title: what runs.
        total: rounds in all; ``None`` if it is not known.
        console: the terminal.
    """

    def __init__(self, title: str, total: int | None, console: Console) -> None:
        self._title, self._total = title, total
        self._progress = Progress(
            SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"), console=console, transient=False,
        )  # fmt: skip

    def start(self) -> None:
        """Show the empty bar."""
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=self._total, news="")

    def show(self, done: int, news: str) -> None:
        """Show how many rounds are done, and what is new."""
        self._progress.update(self._task, completed=done, news=news)

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class NotebookBar:
    """An output of a notebook's cell that is replaced while it fills. It needs no widgets.

    Args:
        title: what runs.
        total: rounds in all; ``None`` if it is not known.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._last: tuple[int, str] = (0, "")
        self._shown = 0.0
        self._handle: Any = None

    def start(self) -> None:
        """Show the empty bar."""
        from IPython.display import display

        self._handle = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def show(self, done: int, news: str) -> None:
        """Show how many rounds are done, and what is new; at most every tenth of a second."""
        self._last = (done, news)
        if time.monotonic() - self._shown >= _OFTEN:
            self._refresh()

    def stop(self) -> None:
        """Show the last state, and leave it."""
        self._refresh()

    def _refresh(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self)

    def __repr__(self) -> str:
        done, news = self._last
        return f"{self._title}: {done}{'' if self._total is None else f'/{self._total}'}  {news}".rstrip()

    def _repr_html_(self) -> str:
        done, news = self._last
        share = "" if self._total is None else f' value="{done}" max="{max(self._total, 1)}"'
        count = f"{done}{'' if self._total is None else f'/{self._total}'}"
        return f"<div><b>{html.escape(self._title)}</b> <progress{share}></progress> {count} &nbsp;{html.escape(news)}</div>"
