"""What a person sees of a run: the line of its progress, and the rows at its end."""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.core.overview import Overview, format_count, human_bytes

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.rounds.history import History
    from atoll.simulation import Result

__all__ = ["NotebookBar", "Rounds", "TerminalBar", "displayed", "of_result", "plot_history"]


# ------------------------------------------------------------------ what a result shows of itself: an overview as text, and a plot of its measures


_MEASURES = 6
_FEW = 1000  # clients whose names are looked through


def of_result(result: Result) -> Overview:
    """The result of a run in six lines, and what to know of it."""
    rows, job = result.metrics.rows, result.job
    done = _count_rounds(rows)
    rounds = f"{done} of {job.most_rounds}" if job.most_rounds else str(done)
    engine = result.engine.get("name", "")
    workers = result.engine.get("workers")
    on = f"engine {engine}" + (f", {format_count(workers, 'worker')}" if workers else "")
    up, down = (human_bytes(result.bytes.get(f"bytes_{way}", 0)) for way in ("up", "down"))
    lines = {
        "rounds": f"{rounds}; ended: {result.reason}",
        "measured": _describe_measures(job, rows) or _say_why_nothing(result.data),
        **_describe_promise(result),
        **({"notices": "; ".join(result.notices)} if result.notices else {}),
        "sent": f"{up} up, {down} down",
        "took": f"{result.seconds:.3g} s on {on}",
        "next": ".metrics  .outcome  .to_pandas()  .plot()  .report()",
    }
    return Overview(f"Result of {job.title} on {_describe_data(result.data)}", lines)


def _count_rounds(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return how many rounds there were: a last row of scores is of the round before it, and a row of inner trainings stands for all of theirs."""
    numbers = [int(row["round"]) for row in rows if row.get("round") is not None]
    return max(len(set(numbers)), *numbers) if len(numbers) == len(rows) and rows else len(rows)


def _describe_promise(result: Result) -> dict[str, str]:
    """What a privacy mechanism promises, and what is spent."""
    claim = getattr(result.prepared, "claim", None)
    if claim is None:
        return {}
    spent = next((row["epsilon"] for row in reversed(result.metrics.rows) if row.get("epsilon") is not None), None)
    return {"privacy": f"{claim}" + ("" if spent is None else f"; spent {spent:.4g}"), "mechanism": claim.how}


def _describe_data(data: Any) -> str:
    name = getattr(data, "name", "")
    if len(data) <= _FEW and name in getattr(
        data, "names", ()
    ):  # tables have their clients' names, and no name together
        name = ""
    return f"{name!r}, {format_count(len(data), 'client')}" if name else format_count(len(data), "client")


def _say_why_nothing(data: Any) -> str:
    if hasattr(data, "with_test") and getattr(data, "test", None) is None and getattr(data, "held_out", None) is None:
        return "nothing: there are no test rows; give them with test= or data.with_test(...), or let clients hold some out with data.with_held_out(0.2)"
    return "nothing"


def _describe_measures(job: Job, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(job.measures(rows).values()))
    if not any(name.startswith("test/") and name in row for row in rows for name in columns):  # clients alone measure
        ours = {name: f"clients/{name.partition('/')[2]}" for name in columns if name.startswith("test/")}
        columns = [ours.get(name, name) for name in columns]
    columns += [name for name in (rows[-1] if rows else ()) if name.count("/") == 1 and name not in columns]
    last = {name: next((row[name] for row in reversed(rows) if row.get(name) is not None), None) for name in columns}
    return ", ".join(f"{name} {value:.4g}" for name, value in [*_known_measures(last)][:_MEASURES])


def _known_measures(last: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in last.items() if isinstance(value, int | float)]


def plot_history(history: History, job: Job, names: Sequence[str] = (), axes: Any = None) -> Any:
    """Draw measures by round.

    Args:
        history: the records.
        job: the job whose measures are drawn if there are no names.
        names: columns of the records.
        axes: matplotlib axes to draw into; by default those of a new figure.

    Returns:
        The axes.

    Raises:
        ConfigError: no round has the column, or nothing was measured.
        MissingExtraError: matplotlib is not installed.
    """
    measured = set(history.names)
    chosen = list(names) or [name for name in dict.fromkeys(job.measures(history.rows).values()) if name in measured]
    if not chosen:
        raise ConfigError("nothing was measured", where="plot", remedy=f"name columns: {', '.join(history.names)}")
    columns = {name: history.column(name) for name in chosen}
    if axes is None:
        axes = need("matplotlib.pyplot", "report", "a plot", where="atoll.report").subplots()[1]
    for name, values in columns.items():
        points = [(row["round"], value) for row, value in zip(history.rows, values, strict=True) if value is not None]
        axes.plot([number for number, _ in points], [value for _, value in points], marker=".", label=name)
    axes.set_xlabel("round")
    axes.legend()
    return axes


# ------------------------------------------------------------------ the progress of a run on stderr: a live display on a terminal, plain lines elsewhere


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


_LINES = 20
"""Minimum number of plain lines for a whole training, if it has so many rounds."""
_PATIENCE = 5.0
"""Maximum number of seconds without a line."""


class Rounds:
    """Show rounds as they end.

    Args:
        console: the console to print on.
        job: the job: its number of rounds, and what it reports of them.
        title: a title for the job.
    """

    def __init__(self, console: Console, job: Job, title: str) -> None:
        self.console = console
        self.job = job
        self.total = job.most_rounds
        self.title = title
        self.live = console.is_terminal or console.is_jupyter
        self._bar = NotebookBar(title, self.total) if console.is_jupyter else TerminalBar(title, self.total, console)
        self._bytes: int | None = None  # unknown while no record counts them
        self._first = 0
        self._begin = self._said = time.monotonic()
        self._seen: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self.live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self._bar.stop()

    def begin(self, done: int) -> None:
        """Start after a number of rounds that are already done."""
        self._first = done
        self._begin = time.monotonic()
        if self.live:
            self._bar.show(done, "")
        elif done:
            self.console.print(f"{self.title}: continuing after round {done}")

    def record(self, row: dict[str, Any]) -> None:
        """Show a round that has ended."""
        number = int(row["round"])
        if "bytes_up" in row or "bytes_down" in row:
            self._bytes = (self._bytes or 0) + int(row.get("bytes_up", 0)) + int(row.get("bytes_down", 0))
        self._seen |= {name: float(value) for name, value in row.items() if _is_number(value)}
        for client, why in (row.get("rejected_clients") or {}).items():
            self.console.print(
                f"round {number}: the reply of {client} was rejected: {why}", markup=False, soft_wrap=True
            )
        for client, why in (row.get("outlying_clients") or {}).items():
            self.console.print(f"round {number}: the reply of {client}: {why}", markup=False, soft_wrap=True)
        if self.live:
            self._bar.show(number, f"{self._news()}  {self._format_left(number)}".rstrip())
        elif self._due(number):
            self._said = time.monotonic()
            of = "" if self.total is None else f"/{self.total}"
            line = f"{self.title}: round {number}{of}  {self._news()}  {self._format_left(number)}".rstrip()
            self.console.print(line, markup=False, soft_wrap=True)

    def _due(self, number: int) -> bool:
        often = self.total is not None and number % max(1, self.total // _LINES) == 0
        return number in (1, self.total) or often or time.monotonic() - self._said > _PATIENCE

    def _news(self) -> str:
        sent = [] if self._bytes is None else [f"sent {human_bytes(self._bytes)}"]
        return "  ".join([*self.job.news(self._seen), *sent])

    def _format_left(self, number: int) -> str:
        if self.total is None:
            return ""
        done = max(1, number - self._first)
        seconds = (time.monotonic() - self._begin) / done * (self.total - number)
        return f"about {seconds:.0f} s left" if number < self.total else "done"


@contextlib.contextmanager
def displayed(wanted: bool | None, job: Job) -> Iterator[Rounds | None]:
    """The display of a run that is started from Python, on stderr.

    Args:
        wanted: ``None`` shows it on a terminal and in a notebook, and nowhere else.
        job: what runs.
    """
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter if wanted is None else wanted):
        yield None
        return
    with Rounds(console, job, job.title) as rounds:
        rounds.begin(0)
        yield rounds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
