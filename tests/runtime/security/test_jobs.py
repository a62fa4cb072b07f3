"""Jobs of ill will: bundles that nobody may have made, servers that send a site what no admin has signed, and sites that send an engine garbage."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import stat
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import JobError
from atoll.core.message import encode
from atoll.core.requests.wire import unpack_error
from atoll.engines.link import LinkClosed
from atoll.runs import yaml
from atoll.runtime.bundle import File, Manifest, make_bundle, sign
from atoll.runtime.line import Channel, Line, Settings, Switchboard
from atoll.runtime.provision import Kit
from atoll.runtime.transport import transport
from tests.support.carriers import carrier
from tests.support.forging import META, any_archive, forged
from tests.support.forging import opened as members_of
from tests.support.hostile import Besieged, Kits, besieged, good_site, kit_over, played
from tests.support.waiting import read_files, until

JOB = yaml.dump(
    {"name": "evil", "job": "program", "program": "evil:run", "source": "source", "sites": ["north"]}
).encode()
CODE = b"open('OWNED', 'w').close()\nasync def run(fed): pass\n"
Log = pytest.LogCaptureFixture
GOOD = [("job.yaml", JOB), ("source/evil.py", CODE)]


@pytest.fixture(autouse=True)
def logged(caplog: Log) -> None:
    caplog.set_level(logging.INFO, "atoll.runtime")


# ---------------------------------------------------------------------- bundles


def altered(bundle: bytes) -> bytes:
    """Another program in the place of the signed one, with a manifest and sums that fit it."""
    files = dict(members_of(bundle))
    files["source/evil.py"] = CODE + b"# and more\n"
    manifest = Manifest.of([(name, content) for name, content in files.items() if not name.startswith(".atoll")])
    files[".atoll/manifest.json"] = manifest.text()
    return any_archive(files.items())


def swapped(bundle: bytes) -> bytes:
    """The signed manifest, and another file."""
    return any_archive(
        [(n, CODE.replace(b"OWNED", b"owned") if n.endswith("evil.py") else c) for n, c in members_of(bundle)]
    )


def bomb(kit: Kit) -> bytes:
    """Well signed, and then packed: a file of 300 MiB of nothing in 300 KiB."""
    content = bytes(300 << 20)
    text = Manifest((File.of("job.yaml", JOB), File.of("source/z.bin", content))).text()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        head = zip(META, (text, sign(text, kit.credentials()), kit.credentials().certificate), strict=True)
        for name, part in (*head, ("job.yaml", JOB), ("source/z.bin", content)):
            archive.writestr(name, part)
    return made.getvalue()


def large(kit: Kit) -> bytes:
    """Well signed: a file of 65 MiB of nothing."""
    return forged([("job.yaml", JOB), ("source/z.bin", bytes(65 << 20))], kit.credentials())


def liar(kit: Kit) -> bytes:
    """A header that says less than there is."""
    made = forged([("job.yaml", JOB), ("source/z.bin", bytes(1 << 20))], kit.credentials())
    return made.replace((1 << 20).to_bytes(4, "little"), (10).to_bytes(4, "little"))


def by(kit: Kit) -> Callable[[str], bytes]:
    return lambda path: forged(
        [("job.yaml", JOB), (path, CODE)] if path > "job" else [(path, CODE), ("job.yaml", JOB)], kit.credentials()
    )


def bad_bundles(kit: Kits) -> dict[str, tuple[bytes, str]]:
    anna = kit("ours/anna")
    good = forged(GOOD, anna.credentials())
    other = yaml.dump({"name": "evil", "model": "evil", "nonsense": 1}).encode()
    mine = by(anna)
    return {
        "nothing": (b"", "it is not an archive"),
        "noise": (np.random.default_rng(0).bytes(5000), "it is not an archive"),
        "cut short": (good[:-40], "it is not an archive"),
        "one bit": (good[:-900] + bytes([good[-900] ^ 1]) + good[-899:], r"\w"),
        "altered, manifest and all": (altered(good), "the signature is not by admin 'anna'"),
        "altered below the manifest": (swapped(good), "is not the file that was signed"),
        "signed by a site": (forged(GOOD, kit("ours/north").credentials()), "has signed a job 'program' with code"),
        "signed by an auditor": (forged(GOOD, kit("ours/vera").credentials()), "for role 'auditor' cannot act as admin"),
        "signed by the server": (forged(GOOD, kit("ours/server").credentials()), "for role 'server' cannot act as admin"),
        "of another authority": (forged(GOOD, kit("foreign/anna").credentials()), "no authority of this project"),
        "signed with an expired key": (forged(GOOD, kit("expired/anna").credentials()), "is valid from"),
        "another admin's": (forged(GOOD, kit("ours/otto").credentials()), "signed by admin 'otto' of 'university'"),
        "up and away": (mine("source/../../evil.py"), "must lie inside its folder"),
        "to the root": (mine("/tmp/evil.py"), "must lie inside its folder"),
        "of another system": (mine("source\\..\\evil.py"), "is not allowed"),
        "a device": (mine("source/aux.py"), "some systems take it for something else"),
        "hidden": (mine("source/.ssh/authorized_keys"), "hidden files"),
        "twice": (forged([*GOOD, ("source/evil.py", CODE)], anna.credentials()), "it is there already|out of order|appears twice"),
        "a bomb": (bomb(anna), "compressed, or overlap"),
        "a large file": (large(anna), "and 67108864 are allowed"),
        "a header that lies": (liar(anna), r"\w"),
        "a job that is none": (forged([("job.yaml", b"\xff\xfe")], anna.credentials()), "not text in UTF-8"),
        "a job without terms": (forged([("job.yaml", b"patience: [1]\n")], anna.credentials()), "patience"),
        "laughter": (forged([("job.yaml", laughter())], anna.credentials()), "with its aliases expanded"),
        "a snake": (forged([("job.yaml", b"name: &a [*a]")], anna.credentials()), "or contains itself"),
        "a tower": (forged([("job.yaml", b"name: " + b"[" * 20_000)], anna.credentials()), "nested too deeply"),
        "what it says later": (forged([("job.yaml", other)], anna.credentials(), manifest=Manifest((File.of("job.yaml", JOB),))), "is not the file"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def bundles(folder: Path) -> dict[str, tuple[bytes, str]]:
    """What is wrong with it -> a bundle, and words of the error."""
    return bad_bundles(lambda path: Kit.read(folder / path))


def laughter() -> bytes:
    """A YAML of nine lines that would be a billion words."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    return ("\n".join(lines) + "\nname: *a8\n").encode()


@pytest.mark.both_carriers
def test_a_bundle_that_must_not_be_opened_is_refused_at_the_door(
    kit: Kits, bundles: dict[str, tuple[bytes, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            for name, (bundle, words) in bundles.items():
                caplog.clear()
                told = await siege.ask("anna", {"op": "submit", "bundle": bundle, "token": name})
                require(told["error"], name, words)
                assert any(r.levelno == logging.WARNING and "admin 'anna'" in r.getMessage() for r in caplog.records), (
                    name
                )
            assert await admin.jobs() == []
            good = await siege.ask(
                "anna", {"op": "submit", "bundle": forged(GOOD, kit("ours/anna").credentials()), "token": "t"}
            )
            assert good["job"]["state"] == "queued"
            again = await siege.ask(
                "anna", {"op": "submit", "bundle": forged(GOOD, kit("ours/anna").credentials()), "token": "t"}
            )
            assert again["job"]["job"] == good["job"]["job"]  # said twice is once
            assert list((siege.folder / "bundles").iterdir())
        assert not list(tmp_path.rglob("evil.py"))

    played(body)


def require(packed: Any, name: str, words: str) -> None:
    """What was told is an error with these words."""
    told = str(unpack_error(packed))
    assert re.search(words, told), (name, told)


# ---------------------------------------------------------------------- a server of ill will


class Tyrant:
    """Whoever has a server's kit, and writes frames to sites by hand."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[Line] = asyncio.Queue()
        self.said: list[Any] = []
        self.address = ""
        self.channel: Channel | None = None
        self.line: Line | None = None

    async def greeted(self) -> None:
        """Take the next line, and its greeting."""
        self.line = await self.lines.get()
        opened: asyncio.Queue[Channel] = asyncio.Queue()
        self.line.on_open = opened.put_nowait
        self.channel = await opened.get()
        assert (await self.channel.recv())["op"] == "hello"
        self.said.clear()

    async def says(self, *frames: Any) -> None:
        """Send frames."""
        assert self.channel is not None
        for frame in frames:
            await self.channel.send(frame)

    async def hears(self, op: str) -> Any:
        """The next frame of a kind."""
        assert self.channel is not None
        while True:
            frame = await self.channel.recv()
            self.said.append(frame)
            if frame["op"] == op:
                return frame


@contextlib.asynccontextmanager
async def tyrant(kit: Kits) -> AsyncIterator[Tyrant]:
    made = Tyrant()
    board = Switchboard(made.lines.put_nowait, Settings(heartbeat=None))
    listener = await transport(carrier()).listen("127.0.0.1:0", kit("ours/server").credentials(), board.accept)
    made.address = listener.address
    try:
        yield made
    finally:
        await board.close(within=0.1)
        await listener.close()


BAD_ORDERS: list[Any] = [
    None, 7, [], {}, {"op": "offer"}, {"op": "stop", "job": 5}, {"op": "deploy", "job": ["1"], "attempt": 1, "bundle": b""},
]  # fmt: skip
"""They end the line: with such a server nothing can be agreed."""

NO_ORDERS: list[Any] = [
    {"op": "exec", "job": "1", "command": "true"}, {"op": "offer", "job": "1"},
    {"op": "offer", "job": "1", "resources": {"cpus": 1.0}, "ticket": "x"},
    {"op": "stop", "job": "../..", "attempt": 1, "end": True}, {"op": "stop", "job": "/etc", "attempt": None, "end": True},
    {"op": "release", "job": "nobody"}, {"op": "deploy", "job": "1", "attempt": 1, "bundle": 10**11},
    {"op": "deploy", "job": "1", "attempt": "../../x", "bundle": b"PK"}, {"op": "deploy", "job": "1"},
]  # fmt: skip
"""They are not carried out."""


@pytest.mark.both_carriers
def test_a_site_runs_nothing_that_no_admin_has_signed(
    kit: Kits, bundles: dict[str, tuple[bytes, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is the machine in the middle between admins and sites; sites look for themselves."""

    async def body() -> None:
        async with (
            tyrant(kit) as server,
            good_site(kit_over(kit("ours/north"), carrier()), server.address, tmp_path) as site,
        ):
            await server.greeted()
            for frame in BAD_ORDERS:
                await server.says(frame)
                await server.greeted()  # the line was ended, and there is a new one
            await server.says(*NO_ORDERS)
            offer = {"op": "offer", "job": "1", "resources": {"cpus": 1.0}, "ticket": 3}
            await server.says({**offer, "job": "../../up"}, {**offer, "resources": {"cpus": float("nan")}})
            for _ in range(2):
                assert (await server.hears("offered"))["ok"] is False
            attempts = 0
            for name, (bundle, words) in bundles.items():
                if name in (
                    "another admin's",
                    "a job that is none",
                    "a job without terms",
                    "laughter",
                    "a snake",
                    "a tower",
                ):
                    continue  # of an admin, and so theirs to answer for; what cannot be read fails in the job's own process
                attempts += 1
                await server.says(
                    offer, {"op": "deploy", "job": "1", "attempt": attempts, "bundle": bundle, "revoked": b""}
                )
                assert (await server.hears("offered"))["ok"] is True, name
                ended = await server.hears("exited")
                assert ended["code"] is None
                require(ended["error"], name, words)
                await server.says({"op": "release", "job": "1"})
            assert not any(frame["op"] == "deployed" for frame in server.said)
            # What was not reserved is not begun, however well it is signed.
            good = forged(GOOD, kit("ours/anna").credentials())
            await server.says({"op": "deploy", "job": "2", "attempt": 1, "bundle": good, "revoked": b""})
            assert "nothing is reserved" in (await server.hears("exited"))["error"]["what"]
            # Channels that nobody has asked for are closed.
            assert server.line is not None
            stray = server.line.open("job/1/1")
            with pytest.raises(LinkClosed, match="there is no such attempt here"):
                await stray.recv()
            await until(lambda: site._manager.held == {})  # the last release is carried out behind what it releases
        assert not list(tmp_path.rglob("OWNED"))
        assert not list(tmp_path.rglob("evil.py"))

    played(body)
    assert "attempt 1: " in caplog.text


@pytest.mark.both_carriers
def test_a_site_runs_a_signing_once(kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an admin has wanted once is no licence for ever: a server cannot begin it as another job, nor after its end."""

    async def none(*_: Any, **__: Any) -> Any:
        raise JobError("it would have begun", where="site", remedy="a test")

    monkeypatch.setattr("atoll.runtime.site.attempt.launch", none)
    credentials = kit("ours/anna").credentials()
    first, second = (make_bundle(b"name: a\n", None, credentials) for _ in range(2))
    begins = "it would have begun"

    async def body() -> None:
        async with (
            tyrant(kit) as server,
            good_site(kit_over(kit("ours/north"), carrier()), server.address, tmp_path) as site,
        ):
            await server.greeted()
            for job, attempt, bundle, words in (
                ("1", 1, first, begins),
                ("1", 2, first, begins),  # the next attempt, or the job resumed
                ("2", 1, first, "its bundle ran here as job 1 already"),
                ("1", 3, second, "the job has run another bundle here"),
                ("3", 1, second, begins),  # a clone is signed anew
                ("1", 4, first, "the job has ended here for good"),
            ):
                if (job, attempt) == ("1", 4):
                    await server.says({"op": "stop", "job": "1", "attempt": 2, "end": True})
                offer = {"op": "offer", "job": job, "resources": {"cpus": 1.0}, "ticket": 3}
                await server.says(
                    offer, {"op": "deploy", "job": job, "attempt": attempt, "bundle": bundle, "revoked": b""}
                )
                assert (await server.hears("offered"))["ok"] is True
                ended = await server.hears("exited")
                assert words in ended["error"]["what"], (job, attempt)
                await server.says({"op": "release", "job": job})
            assert site._register.over == {"1"}

    played(body)


# ---------------------------------------------------------------------- real processes

PROGRAM = """
import os, threading
from pathlib import Path
import numpy as np
import atoll

def inside():
    links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
    found = [name for name, value in os.environ.items() if "canary" in value]
    print("secrets", sorted(found), flush=True)
    print("given", os.environ.get("ATOLL_JOB_REGION"), flush=True)
    print("sockets", *sorted(link for link in links if link.startswith("socket:")), flush=True)
    print("kits", [link for link in links if ".pem" in link or "kits" in link], flush=True)

@atoll.task
def step(island, message):
    if message["inside"]:
        inside()
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    return {"sum": atoll.Sum(np.ones(3))}

async def run(fed, gate=""):
    inside()
    first = await fed.sum(fed.parties, step, {"inside": True, "gate": ""}, at=1)
    second = await fed.sum(fed.parties, step, {"inside": False, "gate": gate}, at=2)
    return {"x": first["sum"] + second["sum"]}
"""


def write(folder: Path, **settings: Any) -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "walking.py").write_text(PROGRAM, encoding="utf-8")
    tree = {"source": "code", "job": "program", "program": "walking:run", "resources": {"cpus": 1.0}, **settings}
    (folder / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    return folder


async def saboteur(siege: Besieged, say: Callable[[Any], list[Any]]) -> Line:
    """A site whose front does as it should, and whose job process does not."""
    tasks: set[asyncio.Task[None]] = set()

    async def job(channel: Channel) -> None:
        with contextlib.suppress(LinkClosed):
            hello = {"parties": ["south"], "sizes": np.array([5]), "card": None}
            await channel.send({"hello": hello})
            await channel.recv()
            await channel.send({"ready": True})
            while True:
                order = await channel.recv()
                for said in say(order):
                    await channel.send(said)

    def opened(channel: Channel) -> None:
        tasks.add(asyncio.create_task(job(channel)))

    line = await siege.line("south", opened)
    control = line.open("control")
    await control.send({"op": "hello", "holding": []})

    async def front() -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                order = await control.recv()
                if order["op"] == "offer":
                    await control.send(
                        {"op": "offered", "job": order["job"], "ticket": order["ticket"], "ok": True, "why": ""}
                    )
                elif order["op"] == "deploy":
                    await control.send({"op": "deployed", "job": order["job"], "attempt": order["attempt"]})
                elif order["op"] == "stop":
                    end = {"code": "nothing", "error": {"kind": [], "what": 5}}
                    await control.send({"op": "exited", "job": order["job"], "attempt": order["attempt"], **end})

    tasks.add(asyncio.create_task(front()))
    line.on_lost.append(lambda error: [task.cancel() for task in tasks] and None)
    return line


@pytest.mark.network
@pytest.mark.anew
@pytest.mark.both_carriers
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at processes as Linux shows them")
def test_garbage_from_one_site_ends_its_job_and_no_other_and_a_job_knows_no_secret(
    kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ATOLL_KIT", "ATOLL_PASSPHRASE", "ATOLL_CA_PASSPHRASE", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("ATOLL_JOB_REGION", "west")
    gate = tmp_path / "gate"
    gate.touch()

    def garbage(order: Any) -> list[Any]:
        return [{"op": "folded", "id": "x", "party": float("nan")}] if order.get("op") == "launch" else []

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, good_site(siege.kit("north"), siege.address, tmp_path / "north"):
            line = await saboteur(siege, garbage)
            async with siege.admin() as admin:
                long = await admin.submit(
                    write(tmp_path / "a", name="long", sites=["north"], arguments={"gate": str(gate)})
                )
                bad = await admin.submit(write(tmp_path / "b", name="bad", sites=["north", "south"]))
                ended = await admin.wait(bad["job"])
                assert ended["state"] == "failed"
                assert "sent a malformed frame" in ended["error"]["what"]
                assert "site south" in ended["error"]["where"]
                assert (await admin.job(long["job"]))["state"] == "running"
                ours = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
                gate.unlink()
                assert (await admin.wait(long["job"]))["state"] == "finished"
                said = [(node, text) async for _, node, text in admin.logs(long["job"])]
                _look(said, ours)
                events = (await admin.one("events"))["events"]
            await line.close(within=0.1)
            _no_secrets(kit, tmp_path, [str(events), str(said), caplog.text])

    played(body)
    for node in ("server", "north"):
        folder = tmp_path / ("server" if node == "server" else "north/site")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


LONG_ERROR = """
import os

if f"{os.sep}site{os.sep}" in os.getcwd() + os.sep:
    raise ValueError("x" * (17 << 20))


async def run(fed):
    return {}
"""


@pytest.mark.both_carriers
@pytest.mark.slow
def test_an_error_too_long_to_be_passed_on_ends_its_job_and_cuts_no_line(
    kit: Kits, tmp_path: Path, caplog: Log
) -> None:
    place = write(tmp_path / "job", name="long", sites=["north"])
    (place / "code" / "walking.py").write_text(LONG_ERROR, encoding="utf-8")

    async def body() -> None:
        async with (
            besieged(kit, tmp_path) as siege,
            good_site(siege.kit("north"), siege.address, tmp_path / "north"),
            siege.admin() as admin,
        ):
            ended = await admin.wait((await admin.submit(place))["job"])
        assert (ended["state"], ended["attempts"]) == ("failed", 1)
        assert "'walking:run' cannot be imported: «…»" in ended["error"]["what"]  # its words stay in the site's log
        assert len(ended["error"]["what"]) <= 4000

    played(body)
    assert "more than max_bytes" not in caplog.text


EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1;1H\x1b[32mfinished\x1b[0m"


@pytest.mark.both_carriers
def test_words_of_a_site_and_of_an_auditor_move_nobodys_terminal(kit: Kits, tmp_path: Path, caplog: Log) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            line = await siege.line("south")
            control = line.open("control")
            await control.send({"op": "hello", "holding": []})
            job = (await admin.submit(write(tmp_path / "job", name="bad", sites=["south"])))["job"]
            offer = await control.recv()
            refusal = {"op": "offered", "job": job, "ticket": offer["ticket"], "ok": False, "never": False, "why": EVIL}
            await control.send(refusal)
            found = await admin.job(job)
            while "owned" not in found["reason"]:
                found = await admin.job(job)
            assert (await siege.ask("vera", {"op": "logs", "job": EVIL}))["error"]["what"]
            asked = [event.job for event in siege.server._store.events()]
            assert any("owned" in text for text in asked)
            assert not any("\x1b" in text for text in [found["reason"], caplog.text, *asked])
            await line.close(within=0.1)

    played(body)


def served(siege: Besieged) -> int:
    """Requests of people that the server is at."""
    return sum(task.get_coro().__name__ == "_person" for task in siege.server._tasks)  # type: ignore[union-attr]


@pytest.mark.both_carriers
def test_who_waits_for_what_never_comes_and_goes_is_forgotten(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            job = (await admin.submit(write(tmp_path / "job", name="over", sites=["south"])))["job"]
            await admin.abort(job)
            seen = (await admin.one("jobs", job=job))["seen"]
            line = await siege.line("vera")
            for _ in range(40):
                await line.open("request").send({"op": "jobs", "job": job, "seen": seen})
            await until(lambda: served(siege) == 40)
            await line.close(within=0.1)
            await until(lambda: served(siege) == 0)

    played(body)


def _look(said: list[tuple[str, str]], ours: set[str]) -> None:
    """What both processes of the job have found around them."""
    for node in ("server", "north"):
        words = [text for who, text in said if who == node]
        assert "secrets []" in words
        assert "given west" in words
        assert "kits []" in words
        sockets = next(text for text in words if text.startswith("sockets")).split()[1:]
        assert sockets
        assert not ours & set(sockets)  # no connection of the front's, and not its port


def _no_secrets(kit: Kits, folder: Path, texts: list[str]) -> None:
    """Nothing that was written, kept or told holds a key or what opens one."""
    keys = [kit(f"ours/{name}").bytes_of("key.pem").split(b"\n")[1] for name in ("server", "north", "south", "anna")]
    written = list(read_files(folder).values())
    assert len(written) > 10
    for content in (*written, *(text.encode() for text in texts), encode(texts)):
        assert not any(key in content for key in keys)
        assert b"canary" not in content.replace(b'"canary" in value', b"")
