"""A small project, and a way to look at every byte of what was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.runs import yaml
from atoll.runtime.provision import ProjectConfig, load_project

Tree = dict[str, Any]


@pytest.fixture
def tree() -> Tree:
    """One server, two sites, an admin and an auditor."""
    return {
        "project": "lungs",
        "servers": [{"name": "server", "hosts": ["localhost", "127.0.0.1"], "port": 8443, "org": "university"}],
        "sites": [{"name": "north", "org": "North"}, {"name": "south", "org": "South"}],
        "admins": [{"name": "anna", "org": "university"}, {"name": "otto", "org": "State", "role": "auditor"}],
    }


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[Tree], ProjectConfig]:
    """Write a project down and read it."""

    def load(tree: Tree) -> ProjectConfig:
        path = tmp_path / "project.yaml"
        path.write_text(yaml.dump(tree), encoding="utf-8")
        return load_project(path)

    return load


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Relative path -> bytes of every file below a folder."""

    def read(folder: Path) -> dict[str, bytes]:
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    return read
