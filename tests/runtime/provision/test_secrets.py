"""Keys at rest: encrypted on request, opened with the right passphrase only."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import ConfigError, IdentityError
from atoll.runtime.provision import Kit, ProjectConfig, find_passphrase, new_passphrase, provision
from atoll.runtime.provision.keys import ROUNDS

Load = Callable[[dict[str, Any]], ProjectConfig]
SECRET = b"correct horse battery"


@pytest.fixture
def small(tree: dict[str, Any], loaded: Load) -> ProjectConfig:
    return loaded({**tree, "sites": tree["sites"][:1], "admins": []})


def test_an_encrypted_kit_opens_with_its_passphrase_only(
    small: ProjectConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provision(small, tmp_path / "kits", passphrase=lambda name: SECRET + name.encode())
    north = made.folder / "north"
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in (north / "key.pem").read_bytes()
    with pytest.raises(IdentityError, match=r"encrypted and there is no passphrase .*ATOLL_PASSPHRASE"):
        Kit.read(north).credentials()
    with pytest.raises(IdentityError, match="the passphrase does not open the private key"):
        Kit.read(north, SECRET + b"server").credentials()
    opened = Kit.read(north, SECRET + b"north").credentials()
    assert opened.key.startswith(b"-----BEGIN PRIVATE KEY")
    monkeypatch.setenv("ATOLL_PASSPHRASE", (SECRET + b"north").decode())
    assert Kit.read(north).credentials() == opened
    assert SECRET.decode() not in repr(Kit.read(north))
    assert "PRIVATE" not in repr(opened)
    with pytest.raises(ConfigError, match="the key of 'north' is encrypted, and its new one would not be"):
        provision(small, made.folder, renew=["north"])


@pytest.mark.network
def test_openssl_reads_the_encrypted_key_and_its_rounds(small: ProjectConfig, tmp_path: Path) -> None:
    made = provision(small, tmp_path / "kits", passphrase=lambda name: SECRET)
    path = str(made.folder / "north" / "key.pem")
    read = ["openssl", "pkey", "-in", path, "-passin", f"pass:{SECRET.decode()}", "-noout"]
    assert subprocess.run(read, capture_output=True, check=False).returncode == 0
    shown = subprocess.run(["openssl", "asn1parse", "-in", path], capture_output=True, text=True, check=True).stdout
    assert "PBKDF2" in shown
    assert "hmacWithSHA256" in shown
    assert "aes-256-cbc" in shown
    assert f"INTEGER           :{ROUNDS:06X}" in shown


def test_the_authority_can_be_encrypted(
    small: ProjectConfig, tree: dict[str, Any], loaded: Load, tmp_path: Path
) -> None:
    out = tmp_path / "kits"
    provision(small, out, ca_passphrase=lambda: SECRET)
    assert b"BEGIN ENCRYPTED" in (out / "ca" / "ca-key.pem").read_bytes()
    provision(small, out)  # nothing to sign: nobody is asked
    with pytest.raises(IdentityError, match=r"no passphrase .*ATOLL_CA_PASSPHRASE"):
        provision(loaded(tree), out)
    assert provision(loaded(tree), out, ca_passphrase=lambda: SECRET).made == ["south", "anna", "otto"]
    provision(small, out, rotate=True, ca_passphrase=lambda: SECRET)
    assert b"BEGIN ENCRYPTED" in (out / "ca" / "ca-key.pem").read_bytes()


def test_where_a_passphrase_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("from the file\r\nnot this\n")
    assert find_passphrase() is None
    assert find_passphrase(ask=lambda: "asked for") == b"asked for"
    monkeypatch.setenv("ATOLL_PASSPHRASE_FILE", str(file))
    assert find_passphrase(ask=lambda: "asked for") == b"from the file"
    monkeypatch.setenv("ATOLL_PASSPHRASE", "from outside")
    assert find_passphrase() == b"from outside"
    assert find_passphrase(file) == b"from the file"
    assert find_passphrase(variable="ATOLL_CA_PASSPHRASE") is None


def test_bad_passphrases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no passphrase"):
        new_passphrase()
    with pytest.raises(ConfigError, match="the passphrase has 5 characters"):
        new_passphrase(ask=lambda: "short")
    with pytest.raises(ConfigError, match="the passphrase is empty"):
        find_passphrase(ask=lambda: "")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        find_passphrase(tmp_path / "none")
