"""Every Python block of the documentation runs: the blocks of a page, in order, are one script in an empty folder.

A block that cannot run says why in a comment above it: ``<!-- no-run: needs a cluster -->``. A ```sh block runs if ``<!-- run -->``
stands above it; a ```yaml block that begins with ``# name.yaml`` is written to that file first, and so is a ```python block that begins with
``# name.py`` (which is then no part of the page's script). A command that runs until it is stopped is a ```sh block of its own below ``<!-- shell until: text -->``: it gets a shell of its own, and
what is run next waits until it has said that. A page that says which extras to install has these and no others. On a page with such shells the port 8443 is replaced by a free one, and nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.project.forked import Parent
from tests.support.exactly import environment, extras_of
from tests.support.sources import ROOT

PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "ARCHITECTURE.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "papers").rglob("*.md"),
    ]
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PATIENCE = 200  # seconds for one page
LONG = frozenset(
    [
        "docs/coming-from/fedml.md",
        "docs/concepts/example-privacy.md",
        "docs/deploy.md",
        "docs/extend/engine.md",
        "docs/extend/learner.md",
        "docs/extend/reducer.md",
        "docs/howto/adapters.md",
        "docs/howto/command-line.md",
        "docs/howto/compression.md",
        "docs/howto/crossmodal.md",
        "docs/howto/devices.md",
        "docs/howto/encrypted-sums.md",
        "docs/howto/ensembles.md",
        "docs/howto/fit.md",
        "docs/howto/guard.md",
        "docs/howto/jobs.md",
        "docs/howto/ledger.md",
        "docs/howto/losses.md",
        "docs/howto/own-loop.md",
        "docs/howto/privacy.md",
        "docs/howto/provision.md",
        "docs/howto/save-a-model.md",
        "docs/howto/scripts.md",
        "docs/howto/sklearn.md",
        "docs/howto/sweeps.md",
        "docs/howto/topologies.md",
        "docs/howto/trackers.md",
        "docs/howto/trees.md",
        "docs/howto/unlabelled-rows.md",
        "docs/howto/vertical.md",
        "docs/howto/wrong-labels.md",
        "examples/compression.py",
        "examples/drift.py",
        "examples/personal.py",
        "examples/skew.py",
        "examples/stragglers.py",
    ]
)
"""Pages and examples that run for seconds; the tests of their rooms show the same sooner. They run with ``make thorough``."""
LONG_COMMANDS = frozenset(["docs/howto/queries.md", "docs/howto/query-joins.md"])
"""Pages of whose commands the same holds; their code runs with ``make test-network``. ``tests/cli/test_sql.py`` types such commands in one process."""
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)$")
_FILE = re.compile(r"# ((?:[\w-]+/)*[\w-]+\.(yaml|py))\n")
_SHELL = re.compile(r"<!-- shell until: (?P<text>.+) -->")
_SKIP = re.compile(r"<!-- *no-run: *(?P<why>.*?) *-->")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        info: what follows the backticks.
        line: of the first line of text, 1-based.
        text: without the page's indentation.
        skip: why it is not run, or nothing.
        run: whether its commands are run.
        until: its command gets a shell of its own; what is run next waits until it has said this.
    """

    info: str
    line: int
    text: str
    skip: str | None
    run: bool = False
    until: str | None = None

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        found = _FILE.match(self.text)
        return found[1] if found and self.info == {"py": "python"}.get(found[2], found[2]) and not self.skip else None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    lines = page.split("\n")
    number, above = 0, ""
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            above = lines[number] if lines[number].strip() else above
            number += 1
            continue
        first, indent = number + 1, opening["indent"]
        number = first
        while lines[number] != indent + opening["ticks"]:
            number += 1
        text = "\n".join(line.removeprefix(indent) for line in lines[first:number])
        reason = _SKIP.search(above)
        wanted = above.strip() == "<!-- run -->"
        shell = _SHELL.fullmatch(above.strip())
        until = shell["text"] if shell else None
        found.append(Block(opening["info"].strip(), first + 1, text, reason["why"] if reason else None, wanted, until))
        above = ""
        number += 1
    return found


def script(page: str) -> str:
    """The Python blocks as one script whose line numbers are the page's."""
    lines: list[str] = []
    for block in blocks(page):
        if block.info.split(" ")[0] == "python" and block.skip is None and block.file is None:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.text.split("\n")
    return "\n".join(lines)


def shown(paths: list[Path], long: frozenset[str] = LONG) -> list[Any]:
    """Parameters for pages or examples, by their path; those that are long are slow."""
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    slow = [[pytest.mark.slow] if name in long else [] for name in names]
    return [pytest.param(path, id=name, marks=marks) for path, name, marks in zip(paths, names, slow, strict=True)]


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    """Of all scripts of this module."""
    made = Parent()
    yield made
    made.close()


def _run(parent: Parent, text: str, name: str, folder: Path) -> tuple[int, str]:
    file = folder / f"{name}.py"
    file.write_text(text + "\n", encoding="utf-8")
    return parent.run(file, PATIENCE)


def _finish(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run to the end. What takes too long is aborted with everything it started, and says where it was."""
    env = {**env, "PYTHONFAULTHANDLER": "1"}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, **piped)  # type: ignore[call-overload]
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired as held:  # by a process that has a group of its own
            out, err = held.stdout, held.stderr
        pytest.fail(f"not done after {PATIENCE} s\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


WITH_CODE = [page for page in PAGES if script(page.read_text(encoding="utf-8"))]


@pytest.mark.network
@pytest.mark.parametrize("page", shown(WITH_CODE))
def test_the_code_of_a_page_runs(parent: Parent, page: Path, tmp_path: Path) -> None:
    code, said = _run(parent, script(page.read_text(encoding="utf-8")), "page_" + page.stem.replace("-", "_"), tmp_path)
    assert code == 0, f"{page.relative_to(ROOT)}:\n{said}"


@pytest.mark.network
@pytest.mark.parametrize("example", shown(EXAMPLES))
def test_an_example_runs(parent: Parent, example: Path, tmp_path: Path) -> None:
    code, said = _run(parent, example.read_text(encoding="utf-8"), example.stem, tmp_path)
    assert code == 0, said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_block_that_does_not_run_says_why(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        assert block.info.split(" ")[0] != "py", f"line {block.line}: write ```python, so that it is run"
        if block.info.startswith("python"):
            assert block.info == "python", f"line {block.line}: put <!-- no-run: why --> above the block instead"
            assert block.skip is None or len(block.skip) > 5, f"line {block.line}: give a reason"


def commands(page: str) -> str:
    """The files and commands of a page as one shell script."""
    lines = ["set -eu"]
    shells, waits = 0, []
    for block in blocks(page):
        if block.file:
            lines.append(
                f"mkdir -p $(dirname {block.file})\ncat > {block.file} <<'END OF FILE'\n{block.text}\nEND OF FILE"
            )
        if block.info == "sh" and block.until is not None:
            lines += [] if shells else [_STOP]
            shells += 1
            begin, wait = _in_a_shell(shells, block.text, block.until)
            lines.append(begin)
            waits.append(wait)
        if block.info == "sh" and block.run:
            lines += [*waits, block.text]
            waits = []
    return "\n".join(lines)


_STOP = """shells=""
trap 'code=$?; for shell in $shells; do kill "$shell" || code=1; done; wait; test $code = 0 || cat shell-*.log; exit $code' EXIT"""
"""At the end every shell is stopped, as by closing its window; one that has ended before that was not meant to, and the page fails."""


def _in_a_shell(number: int, command: str, until: str) -> tuple[str, str]:
    """Begin a command in a shell of its own; and wait until it says something."""
    log, pid = f"shell-{number}.log", f"$shell_{number}"
    begin = f'(exec {command}\n) > {log} 2>&1 &\nshell_{number}=$!\nshells="$shells {pid}"'
    gone = f"kill -0 {pid} || {{ cat {log}; exit 1; }}"
    return begin, f"until grep -q {shlex.quote(until)} {log}; do {gone}; sleep 0.05; done"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


WITH_COMMANDS = [page for page in PAGES if any(block.run for block in blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.network
@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
@pytest.mark.parametrize("page", shown(WITH_COMMANDS, LONG | LONG_COMMANDS))
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script_of_page, extras = commands(page.read_text(encoding="utf-8")), extras_of(page.read_text(encoding="utf-8"))
    if _SHELL.search(page.read_text(encoding="utf-8")):
        script_of_page = script_of_page.replace("8443", str(_free_port()))
    env = environment(tmp_path / ".hook", extras) if extras else dict(os.environ)
    done = _finish(["sh", "-c", script_of_page], tmp_path, {**env, "PATH": path})
    assert done.returncode == 0, f"{page.relative_to(ROOT)}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_file_of_a_page_is_used_by_its_commands(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    assert page in WITH_COMMANDS or not any(block.file and block.info == "python" for block in found)


def test_the_documentation_has_code() -> None:
    assert len(WITH_CODE) >= 8
    assert {path.relative_to(ROOT).as_posix() for path in [*WITH_CODE, *WITH_COMMANDS, *EXAMPLES]} >= LONG
    assert {path.relative_to(ROOT).as_posix() for path in WITH_COMMANDS} >= LONG_COMMANDS


PAGE = """# Title

```python
x = 1
```

<!-- no-run: it never ends -->

```python
while True: ...
```

1. A list

    ```python
    assert x == 1
    ```

```sh
false
```
"""


def test_blocks_are_collected_in_place() -> None:
    assert [block.skip for block in blocks(PAGE)] == [None, "it never ends", None, None]
    lines = script(PAGE).split("\n")
    assert lines[3] == "x = 1"
    assert lines[15] == "assert x == 1"
    assert [line for line in lines if line] == ["x = 1", "assert x == 1"]


COMMANDS = """
```yaml
# tiny.yaml
rounds: 3
```

<!-- run -->

```sh
cat tiny.yaml
```

```sh
false
```
"""


@pytest.mark.network
def test_commands_are_collected_with_their_files(tmp_path: Path) -> None:
    done = subprocess.run(["sh", "-c", commands(COMMANDS)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "# tiny.yaml\nrounds: 3\n"


SHELLS = """
```python
# parts/speak.py
import signal

print("ready at 8443", flush=True)
signal.pause()
```

<!-- shell until: ready at -->

```sh
{python} parts/speak.py
```

<!-- run -->

```sh
test "$(cat shell-1.log)" = "ready at 8443"
{last}
```
"""


@pytest.mark.network
@pytest.mark.parametrize(("last", "code"), [("true", 0), ("false", 1), ("kill $shells; wait $shells || true", 1)])
def test_shells_run_beside_the_page_and_are_stopped(tmp_path: Path, last: str, code: int) -> None:
    page = SHELLS.format(python=sys.executable, last=last)
    assert not script(page)
    done = _finish(["sh", "-c", commands(page) + "\necho shells $shells"], tmp_path, dict(os.environ))
    assert done.returncode == code, done.stderr
    for pid in map(int, re.findall(r"^shells (\d+)$", done.stdout, re.MULTILINE)):
        with pytest.raises(ProcessLookupError, match="No such process"):
            os.kill(pid, 0)


@pytest.mark.network
def test_a_shell_that_ends_before_it_says_its_word_fails_the_page(tmp_path: Path) -> None:
    page = SHELLS.format(python="echo sorry;", last="true")
    done = _finish(["sh", "-c", commands(page)], tmp_path, dict(os.environ))
    assert done.returncode != 0
    assert "sorry" in done.stdout


@pytest.mark.network
def test_a_wrong_page_fails(parent: Parent, tmp_path: Path) -> None:
    code, said = _run(parent, script("# T\n\n```python\nx = 1\nassert x == 2\n```"), "wrong", tmp_path)
    assert code == 1
    assert 'File "wrong.py", line 5' in said


@pytest.mark.network
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("torch.zeros(3)", "name 'torch' is not defined"),
        ("import sys; sys.modules['torch']", "KeyError: 'torch'"),
        ("import forked", "No module named 'forked'"),
        ("import warnings; warnings.warn('old')", "UserWarning: old"),
    ],
)
def test_a_page_finds_nothing_that_it_did_not_import(parent: Parent, tmp_path: Path, text: str, told: str) -> None:
    code, said = _run(parent, text, "page", tmp_path)
    assert (code, told in said) == (1, True), said


@pytest.mark.network
def test_a_page_is_a_process_of_its_own(parent: Parent, tmp_path: Path) -> None:
    lines = [
        "import torch.nn, __main__, os, sys",
        "assert __name__ == '__main__' and __main__.lines == 7",
        "sys.exit(9)",
    ]
    assert _run(parent, "lines = 7\n" + "\n".join(lines), "page", tmp_path) == (9, "")
    assert _run(parent, "import os; os.kill(os.getpid(), 9)", "page", tmp_path) == (-9, "")
    assert _run(parent, "import atexit; atexit.register(print, 'end')", "page", tmp_path) == (0, "end\n")


@pytest.mark.network
def test_a_page_that_never_ends_is_aborted_and_says_where_it_was(parent: Parent, tmp_path: Path) -> None:
    file = tmp_path / "page.py"
    file.write_text("import signal\n\nsignal.pause()\n")
    with pytest.raises(TimeoutError, match=r'(?s)not done after 1 s.*File "page.py", line 3'):
        parent.run(file, 1.0)
