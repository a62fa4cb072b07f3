"""Output: one JSON object or a short text on stdout, everything else on stderr."""

from __future__ import annotations

import ast
import contextlib
import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from atoll.core.errors import AtollError, ConfigError
from atoll.core.persistence.files import as_json

_WIDEST = 100_000
"""Maximum width in columns of a table written to a file."""

CHECKPOINT_COUNTS = "The last checkpoint counts."
"""The sentence after Ctrl-C where a training runs in this process."""

__all__ = [
    "CHECKPOINT_COUNTS",
    "Output",
    "PlainTable",
    "console_for",
    "name_options",
    "note_found",
    "only_json_on_stdout",
    "require_folder",
    "show_error",
    "show_printable",
    "show_usage",
    "table_of_sites",
]


@dataclass
class Output:
    """The output of a command.

    Attributes:
        json: exactly one JSON object on stdout.
        answer: the real stdout.
        console: stderr.
        answered: whether the result was printed.
        if_stopped: what to say after Ctrl-C, as a sentence.
    """

    json: bool
    answer: IO[str]
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    answered: bool = False
    if_stopped: str = ""

    def give(self, value: dict[str, Any], shown: RenderableType | None = None) -> None:
        """Print the command's result: the object with ``--json``, else a text or table."""
        if self.json:
            self._write(value)
            return
        self.answered = True
        if shown is not None:
            console_for(self.answer, shown).print(shown)

    def fail(self, error: dict[str, Any]) -> None:
        """Print the command's error as JSON, with ``--json``."""
        if self.json:
            self._write({"error": error})

    def _write(self, value: dict[str, Any]) -> None:
        if not self.answered:
            self.answered = True
            self.answer.write(as_json(value) + "\n")
            self.answer.flush()

    def say(self, text: str) -> None:
        """Print a line of the answer at once, unless the answer is a JSON object."""
        if not self.json:
            self.answered = True
            Console(file=self.answer, highlight=False).print(text, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line on stderr."""
        self.console.print(text, soft_wrap=True)


class PlainTable(Table):
    """A table without lines. Where the terminal is too narrow, its cells wrap; nothing is cut off."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(box=None, pad_edge=False, **settings)

    def add_column(self, header: RenderableType = "", **settings: Any) -> None:  # type: ignore[override]
        """Add a column; see ``rich.table.Table.add_column``."""
        super().add_column(header, **{"overflow": "fold", **settings})


def console_for(file: IO[str], shown: RenderableType) -> Console:
    """The console for an answer: a file or pipe has no width, so nothing is cut off or wrapped there."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = max(
            console.width, Measurement.get(console, console.options.update(width=_WIDEST), shown).maximum
        )
    return console


@contextlib.contextmanager
def only_json_on_stdout(wanted: bool) -> Iterator[IO[str]]:
    """Keep stdout for the answer: output of models, libraries and worker processes goes to stderr."""
    if not wanted:
        yield sys.stdout
        return
    try:
        real = sys.stdout.fileno() == 1
    except (OSError, ValueError):  # a replacement for stdout, as in a notebook or a test
        real = False
    if not real:
        answer = sys.stdout
        with contextlib.redirect_stdout(sys.stderr):
            yield answer
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as answer:
            yield answer
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def show_printable(text: str, keep: str = "\n") -> str:
    """A text that no terminal obeys: escapes, control characters and turns of direction are shown as Python writes them.

    Args:
        text: the text.
        keep: letters that stay although they print nothing.
    """
    return "".join(letter if letter.isprintable() or letter in keep else repr(letter)[1:-1] for letter in text)


def show_error(error: Exception, output: Output, debug: bool) -> int:
    """Print what was wrong, where, and what to do; return the exit code."""
    if not isinstance(error, AtollError):
        return _show_defect(error, output, debug)
    output.fail(
        {
            "kind": type(error).__name__,
            "what": error.what,
            "where": (where := _place_of_people(error.where)),
            "remedy": error.remedy,
            "exit_code": error.exit_code,
        }
    )
    lines = Text(show_printable(error.what))
    for label, value in (("where", where), ("remedy", error.remedy)):
        if value:
            lines.append(f"\n{label}: ", style="bold").append(show_printable(value))
    title = f"[bold red]{type(error).__name__}[/bold red] (exit {error.exit_code})"
    output.console.print(Panel(lines, title=title, title_align="left", border_style="red"))
    _traceback(error, output, debug)
    return error.exit_code


_OWN_REQUEST = re.compile(r"(?:^|; )main/\S*atoll\.[\w.]+:\S+ at (?P<party>[^;]+)$")


def _place_of_people(where: str | None) -> str | None:
    """Where an error is, with the party, once, in place of the request of a task of Atoll's own, whose name says nothing to people."""
    found = _OWN_REQUEST.search(where or "")
    if where is None or found is None:
        return where
    party, inner = found["party"], where[: found.start()]
    named = inner == party or inner.endswith(f" at {party}") or party == "the cohort"
    return inner if named else f"{inner} at {party}" if inner else party


_OF_READERS = (
    "delimiter", "decimal", "encoding", "categories", "missing", "missing_features", "drop", "keep", "features", "task", "classes", "labels",
)  # fmt: skip
"""Arguments of readers of files, which a command has as an option or not at all."""
_OPTIONS = {"features": "columns", "audit": "attack", "defence": "defend"}
"""Arguments that commands call otherwise."""
_ARGUMENT = re.compile(
    r"(?<![\w(.\[{'\"-])([a-z][a-z_]*)=('[^']*'|\"[^\"]*\"|\{[^{}]*\}|\[[^][]*\]|[\w.]+(?:\(\))?|(?!=))"
)


def name_options(remedy: str, options: Collection[str], settings: bool = False) -> str:
    """Return a remedy with options of a command where it names arguments of Python: ``decimal=','`` becomes ``--decimal ','``.

    Alternatives, which ``, or`` and ``;`` separate, with an argument of a reader that the command does not take are left out. If none is left, the file itself can be corrected.

    Args:
        remedy: what to do.
        options: names of the command's options.
        settings: whether the command reads a file of settings, in which arguments of readers stand.
    """

    def option_of(name: str) -> str:
        option = _OPTIONS.get(name, name)
        return (option if option in options else name).replace("_", "-")

    def name_option(match: re.Match[str]) -> str:
        name = option_of(match[1])
        return match[0] if name not in options or not _outside_calls(match) else f"--{name}{_as_word(match[2])}"

    def lacks(part: str) -> bool:
        names = [match[1] for match in _ARGUMENT.finditer(part) if _outside_calls(match)]
        return not settings and any(name in _OF_READERS and option_of(name) not in options for name in names)

    pieces = re.split(r"(; (?:or )?|,? or |, (?=leave))(?![^(\[{]*[)\]}])", remedy)
    parts, joints = pieces[::2], ["", *pieces[1::2]]
    left = [(joint, part) for joint, part in zip(joints, parts, strict=True) if not lacks(part)]
    if not left:
        return "correct the file: values between commas, decimal points, UTF-8, and one kind of value in a column"
    text = left[0][1].removeprefix("else ") + "".join(joint + part for joint, part in left[1:])
    return _ARGUMENT.sub(name_option, text)


def _outside_calls(match: re.Match[str]) -> bool:
    before = match.string[: match.start()]
    return before.count("(") == before.count(")")


def _as_word(value: str) -> str:
    """A value of Python as the word after an option."""
    if value in ("", "True"):
        return ""
    try:
        value = value.removesuffix("()")  # a part with its own settings, which commands name by its class
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return f" {shlex.quote(value)}"
    if found in (..., [...]):
        return " NAME,NAME"
    if found == "\t":
        return r" '\t'"  # `FileOptions` reads it
    if isinstance(found, dict):
        return "".join(f" {shlex.quote(str(name))}=VALUE,VALUE" for name in found)
    if isinstance(found, list):
        return " " + shlex.quote(",".join(map(str, found)))
    word = shlex.quote(str(found))
    return f" {word}" if word != str(found) or word.isalnum() or len(word) > 1 else f" '{word}'"


def _show_defect(error: Exception, output: Output, debug: bool) -> int:
    what = f"{type(error).__name__}: {error}"
    remedy = "run it again with --debug, and report the output: this is a bug in Atoll or in your own code"
    output.fail({"kind": type(error).__name__, "what": what, "where": None, "remedy": remedy, "exit_code": 1})
    lines = Text(what).append("\nremedy: ", style="bold").append(remedy)
    output.console.print(
        Panel(lines, title="[bold red]Error[/bold red] (exit 1)", title_align="left", border_style="red")
    )
    _traceback(error, output, debug)
    return 1


def _traceback(error: Exception, output: Output, debug: bool) -> None:
    if debug:
        import traceback

        output.console.print("".join(traceback.format_exception(error)), markup=False)


_VERBS = {
    "`atoll abort JOB` ends a job": "stop cancel kill end terminate interrupt",
    "`atoll jobs` lists the jobs, `atoll logs JOB` says how far one is": "status ps job list ls show queue progress top history",
    "`atoll sites` lists the sites and whether they are connected": "clients nodes members who",
    "`atoll logs JOB -f` follows a job": "log tail follow watch",
    "`atoll result JOB` fetches what a job has made": "results get fetch download output pull",
    "`atoll delete JOB` removes a job that has ended": "rm remove purge clean",
    "`atoll events` shows who did what": "audit trail",
    "`atoll resume JOB` continues a job, `atoll clone JOB` runs it once more": "restart retry rerun continue",
    "`atoll submit JOB` hands a job to a server": "send push deploy create",
    "`atoll run CONFIG.yaml` simulates a training on this machine": "train simulate start simulation simulator fl",
    "`atoll server KIT` serves a project": "serve superlink hub",
    "`atoll site KIT --data SPEC` joins a project": "client join node supernode connect",
    "`atoll provision PROJECT` makes the kits of all parties": "init setup new kit certificates startup",
    "`atoll doctor` checks an installation or a kit": "check ping verify preflight_check preflight version",
    "`atoll trees FILE... --label COLUMN` grows trees over several sites' files": "xgboost lightgbm boost forest tree gbm",
    "`atoll fit METHOD FILE...` fits a model over several sites' files": "glm cox km kmeans pca svm ridge svd gmm bayes regression logistic survival",
    "`atoll stats FILE...` describes the columns of several sites' files": "describe summary statistics explore",
    "`atoll sweep CONFIG.yaml` compares settings": "grid search tune hpo",
}


def meant(word: str) -> tuple[str, bool]:
    """Return the command for a word that other tools use, as a sentence, and whether it is known; else what is spelt alike, or nothing."""
    from .commands import known

    told = next((sentence for sentence, words in _VERBS.items() if word.lower() in words.split()), "")
    near = difflib.get_close_matches(word.lower(), known(), n=1, cutoff=0.7)
    return (told, True) if told else (f"write `atoll {near[0]}`" if near else "", False)


def show_usage(error: Any, output: Output) -> int:
    """Print why a command line cannot be parsed; return exit code 2."""
    what = error.format_message() if hasattr(error, "format_message") else "aborted"
    unknown = re.fullmatch(r"No such command '([\w-]+)'\.?.*", what)
    verb, told = meant(unknown[1]) if unknown else ("", False)
    if unknown and told:
        what = f"No such command {unknown[1]!r}."
    remedy = f"{verb}; all commands: `atoll --help`" if verb else "see `atoll --help`, or `atoll COMMAND --help`"
    output.fail({"kind": "UsageError", "what": what, "where": "command line", "remedy": remedy, "exit_code": 2})
    lines = Text(what).append("\nremedy: ", style="bold").append(remedy)
    output.console.print(
        Panel(lines, title="[bold red]Usage[/bold red] (exit 2)", title_align="left", border_style="red")
    )
    return 2


# What ``atoll fit`` and ``atoll trees`` share: the file of a model, and a federation beside each site alone and all rows in one place.


def require_folder(out: Path, option: str = "--out") -> None:
    """Refuse a file in a folder that does not exist, before anything is trained.

    Args:
        out: the file.
        option: what named it.

    Raises:
        ConfigError: there is no such folder.
    """
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{option} {out}: there is no such folder", remedy="name a file in a folder that exists")


def note_found(output: Output, found: dict[str, Any], page: Path | None) -> None:
    """Note where the page is, why there is no pooled value, and the result's notices."""
    for note in (*filter(None, [found.get("pooled_note")]), *found.get("notices", ())):
        output.note(escape(note))
    if page is not None:
        output.note(f"Page: {page}")


def table_of_sites(found: dict[str, Any], title: str, shown: Callable[[Any], str]) -> PlainTable:
    """Return the measures of ``alone``, ``federated`` and ``pooled``, a row each.

    Args:
        found: the comparison.
        title: of the first column.
        shown: a measure as text.
    """
    from atoll.study.sites import list_compared

    table = PlainTable()
    head, rows = list_compared(found)
    for place, name in enumerate((title, *head)):
        table.add_column(name, justify="right" if place else "left")
    for name, values in rows:
        table.add_row(name, *("-" if value is None else shown(value) for value in values))
    return table
