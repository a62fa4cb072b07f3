"""``atoll doctor KIT``: every failure names the node, the step and the next action."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.core.errors import ConfigError
from atoll.core.requests.wire import pack_error
from atoll.runs.versions import versions
from atoll.runtime.line import Channel, Line, Switchboard, dial_line
from atoll.runtime.line.line import Pulse
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.provision.certificates import pem_of
from atoll.runtime.provision.doctor import Finding, examine
from atoll.runtime.provision.keys import load_key, seal_key, write_kit_file
from atoll.runtime.provision.kit_checks import check_disk
from atoll.runtime.transport import transport

pytestmark = pytest.mark.network

Tree = dict[str, Any]
Load = Callable[[Tree], ProjectConfig]


@contextmanager
def taken_port() -> Iterator[tuple[socket.socket, int]]:
    """A port that is bound, so that nobody else gets it, and where nobody listens yet."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held, held.getsockname()[1]


@pytest.fixture
def kits(tree: Tree, loaded: Load, tmp_path: Path) -> Callable[..., Path]:
    """Make the project's kits with the server at a port."""

    def make(port: int, hosts: tuple[str, ...] = ("127.0.0.1",), **more: Any) -> Path:
        tree["servers"][0].update(hosts=list(hosts), port=port, listen="127.0.0.1")
        now = more.pop("now", None)
        return provision(loaded({**tree, **more}), tmp_path / "kits", now=now).folder

    return make


@contextmanager
def serving(
    kits: Path,
    server: str = "server",
    revoked: Callable[[int], bool] = lambda serial: False,
    about: Any = None,
) -> Iterator[None]:
    """A listener on the port of the kits, in a thread of its own; its certificate is that of ``server``.

    Lines come to its switchboard, and whoever asks for ``about`` is told.
    """
    kit = Kit.read(kits / "server")
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop, answers = asyncio.Event(), set()
    told = {"atoll": versions()["atoll"]} if about is None else about

    async def answer(channel: Channel) -> None:
        assert await channel.recv() == {"op": "about"}
        await channel.send(told)

    def on_line(line: Line) -> None:
        line.on_open = lambda channel: answers.add(asyncio.ensure_future(answer(channel)))

    async def listen() -> None:
        credentials = Kit.read(kits / server).credentials()
        switchboard = Switchboard(on_line)
        address = f"127.0.0.1:{kit.server.port}"
        listener = await transport(kit.transport).listen(address, credentials, switchboard.accept, revoked)
        ready.set()
        await stop.wait()
        await switchboard.close()
        await listener.close()
        await asyncio.gather(*answers)

    thread = threading.Thread(target=lambda: loop.run_until_complete(listen()))
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def test_every_server_of_a_kit_is_looked_for_and_one_suffices(
    tree: Tree, kits: Callable[..., Path], tmp_path: Path
) -> None:
    with taken_port() as (_, nobody):
        tree["servers"].append({"name": "spare", "hosts": ["127.0.0.1"], "port": nobody, "org": "x"})
        folder = kits(free_port())
        with serving(folder):
            found = list(examine(Kit.read(folder / "north"), tmp_path))
        said = {f.step: (f.state, f.said) for f in found if "'spare'" in f.said}
        assert said["port"][0] == "skipped"
        assert "nobody listens (connection refused); not needed, another address works" in said["port"][1]
        assert not [f for f in found if f.state == "problem"]
        with_neither = [f for f in examine(Kit.read(folder / "north"), tmp_path) if f.state == "problem"]
        assert [f.remedy.split(",")[0] for f in with_neither if f.remedy] == [
            "start it there with `atoll server server`", "start it there with `atoll server spare`"
        ]  # fmt: skip


def free_port() -> int:
    with taken_port() as (_, port):
        return port


def problems(kit: Path, work: Path = Path()) -> dict[str, Finding]:
    return {f.step: f for f in examine(Kit.read(kit), work, patience=5) if f.state == "problem"}


@pytest.mark.parametrize("name", ["grpc", "tcp"])
def test_all_is_well(kits: Callable[..., Path], name: str, tmp_path: Path) -> None:
    folder = kits(free_port(), transport=name, helpers={"keys": "key holder"})
    (folder / "ca").rename(tmp_path / "offline")
    with serving(folder):
        for party in ("north", "anna", "otto", "server", "keys"):
            findings = list(examine(Kit.read(folder / party), tmp_path))
            assert [f for f in findings if f.state != "ok" and f.step != "jobs"] == []
        steps = [f.step for f in examine(Kit.read(folder / "north"), tmp_path)]
        asked = [f.step for f in examine(Kit.read(folder / "otto"), tmp_path)]
    paper = ["files", "key", "certificate", "authority", "validity", "disk"]
    for step in ("revocation list", "jobs"):  # which sites have, and people have not
        steps.remove(step)
    assert (
        steps
        == asked
        == [*paper, "name", "port", "TLS", "server", "authority's key", "clock", "admission", "clock skew", "version"]
    )


@pytest.mark.parametrize("name", ["grpc", "tcp"])
def test_a_visit_of_the_doctor_is_no_warning_in_the_servers_log(
    kits: Callable[..., Path], name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = kits(free_port(), transport=name)
    caplog.set_level(logging.INFO, "atoll.runtime")
    with serving(folder):
        for party in ("north", "anna"):
            assert [f for f in examine(Kit.read(folder / party), tmp_path) if f.state == "problem"] == []
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [line for line in said if line[0] != "INFO"] == []
    for party in ("site 'north'", "admin 'anna'"):
        assert any(text.startswith(party) and "a visit of atoll doctor" in text for _, text in said), said


def test_the_doctor_does_not_push_a_running_site_aside(kits: Callable[..., Path], tmp_path: Path) -> None:
    """A second line of a site ends the first, so that a site's doctor knocks and says nothing."""
    folder = kits(free_port(), transport="tcp")
    with serving(folder):
        kit = Kit.read(folder / "north")

        async def look() -> bool:
            dial = partial(transport("tcp").dial, f"127.0.0.1:{kit.server.port}", kit.credentials())
            line = await dial_line(dial)
            await asyncio.to_thread(lambda: list(examine(kit, tmp_path)))
            channel = line.open("request")
            await channel.send({"op": "about"})
            answered = "atoll" in await channel.recv()
            await line.close()
            return answered

        assert asyncio.run(look())


def test_another_version_at_the_server(kits: Callable[..., Path]) -> None:
    folder = kits(free_port(), transport="tcp")
    with serving(folder, about={"atoll": "99.0.1"}):
        found = problems(folder / "anna")
    assert list(found) == ["version"]
    assert "server 'server' at 127.0.0.1" in found["version"].said
    assert 'pip install "atoll[net]==99.0.1"' in (found["version"].remedy or "")


def test_a_server_that_does_not_tell_its_version(kits: Callable[..., Path]) -> None:
    folder = kits(free_port(), transport="tcp")
    with serving(folder, about={"error": pack_error(ConfigError("'about' is not a request"))}):
        findings = list(examine(Kit.read(folder / "anna"), Path()))
    assert [(f.step, f.said.partition(": ")[2]) for f in findings if f.state != "ok"] == [
        ("version", "'about' is not a request")
    ]


def test_clocks_that_differ(kits: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kits(free_port(), transport="tcp")
    here = threading.main_thread()

    def wall() -> float:
        return time.time() - (300 if threading.current_thread() is here else 0)

    monkeypatch.setattr(Pulse.__init__, "__defaults__", (time.monotonic, wall))
    with serving(folder):
        found = problems(folder / "anna")
    assert list(found) == ["clock skew"]
    assert "its clock is 300 s ahead of this machine's" in found["clock skew"].said


@pytest.mark.parametrize("name", ["grpc", "tcp"])
def test_a_site_hears_the_servers_clock_and_version_too(
    kits: Callable[..., Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a line, which would end the one of the site that works."""
    folder = kits(free_port(), transport=name)
    told: dict[str, Any] = {"atoll": "99.0.1", "clock": time.time() + 300}
    monkeypatch.setattr("atoll.runtime.line.endpoints._about", lambda: told)
    with serving(folder):
        found = problems(folder / "north")
        assert list(found) == ["clock skew", "version"]
        assert "s ahead of this machine's" in found["clock skew"].said
        told.clear()  # as a server that says nothing of itself
        findings = list(examine(Kit.read(folder / "north"), Path()))
    assert [(f.step, f.state) for f in findings if f.state != "ok"] == [("clock skew", "skipped")]


def test_nobody_listens(kits: Callable[..., Path]) -> None:
    with taken_port() as (_, port):
        found = problems(kits(port) / "north")
    assert list(found) == ["port"]
    assert found["port"].said == f"server 'server' at 127.0.0.1:{port}: nobody listens (connection refused)"
    assert "start it there with `atoll server server`" in (found["port"].remedy or "")


@pytest.fixture
def no_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below .invalid (RFC 6761) are unknown without asking a network."""
    known = socket.getaddrinfo

    def look_up(host: Any, *more: Any, **named: Any) -> Any:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.usefixtures("no_dns")
def test_a_name_that_cannot_be_resolved(kits: Callable[..., Path]) -> None:
    found = problems(kits(8443, hosts=("server.invalid",)) / "north")
    assert list(found) == ["name"]
    assert "the name 'server.invalid' cannot be resolved" in found["name"].said


@pytest.mark.usefixtures("no_dns")
def test_one_address_that_works_is_enough(kits: Callable[..., Path]) -> None:
    folder = kits(free_port(), hosts=("server.invalid", "127.0.0.1"))
    with serving(folder):
        findings = list(examine(Kit.read(folder / "north"), Path()))
    skipped = [f for f in findings if f.state == "skipped"]
    assert [f for f in findings if f.state == "problem"] == []
    assert len(skipped) == 1
    assert skipped[0].said.endswith("not needed, another address works")


@pytest.mark.parametrize("name", ["grpc", "tcp"])
def test_a_revoked_kit_is_told_so_by_the_server(kits: Callable[..., Path], name: str) -> None:
    folder = kits(free_port(), transport=name)
    with serving(folder, revoked=lambda serial: True):
        found = problems(folder / "north")
    assert list(found) == ["admission"]
    assert "was revoked" in found["admission"].said


def test_a_server_of_another_authority(kits: Callable[..., Path], tmp_path: Path) -> None:
    folder = kits(free_port())
    shutil.copytree(folder / "north", tmp_path / "north")
    foreign = tmp_path / "others"
    project = {"project": "lungs", "servers": [{"name": "server", "hosts": ["127.0.0.1"]}]}
    provision(ProjectConfig.model_validate(project), foreign)
    for file in ("ca.pem", "certificate.pem", "key.pem"):
        shutil.copy(foreign / "server" / file, folder / "server" / file)
    with serving(folder):
        found = problems(tmp_path / "north")
    assert list(found) == ["TLS"]
    assert "compare ca.pem here and there" in (found["TLS"].remedy or "")


def test_what_answers_is_no_server(kits: Callable[..., Path]) -> None:
    folder = kits(free_port())
    with serving(folder, server="south"):
        found = problems(folder / "north")
    assert list(found) == ["TLS"]
    assert "start the server with its own kit" in (found["TLS"].remedy or "")


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"])
def test_what_answers_speaks_no_tls(kits: Callable[..., Path], said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        folder = kits(listener.getsockname()[1])

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(said)

        thread = threading.Thread(target=speak)
        thread.start()
        found = problems(folder / "north")
        thread.join(10)
    assert list(found) == ["TLS"]
    assert "127.0.0.1" in found["TLS"].said
    assert "what answers speaks no TLS: check host and port" in (found["TLS"].remedy or "")


def test_an_old_tls_on_the_way(kits: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        folder = kits(listener.getsockname()[1])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(folder / "server" / "certificate.pem", folder / "server" / "key.pem")

        def speak() -> None:
            connection, _ = listener.accept()
            with connection, pytest.raises(OSError, match=r"(?i)version|protocol"):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=speak)
        thread.start()
        found = problems(folder / "north")
        thread.join(10)
    assert list(found) == ["TLS"]
    assert "let TLS 1.3 pass end to end" in (found["TLS"].remedy or "")


def test_an_expired_certificate_and_a_clock_that_is_behind(kits: Callable[..., Path], tmp_path: Path) -> None:
    with taken_port() as (_, port):
        now = datetime.now(UTC)
        old = problems(kits(port, now=now - timedelta(days=400)) / "north")
        shutil.rmtree(tmp_path / "kits")
        early = problems(kits(port, now=now + timedelta(days=2)) / "north")
    assert "expired on" in old["validity"].said
    assert "(35 days ago)" in old["validity"].said
    assert "atoll provision PROJECT --renew north" in (old["validity"].remedy or "")
    assert early["validity"].remedy == "set this machine's clock"


def test_a_kit_that_cannot_prove_itself_is_not_tried(kits: Callable[..., Path]) -> None:
    folder = kits(8443)
    shutil.copy(folder / "south" / "key.pem", folder / "north" / "key.pem")
    findings = list(examine(Kit.read(folder / "north"), Path()))
    assert {f.step: f.state for f in findings if f.state != "ok"} == {"key": "problem", "server": "skipped"}


def apart(kit: Path, work: Path) -> Finding:
    return next(f for f in examine(Kit.read(kit), work, patience=5) if f.step == "authority's key")


def test_the_authority_is_named_by_its_fingerprint_at_every_party(kits: Callable[..., Path], tmp_path: Path) -> None:
    folder = kits(free_port())
    printed = hashlib.sha256(ssl.PEM_cert_to_DER_cert((folder / "ca" / "ca.pem").read_text())).hexdigest().upper()
    colons = ":".join(printed[i : i + 2] for i in range(0, 64, 2))
    for party in ("north", "south", "server", "anna"):
        said = next(f for f in examine(Kit.read(folder / party), tmp_path) if f.step == "authority")
        assert said.state == "ok"
        assert f"O=Atoll certificate authority,CN=lungs, SHA-256 {colons}, signed the certificate" in said.said
        assert "also trusts" not in said.said


def test_a_second_authority_that_a_kit_trusts_is_named_too(
    kits: Callable[..., Path], tree: Tree, loaded: Load, tmp_path: Path
) -> None:
    folder = kits(free_port())
    provision(loaded(tree), folder, rotate=True)
    said = next(f for f in examine(Kit.read(folder / "north"), tmp_path) if f.step == "authority").said
    assert said.count("SHA-256") == 2
    assert "; ca.pem also trusts " in said


def test_a_server_has_the_authoritys_key_nowhere_near_its_kit(kits: Callable[..., Path], tmp_path: Path) -> None:
    folder, work = kits(free_port()), tmp_path / "work"
    found = apart(folder / "server", work)
    assert found.state == "warning"  # where the kits were made, or all parties are on one machine
    assert f"the authority's key is here: {folder / 'ca' / 'ca-key.pem'}, beside the kit" in found.said
    (folder / "ca").rename(tmp_path / "offline")
    key = tmp_path / "offline" / "ca-key.pem"
    assert apart(folder / "server", work).state == "ok"
    for place in (
        folder / "server" / "spare.pem",
        work / "old.key",
        work / "ca" / "any-name",
        work / "server" / "x.pem",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(key, place)
        found = apart(folder / "server", work)
        assert found.state == "problem"
        assert f"the authority's key is here: {place}" in found.said
        assert "--rotate-ca" in (found.remedy or "")
        elsewhere = apart(folder / "server", tmp_path / "elsewhere")
        assert elsewhere.state == ("problem" if place.is_relative_to(folder) else "ok")
        place.unlink()
    (folder / "server" / "another.pem").write_bytes((folder / "north" / "key.pem").read_bytes())
    assert apart(folder / "server", work).state == "ok"  # keys of others are not the authority's


def test_an_old_key_of_the_authority_counts_and_so_does_an_encrypted_one(
    kits: Callable[..., Path], tree: Tree, loaded: Load, tmp_path: Path
) -> None:
    folder = kits(free_port())
    provision(loaded(tree), folder, rotate=True)
    (folder / "ca").rename(tmp_path / "offline")
    (old,) = (tmp_path / "offline").glob("ca-key-*.pem")
    shutil.copy(old, folder / "server" / "kept.pem")
    assert apart(folder / "server", tmp_path / "work").state == "problem"
    (folder / "server" / "kept.pem").unlink()
    other = {"project": "lungs", "servers": [{"name": "server", "hosts": ["127.0.0.1"]}]}
    sealed = provision(
        ProjectConfig.model_validate(other), tmp_path / "sealed", ca_passphrase=lambda: b"long enough a phrase"
    )
    shutil.copy(sealed.folder / "ca" / "ca-key.pem", sealed.folder / "server" / "ca-key.pem")
    assert apart(sealed.folder / "server", tmp_path / "work").state == "problem"


def with_certificate(folder: Path, *, ca: bool, own_key: bool) -> None:
    """Give the server's kit a certificate of its authority that is an authority's, or the authority's own key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    signer = load_key((folder / "ca" / "ca-key.pem").read_bytes(), None, "ca")
    before = x509.load_pem_x509_certificate((folder / "server" / "certificate.pem").read_bytes())
    key = signer if own_key else load_key((folder / "server" / "key.pem").read_bytes(), None, "key")
    made = (
        x509.CertificateBuilder()
        .subject_name(before.subject)
        .issuer_name(before.issuer)
        .public_key(key.public_key())
        .serial_number(before.serial_number + 1)
        .not_valid_before(before.not_valid_before_utc)
        .not_valid_after(before.not_valid_after_utc)
    )
    for extension in before.extensions:
        value, critical = extension.value, extension.critical
        if isinstance(value, x509.SubjectKeyIdentifier):
            value = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        if ca and isinstance(value, x509.BasicConstraints):
            value = x509.BasicConstraints(ca=True, path_length=None)
        made = made.add_extension(value, critical=critical)
    (folder / "server" / "certificate.pem").write_bytes(pem_of(made.sign(signer, hashes.SHA256())))
    write_kit_file(folder / "server" / "key.pem", seal_key(key), private=True)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"ca": True, "own_key": False}, "its certificate is an authority's"),
        ({"ca": False, "own_key": True}, "its key is the authority's"),
    ],
)
def test_a_server_that_can_certify_keys_is_found_by_itself_and_by_its_sites(
    kits: Callable[..., Path], lie: dict[str, bool], words: str, tmp_path: Path
) -> None:
    folder = kits(free_port(), transport="tcp")
    with_certificate(folder, **lie)
    found = apart(folder / "server", tmp_path)
    assert (found.state, found.said) == ("problem", f"server 'server': {words}")
    with serving(folder):
        at_site = apart(folder / "north", tmp_path)
    assert at_site.state == "problem"
    assert at_site.said.endswith(f": {words}, so that it certifies keys")
    assert "run no job there" in (at_site.remedy or "")


def test_a_server_whose_port_is_taken_or_list_is_damaged(kits: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        folder = kits(port)

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        (folder / "server" / "revoked.crl").write_text("nothing")
        found = problems(folder / "server")
        thread.join(10)
    assert set(found) == {"port", "revocation list"}
    assert f"cannot open 127.0.0.1:{port}" in found["port"].said
    assert "copy revoked.crl" in (found["revocation list"].remedy or "")


def test_a_full_disk(tmp_path: Path) -> None:
    found = check_disk(tmp_path / "not" / "there", room=1 << 62)
    assert found.state == "problem"
    assert str(tmp_path) in found.said


def test_the_command(kits: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = kits(free_port())
    with serving(folder):
        assert run(["doctor", str(folder / "north"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["role"], told["name"]) == (True, "site", "north")
    with taken_port() as (held, port):
        del held
        shutil.rmtree(folder)
        folder = kits(port)
        assert run(["doctor", str(folder / "north"), "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert run(["doctor", str(folder / "north")]) == 1
        assert "problem" in capsys.readouterr().out
    assert [f["step"] for f in told["findings"] if f["state"] == "problem"] == ["port"]
    assert run(["doctor", str(folder), "--json"]) == 2
    assert "is not a startup kit" in json.loads(capsys.readouterr().out)["error"]["what"]


def test_without_a_kit_it_is_about_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extras"]["net"] is True
