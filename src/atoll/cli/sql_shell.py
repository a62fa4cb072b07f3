r"""The shell of ``atoll sql``: statements that end with a semicolon, and commands of psql's that begin with a backslash.

`SqlShell` takes one line after the other, so a script on stdin and a person at a terminal get the same answers. At a terminal prompt_toolkit adds history, editing and completion. Ctrl-C while a
statement runs interrupts it at every site, and the shell goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.text import Text

from atoll.core.errors import AtollError, ConfigError, nearest
from atoll.core.extras import need
from atoll.core.overview import format_count

from .output import console_for, show_printable

__all__ = ["FORMATS", "SqlShell", "show_cell", "split_statements"]

FORMATS = (".csv", ".parquet", ".arrow", ".json")
"""Endings of the files that rows are written to."""

HELP = r"""Statements end with ;
  \d            the tables; \d TABLE its columns, with what all sites allow of them
  \timing       show seconds after each answer, or stop it
  \x            show each row as lines of NAME | VALUE, or stop it
  \o FILE       write rows to FILE (.csv, .parquet, .arrow, .json); \o alone shows them again
  \i FILE       run the statements of a file
  \q            quit; Ctrl-D too
  SET strategy = NAME    how statements are answered; SET shows it
  EXPLAIN SELECT …       what leaves, and who learns it, before anything does
  CREATE TEMP TABLE t AS SELECT …    rows that the sites keep under shares, for later statements; DROP TABLE t
"""
_COMMANDS = ("\\d", "\\timing", "\\x", "\\o", "\\i", "\\q", "\\?")
_WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AND", "OR", "NOT", "NULL", "IS", "IN", "LIKE", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE",
    "END", "AS", "DISTINCT", "COUNT", "SUM", "AVG", "STDDEV", "VAR_SAMP", "CORR", "FILTER", "EXPLAIN", "ANALYZE", "WITH", "SET", "CREATE TEMP TABLE", "DROP TABLE",
)  # fmt: skip

_COMMENTS = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.S)


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements of a text that a semicolon ends, and what is left after the last.

    A semicolon in a string, a quoted name or a comment ends nothing.
    """
    sqlglot = need("sqlglot", "sql", "atoll sql")
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except sqlglot.errors.SqlglotError:  # a string or comment that has not ended
        return [], text
    found, start = [], 0
    for token in tokens:
        if token.token_type.name == "SEMICOLON":
            found.append(text[start : token.end + 1].strip())
            start = token.end + 1
    return [one for one in found if one.strip(" ;\n")], text[start:]


class SqlShell:
    """Answers lines of SQL and of commands.

    Args:
        db: an open `atoll.query.SqlConnection`, or a connection to the sites of a project.
        show: shows the result of a statement: a renderable of a result.
        write: writes the rows of a result to a file.
        out: where answers go.
        console: where errors go; stderr by default.

    Attributes:
        failed: whether a statement has failed.
    """

    def __init__(
        self,
        db: Any,
        show: Callable[[Any], RenderableType],
        write: Callable[[Any, Path], None],
        out: IO[str] | None = None,
        console: Console | None = None,
    ) -> None:
        self.db, self.failed = db, False
        self._show, self._write = show, write
        self._out = out or sys.stdout
        self._console = console or Console(stderr=True, highlight=False)
        self._begun = ""
        self._timing = self._expanded = False
        self._file: Path | None = None

    # ------------------------------------------------------------------ lines

    def loop(self, stdin: IO[str]) -> None:
        """Answer all lines of stdin: with a prompt at a terminal, until it ends."""
        prompted = stdin.isatty()
        for line in self._prompted() if prompted else stdin:
            try:
                if not self.take(line.rstrip("\n")):
                    return
            except KeyboardInterrupt:  # while an answer is printed or written; people want the next prompt
                if not prompted:
                    raise
                self._begun = ""
                self._console.print("stopped")
        if self._begun.strip():
            self._answer(self._begun.strip())

    def take(self, line: str) -> bool:
        """Take one line; answer what it completes.

        Returns:
            Whether to go on.
        """
        if _COMMENTS.fullmatch(self._begun) and (
            line.startswith("\\") or line.strip().lower() in ("exit", "quit", "help")
        ):
            self._begun = ""
            return self._command(line.strip())
        statements, self._begun = split_statements(self._begun + line + "\n")
        for one in statements:
            self._answer(one)
        return True

    def _prompted(self) -> Iterator[str]:
        toolkit = need("prompt_toolkit", "sql", "the shell of atoll sql")
        history = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "atoll" / "sql_history"
        with contextlib.suppress(OSError):  # without a place to write, the history lasts as long as the shell
            history.parent.mkdir(parents=True, exist_ok=True)
        kept = toolkit.history.FileHistory(str(history)) if history.parent.is_dir() else None
        words = [*_WORDS, *_COMMANDS, *self._names()]
        session = toolkit.PromptSession(history=kept, completer=toolkit.completion.WordCompleter(words, ignore_case=True), complete_while_typing=False)  # fmt: skip
        self._say(f"You ask {', '.join(self.db.names)}. \\? for help, Ctrl-D to quit.")
        while True:
            try:
                yield session.prompt("   ...> " if self._begun.strip() else "atoll=> ")
            except KeyboardInterrupt:
                self._begun = ""
            except EOFError:
                return

    def _names(self) -> list[str]:
        """The tables and their columns, for completion."""
        with contextlib.suppress(AtollError):  # then the words of SQL complete alone
            tables = [row[0] for row in self.db.sql("SHOW TABLES").rows]
            return [
                *tables,
                *dict.fromkeys(row[0] for table in tables for row in self.db.sql(f"DESCRIBE {table}").rows),
            ]
        return []

    # ------------------------------------------------------------------ statements

    def _answer(self, text: str) -> None:
        body = text.rstrip(";").strip()
        if body.split()[0].upper() == "SET":
            self._guard(lambda: self._set(body))
            return
        begin = time.perf_counter()
        if not self._guard(lambda: self._show_rows(self._run(body))):
            return
        if self._timing:
            self._say(f"Time: {time.perf_counter() - begin:.3f} s")

    def _run(self, text: str) -> Any:
        """Run a statement; Ctrl-C interrupts it at the sites."""
        stopped, ended = threading.Event(), threading.Event()

        def interrupt() -> None:
            while not ended.wait(0.05):  # an interrupt between two queries is lost
                self.db.cancel()

        def stop(number: int, frame: Any) -> None:
            del number, frame
            if not stopped.is_set():
                stopped.set()
                threading.Thread(target=interrupt, daemon=True).start()

        before = signal.signal(signal.SIGINT, stop)
        waits = self._console.status(f"asking {', '.join(self.db.names)}") if self._console.is_terminal else contextlib.nullcontext()  # fmt: skip
        try:
            with waits:
                return self.db.sql(text)
        except AtollError:
            if stopped.is_set():
                raise _StoppedError from None
            raise
        finally:
            ended.set()
            signal.signal(signal.SIGINT, before)

    def _say(self, shown: RenderableType) -> None:
        """Print a part of an answer; a file or pipe has no width."""
        console_for(self._out, shown).print(shown, markup=False)

    def _guard(self, work: Callable[[], None]) -> bool:
        """Do something; an error is shown, and the shell goes on."""
        try:
            work()
        except _StoppedError:
            self._console.print("cancelled at all sites")
        except AtollError as error:
            self.failed = True
            said = [error.what, *(f"{label}: {words}" for label, words in (("where", error.where), ("remedy", error.remedy)) if words)]  # fmt: skip
            self._console.print(Text(show_printable("\n".join(said))))
        else:
            return True
        return False

    def _show_rows(self, result: Any) -> None:
        plain = not result.explained and result.kept is None
        if self._file is not None and plain:
            self._write(result, self._file)
            self._say(f"{format_count(len(result.rows), 'row')} in {self._file}")
        elif self._expanded and plain:
            self._say(_expanded(result))
        else:
            self._say(self._show(result))

    def _set(self, body: str) -> None:
        from atoll.query.strategies.strategy import known_strategies  # duckdb and sqlglot are an extra

        name, _, value = body[3:].partition("=")
        name, value, known = name.strip().lower(), value.strip().strip("'\""), known_strategies()
        if not name:
            self._say(f"strategy = {self.db.strategy}")
        elif name != "strategy":
            raise ConfigError(f"SET {name}: there is no such setting", where="sql", remedy="write SET strategy = auto")
        elif value not in known:
            raise ConfigError(f"SET strategy = {value}.{nearest(value, known)}", where="sql", remedy=f"use {', '.join(known)}")  # fmt: skip
        else:
            self.db.strategy = value

    # ------------------------------------------------------------------ commands

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        word = rest.strip().strip("'\"")
        known: dict[str, Callable[[], None]] = {
            "\\d": lambda: self._show_rows(self._run(f"DESCRIBE {word}" if word else "SHOW TABLES")),
            "\\timing": self._switch_timing,
            "\\x": self._switch_expanded,
            "\\o": lambda: self._redirect(word),
            "\\i": lambda: self._include(word),
            "\\?": lambda: self._say(Text(HELP)),
            "help": lambda: self._say(Text(HELP)),
        }
        if name.lower() in ("\\q", "exit", "quit"):
            return False
        if name not in known:
            self._console.print(Text(f"{name}: there is no such command.{nearest(name, _COMMANDS)} \\? lists them."))
        else:
            self._guard(known[name])
        return True

    def _switch_timing(self) -> None:
        self._timing = not self._timing
        self._say(f"Timing is {'on' if self._timing else 'off'}.")

    def _switch_expanded(self) -> None:
        self._expanded = not self._expanded
        self._say(f"Expanded display is {'on' if self._expanded else 'off'}.")

    def _redirect(self, name: str) -> None:
        if name and Path(name).suffix not in FORMATS:
            raise ConfigError(f"\\o {name}", where="sql", remedy=f"use a name that ends in {', '.join(FORMATS)}")
        if name and not Path(name).absolute().parent.is_dir():
            raise ConfigError(f"\\o {name}: there is no such folder", where="sql", remedy="make the folder first")
        self._file = Path(name) if name else None

    def _include(self, name: str) -> None:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"\\i {name}: {error}", where="sql", remedy="give a file of SQL") from error
        statements, rest = split_statements(text)
        for one in [*statements, *([rest.strip()] if rest.strip() else [])]:
            self._answer(one)


class _StoppedError(Exception):
    """A person has stopped a statement."""


def _expanded(result: Any) -> RenderableType:
    """Each row as lines of NAME | VALUE."""
    names, lines = [show_cell(name) for name in result.columns], []
    wide = max(map(len, names), default=0)
    for number, row in enumerate(result.rows, 1):
        lines.append(f"-[ {number} ]{'-' * wide}")
        lines += [f"{name:<{wide}} | {show_cell(value)}" for name, value in zip(names, row, strict=True)]
    return Text("\n".join(lines))


def show_cell(value: Any) -> str:
    """A value as text on one line, empty for NULL, with control characters shown, so that no cell moves the cursor."""
    from atoll.query.job import plain_value

    text = "" if value is None else str(plain_value(value))
    return show_printable(text, keep="")
