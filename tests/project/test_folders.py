"""A folder holds what a reader can take in: at most 20 modules, or one idea a file."""

from __future__ import annotations

from pathlib import Path

from tests.support.sources import PACKAGE

LIMIT = 20
# Folders with more modules, each of which is one complete example of the same idea, and why that reads best in one list.
ONE_IDEA_A_FILE = {
    "cli/commands": "one command a file, named as it is typed",
    "labels/methods": "one method a file, named as in its paper",
    "learn/algorithms": "one algorithm a file, named as in its paper",
}
FRAME = {"__init__", "__main__", "room"}
"""Modules that every folder may have beside its ideas."""


def counted(root: Path) -> dict[str, int]:
    """Folder -> how many modules are in it, without the frame and without inner folders."""
    folders = {path.parent for path in root.rglob("*.py")}
    return {
        folder.relative_to(root).as_posix(): sum(path.stem not in FRAME for path in folder.glob("*.py"))
        for folder in folders
    }


def test_no_folder_holds_more_than_a_reader_can_take_in() -> None:
    crowded = {folder: n for folder, n in counted(PACKAGE).items() if n > LIMIT and folder not in ONE_IDEA_A_FILE}
    assert not crowded, "put modules of one idea into a package that is named after it"


def test_exceptions_are_still_needed() -> None:
    found = counted(PACKAGE)
    assert [folder for folder in ONE_IDEA_A_FILE if found.get(folder, 0) <= LIMIT] == []


def test_the_count_sees_modules_and_no_frame(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("__init__.py", "room.py", "one.py", "notes.txt", "inner/two.py", "inner/three.py"):
        (tmp_path / name).touch()
    assert counted(tmp_path) == {".": 1, "inner": 2}


TESTS = PACKAGE.parents[1] / "tests"
# Folders of tests that ask about several rooms at once, and about what.
ACROSS = {
    "project": "the rules of the project",
    "waist": "whole protocols over the waist",
    "runtime/failures": "kills, full disks and clocks that jump",
    "runtime/security": "hostile parties",
}


def test_tests_lie_where_the_code_lies() -> None:
    rooms = [path for path in [*TESTS.iterdir(), *(TESTS / "runtime").iterdir()] if any(path.glob("test_*.py"))]
    names = {path.relative_to(TESTS).as_posix() for path in rooms} - {"runtime"}
    strange = {
        name for name in names - set(ACROSS) if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").is_file()
    }
    assert not strange, "name the folder of tests as the folder that it tests"
    assert set(ACROSS) <= names
