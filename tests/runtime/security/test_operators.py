"""What an operator sees: all sites of the project with when they were last there, why a job waits, and /healthz and /metrics."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.core.errors import ConfigError
from atoll.runtime.daemon.monitor import Sample, serve_monitor, text_of
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.server import site_session as seeing
from tests.support.hostile import Besieged, Kits, besieged, good_site, played
from tests.support.submissions import job, submitted
from tests.support.waiting import until

PROJECT = {
    "project": "lungs",
    "servers": [{"name": "server", "hosts": ["127.0.0.1"]}],
    "sites": [{"name": "north", "org": "North"}, {"name": "south", "org": "South"}],
    "admins": [{"name": "anna", "org": "university"}, {"name": "otto", "org": "university"}],
}


@pytest.fixture
def own(tmp_path: Path) -> tuple[Kits, Callable[[str], None]]:
    """A project that a test may change: its kits, and how a party is revoked."""
    project = ProjectConfig.model_validate(PROJECT)
    provision(project, tmp_path / "ours")

    def revoke(name: str) -> None:
        provision(project, tmp_path / "ours", revoke=[name])

    return lambda path: Kit.read(tmp_path / path), revoke


@pytest.mark.parametrize("carrier", ["tcp", "grpc"])
def test_every_site_of_the_project_is_listed_with_when_it_was_last_there(
    carrier: str, own: tuple[Kits, Callable[[str], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, revoke = own
    monkeypatch.setattr(seeing, "_EVERY", 0.05)

    async def body() -> None:
        begin = time.time()
        async with besieged(kit, tmp_path, carrier) as siege, siege.admin() as admin:
            assert [(row["site"], row["seen"]) for row in await admin.sites()] == [("north", None), ("south", None)]
            async with good_site(siege.kit("north"), siege.address, tmp_path / "north"):
                await until(lambda: siege.server._seen.of("north") is not None)
                file = siege.folder / "seen.json"
                await until(lambda: file.is_file() and "north" in file.read_text())  # so a kill forgets nothing
                north, south = await admin.sites()
                assert (north["connected"], north["org"], south["connected"]) == (True, "North", False)
                assert begin <= north["seen"] <= time.time()
            await until(lambda: "north" not in siege.server._dispatcher.sessions)
            left = time.time()
        async with besieged(kit, tmp_path, carrier) as siege, siege.admin() as admin:
            north, south = await admin.sites()  # as a new process knows it
            assert (north["connected"], north["org"], south["seen"]) == (False, "North", None)
            assert begin <= north["seen"] <= left
            made = await submitted(siege, job())
            await reason(siege, made, "waits for site 'north' to connect")
            revoke("north")
            siege.server._dispatcher.know()
            await reason(siege, made, "waits for site 'north' to connect; the certificate of site 'north' was revoked")
            (kit("ours/server").folder / "project-sites.txt").write_text(
                "north gone\nsouth\n"
            )  # as provision writes it
            assert [(row["site"], row["revoked"]) for row in await admin.sites()] == [("north", True), ("south", False)]

    played(body)


async def reason(siege: Besieged, name: str, words: str) -> None:
    async with siege.admin() as admin:
        async for found in admin.watch(name):
            if found[0]["reason"] == words:
                return


async def got(address: str, request: bytes = b"GET /metrics HTTP/1.1\r\n\r\n") -> tuple[str, str]:
    """The status and the body of an answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head.partition("\r\n")[0].partition(" ")[2], body


def parsed(text: str) -> dict[str, float]:
    """The samples of Prometheus' text format, by name and labels; it holds the text to the format."""
    samples: dict[str, float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("#"):
            found = re.fullmatch(r"# (HELP [a-z_]+ .+|TYPE ([a-z_]+) (counter|gauge))", line)
            assert found is not None, line
            if found[2]:
                assert found[2] not in typed, "all samples of a metric stand together"
                typed.add(found[2])
            continue
        found = re.fullmatch(
            r'([a-z_]+)((?:\{[a-z_]+="(?:[^"\\]|\\.)*"(?:,[a-z_]+="(?:[^"\\]|\\.)*")*\})?) (\S+)', line
        )
        assert found is not None, line
        assert found[1] in typed
        assert found[1] + found[2] not in samples
        samples[found[1] + found[2]] = float(found[3])
    return samples


def test_the_text_is_prometheus() -> None:
    made = [
        Sample("a_total", 2, "Things.", {"site": 'n"o\\r\nth', "b": ""}),
        Sample("a_total", math.inf, "Things."),
        Sample("b", True, "Whether."),
    ]
    assert text_of(made) == (
        '# HELP a_total Things.\n# TYPE a_total counter\na_total{site="n\\"o\\\\r\\nth",b=""} 2.0\na_total +Inf\n'
        "# HELP b Whether.\n# TYPE b gauge\nb 1.0\n"
    )
    assert parsed(text_of(made))["b"] == 1.0
    assert text_of([]) == ""


def free() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.network
@pytest.mark.both_carriers
def test_health_and_metrics_of_a_server_and_a_site(kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        at, there = free(), free()
        async with besieged(kit, tmp_path, metrics=at) as siege, siege.admin() as admin:
            made = await submitted(siege, job())
            assert parsed((await got(at))[1])['atoll_jobs{state="queued"}'] == 1.0
            async with good_site(siege.kit("north"), siege.address, tmp_path / "north", metrics=there):
                await admin.wait(made)
                found = parsed((await got(at))[1])
                assert found['atoll_jobs{state="finished"}'] == 1.0
                assert found['atoll_site_connected{site="north"}'] == 1.0
                assert found['atoll_site_connected{site="south"}'] == 0.0
                assert found['atoll_received_bytes_total{site="north"}'] > 1000
                assert abs(found['atoll_site_last_seen_seconds{site="north"}'] - time.time()) < 60
                assert found["process_cpu_seconds_total"] > 0
                assert await got(there, b"GET /healthz HTTP/1.0\r\n\r\n") == ("200 OK", "ok\n")
                assert parsed((await got(there))[1])["atoll_connected"] == 1.0
            assert await got(at, b"GET /healthz?x HTTP/1.1\r\nHost: x\r\n\r\n") == ("200 OK", "ok\n")
            assert (await got(at, b"GET /jobs HTTP/1.1\r\n\r\n"))[0] == "404 Not Found"
            assert (await got(at, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == "405 Method Not Allowed"
            assert await got(at, b"\0" * 20_000) == ("", "")
            assert await siege.serves()
            monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5}))
            sick = await got(at, b"GET /healthz HTTP/1.1\r\n\r\n")
            assert sick == ("503 Service Unavailable", "5 bytes are free at server, fewer than 67108864\n")

    played(body)


def test_nothing_is_served_unless_it_is_asked_for_and_a_taken_port_is_named() -> None:
    async def body() -> None:
        async with serve_monitor(None, str, list) as at:
            assert at == ""
        async with serve_monitor("127.0.0.1:0", lambda: "no", list) as at:
            assert (await got(at, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == "503 Service Unavailable"
            with pytest.raises(ConfigError, match=f"cannot listen at {at}"):
                async with serve_monitor(at, str, list):
                    pass

    asyncio.run(body())
