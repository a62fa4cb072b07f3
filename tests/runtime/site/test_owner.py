"""A site's folder is one site's."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.core.errors import ConfigError
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.resources import Resources
from atoll.runtime.site.site import Site, take_folder


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {
        "project": "lungs", "servers": [{"name": "server", "hosts": ["127.0.0.1"]}],
        "sites": [{"name": name, "org": "x"} for name in ("north", "south")],
    }  # fmt: skip
    return provision(ProjectConfig.model_validate(settings), tmp_path_factory.mktemp("kits")).folder


def test_another_sites_folder_is_refused_and_left_as_it_is(kits: Path, tmp_path: Path) -> None:
    north, south = Kit.read(kits / "north"), Kit.read(kits / "south")
    Site(north, {}, tmp_path, Resources(1.0))
    Site(north, {}, tmp_path, Resources(1.0))  # the newer process of the same site
    held = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = r"folder belongs to site 'north' of project 'lungs', but this is site 'south' of .* --folder"
    with pytest.raises(ConfigError, match=said):
        Site(south, {}, tmp_path, Resources(1.0))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == held


def test_a_mark_that_was_cut_short_is_written_again(kits: Path, tmp_path: Path) -> None:
    (tmp_path / "owner").touch()
    take_folder(tmp_path, Kit.read(kits / "south"))
    with pytest.raises(ConfigError, match=r"belongs to site 'south'"):
        take_folder(tmp_path, Kit.read(kits / "north"))


def test_a_folder_that_cannot_be_made_or_written_is_named(kits: Path, tmp_path: Path) -> None:
    north = Kit.read(kits / "north")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"folder cannot be made: .*file.* choose another --folder"):
        take_folder(tmp_path / "file", north)
    (tmp_path / "taken" / "owner").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"folder cannot be written: .*taken.* --folder"):
        take_folder(tmp_path / "taken", north)
