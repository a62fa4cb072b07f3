"""Helpers in a project: a kit like a site's, and a role that is in the certificate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from atoll.core.errors import ConfigError, IdentityError
from atoll.runtime.identity import admit, peer_of
from atoll.runtime.provision import Kit, ProjectConfig, SiteList, provision
from atoll.runtime.provision.certificates import read_list
from atoll.runtime.provision.kit_checks import check_paper
from tests.support.certificates import authority

Load = Callable[[dict[str, Any]], ProjectConfig]
HELPERS = {"keys": "key holder", "shares": {"role": "second server", "org": "Ministry", "direct": ["shares.example"]}}


@pytest.fixture
def project(tree: dict[str, Any], loaded: Load) -> ProjectConfig:
    return loaded({**tree, "helpers": HELPERS})


@pytest.fixture
def kits(project: ProjectConfig, tmp_path: Path) -> Path:
    return provision(project, tmp_path / "kits").folder


def listed(kits: Path) -> str:
    return (kits / "server" / "project-sites.txt").read_text()


def test_a_helper_gets_a_kit_whose_certificate_says_what_it_plays(kits: Path) -> None:
    for name, role, org in (("keys", "key holder", "keys"), ("shares", "second server", "Ministry")):
        kit = Kit.read(kits / name)
        assert (kit.role, kit.plays) == ("helper", role)
        assert all(finding.state == "ok" for finding in check_paper(kit))
        peer = kit.peer()
        assert (peer.role, peer.plays, peer.org) == ("helper", role, org)
        assert str(peer) == f"helper {name!r} ({role}) of {org!r}"
        found = x509.load_pem_x509_certificate(kit.bytes_of("certificate.pem"))
        units = found.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        assert [unit.value for unit in units] == [role]
        assert sorted(path.name for path in kit.folder.iterdir()) == sorted(p.name for p in (kits / "north").iterdir())
    assert Kit.read(kits / "shares").config.direct == ["shares.example"]
    assert Kit.read(kits / "north").peer().plays == ""
    readme = (kits / "keys" / "README.txt").read_text()
    assert "Startup kit of key holder keys (keys) for project lungs" in readme
    assert "Start:     atoll site keys\n" in readme
    assert listed(kits) == "north\nsouth\nkeys plays key holder\nshares plays second server\n"


@pytest.mark.parametrize(
    ("helpers", "said"),
    [
        ({"keys": "client"}, "helpers.keys='client' is no role of a helper: .* not one of: client, edge, server, site"),
        ({"keys": "edge"}, "helpers.keys='edge' is no role of a helper"),
        ({"keys": " "}, "helpers.keys=' ' is no role of a helper: write 1 to 64 printable characters"),
        ({"keys": "a" * 65}, "is no role of a helper"),
        ({"keys": "a\nnorth"}, "is no role of a helper"),
        ({"ca": "dealer"}, "helpers.ca='ca' is not a name"),
        ({"North": "dealer"}, r"helpers.North='North' is already the name at sites\[0\].name"),
        ({"keys": {"rol": "dealer"}}, r"rol='dealer' is not a setting. Did you mean 'role'\?"),
        (["keys"], r"helpers=\['keys'\] should be a mapping of settings"),
    ],
)
def test_what_is_wrong_is_named(tree: dict[str, Any], loaded: Load, helpers: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        loaded({**tree, "helpers": helpers})
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("who", "line", "other", "said"),
    [
        (
            "north",
            "role: site",
            "role: helper\nplays: key holder",
            r"helper 'north' \(key holder\) .* certificate says site",
        ),
        ("keys", "plays: key holder", "plays: second server", r"\(second server\) .* 'keys' \(key holder\)"),
        (
            "keys",
            "plays: key holder\nproject: lungs\nrole: helper",
            "project: lungs\nrole: site",
            r"says site 'keys' .* certificate says helper 'keys'",
        ),
    ],
)
def test_no_party_can_write_itself_a_part(kits: Path, who: str, line: str, other: str, said: str) -> None:
    path = kits / who / "kit.yaml"
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, other))
    with pytest.raises(IdentityError, match=said):
        Kit.read(kits / who).credentials()


def test_certificates_of_sites_and_helpers_are_told_apart() -> None:
    """A unit in a site's certificate makes no helper of it, and a helper without one is none."""
    here = authority()
    for role, plays in (("site", "key holder"), ("admin", "key holder"), ("helper", "")):
        with pytest.raises(
            IdentityError, match=f"the certificate of {role} 'x' says that it plays '{plays or 'nothing'}'"
        ):
            peer_of(here.issue(role, "x", plays=plays).certificate)
    site, helper = here.issue("site", "x").certificate, here.issue("helper", "x", plays="dealer").certificate
    refusals: list[tuple[bytes, dict[str, Any], str]] = [
        (site, {"roles": ("helper",), "plays": "dealer"}, "a certificate for role 'site' cannot act as helper"),
        (helper, {"roles": ("site",), "plays": ""}, "a certificate for role 'helper' cannot act as site"),
        (helper, {"plays": "key holder"}, "it plays 'dealer', and 'key holder' was meant"),
    ]
    for certificate, wanted, said in refusals:
        with pytest.raises(IdentityError, match=said):
            admit(certificate, project="study", **wanted)
    assert admit(helper, project="study", roles=("helper",), plays="dealer").name == "x"


def test_a_helper_is_revoked_renewed_and_removed_like_a_site(
    kits: Path, project: ProjectConfig, tree: dict[str, Any], loaded: Load
) -> None:
    first = Kit.read(kits / "keys").peer().serial
    done = provision(project, kits, revoke=["keys"])
    assert list(done.revoked) == ["keys"]
    for name in ("server", "north", "keys", "shares"):
        found = read_list((kits / name / "revoked.crl").read_bytes(), (kits / "ca" / "ca.pem").read_bytes(), name)
        assert first in found.serials
    sites = SiteList(kits / "server" / "project-sites.txt")
    assert listed(kits) == "north\nsouth\nkeys gone plays key holder\nshares plays second server\n"
    assert sites.among([]) == {"north", "south", "shares"}
    assert sites.plays == {"keys": "key holder", "shares": "second server"}  # whoever is gone may have had a part

    done = provision(project, kits, renew=["keys"], rotate=True)
    assert done.renewed == ["keys"]
    assert Kit.read(kits / "keys").peer().serial != first
    assert all(finding.state == "ok" for finding in check_paper(Kit.read(kits / "keys")))
    assert (kits / "shares" / "ca.pem").read_bytes() == (kits / "ca" / "ca.pem").read_bytes()
    assert sites.changed()
    assert sites.among([]) == {"north", "south", "keys", "shares"}

    said = r"as helper \(key holder\) of 'keys', but is now helper \(dealer\) of 'keys'"
    with pytest.raises(ConfigError, match=said):
        provision(loaded({**tree, "helpers": {**HELPERS, "keys": "dealer"}}), kits)
    with pytest.raises(ConfigError, match=r"as helper \(key holder\) of 'keys', but is now site of 'keys'"):
        provision(loaded({**tree, "sites": [*tree["sites"], {"name": "keys", "org": "keys"}]}), kits)
    assert "keys is no longer in the project" in " ".join(provision(loaded(tree), kits).notes)
