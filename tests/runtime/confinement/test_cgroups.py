"""Control groups: found and divided on a tree of plain files, and, where a real one is delegated, a job that the kernel ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.runtime.confinement.sandbox import JobGroup, find_group

FILES = (
    "cgroup.procs",
    "cgroup.subtree_control",
    "memory.max",
    "memory.swap.max",
    "memory.oom.group",
    "pids.max",
    "cgroup.kill",
)


class Tree:
    """A tree of groups made of plain files, and a process's folder below /proc."""

    def __init__(self, top: Path, group: str, controllers: str = "cpu memory pids", root: str = "/") -> None:
        self.me, self.mount = top / "proc", top / "mount"
        self.me.mkdir()
        (self.me / "cgroup").write_text(f"4:memory:/old\n0::{group}\n")
        (self.me / "mountinfo").write_text(
            f"25 1 0:2 / / rw - ext4 /dev/vda rw\n30 25 0:26 {root} {self.mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
        )
        self.place = self.made(self.mount / group.removeprefix(root).strip("/"), controllers)

    def made(self, folder: Path, controllers: str = "") -> Path:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - a test replaces Path.mkdir
        (folder / "cgroup.controllers").write_text(f"{controllers}\n")
        for name in FILES:
            (folder / name).touch()
        return folder


@pytest.mark.parametrize("root", ["/", "/docker/1"])
def test_a_delegated_part_of_the_tree_is_divided(tmp_path: Path, root: str) -> None:
    tree = Tree(tmp_path, f"{root.rstrip('/')}/atoll.service", root=root)
    leaf = tree.made(tree.place / "atoll-daemons")
    assert find_group(tree.me, 7) == tree.place
    assert (leaf / "cgroup.procs").read_text() == "7"
    assert (tree.place / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_without_the_controller_or_the_right_or_alone_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert find_group(Tree(tmp_path / "a", "/x", "cpu pids").me, 7) is None
    (tmp_path / "b").mkdir()
    tree = Tree(tmp_path / "b", "/session")
    leaf = tree.made(tree.place / "atoll-daemons")
    (tree.place / "cgroup.subtree_control").unlink()  # the kernel refuses: others are in the group
    assert find_group(tree.me, 7) is None
    assert (leaf / "cgroup.procs").read_text() == (tree.place / "cgroup.procs").read_text() == "7"  # back again
    assert find_group(tmp_path / "nowhere", 7) is None


@pytest.mark.network
def test_a_job_enters_its_group_before_it_is_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(tmp_path, "/x")
    real = Path.mkdir

    def mkdir(self: Path, *words: int, **more: bool) -> None:
        real(self, *words, **more)
        tree.made(self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        group = JobGroup.make(tree.place, 1 << 20, 64)
    said = {name: (group.folder / name).read_text() for name in FILES[2:6]}
    assert said == {"memory.max": "1048576", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "64"}
    done = subprocess.run(
        group.entering([sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", "$0"]),
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert done.stdout == "['a b', '$0']\n"
    assert (group.folder / "cgroup.procs").read_text() == "0\n"
    assert not group.ran_out()
    (group.folder / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    assert group.ran_out()
    group.remove()
    assert (group.folder / "cgroup.kill").read_text() == "1"


ENDED = """
import os, subprocess, sys
from atoll.runtime.confinement.sandbox import JobGroup, delegated_group

above = delegated_group()  # this process moves into a leaf
if above is None:
    print("none")
    sys.exit()
group = JobGroup.make(above, 64 << 20, 64)
code = "import os; [os.write(file, bytes(1 << 20)) for file in [os.memfd_create(str(n)) for n in range(4)] for _ in range(40)]"
done = subprocess.run(group.entering([sys.executable, "-c", code]))
out = group.ran_out()
group.remove()
print(done.returncode, out, group.folder.exists())
"""


@pytest.mark.network
def test_the_kernel_ends_a_job_that_takes_too_much() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, check=True, text=True)
    if done.stdout == "none\n":
        pytest.skip(
            "no part of the tree of control groups (version 2) with a memory controller is delegated to this user"
        )
    assert done.stdout == "-9 True False\n"
