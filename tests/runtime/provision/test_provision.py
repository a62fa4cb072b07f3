"""Kits: what they hold, what they never hold, and that running again touches nothing."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID as Use

from atoll.core.errors import ConfigError, IdentityError
from atoll.runtime.identity import Credentials, peer_of
from atoll.runtime.provision import Kit, ProjectConfig, Provisioned, Revocations, SiteList, provision

Load = Callable[[dict[str, Any]], ProjectConfig]
Contents = Callable[[Path], dict[str, bytes]]
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
EVERYBODY = ["server", "north", "south", "anna", "otto"]


@pytest.fixture
def made(tree: dict[str, Any], loaded: Load, tmp_path: Path) -> Provisioned:
    return provision(loaded(tree), tmp_path / "kits", now=NOW)


def certificate(kit: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((kit / "certificate.pem").read_bytes())


def test_everybody_gets_a_kit_that_says_who_they_are(made: Provisioned) -> None:
    assert made.made == EVERYBODY
    roles = {name: Kit.read(made.folder / name).role for name in EVERYBODY}
    assert roles == {"server": "server", "north": "site", "south": "site", "anna": "admin", "otto": "auditor"}
    for name in EVERYBODY:
        kit = Kit.read(made.folder / name)
        peer = kit.peer()
        assert (peer.name, peer.role, peer.org, peer.project) == (name, kit.role, kit.org, "lungs")
        assert isinstance(kit.credentials(), Credentials)
        assert kit.ways == [("server", "localhost", 8443), ("server", "127.0.0.1", 8443)]


def test_a_site_that_may_be_dialled_has_both_usages_and_its_hosts(
    tree: dict[str, Any], loaded: Load, made: Provisioned, tmp_path: Path
) -> None:
    """Nothing changes for the others, and its role stays what it is."""
    tree["sites"][0]["direct"] = ["north.example", "10.0.0.7"]
    found = provision(loaded(tree), tmp_path / "direct", now=NOW)
    values = {type(e.value): e.value for e in certificate(found.folder / "north").extensions}
    assert set(values[x509.ExtendedKeyUsage]) == {Use.CLIENT_AUTH, Use.SERVER_AUTH}
    names = values[x509.SubjectAlternativeName]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["atoll://lungs/site/north"]
    assert names.get_values_for_type(x509.DNSName) == ["north.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    kit = Kit.read(found.folder / "north")
    assert (kit.peer().role, kit.config.direct) == ("site", ["north.example", "10.0.0.7"])
    for name in ("server", "south", "anna"):
        assert (found.folder / name / "kit.yaml").read_bytes() == (made.folder / name / "kit.yaml").read_bytes()
    # A kit from before says that it is behind, and is left alone.
    again = provision(loaded(tree), made.folder, now=NOW)
    assert again.notes == ["north's kit no longer matches project.yaml; renew it with --renew north"]


def test_certificates_are_as_the_profile_says(made: Provisioned) -> None:
    authority = x509.load_pem_x509_certificate((made.folder / "ca" / "ca.pem").read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    for name in EVERYBODY:
        found = certificate(made.folder / name)
        found.verify_directly_issued_by(authority)
        values = {type(e.value): e for e in found.extensions}
        assert values[x509.BasicConstraints].critical
        assert values[x509.BasicConstraints].value == x509.BasicConstraints(False, None)
        usage = values[x509.KeyUsage].value
        assert usage.digital_signature
        assert (usage.key_cert_sign, usage.crl_sign) == (False, False)
        wanted = Use.SERVER_AUTH if name == "server" else Use.CLIENT_AUTH
        assert list(values[x509.ExtendedKeyUsage].value) == [wanted]
        identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
        assert values[x509.AuthorityKeyIdentifier].value.key_identifier == identifier
        assert found.public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
        assert found.serial_number.bit_length() > 100
        assert found.not_valid_after_utc == NOW + timedelta(days=365)
        names = values[x509.SubjectAlternativeName].value
        hosts = ["server", "localhost"] if name == "server" else []
        assert names.get_values_for_type(x509.DNSName) == hosts


def test_running_again_changes_no_byte(
    made: Provisioned, tree: dict[str, Any], loaded: Load, contents: Contents
) -> None:
    before = contents(made.folder)
    again = provision(loaded(tree), made.folder)
    assert contents(made.folder) == before
    assert (again.made, again.kept, again.notes) == ([], EVERYBODY, [])


def test_a_site_added_later_touches_nobody_else(
    made: Provisioned, tree: dict[str, Any], loaded: Load, contents: Contents
) -> None:
    before = contents(made.folder)
    times = {path: (made.folder / path).stat().st_mtime_ns for path in before}
    tree["sites"].append({"name": "west", "org": "West"})
    again = provision(loaded(tree), made.folder)
    after = contents(made.folder)
    assert again.made == ["west"]
    changed = {path for path in after if after[path] != before.get(path)}
    new = [path for path in changed if not path.startswith("ca/")]
    own = [f"west/{f}" for f in ("README.txt", "ca.pem", "certificate.pem", "key.pem", "kit.yaml", "revoked.crl")]
    assert sorted(new) == ["server/project-sites.txt", *own]  # the server alone learns of it
    assert after["server/project-sites.txt"] == b"north\nsouth\nwest\n"
    assert again.notes == ["copy project-sites.txt from the kit of server to the running server: it is read at once"]
    assert after["ca/issued.jsonl"].startswith(before["ca/issued.jsonl"])
    assert {path for path in changed - set(new) if path in before} == {"ca/issued.jsonl"}
    told = ("ca/issued.jsonl", "server/project-sites.txt")
    assert all((made.folder / path).stat().st_mtime_ns == times[path] for path in before if path not in told)


def test_the_server_is_told_who_has_gone(made: Provisioned, tree: dict[str, Any], loaded: Load) -> None:
    listed = SiteList(Kit.read(made.folder / "server").sites_file)
    assert listed.among(frozenset()) == {"north", "south"}
    assert listed.among(frozenset({"new"})) == {"north", "south", "new"}  # the list may be older than a site
    assert not listed.changed()
    provision(loaded(tree), made.folder, revoke=["north"])
    assert listed.changed()
    assert listed.among(frozenset({"north", "new"})) == {"south", "new"}
    provision(loaded(tree), made.folder, renew=["north"])
    tree["sites"].pop()
    provision(loaded(tree), made.folder)
    assert listed.changed()
    assert listed.among(frozenset({"south"})) == {"north"}


def test_a_list_of_sites_that_is_missing_or_damaged_names_nobody_new(tmp_path: Path) -> None:
    path = tmp_path / "project-sites.txt"
    listed = SiteList(path)
    assert listed.among(frozenset({"a"})) == {"a"}
    path.write_text("a\n\nb gone\n", encoding="utf-8")
    assert listed.changed()
    assert listed.among(frozenset({"b"})) == {"a"}
    path.write_text("a\nsome thing else entirely\n", encoding="utf-8")
    assert not listed.changed()
    path.write_bytes(b"\xff\xfe")
    assert not listed.changed()
    assert listed.among(frozenset({"b"})) == {"a"}
    path.unlink()
    assert listed.changed()
    assert listed.among(frozenset({"b"})) == {"b"}


def test_a_kit_that_was_handed_over_is_not_made_again(made: Provisioned, tree: dict[str, Any], loaded: Load) -> None:
    (made.folder / "north").rename(made.folder.parent / "away")
    again = provision(loaded(tree), made.folder)
    assert (again.made, again.handed) == ([], ["north"])
    assert not (made.folder / "north").exists()


def test_private_keys_stay_in_their_own_kit(made: Provisioned, contents: Contents) -> None:
    files = contents(made.folder)
    keys = {path: text for path, text in files.items() if b"PRIVATE KEY" in text}
    assert set(keys) == {*(f"{name}/key.pem" for name in EVERYBODY), "ca/ca-key.pem"}
    for path, text in keys.items():
        secret = re.sub(rb"-----.*-----|\s", b"", text)
        assert len(secret) > 100
        holders = [other for other, content in files.items() if secret in re.sub(rb"\s", b"", content)]
        assert holders == [path]


@pytest.mark.skipif(os.name != "posix", reason="no permission bits")
def test_permissions_do_not_depend_on_the_umask(tree: dict[str, Any], loaded: Load, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = provision(loaded(tree), tmp_path / "kits")
    finally:
        os.umask(before)
    for path in made.folder.rglob("*"):
        mode = path.stat().st_mode & 0o777
        private = path.is_dir() or path.name in ("key.pem", "ca-key.pem")
        assert mode & 0o077 == 0 if private else mode == 0o644, path


def test_two_projects_share_no_key_and_no_serial(tree: dict[str, Any], loaded: Load, tmp_path: Path) -> None:
    kits = [tmp_path / "one", tmp_path / "two"]
    for folder in kits:
        provision(loaded(tree), folder, now=NOW)
    found = [certificate(folder / name) for folder in kits for name in EVERYBODY]
    authorities = [x509.load_pem_x509_certificate((folder / "ca" / "ca.pem").read_bytes()) for folder in kits]
    everything = found + authorities
    assert len({c.serial_number for c in everything}) == len(everything)
    assert len({c.public_key().public_numbers() for c in everything}) == len(everything)  # type: ignore[union-attr]


def test_renewal_makes_a_new_key_or_keeps_it(
    made: Provisioned, tree: dict[str, Any], loaded: Load, contents: Contents
) -> None:
    before = contents(made.folder)
    later = NOW + timedelta(days=300)
    provision(loaded(tree), made.folder, renew=["north"], now=later)
    renewed = contents(made.folder)
    changed = {path for path in before if renewed[path] != before[path]}
    assert changed == {"north/certificate.pem", "north/key.pem", "north/README.txt", "ca/issued.jsonl"}
    assert certificate(made.folder / "north").not_valid_after_utc == later + timedelta(days=365)
    provision(loaded(tree), made.folder, renew=["south"], same_key=True, now=later)
    same = contents(made.folder)
    assert same["south/key.pem"] == before["south/key.pem"]
    assert same["south/certificate.pem"] != before["south/certificate.pem"]
    for name in ("north", "south"):
        Kit.read(made.folder / name).credentials()


def test_a_certificate_is_renewed_without_the_kit(made: Provisioned, tree: dict[str, Any], loaded: Load) -> None:
    """The key left with its kit; the provisioner knows its public half."""
    away = (made.folder / "north").rename(made.folder.parent / "away")
    provision(loaded(tree), made.folder, renew=["north"], same_key=True, now=NOW + timedelta(days=1))
    assert not (made.folder / "north" / "key.pem").exists()
    (away / "certificate.pem").write_bytes((made.folder / "north" / "certificate.pem").read_bytes())
    assert Kit.read(away).credentials().certificate == (away / "certificate.pem").read_bytes()


def test_revocation_lists_every_certificate_so_far(made: Provisioned, tree: dict[str, Any], loaded: Load) -> None:
    project = loaded(tree)
    first = certificate(made.folder / "north").serial_number
    provision(project, made.folder, renew=["north"], now=NOW)
    second = certificate(made.folder / "north").serial_number
    done = provision(project, made.folder, revoke=["north"], renew=["north"], now=NOW)
    assert done.revoked == {"north": [f"{first:x}", f"{second:x}"]}
    revoked = Revocations(made.folder / "server" / "revoked.crl", made.folder / "server" / "ca.pem")
    third = certificate(made.folder / "north").serial_number
    others = [certificate(made.folder / name).serial_number for name in EVERYBODY if name != "north"]
    assert [revoked(serial) for serial in (first, second, third)] == [True, True, False]
    assert not any(revoked(serial) for serial in others)
    gone = provision(project, made.folder, revoke=["south"], now=NOW)
    assert (
        "south's certificate was revoked: delete south from project.yaml, or take it back in with --renew south"
        in gone.notes
    )


def test_a_new_authority_is_trusted_beside_the_old(made: Provisioned, tree: dict[str, Any], loaded: Load) -> None:
    project = loaded(tree)
    old = certificate(made.folder / "south")
    provision(project, made.folder, rotate=True, renew=["north"], now=NOW + timedelta(days=30))
    new = certificate(made.folder / "north")
    newest, before = x509.load_pem_x509_certificates((made.folder / "server" / "ca.pem").read_bytes())
    new.verify_directly_issued_by(newest)
    old.verify_directly_issued_by(before)
    with pytest.raises(InvalidSignature, match=r"^$"):
        old.verify_directly_issued_by(newest)
    Revocations(made.folder / "server" / "revoked.crl", made.folder / "server" / "ca.pem")
    assert provision(project, made.folder).notes == []


def test_a_kit_survives_a_zip(made: Provisioned, tmp_path: Path) -> None:
    archive = tmp_path / "north.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (made.folder / "north").iterdir():
            file.write(path, f"north/{path.name}")
    zipfile.ZipFile(archive).extractall(tmp_path / "unzipped")
    kit = Kit.read(tmp_path / "unzipped" / "north")
    if os.name == "posix":  # this way of unzipping forgets permissions, and the kit says what to do
        with pytest.raises(IdentityError, match=r"may be read by others .* Remedy: chmod 600"):
            kit.credentials()
    (kit.folder / "key.pem").chmod(0o600)
    kit.credentials()


def test_an_attempt_that_was_cut_off_is_made_good(
    tree: dict[str, Any], loaded: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = Path.rename, tmp_path / "kits"

    def cut(self: Path, target: Path) -> Path:
        if self.name == ".north.tmp":
            raise KeyboardInterrupt("cut")
        return whole(self, target)

    monkeypatch.setattr(Path, "rename", cut)
    with pytest.raises(KeyboardInterrupt, match="cut"):
        provision(loaded(tree), out)
    monkeypatch.undo()
    assert provision(loaded(tree), out).made == ["north", "south", "anna", "otto"]
    assert [p for p in out.iterdir() if p.name.startswith(".")] == []
    Kit.read(out / "north").credentials()


def test_what_cannot_be_done_is_refused_before_anything_is_written(
    made: Provisioned, tree: dict[str, Any], loaded: Load, contents: Contents
) -> None:
    before = contents(made.folder)
    project = loaded(tree)
    with pytest.raises(ConfigError, match=r"'nort' is not the name of a party here. Did you mean 'north'"):
        provision(project, made.folder, renew=["nort"])
    with pytest.raises(ConfigError, match="'est' is not the name of a party here"):
        provision(project, made.folder, revoke=["est"])
    with pytest.raises(ConfigError, match="project='hearts', but the authority there is of project 'lungs'"):
        provision(loaded({**tree, "project": "hearts"}), made.folder)
    swapped = {**tree, "sites": [], "admins": [{"name": "north", "org": "North"}]}
    with pytest.raises(ConfigError, match="'north' was issued a kit as site of 'North', but is now admin"):
        provision(loaded(swapped), made.folder)
    assert contents(made.folder) == before


def test_what_changed_in_the_project_is_told(made: Provisioned, tree: dict[str, Any], loaded: Load) -> None:
    tree["servers"][0]["port"] = 9000
    tree["sites"].pop()
    notes = "\n".join(provision(loaded(tree), made.folder).notes)
    assert "north's kit no longer matches project.yaml; renew it with --renew north" in notes
    assert "south is no longer in the project, but its certificate is still valid: --revoke south" in notes


@pytest.mark.network
def test_strict_verification_accepts_the_certificates(made: Provisioned) -> None:
    """OpenSSL's X509_V_FLAG_X509_STRICT, the default of Python 3.13, wants the key identifiers and usages of RFC 5280."""
    for name, purpose in (("server", "sslserver"), ("north", "sslclient"), ("otto", "sslclient")):
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-attime", str(int(NOW.timestamp()) + 9)]
        files = ["-CAfile", str(made.folder / "ca" / "ca.pem"), str(made.folder / name / "certificate.pem")]
        done = subprocess.run(command + files, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert ssl.HAS_TLSv1_3


@pytest.mark.network
def test_fingerprints_are_those_of_openssl(made: Provisioned) -> None:
    path = made.folder / "north" / "certificate.pem"
    done = subprocess.run(
        ["openssl", "x509", "-in", str(path), "-noout", "-fingerprint", "-sha256"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert peer_of(path.read_bytes()).fingerprint == done.stdout.strip().partition("=")[2].replace(":", "").lower()
