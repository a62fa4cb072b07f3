"""Reproductions of papers' tables: every claim is a command.

A reproduction is an `Entry`: a paper's statements, and a function that runs the experiment and judges them. Entries are not part of this
package. A distribution lists its own as entry points of the group ``atoll.papers``, each under the name that people type::

    [project.entry-points."atoll.papers"]
    fedavg-mnist = "atoll_papers.fedavg:ENTRY"

So ``atoll reproduce`` lists them without loading any, and a broken one does not affect the others. The distribution ``atoll-papers``, which lies
in ``papers/`` of Atoll's repository, has those that the documentation shows.

The page of a reproduction is its verdicts and tables in Markdown, written by the command that made them. A page has a place for each of its
reproductions, between two marks that readers do not see::

    <!-- atoll reproduce NAME -->
    <!-- end of NAME -->

The command replaces the text between the marks and leaves the rest. It creates a missing page. What the pages of a package state is counted in
its file ``tally.json``.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from atoll.core.errors import AtollError, CheckpointError, ConfigError, DataError, MissingExtraError, nearest
from atoll.core.job import Job
from atoll.data.folder import require
from atoll.runs import INTERRUPTED, RunFolder, Stopping, execute, parse_config
from atoll.runs.config import RunConfig

__all__ = [
    "Basis",
    "Claim",
    "Entry",
    "Interrupted",
    "Kind",
    "Lab",
    "NotKept",
    "Page",
    "Tally",
    "TrainedRun",
    "entries",
    "find_entry",
    "keeping_nothing",
    "names",
    "read_tallies",
    "reproduce",
    "tallies",
    "write_block",
]

Basis = Literal["measured", "derived", "circular"]
"""Where our number comes from: runs of ours; arithmetic on the paper's own numbers; or a model that the paper's number was read with."""

Kind = Literal["statement", "figure"]
"""What a line says: a statement that can hold or not, or a number of ours that no statement is about."""


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, and our result; or a figure of ours that stands beside them.

    Attributes:
        claim: the statement, with its place in the paper.
        paper: the paper's number; ``None`` if it gives none.
        ours: our number.
        holds: whether it holds here; ``None`` if it was not run, or the runs do not decide it.
        note: the rule that judges it, and how our setting differs.
        part: its heading on a page; empty for the first statements.
        basis: ``"measured"`` for runs of ours; ``"derived"`` for arithmetic on the paper's own numbers and formulas, such as its rounds; ``"circular"`` if the
            paper's number was itself read with the help of our model: it is shown, but not judged.
        kind: ``"figure"`` for a measured number that no statement is about: it is shown, and counted in no verdict.
    """

    claim: str
    paper: Any
    ours: Any
    holds: bool | None
    note: str = ""
    part: str = ""
    basis: Basis = "measured"
    kind: Kind = "statement"

    @classmethod
    def figure(cls, name: str, ours: Any, note: str = "", part: str = "") -> Claim:
        """Make a figure: a number of ours to show, without a statement about it."""
        return cls(name, None, ours, None, note, part, kind="figure")

    @property
    def verdict(self) -> str:
        """Return the verdict in words."""
        if self.basis == "circular":
            return "not judged"
        if self.holds is None:
            return "not run" if self.ours is None else "figure" if self.kind == "figure" else "undecided"
        return "holds" if self.holds else "does not hold"

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Entry:
    """One reproduction.

    Attributes:
        name: its name on the command line.
        title: one line.
        source: the publication.
        needs: what it needs that Atoll does not include, in words; empty for nothing.
        run: ``(lab, quick) -> claims``.
        folder: the folder of its trainings; empty for its name. Reproductions with common trainings share one.
        data: the data sets that it reads from ``ATOLL_DATA``, by name; they are looked for before anything runs.
        quick_data: those that ``--quick`` reads; ``None`` for the same.
    """

    name: str
    title: str
    source: str
    run: Callable[[Lab, bool], list[Claim]]
    needs: str = ""
    folder: str = ""
    data: tuple[str, ...] = ()
    quick_data: tuple[str, ...] | None = None


def keeping_nothing(name: str) -> Callable[[Callable[[bool], list[Claim]]], Callable[[Lab, bool], list[Claim]]]:
    """Make an entry's ``run`` from ``(quick) -> claims``: all of it is worked out each time, and its seconds are counted.

    Args:
        name: the entry's name, for `NotKept` where nothing may be trained.
    """

    def around(run: Callable[[bool], list[Claim]]) -> Callable[[Lab, bool], list[Claim]]:
        def run_claims(lab: Lab, quick: bool) -> list[Claim]:
            with lab.working(name):
                return run(quick)

        return run_claims

    return around


class Interrupted(Exception):  # noqa: N818 - a request of the user, not an error
    """The user stopped a reproduction; finished trainings are kept."""


class NotKept(Exception):  # noqa: N818 - says what is, not what went wrong
    """A training is not finished, but nothing may be trained."""


@dataclass(frozen=True)
class TrainedRun:
    """A training of a reproduction, as its run folder keeps it.

    Attributes:
        folder: the run's folder.
        rows: one record for each round.
        seconds: how long it took when it ran.
    """

    folder: RunFolder
    rows: list[dict[str, Any]]
    seconds: float

    def best(self, metric: str = "test/accuracy") -> float:
        """Return the best value of a metric."""
        return max(self._values(metric))

    def last(self, metric: str = "test/accuracy") -> float:
        """Return the last value of a metric."""
        return self._values(metric)[-1]

    def _values(self, metric: str) -> list[float]:
        found = [float(row[metric]) for row in self.rows if row.get(metric) is not None]
        if not found:
            raise DataError(
                f"{metric} was never measured", where=str(self.folder.path), remedy="give the data a test set"
            )
        return found

    def rounds_to(self, target: float, metric: str = "test/accuracy") -> float | None:
        """Return the rounds until the best value so far crosses a target, with linear interpolation (McMahan et al. 2017, section 3)."""
        before, best = 0, 0.0
        for row in self.rows:
            if row.get(metric) is None:
                continue
            value = max(best, float(row[metric]))
            if value >= target:
                step = int(row["round"]) - before
                return round(before + (target - best) / (value - best) * step, 1)
            before, best = int(row["round"]), value
        return None


@dataclass
class Lab:
    """Runs trainings and keeps them: a finished one is read back, a stopped one continues.

    Attributes:
        folder: the folder of run folders, one for each configuration, named by its digest.
        stopping: tells whether a training must stop.
        watch: called with the title and the job of each training that starts; returns a listener for its records.
        fresh: discard kept trainings.
        kept: train nothing.
    """

    folder: Path
    stopping: Stopping = field(default_factory=Stopping)
    watch: Callable[[str, Job], Callable[[dict[str, Any]], None]] | None = None
    fresh: bool = False
    kept: bool = False
    seconds: float = 0.0

    def train(self, settings: dict[str, Any]) -> TrainedRun:
        """Train a configuration, or read it back.

        Raises:
            Interrupted: the user asked to stop.
            NotKept: it is not kept, and nothing may be trained.
        """
        from atoll import __version__

        config = parse_config(settings, f"reproduction {settings.get('name')!r}")
        folder = RunFolder(self.folder / f"{config.name}-{config.digest()}-{__version__}")
        if self.fresh and folder.path.exists():
            shutil.rmtree(folder.path)
        if not self._finished(folder):
            if self.kept:
                raise NotKept(config.name)
            self._execute(config, folder)
        manifest = folder.manifest()
        self.seconds += float(manifest["seconds"])
        return TrainedRun(folder, folder.metrics(), float(manifest["seconds"]))

    def scores(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the plain numbers of a training that no configuration describes, or read them back.

        Args:
            name: names the file that keeps them; it tells all settings.
            make: trains, and returns the numbers.

        Raises:
            Interrupted: the user asked to stop.
            NotKept: they are not kept, and nothing may be trained.
        """
        from atoll import __version__

        path = self.folder / f"{name}-{__version__}.json"
        if path.exists() and not self.fresh:
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        with self.working(name):
            if self.stopping.asked:
                raise Interrupted(str(path))
            made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made))
        return made

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Count the seconds of work of which nothing is kept.

        Raises:
            NotKept: nothing may be trained.
        """
        if self.kept:
            raise NotKept(name)
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def _finished(self, folder: RunFolder) -> bool:
        try:
            return folder.begun and folder.manifest()["status"] == "finished" and bool(folder.metrics())
        except CheckpointError:
            return False

    def _execute(self, config: RunConfig, folder: RunFolder) -> None:
        listen = None if self.watch is None else self.watch(config.name, config.made(checking=True))
        result = execute(config, folder, resume=True, stopping=self.stopping, on_record=listen, report=False)
        if result.reason == INTERRUPTED:
            raise Interrupted(str(folder.path))


def names() -> list[str]:
    """Return the name of every installed reproduction, without loading any."""
    return sorted(_list_installed())


def _list_installed() -> dict[str, EntryPoint]:
    """Return the entry points of all distributions, by name.

    Raises:
        MissingExtraError: no installed distribution has reproductions.
    """
    found = {point.name: point for point in entry_points(group="atoll.papers")}
    if not found:
        raise MissingExtraError(
            "no reproductions are installed",
            where="atoll reproduce",
            remedy="in a clone of Atoll: pip install ./papers",
        )
    return found


def find_entry(name: str) -> Entry:
    """Return an entry by name; no other is loaded.

    Raises:
        ConfigError: there is none, or its module cannot be loaded.
        MissingExtraError: no installed distribution has reproductions.
        AtollError: the module's own error.
    """
    known = _list_installed()
    if name not in known:
        raise ConfigError(
            f"no reproduction {name!r}.{nearest(name, known)}",
            where="atoll reproduce",
            remedy=f"choose one of {', '.join(sorted(known))}",
        )
    return _load_entry(known[name])


def _load_entry(point: EntryPoint) -> Entry:
    try:
        made: Entry = point.load()
    except AtollError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the reproduction {point.name!r} cannot be loaded: {type(error).__name__}: {error}",
            where=point.module,
            remedy="repair that module; the other reproductions work without it",
        ) from error
    return made


def entries() -> dict[str, Entry | AtollError]:
    """Return every entry by name, or why it cannot be loaded."""
    found: dict[str, Entry | AtollError] = {}
    for name, point in sorted(_list_installed().items()):
        try:
            found[name] = _load_entry(point)
        except AtollError as error:
            found[name] = error
    return found


def reproduce(name: str, lab: Lab, *, quick: bool = False) -> dict[str, Any]:
    """Run an entry.

    Args:
        name: the entry's name.
        lab: runs and keeps its trainings.
        quick: use less data and less than a minute; judge only these runs.

    Returns:
        ``{"name": ..., "claims": [{"claim", "paper", "ours", "holds", "note", "part"}, ...], "seconds": ...}``; the
        seconds are those of the trainings when they ran, even if they were read back.

    Raises:
        DataError: data that it needs are missing; nothing has run.
        CheckpointError: nothing may be trained, and the kept trainings are not enough.
    """
    entry = find_entry(name)
    if not lab.kept:
        require(*(entry.quick_data if quick and entry.quick_data is not None else entry.data))
    try:
        claims = entry.run(lab, quick)
    except NotKept as training:
        raise CheckpointError(
            f"the training {str(training)!r} is not kept",
            where=str(lab.folder),
            remedy="run it without kept=True, which trains",
        ) from None
    return {"name": name, "claims": [claim.plain() for claim in claims], "seconds": round(lab.seconds, 3)}


_COUNTED = (
    ("holds", "hold"),
    ("does not hold", "do not hold"),
    ("undecided", "are undecided"),
    ("not judged", "are not judged"),
    ("not run", "were not run"),
)
"""Verdicts, and the words that count them on a page."""
_TAG = re.compile("<(?=[A-Za-z/!?])")
"""Where Markdown would begin a tag: names of classes and columns are text."""
_COLUMNS = ("claim", "paper", "ours", "verdict", "note")


@dataclass(frozen=True)
class Page:
    """The place of a reproduction in a Markdown file.

    Attributes:
        file: the page.
        entry: the reproduction.
    """

    file: Path
    entry: Entry

    @property
    def marks(self) -> tuple[str, str]:
        """Return the lines before and after the written text."""
        return f"<!-- atoll reproduce {self.entry.name} -->", f"<!-- end of {self.entry.name} -->"

    def check(self) -> Page:
        """Refuse a page that has no place for the reproduction, before anything is trained.

        Raises:
            ConfigError: the page exists, but does not have each mark once, in order.
        """
        self._around()
        return self

    def write(self, found: dict[str, Any]) -> None:
        """Replace the text between the marks by the result of `reproduce`."""
        before, after = self._around()
        begin, end = self.marks
        text = "\n".join([begin, write_block(found), end])
        self.file.write_text(before + text + after, encoding="utf-8")

    def _around(self) -> tuple[str, str]:
        if not self.file.exists():
            return f"# {self.entry.title}\n\n{self.entry.source}.\n\n", "\n"
        text, (begin, end) = self.file.read_text(encoding="utf-8"), self.marks
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise ConfigError(
                f"the page has no place for {self.entry.name}",
                where=str(self.file),
                remedy=f"write the lines {begin} and {end} where it belongs, once each",
            )
        return text[: text.index(begin)], text[text.index(end) + len(end) :]


def write_block(found: dict[str, Any]) -> str:
    """Return the result of `reproduce` in Markdown: how many statements hold, and a table for each part.

    Statements that we measured are counted apart from those derived from the paper's own numbers. Figures are shown, and counted in no verdict. A column that is empty throughout a table is left out.
    """
    claims = [Claim(**plain) for plain in found["claims"]]
    stated = [claim for claim in claims if claim.kind == "statement"]
    measured = [claim for claim in stated if claim.basis == "measured"]
    derived = [claim for claim in stated if claim.basis != "measured"]
    told = f"Of {len(measured)} measured statements: {_count_verdicts(measured)}. "
    if derived:
        told += f"Of {len(derived)} derived from the paper's own numbers: {_count_verdicts(derived)}. "
    if figures := len(claims) - len(stated):
        told += f"Figures without a statement: {figures}. "
    parts = [f"{told}`atoll reproduce {found['name']}` makes them again."]
    for part, some in groupby(claims, key=lambda claim: claim.part):
        parts += [f"**{part}**"] * bool(part) + [_write_table([_cells_of(claim) for claim in some])]
    return "\n" + "\n\n".join(parts) + "\n"


def _count_verdicts(claims: list[Claim]) -> str:
    """Return how many have which verdict; a verdict that none has is left out, but for the first two."""
    counts = [(sum(claim.verdict == verdict for claim in claims), words) for verdict, words in _COUNTED]
    return ", ".join(f"{count} {words}" for i, (count, words) in enumerate(counts) if count or i < 2)


def _cells_of(claim: Claim) -> tuple[str, ...]:
    derived = "" if claim.basis == "measured" else f"; {claim.basis}"
    verdict = "" if claim.verdict == "figure" else claim.verdict + derived
    values = (claim.claim, claim.paper, claim.ours, verdict, claim.note)
    return tuple(_TAG.sub("&lt;", _format_cell(value)).replace("|", "\\|").replace("\n", " ") for value in values)


def _format_cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_cell, value))
    return "" if value is None else str(value)


def _write_table(rows: list[tuple[str, ...]]) -> str:
    used = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows)]
    lines = [tuple(_COLUMNS[i] for i in used), ("---",) * len(used), *(tuple(row[i] for i in used) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


Tally = dict[str, dict[str, int]]
"""``{"measured": {"holds": 5, "does not hold": 1, ...}, "derived": {...}}``; verdicts that no statement has are left out."""

_BLOCK = re.compile(r"<!-- atoll reproduce ([\w-]+) -->\s+(Of \d+ measured statements: .*)")
_HEADS = {"measured": r"Of (\d+) measured statements: ([^.]*)\.", "derived": r"Of (\d+) derived [\w' ]+: ([^.]*)\."}


def tallies() -> dict[str, Tally]:
    """Return how many statements of each reproduction hold, as the written pages state it: what ``tally.json`` of each package says."""
    found: dict[str, Tally] = {}
    for package in sorted({point.module.partition(".")[0] for point in _list_installed().values()}):
        spec = importlib.util.find_spec(package)  # of a package that cannot be loaded, too
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            file = Path(folder) / "tally.json"
            found |= json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def read_tallies(folder: Path) -> dict[str, Tally]:
    """Return the tallies that the pages of a folder state."""
    found = {}
    for page in sorted(folder.glob("*.md")):
        for name, head in _BLOCK.findall(page.read_text(encoding="utf-8")):
            found[name] = {
                basis: _read_counts(match[2]) for basis, form in _HEADS.items() if (match := re.search(form, head))
            }
    return dict(sorted(found.items()))


def _read_counts(text: str) -> dict[str, int]:
    verdicts = {words: verdict for verdict, words in _COUNTED}
    parts = (part.strip().split(" ", 1) for part in text.split(","))
    return {verdicts[words]: int(count) for count, words in parts if int(count)}
