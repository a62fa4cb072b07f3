"""The shell of ``atoll sql``: a script on stdin gets what a person at a terminal gets."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atoll.cli.app import run
from atoll.cli.commands.sql import write_result
from atoll.cli.sql_shell import SqlShell, split_statements
from atoll.query import Silo
from tests.support.silos import TableSource, connected

TYPES = {"ward": "VARCHAR", "pay": "DECIMAL(9,2)"}
POLICY = {"policy": {"min_count": 1}, "tables": {"visits": {"unit": "ward", "columns": {"ward": "public", "pay": {"level": "private", "release": "aggregate"}}}}}  # fmt: skip


@pytest.fixture
def shell() -> Iterator[tuple[SqlShell, io.StringIO, io.StringIO]]:
    made = {name: TableSource({"visits": (TYPES, [("A", 1), ("B\x1b[2J", 2)])}) for name in ("north", "south")}
    out, err = io.StringIO(), io.StringIO()
    with connected(made, POLICY) as db:
        yield SqlShell(db, lambda result: f"{result.rows}", write_result, out, Console(file=err, width=200)), out, err


def test_statements_end_with_a_semicolon_that_no_text_holds() -> None:
    text = "SELECT 'a;b', \"c;d\" -- e;f\n; /* g;h */ SELECT 2;SELECT"
    assert split_statements(text) == (["SELECT 'a;b', \"c;d\" -- e;f\n;", "/* g;h */ SELECT 2;"], "SELECT")
    assert split_statements("SELECT 'a;") == ([], "SELECT 'a;")
    assert split_statements(" ; ;") == ([], "")


def test_lines_and_commands(shell: tuple[SqlShell, io.StringIO, io.StringIO], tmp_path: Path) -> None:
    made, out, err = shell
    (tmp_path / "more.sql").write_text("SELECT count(*) FROM visits; SELECT sum(pay) FROM visits")
    lines = [
        "SELECT count(*)",
        "FROM visits; SELECT 1",
        "FROM visits;",
        "\\d",
        "\\d visit",
        "\\d Visits",
        "\\timing",
        "\\x",
        "SELECT ward, sum(pay) AS s FROM visits GROUP BY ward ORDER BY ward;",
        "\\x",
        f"\\i {tmp_path}/more.sql",
        f"\\o {tmp_path}/rows.csv",
        "SELECT ward FROM visits GROUP BY ward ORDER BY ward;",
        "\\o",
        "\\o rows.xls",
        "\\wrong",
        "set;",
        "SET strategy = sum;",
        "SET strategy = sums;",
        "SET;",
    ]
    assert all(made.take(line) for line in lines)
    said, wrong = out.getvalue(), err.getvalue()
    assert said.startswith("[(4,)]")
    assert "ward | B\\x1b[2J\ns    | 4.00" in said
    assert "Time: " in said
    assert "2 rows in" in said
    assert said.rstrip().endswith("strategy = sums")
    assert "('visits', 2, 'horizontal', 'ward', 1)" in said
    assert "('pay', 'DECIMAL(9,2)', 'private', 'aggregate', None)" in said
    assert (tmp_path / "rows.csv").read_text().startswith('"ward"\n"A"')
    for part in ("Did you mean visits", "use a name that ends in .csv", "\\wrong: there is no such command", "strategy = sum. Did you mean 'sums'"):  # fmt: skip
        assert part in wrong
    assert made.failed
    assert not made.take("\\q")


@pytest.mark.parametrize("prompted", [True, False])
def test_ctrl_c_while_an_answer_is_printed_ends_a_script_and_no_shell(shell: tuple[SqlShell, io.StringIO, io.StringIO], monkeypatch: pytest.MonkeyPatch, prompted: bool) -> None:  # fmt: skip
    made, out, err = shell
    lines, shown = ["SELECT count(*) FROM visits;\n", "SELECT sum(pay) FROM visits;\n"], []

    def show(result: Any) -> str:
        shown.append(result)
        if len(shown) == 1:
            raise KeyboardInterrupt
        return f"{result.rows}"

    stdin = io.StringIO("".join(lines))
    monkeypatch.setattr(stdin, "isatty", lambda: prompted)
    monkeypatch.setattr(made, "_prompted", lambda: iter(lines))
    monkeypatch.setattr(made, "_show", show)
    if not prompted:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            made.loop(stdin)
        return
    made.loop(stdin)
    assert (err.getvalue(), out.getvalue()) == ("stopped\n", "[(Decimal('6.00'),)]\n")


def test_ctrl_c_cancels_at_the_sites(shell: tuple[SqlShell, io.StringIO, io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A statement that would run for an hour ends once the signal comes, to whichever thread the system gives it, and the next one is answered."""
    made, out, err = shell
    for silo in made.db.silos.values():
        silo.policy = replace(silo.policy, seconds=3600.0)
    entered = threading.Event()
    run_all = Silo.run_all

    def slow(self: Silo, texts: Any, tables: Any, **more: Any) -> Any:
        entered.set()
        return run_all(self, ["SELECT count(*) FROM range(10000000000) a, range(1000000) b WHERE a.range % 7 = b.range % 11"], tables, **more)  # fmt: skip

    def interrupt() -> None:
        entered.wait(60)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    monkeypatch.setattr(Silo, "run_all", slow)
    threading.Thread(target=interrupt, daemon=True).start()
    assert made.take("SELECT count(*) FROM visits;")
    assert "cancelled at all sites" in err.getvalue()
    monkeypatch.setattr(Silo, "run_all", run_all)
    assert made.take("SELECT count(*) FROM visits;")
    assert out.getvalue() == "[(4,)]\n"


def test_a_script_on_stdin_ends_with_the_code_of_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    words = ["sql"]
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "visits.csv").write_text("x\n" + "1\n" * 10)
        words += ["--silo", f"{name}={tmp_path}/{name}"]
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT count(*) FROM visits"))
    assert run(words) == 0
    assert "20" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT x FROM visits;\nSELECT count(*) FROM visits;"))
    assert run(words) == 2
    assert "20" in capsys.readouterr().out
    assert run([*words, "-o", "x.csv"]) == 2
    assert "-o without a statement" in capsys.readouterr().err
