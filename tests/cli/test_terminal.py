"""What people see in a real terminal: groups of commands, completion, and tables that wrap."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from atoll.cli.app import GROUPS, app
from atoll.cli.commands import known, register


def in_terminal(*words: str, columns: int = 80) -> str:
    """Run a command in a pseudo-terminal of this width, and return what it shows, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")} | {"TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "atoll", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env):
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r\n", "\n")


@pytest.mark.network
def test_help_shows_the_commands_in_groups_and_no_empty_panel() -> None:
    shown = in_terminal("--help")
    titles = re.findall(r"╭─ (\w+) ─", shown)
    assert titles == ["Options", *GROUPS]
    assert not re.search(r"╮\n╰", shown), "an empty panel"
    assert all(len(line) <= 80 for line in shown.splitlines())
    simulate, operate = (shown.index(f"╭─ {name} ─") for name in ("Simulate", "Operate"))
    assert simulate < shown.index("│ run ") < operate < shown.index("│ submit ")


def test_every_command_has_a_group() -> None:
    register([])
    rows = [*app.registered_commands, *app.registered_groups]
    found = {str(command.name): command.rich_help_panel for command in rows}
    assert sorted(found) == known()
    assert set(found.values()) == set(GROUPS)


@pytest.mark.network
@pytest.mark.parametrize(("typed", "wanted"), [("atoll ru", ["run", "runs"]), ("atoll run --eng", ["--engine"])])
def test_the_shell_completes_commands_and_options(typed: str, wanted: list[str]) -> None:
    env = {**os.environ, "_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    program = Path(sys.executable).with_name("atoll")
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == wanted


@pytest.mark.network
@pytest.mark.quick("64")
@pytest.mark.parametrize("columns", [80, 64])
def test_wide_tables_wrap_and_cut_nothing(config: Path, columns: int) -> None:
    name = "a-run-with-a-name-that-is-longer-than-half-of-the-terminal"
    subprocess.run(
        [sys.executable, "-m", "atoll", "run", str(config), "--folder", f"runs/{name}", "--no-report"],
        check=True,
        capture_output=True,
    )
    shown = in_terminal("runs", columns=columns)
    assert "…" not in shown
    assert all(len(line) <= columns for line in shown.splitlines())
    first, *rest = shown.splitlines()
    width = first.index("st", 3)  # where the second column begins
    assert name in "".join(line[:width].strip() for line in rest)


@pytest.mark.network
def test_tests_and_what_they_start_know_no_terminals_size() -> None:
    """Readline, loaded by a debugger or by nobody, must not make tables narrow for those that come later."""
    pytest.importorskip("readline")
    told = subprocess.run(
        [sys.executable, "-c", "import os; print(sorted(os.environ))"], capture_output=True, text=True, check=True
    )
    assert "COLUMNS" not in told.stdout
    assert "COLUMNS" not in os.environ
