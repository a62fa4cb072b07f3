"""The revocation list: signed, followed without a restart, and nobody gets back in by damaging it."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import IdentityError
from atoll.runtime.identity import peer_of
from atoll.runtime.provision import ProjectConfig, Revocations, provision

Load = Callable[[dict[str, Any]], ProjectConfig]


@pytest.fixture
def project(tree: dict[str, Any], loaded: Load) -> ProjectConfig:
    return loaded(tree)


@pytest.fixture
def kits(project: ProjectConfig, tmp_path: Path) -> Path:
    return provision(project, tmp_path / "kits").folder


@pytest.fixture
def revoked(kits: Path) -> Revocations:
    return Revocations(kits / "server" / "revoked.crl", kits / "server" / "ca.pem")


def serial(kit: Path) -> int:
    return peer_of((kit / "certificate.pem").read_bytes()).serial


def test_it_follows_its_file(kits: Path, project: ProjectConfig, revoked: Revocations) -> None:
    north, south = serial(kits / "north"), serial(kits / "south")
    assert (revoked(north), revoked(south)) == (False, False)
    provision(project, kits, revoke=["north"])
    assert (revoked(north), revoked(south)) == (True, False)
    provision(project, kits, revoke=["south"])
    assert (revoked(north), revoked(south)) == (True, True)
    assert revoked.current.number == 3


def altered(pem: bytes) -> bytes:
    """Still a list, and its signature is not the authority's any more."""
    der = bytearray(ssl.PEM_cert_to_DER_cert(pem.decode().replace("X509 CRL", "CERTIFICATE")))
    der[-1] ^= 1
    return ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "X509 CRL").encode()


@pytest.mark.parametrize("damage", ["cut", "gone", "altered", "foreign", "older"])
def test_a_list_that_cannot_be_trusted_lets_nobody_back_in(
    kits: Path,
    project: ProjectConfig,
    revoked: Revocations,
    damage: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    older, north = revoked.path.read_bytes(), serial(kits / "north")
    provision(project, kits, revoke=["north"])
    assert revoked(north)
    good = revoked.path.read_bytes()
    if damage == "gone":
        revoked.path.unlink()
    elif damage == "foreign":
        provision(project, tmp_path / "others")
        revoked.path.write_bytes((tmp_path / "others" / "server" / "revoked.crl").read_bytes())
    else:
        revoked.path.write_bytes({"cut": good[:99], "altered": altered(good), "older": older}[damage])
    os.utime(revoked.path, ns=(1, 1)) if damage != "gone" else None
    with caplog.at_level(logging.ERROR):
        assert revoked(north)
        assert not revoked(serial(kits / "south"))
    assert len(caplog.records) == 1, "said once, not at every connection"
    assert "revocation list ignored" in caplog.text
    assert "Remedy: " in caplog.text
    if damage != "older":  # a server that starts has no good list to go on with
        with pytest.raises(IdentityError, match=r"revocation list .*copy revoked.crl"):
            Revocations(revoked.path, kits / "server" / "ca.pem")
    provision(project, kits, revoke=["south"])
    assert revoked(serial(kits / "south"))
