"""A kit that was damaged, mixed up or changed says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import ConfigError, IdentityError
from atoll.runtime.identity import admit, peer_of
from atoll.runtime.provision import Kit, ProjectConfig, provision

Load = Callable[[dict[str, Any]], ProjectConfig]


@pytest.fixture
def kits(tree: dict[str, Any], loaded: Load, tmp_path: Path) -> Path:
    return provision(loaded(tree), tmp_path / "kits").folder


def test_a_folder_that_is_no_kit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a startup kit: it has no kit.yaml"):
        Kit.read(tmp_path)


@pytest.mark.parametrize("file", ["ca.pem", "certificate.pem", "key.pem"])
def test_a_missing_file_is_named(kits: Path, file: str) -> None:
    (kits / "north" / file).unlink()
    with pytest.raises(ConfigError, match=f"the kit of site 'north' lacks {file}"):
        Kit.read(kits / "north").credentials()


def test_a_site_cannot_write_itself_a_role(kits: Path) -> None:
    path = kits / "north" / "kit.yaml"
    path.write_text(path.read_text().replace("role: site", "role: admin"))
    with pytest.raises(IdentityError, match=r"kit.yaml says admin 'north' .* but the certificate says site 'north'"):
        Kit.read(kits / "north").credentials()


def test_another_kits_key_does_not_fit(kits: Path) -> None:
    shutil.copy(kits / "south" / "key.pem", kits / "north" / "key.pem")
    with pytest.raises(IdentityError, match="does not belong to the certificate of 'north'"):
        Kit.read(kits / "north").credentials()


def test_a_wrong_setting_is_named(kits: Path) -> None:
    path = kits / "north" / "kit.yaml"
    path.write_text(path.read_text().replace("transport:", "transprt:"))
    with pytest.raises(ConfigError, match=r"transprt='tcp' is not a setting. Did you mean 'transport'"):
        Kit.read(kits / "north")


def test_only_the_right_party_is_admitted(kits: Path) -> None:
    pem = (kits / "north" / "certificate.pem").read_bytes()
    assert admit(pem, project="lungs", roles=("site", "admin"), name="north").name == "north"
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"project": "hearts"}, "site 'north' of 'North' is refused: it belongs to project 'lungs', not 'hearts'"),
        ({"roles": ("server",)}, "a certificate for role 'site' cannot act as server"),
        ({"name": "south"}, "'south' was meant"),
        ({"revoked": lambda serial: serial == peer_of(pem).serial}, r"serial [0-9a-f]+\) was revoked"),
    ]
    for wanted, said in refusals:
        with pytest.raises(IdentityError, match=said):
            admit(pem, **{"project": "lungs", **wanted})


def test_what_is_no_certificate_of_a_kit(kits: Path) -> None:
    with pytest.raises(IdentityError, match="not a certificate"):
        peer_of(b"\x30\x03abc")
    with pytest.raises(IdentityError, match="not exactly one atoll://project/role/name"):
        peer_of((kits / "ca" / "ca.pem").read_bytes())
