"""Bundles: the same bytes every time, and refused when anything about them is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, BundleError, IdentityError
from atoll.runtime.bundle import BundleLimits, Manifest, make_bundle, verify, write_archive
from atoll.runtime.identity import Credentials, peer_of
from tests.support.certificates import Authority, authority
from tests.support.forging import ADMIN, META, any_archive, check, forged, opened

JOB = b"name: digits\n"
FILES = [("job.yaml", JOB), ("source/a.py", b"x = 1\n"), ("source/pkg/b.py", b"y = 2\n")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two modules, and what does not travel."""
    folder = tmp_path / "code"
    for name, content in (("a.py", "x = 1\n"), ("pkg/b.py", "y = 2\n"), (".git/config", "z"), (".env", "SECRET=1")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"\0")
    (folder / "pkg" / "old.pyc").write_bytes(b"\0")
    return folder


def test_what_travels_is_signed_and_nothing_else_travels(source: Path) -> None:
    bundle = make_bundle(JOB, source, ADMIN)
    found = check(bundle)
    assert [file.path for file in found.manifest.files] == [name for name, _ in FILES]
    assert found.signer == peer_of(ADMIN.certificate)
    assert found.job == JOB
    assert opened(bundle)[3:] == FILES
    assert b"SECRET" not in bundle


def test_a_bundle_is_the_same_whenever_and_wherever_it_is_made(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    for name in ("pkg/b.py", "a.py"):  # made in another order, at another time, with other modes
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes((source / name).read_bytes())
        os.utime(other / name, (1e9, 1e9))
        (other / name).chmod(0o700)
    once: dict[str, Any] = {"nonce": "5" * 32, "now": 1.5}
    assert make_bundle(JOB, other, ADMIN, **once) == make_bundle(JOB, source, ADMIN, **once)


def test_no_two_signings_are_the_same(source: Path) -> None:
    one, two = (check(make_bundle(JOB, source, ADMIN)).manifest for _ in range(2))
    assert one.files == two.files
    assert one.nonce != two.nonce
    assert one.signed <= two.signed
    assert check(make_bundle(JOB, source, ADMIN, now=1.5)).manifest.signed == 1_500_000


def test_a_job_without_modules_is_one_file() -> None:
    assert [file.path for file in check(make_bundle(JOB, None, ADMIN)).manifest.files] == ["job.yaml"]


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe"])
def test_links_and_special_files_are_refused_at_home(source: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(source / "odd")
    else:
        (source / "odd").symlink_to(source / ("a.py" if kind == "link" else "pkg"))
    with pytest.raises(BundleError, match=r"odd is a link or a special file .*put a copy"):
        make_bundle(JOB, source, ADMIN)


def test_too_much_is_refused_at_home(source: Path) -> None:
    for limits in (BundleLimits(files=1), BundleLimits(file=3), BundleLimits(total=8)):
        with pytest.raises(BundleError, match=r"keep data and models out of the source folder"):
            make_bundle(JOB, source, ADMIN, limits)
    with pytest.raises(BundleError, match=r"too deep"):
        make_bundle(JOB, source, ADMIN, BundleLimits(depth=1))
    with pytest.raises(BundleError, match=r"and 100 are allowed"):
        make_bundle(JOB, source, ADMIN, BundleLimits(bundle=100))


def test_names_that_clash_elsewhere_are_refused_at_home(source: Path) -> None:
    (source / "con.py").write_text("")
    with pytest.raises(BundleError, match=r"'con\.py' is refused: some systems take it"):
        make_bundle(JOB, source, ADMIN)


# -- altered after signing


def parts() -> list[tuple[str, bytes]]:
    return opened(forged(FILES))


CHANGES: dict[str, Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]] = {
    "a file altered": lambda p: [(n, c + b"#" if n == "source/a.py" else c) for n, c in p],
    "a file altered, of one length": lambda p: [(n, b"x = 9\n" if n == "source/a.py" else c) for n, c in p],
    "the job altered": lambda p: [(n, b"name: others\n" if n == "job.yaml" else c) for n, c in p],
    "a file added": lambda p: [*p, ("source/z.py", b"")],
    "a file removed": lambda p: p[:-1],
    "a file twice": lambda p: [*p, p[-1]],
    "files in another order": lambda p: [*p[:3], *p[:2:-1]],
    "contents exchanged": lambda p: [*p[:4], (p[4][0], p[5][1]), (p[5][0], p[4][1])],
    "a file renamed": lambda p: [*p[:-1], ("source/pkg/c.py", p[-1][1])],
    "no manifest": lambda p: p[1:],
    "no signature": lambda p: [p[0], *p[2:]],
    "an empty signature": lambda p: [p[0], (META[1], b""), *p[2:]],
    "the head in another order": lambda p: [p[1], p[0], *p[2:]],
    "nothing but a head": lambda p: p[:3],
}


@pytest.mark.parametrize("what", CHANGES)
def test_altered_bundles_are_refused(what: str) -> None:
    assert check(write_archive(parts())).job == JOB
    with pytest.raises(BundleError, match=r"not the file|not those|does not begin|signature is not by|appears twice"):
        check(any_archive(CHANGES[what](parts())))


def test_a_manifest_of_ones_own_is_refused() -> None:
    """The attacker rewrites the manifest to fit: the signature no longer does."""
    files = [("job.yaml", b"name: evil\n")]
    text = Manifest.of(files).text()
    with pytest.raises(BundleError, match=r"signature is not by admin 'ann' of 'Bonn'"):
        check(write_archive([(META[0], text), *parts()[1:3], *files]))


def test_a_signature_for_another_purpose_is_refused() -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(ADMIN.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    raw = key.sign(parts()[0][1], ec.ECDSA(hashes.SHA256()))  # the manifest itself, without saying what for
    with pytest.raises(BundleError, match=r"signature is not by"):
        check(write_archive([parts()[0], (META[1], raw), *parts()[2:]]))


def respelt(**changes: Any) -> Callable[[bytes], bytes]:
    """A manifest that says something else."""
    return lambda t: json.dumps({**json.loads(t), **changes}, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.replace(b":2,", b": 2,", 1),
        lambda t: t.replace(b'"atoll":2', b'"atoll":3'),
        lambda t: b"[]",
        lambda t: b"[" * 5000,
        lambda t: b"\xff",
        lambda t: b"{}",
        lambda t: json.dumps({**json.loads(t), "more": 1}, separators=(",", ":")).encode(),
        lambda t: t.replace(b"job.yaml", b"jab.yaml"),
        respelt(atoll=1),
        respelt(files=[["job.yaml", True, "x"]]),
        lambda t: respelt(files=json.loads(t)["files"][::-1])(t),
        *(respelt(nonce=nonce) for nonce in ("", "0" * 31, "A" * 32, "0" * 33, "é" * 32, 0, None)),
        *(respelt(signed=signed) for signed in (-1, 1.0, True, "0", 1 << 63)),
    ],
)
def test_a_manifest_has_one_form(spoil: Callable[[bytes], bytes]) -> None:
    text = Manifest.of(FILES).text()
    assert Manifest.parse(text).text() == text
    with pytest.raises(BundleError, match=r"its manifest"):
        Manifest.parse(spoil(text))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_mutation_of_a_bundle_is_refused_or_means_the_same(data: st.DataObject) -> None:
    bundle = bytearray(forged(FILES))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "join"]))
    at = data.draw(st.integers(0, len(bundle) - 1))
    if kind == "flip":
        bundle[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del bundle[at : at + data.draw(st.integers(1, 50))]
    elif kind == "insert":
        bundle[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    else:
        bundle += bundle[at:]
    try:
        found = check(bytes(bundle))
    except AtollError:
        return
    assert (found.manifest, found.job) == (Manifest.of(FILES), JOB)
    assert kind == "flip"  # a bit behind the end of a deflated stream


# -- who signed


def test_the_signer_must_have_the_role() -> None:
    for role in ("auditor", "server"):
        with pytest.raises(IdentityError, match=f"role '{role}' cannot act as admin or site"):
            check(forged(FILES, authority().issue(role, "eve")))


def test_a_site_signs_alone_what_names_it_and_has_no_code() -> None:
    eve = authority().issue("site", "eve")
    own = b"job: vertical-prediction\nsites: [eve, shop]\nguest: eve\n"
    assert check(forged([("job.yaml", own)], eve)).signer.role == "site"
    foreign = {
        "another guest": [("job.yaml", own.replace(b"guest: eve", b"guest: shop"))],
        "nobody": [("job.yaml", own.replace(b"guest: eve\n", b""))],
        "another kind": [("job.yaml", b"job: statistics\nguest: eve\n")],
        "no kind": [("job.yaml", b"guest: eve\n")],
        "a module": [("job.yaml", own), ("source/evil.py", b"")],
        "a source": [("job.yaml", own + b"source: .\n")],
        "named code": [("job.yaml", own + b"model: {name: 'evil:model'}\n")],
    }
    for files in foreign.values():
        with pytest.raises(IdentityError, match=r"site 'eve' .*has signed a job .*a site signs alone: vertical-prediction with guest: eve"):  # fmt: skip
            check(forged(files, eve))
        check(forged(files))  # an admin may


def test_an_analyst_signs_alone_what_asks_sql() -> None:
    ada = authority().issue("analyst", "ada")
    own = b"job: query\nsql: SELECT count(*) FROM visits\n"
    assert check(forged([("job.yaml", own)], ada)).signer.role == "analyst"
    foreign = {
        "another kind": [("job.yaml", b"job: statistics\n")],
        "a site's": [("job.yaml", b"job: vertical-prediction\nguest: ada\n")],
        "a module": [("job.yaml", own), ("source/evil.py", b"")],
        "named code": [("job.yaml", own + b"model: {name: 'evil:model'}\n")],
        "another one's budget": [("job.yaml", own + b"epsilon: 1\nanalyst: bob\n")],
        "another one's budget among options": [("job.yaml", own + b"strategy: 'shrinkwrap:epsilon=1,analyst=bob'\n")],
        "both": [("job.yaml", own + b"strategy: 'shrinkwrap:analyst=ada,analyst=bob'\nanalyst: ada\n")],
    }
    for own_name in (b"analyst: ada\n", b"strategy: 'shrinkwrap:epsilon=1,analyst=ada'\n", b"strategy: auto\nanalyst: ''\n"):  # fmt: skip
        check(forged([("job.yaml", own + own_name)], ada))
    for files in foreign.values():
        with pytest.raises(IdentityError, match=r"analyst 'ada' .*has signed a job .*an analyst signs alone: query"):
            check(forged(files, ada))


def test_the_signer_must_be_of_the_project() -> None:
    with pytest.raises(IdentityError, match=r"belongs to project 'other'"):
        check(forged(FILES, authority().issue("admin", "ann", project="other")))


def test_the_authority_must_be_the_projects() -> None:
    foreign = Authority("study").issue("admin", "ann")
    with pytest.raises(IdentityError, match=r"no authority of this project has issued"):
        check(forged(FILES, foreign))


def test_an_administrator_is_no_authority() -> None:
    """A certificate that an administrator has issued with her own key: her certificate is no authority's."""
    bundle = forged(FILES)
    with pytest.raises(IdentityError, match=r"no authority of this project"):
        verify(bundle, ca=ADMIN.certificate, project="study")


def test_any_of_several_authorities_will_do() -> None:
    pems = Authority("study").pem + authority().pem
    assert verify(forged(FILES), ca=pems, project="study").job == JOB
    with pytest.raises(IdentityError, match=r"not a certificate in PEM"):
        verify(forged(FILES), ca=b"nothing", project="study")


def test_certificates_end() -> None:
    with pytest.raises(IdentityError, match=r"its certificate is valid from .*check the clocks"):
        check(forged(FILES, authority().issue("admin", "ann", expired=True)))
    for days, whose in ((11, "its certificate"), (40, "its certificate"), (-2, "its certificate")):
        with pytest.raises(IdentityError, match=f"{whose} is valid from"):
            verify(forged(FILES), ca=authority().pem, project="study", now=datetime.now(UTC) + timedelta(days=days))


def test_a_job_may_outlive_its_signers_certificate() -> None:
    """Where this very manifest was taken before, it had to be valid when it signed; of a new one that date proves nothing."""
    later = datetime.now(UTC) + timedelta(days=11)
    how: dict[str, Any] = {"ca": authority().pem, "project": "study", "now": later}
    bundle = make_bundle(JOB, None, ADMIN)
    manifest = verify(bundle, **{**how, "now": None}).manifest
    assert verify(bundle, known=lambda found: found == manifest, **how).job == JOB
    old = make_bundle(JOB, None, authority().issue("admin", "ann", expired=True))
    for text, known in ((bundle, False), (make_bundle(JOB, None, ADMIN, now=0.0), True), (old, True)):
        with pytest.raises(IdentityError, match="its certificate is valid from"):
            verify(text, known=lambda found, known=known: known, **how)


def test_a_revoked_signer_is_refused() -> None:
    serial = peer_of(ADMIN.certificate).serial
    with pytest.raises(IdentityError, match=r"was revoked"):
        verify(forged(FILES), ca=authority().pem, project="study", revoked={serial}.__contains__)
    assert verify(forged(FILES), ca=authority().pem, project="study", revoked={serial + 1}.__contains__).job == JOB


def test_a_key_must_be_the_certificates(source: Path) -> None:
    other = authority().issue("admin", "bob")
    with pytest.raises(IdentityError, match=r"the key does not match the certificate of admin 'ann'"):
        make_bundle(JOB, source, Credentials(ADMIN.ca, ADMIN.certificate, other.key))
    with pytest.raises(IdentityError, match=r"cannot be read"):
        make_bundle(JOB, source, Credentials(ADMIN.ca, ADMIN.certificate, b"no key"))
    with pytest.raises(IdentityError, match=r"the key does not match"):
        make_bundle(JOB, source, authority().issue("admin", "ann", key="rsa"))
