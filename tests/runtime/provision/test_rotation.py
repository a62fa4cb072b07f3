"""A new key of the authority: when the old one has expired, and while a server runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from atoll.runtime.identity import peer_of
from atoll.runtime.provision import ProjectConfig, Revocations, provision

Loaded = Callable[[dict[str, Any]], ProjectConfig]


def revocations(kits: Path) -> Revocations:
    return Revocations(kits / "server" / "revoked.crl", kits / "server" / "ca.pem")


def test_an_authority_that_has_expired_is_replaced(tree: dict[str, Any], loaded: Loaded, tmp_path: Path) -> None:
    """As the error of an expired authority says: a new one, then new certificates. The old list's signature still counts for its own number."""
    project, kits = loaded(tree), tmp_path / "kits"
    then = datetime.now(UTC) - timedelta(days=project.validity.ca + 10)
    provision(project, kits, now=then)
    provision(project, kits, revoke=["north"], now=then)
    provision(project, kits, rotate=True, renew=["server", "south", "anna"])
    assert (revocations(kits).current.number, len(revocations(kits).current.serials)) == (3, 1)
    provision(project, kits, revoke=["anna"])
    assert revocations(kits).current.number == 4
    assert revocations(kits)(peer_of((kits / "anna" / "certificate.pem").read_bytes()).serial)


def test_a_server_that_was_not_restarted_since_takes_the_list_of_the_new_key(
    tree: dict[str, Any], loaded: Loaded, tmp_path: Path
) -> None:
    project, kits = loaded(tree), tmp_path / "kits"
    provision(project, kits)
    running = revocations(kits)
    serial = peer_of((kits / "north" / "certificate.pem").read_bytes()).serial
    provision(project, kits, rotate=True)
    provision(project, kits, revoke=["north"])
    assert running(serial)
