"""Folders that a job may write, by handle: links are not followed, pipes do not block, and what is deep or closed is counted and removed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.runtime.confinement import folders
from atoll.runtime.confinement.folders import (
    DEEPEST,
    HeldFolder,
    UnmeasuredError,
    clear_removed,
    measure_folders,
    remove_tree,
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that goes whatever a test leaves in it: pytest removes no folders without end."""
    made = tmp_path / "place"
    made.mkdir()
    yield made
    subprocess.run(["rm", "-rf", str(made)], check=True)


def nested(top: Path, deep: int, size: int = 0) -> None:
    """A path of so many folders, longer than the system takes as one path if ``deep`` is large; a file of some bytes at its end."""
    handle = os.open(top, os.O_RDONLY)
    for _ in range(deep):
        os.mkdir("down" * 50, dir_fd=handle)
        inner = os.open("down" * 50, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle)
    os.write(file, bytes(size))
    os.close(file)
    os.close(handle)


@pytest.mark.network
def test_what_lies_beyond_the_longest_path_is_counted_and_removed(place: Path) -> None:
    top = place / "top"
    top.mkdir()
    nested(top, 30, 300_000)  # 6,000 letters
    assert measure_folders([top]) >= 300_000
    remove_tree(top)
    assert list(place.iterdir()) == []


@pytest.mark.network
def test_folders_without_end_end_the_measuring_and_are_removed(place: Path) -> None:
    top = place / "top"
    top.mkdir()
    nested(top, 1500)
    with pytest.raises(UnmeasuredError, match=f"more than {DEEPEST} deep"):
        measure_folders([top])
    before = len(list(Path("/proc/self/fd").iterdir()))
    remove_tree(top)
    assert list(place.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


CLOSED = """
import os, sys
from pathlib import Path
from atoll.runtime.confinement.folders import measure_folders, remove_tree
top = Path(sys.argv[1])
for mode in (0o000, 0o400, 0o100, 0o200):
    inner = top / "job" / f"{mode:o}" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(bytes(100_000))
    inner.chmod(mode)
    inner.parent.chmod(mode)
(top / "job").chmod(0)
print(measure_folders([top / "job"]))
for path in (top / "job").iterdir():
    (path / "inner").chmod(0)
    path.chmod(0)
remove_tree(top / "job")
print(sorted(os.listdir(top)))
"""


@pytest.mark.network
def test_a_closed_folder_is_counted_and_removed(tmp_path: Path) -> None:
    """By a plain user: nothing is closed to root."""
    place = tmp_path / "place"
    place.mkdir()
    user: dict[str, int] = {}
    if os.geteuid() == 0:
        from tests.support.walls import PLAIN, plain_python

        python, environment = plain_python() or pytest.skip("no Python here that a plain user can run")
        user = {"user": PLAIN, "group": PLAIN}
        os.chown(place, PLAIN, PLAIN)
        for path in (place, *place.parents):
            if str(path).startswith("/tmp/"):
                path.chmod(path.stat().st_mode | 0o011)
    else:
        python, environment = sys.executable, {}
    done = subprocess.run(
        [python, "-c", CLOSED, str(place)], capture_output=True, check=False, text=True, cwd="/",
        env={**os.environ, **environment}, **user,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    size, left = done.stdout.splitlines()
    assert 4 * 100_000 <= int(size) < 4 * 110_000
    assert left == "[]"


def test_a_link_a_pipe_and_a_second_name_are_neither_read_nor_written_nor_removed_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"the key")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "stays").write_bytes(b"stays")
    job = tmp_path / "job"
    job.mkdir()
    (job / "link").symlink_to(secret)
    (job / "folder").symlink_to(tmp_path / "far")
    os.link(secret, job / "twice")
    os.mkfifo(job / "pipe")
    with HeldFolder.open(tmp_path, "job") as held:
        for name, what in {
            "link": "a link",
            "folder": "a link",
            "twice": "a second name of a file",
            "pipe": "a pipe",
        }.items():
            assert held.fault_of(name) == what
            with pytest.raises(OSError, match=r"is a second name|symbolic|is a pipe"):
                held.read(name, 100)
            with pytest.raises(FileExistsError, match="File exists"):
                held.create(name, b"more")
            held.write(name, b"mine")
            assert (held.fault_of(name), held.read(name, 100)) == ("", b"mine")
        with pytest.raises(OSError, match="more than 3 bytes"):
            held.read("link", 3)
        for name in ("..", ".", "", "a/b", "../secret"):
            with pytest.raises(OSError, match="is not the name of a file"):
                held.write(name, b"")
        assert stat.S_IMODE((job / "link").stat().st_mode) == 0o600
    (job / "link").unlink()
    (job / "link").symlink_to(tmp_path / "far")
    assert measure_folders([job]) < 50_000
    remove_tree(job)
    assert secret.read_bytes() == b"the key"
    assert (tmp_path / "far" / "stays").read_bytes() == b"stays"
    (tmp_path / "job").symlink_to(tmp_path / "far")
    for call in (lambda: HeldFolder.open(tmp_path, "job"), lambda: HeldFolder.open(tmp_path, "job", "x", make=True)):
        with pytest.raises(OSError, match=r"Not a directory|symbolic"):
            call()
    assert measure_folders([tmp_path / "job"]) == 0
    remove_tree(tmp_path / "job")  # the link, not what it leads to
    assert (tmp_path / "far" / "stays").exists()


def test_what_a_kill_leaves_of_a_removal_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job" / "inner").mkdir(parents=True)

    class Killed(BaseException):
        pass

    def killed(above: int, grave: str) -> None:
        raise Killed("killed")

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_bury", killed)
        with pytest.raises(Killed, match="killed"):
            remove_tree(tmp_path / "job")
    assert not (tmp_path / "job").exists()
    with HeldFolder.open(tmp_path) as held:
        assert held.names() == []
    clear_removed(tmp_path)
    assert list(tmp_path.iterdir()) == []


TREES = st.recursive(
    st.integers(0, 20_000), lambda inner: st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4), max_leaves=12
)


@settings(max_examples=50)
@given(TREES)
def test_every_tree_is_counted_as_its_files_and_removed_whole(tree: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        sizes: list[int] = []

        def made(path: Path, tree: object) -> None:
            if isinstance(tree, dict):
                path.mkdir()
                for name, inner in tree.items():
                    made(path / name, inner)
            else:
                path.write_bytes(bytes(int(str(tree))))
                sizes.append(path.stat().st_blocks * 512)

        made(Path(place) / "top", tree if isinstance(tree, dict) else {"a": tree})
        assert measure_folders([Path(place) / "top"]) == sum(max(size, 256) for size in sizes)
        remove_tree(Path(place) / "top")
        assert list(Path(place).iterdir()) == []
