"""The list of guards fits the source and the tests: see `guards.py`, which switches each off."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.support import guards
from tests.support.guards import GUARDS, Guard
from tests.support.sources import PACKAGE, ROOT

FEWEST = {"words": 8, "replies": 15, "keys": 5, "host": 12, "people": 8, "influence": 4, "consent": 8, "takeovers": 8, "residue": 4, "operators": 5, "lots": 12, "authority": 5}  # fmt: skip


@cache
def text_of(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


@cache
def folder_of(file: str) -> str:
    """A test's module, and the others of its folder, from which it may have its tests."""
    tests = ROOT / "tests"
    files = [*sorted((tests / file).parent.glob("*.py")), *sorted((tests / "support").glob("*.py"))]  # laws are shared
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@pytest.mark.parametrize("part", FEWEST)
def test_every_guard_is_in_the_source_once_and_has_a_test(part: str) -> None:
    found = [guard for guard in GUARDS if guard.part == part]
    assert len(found) >= FEWEST[part]
    for guard in found:
        text = text_of(guard.file)
        assert text.count(guard.line) == 1, guard
        ast.parse(text.replace(guard.line, guard.off))
        assert guard.off != guard.line
        file, _, name = guard.test.partition("::")
        assert (ROOT / "tests" / file).is_file(), guard
        assert f"def {name.partition('[')[0].rpartition('::')[2]}(" in folder_of(file), guard


def test_every_guard_is_of_a_part_and_stands_there_once() -> None:
    assert {guard.part for guard in GUARDS} == set(FEWEST)
    assert len({(guard.file, guard.line) for guard in GUARDS}) == len(GUARDS)
    assert len({(guard.part, guard.stops) for guard in GUARDS}) == len(GUARDS)


@pytest.mark.slow  # it copies the repository; its quick siblings are above
def test_a_test_that_does_not_notice_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noticed = next(guard for guard in GUARDS if guard.stops == "a forged line of a log")
    idle = Guard(
        "residue", "nothing", noticed.file, "import contextlib\n", "import contextlib  # still\n", noticed.test
    )
    monkeypatch.setattr(guards, "GUARDS", (noticed, idle))
    assert guards.main([]) == 1
    first, *said, last = capsys.readouterr().out.splitlines()
    assert first == "PASSES  with all guards: 1 tests"
    assert [line.split()[0] for line in said] == ["fails", "PASSES"]
    assert last == "1 of 2 tests fail or hang without their guard"
    monkeypatch.setattr(guards, "GUARDS", (noticed._replace(test="cli/test_log_lines.py::test_nothing"),))
    assert guards.main([]) == 1
    assert capsys.readouterr().out.startswith("CANNOT BE RUN (4, ")
