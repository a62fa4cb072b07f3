"""What the server's operator changes while it runs, and fronts that are refused: in one process, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.core.errors import ConfigError, IdentityError
from atoll.runtime.admin import Admin
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.provision.project import PartyConfig
from atoll.runtime.resources import Resources
from atoll.runtime.server import site_session
from atoll.runtime.server.server import Server
from atoll.runtime.site.neighbours import Neighbours
from atoll.runtime.site.site import Site
from tests.support.front_toys import write_job

TRANSPORTS = ["tcp", "grpc"]


def project(transport: str) -> ProjectConfig:
    """A server, a site and a person."""
    server = {"name": "server", "hosts": ["127.0.0.1"], "listen": "127.0.0.1"}
    site, admin = {"name": "north", "org": "North"}, {"name": "anna", "org": "Lab"}
    return ProjectConfig.model_validate(
        {"project": "p", "servers": [server], "sites": [site], "admins": [admin], "transport": transport}
    )


class Fronts:
    """A server, and sites that are started with its kits."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.folder, self.project = folder, project(transport)
        provision(self.project, folder / "kits")
        shutil.copytree(folder / "kits" / "server", folder / "running")  # where the operator has put it
        self.address = ""

    def kit(self, name: str) -> Kit:
        return Kit.read(self.folder / "kits" / name)

    async def site(self, place: str, kit: Kit) -> tuple[asyncio.Task[None], asyncio.Event]:
        """Start one; it is connected when this returns."""
        connected = asyncio.Event()
        site = Site(kit, {}, self.folder / place, Resources(1.0, 0, 0), server=self.address)
        task = asyncio.create_task(site.serve(lambda _: connected.set()))
        waiting = asyncio.create_task(connected.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done()
        return task, connected

    async def __aenter__(self) -> Fronts:
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._server = Server(Kit.read(self.folder / "running"), self.folder / "server", address="127.0.0.1:0")
        self._serving = asyncio.create_task(self._server.serve(listening.set_result))
        self.address = await listening
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})


@contextlib.asynccontextmanager
async def fronts(folder: Path, transport: str) -> AsyncIterator[Fronts]:
    async with asyncio.timeout(60), Fronts(folder, transport) as made:
        yield made


async def waits(admin: Admin, job: str, why: str) -> None:
    """Until a job waits for that."""
    async for found in admin.watch(job):
        if found[0]["reason"] == why:
            return


async def connected_sites(admin: Admin) -> list[str]:
    return [site["site"] for site in (await admin.one("sites"))["sites"] if site["connected"]]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_of_two_processes_with_one_kit_the_first_stays_and_the_attempt_is_on_record(
    transport: str, tmp_path: Path
) -> None:
    async def body() -> None:
        async with fronts(tmp_path, transport) as here, Admin(here.kit("anna"), here.address) as admin:
            first, _ = await here.site("one", here.kit("north"))
            with pytest.raises(IdentityError, match="another process uses this kit") as found:
                await Site(here.kit("north"), {}, tmp_path / "two", Resources(1.0, 0, 0), server=here.address).serve()
            assert found.value.exit_code == 11
            assert "a kit of its own" in str(found.value.remedy)
            assert await connected_sites(admin) == ["north"]
            assert not first.done()
            first.cancel()
            await asyncio.wait({first})
            events = [event async for event in admin.events()]
            (second,) = [event for event in events if event["what"] == "second process"]
            assert second["who"] == "site 'north' of 'North'"
            assert second["details"]["refused"] is True
            came = [event["details"]["address"] for event in events if event["what"] == "connected"]
            left = [event for event in events if event["what"] == "left" and event["who"] == second["who"]]
            assert second["details"]["first"] in came
            assert second["details"]["second"] not in came
            for address in (*came, second["details"]["second"]):
                assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
            assert [event["details"]["address"] for event in left] == [second["details"]["first"]]

    asyncio.run(body())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_revoked_party_is_cut_off_and_told_why(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_session, "EVERY", 0.02)

    async def body() -> None:
        async with fronts(tmp_path, transport) as here:
            site, _ = await here.site("one", here.kit("north"))
            provision(here.project, here.folder / "kits", revoke=["north"])
            shutil.copy(here.kit("server").revoked_file, here.folder / "running")
            with pytest.raises(IdentityError, match=r"site 'north' of 'North' is refused: its .* was revoked") as found:
                await site
            assert str(found.value.remedy).endswith("atoll provision PROJECT --renew north")
            async with Admin(here.kit("anna"), here.address) as admin:
                events = (await admin.one("events"))["events"]
                assert await connected_sites(admin) == []
            cut = [event for event in events if event["what"] == "cut"]
            assert [(event["who"], event["details"]["why"]) for event in cut] == [
                ("site 'north' of 'North'", "its certificate was revoked")
            ]

            # A person too, in the middle of a question.
            async with Admin(here.kit("anna"), here.address) as admin:
                asking = asyncio.create_task(anext(admin.ask("jobs", seen=(await admin.one("jobs"))["seen"])))
                provision(here.project, here.folder / "kits", revoke=["anna"])
                shutil.copy(here.kit("server").revoked_file, here.folder / "running")
                with pytest.raises(OSError, match="was revoked"):
                    await asking
                with pytest.raises(IdentityError, match="was revoked"):
                    await admin.jobs()

    asyncio.run(body())


def test_all_sites_of_a_job_are_those_that_were_provisioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server that has met nobody yet; one that joins the project is waited for as soon as the list is there."""
    monkeypatch.setattr(site_session, "EVERY", 0.02)
    job = write_job(tmp_path / "job", sites="all", patience=60)

    async def body() -> None:
        async with fronts(tmp_path, "tcp") as here, Admin(here.kit("anna"), here.address) as admin:
            submitted = (await admin.submit(job))["job"]
            await waits(admin, submitted, "waits for site 'north' to connect")
            here.project.sites.append(PartyConfig(name="south", org="South"))
            provision(here.project, here.folder / "kits")
            shutil.copy(here.kit("server").sites_file, here.folder / "running")
            await waits(admin, submitted, "waits for sites 'north', 'south' to connect")
            site, _ = await here.site("one", here.kit("north"))
            await waits(admin, submitted, "waits for site 'south' to connect")
            # And whoever is revoked, sites hear of it: they may be connected to each other.
            heard: asyncio.Queue[bytes] = asyncio.Queue()
            monkeypatch.setattr(Neighbours, "learn", lambda _, signed: heard.put_nowait(signed))
            provision(here.project, here.folder / "kits", revoke=["south"])
            shutil.copy(here.kit("server").revoked_file, here.folder / "running")
            assert await heard.get() == here.kit("server").revoked_file.read_bytes()
            site.cancel()
            await asyncio.wait({site})

    asyncio.run(body())


def test_a_site_whose_certificate_ends_while_it_is_connected_stops_at_its_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import UTC, datetime, timedelta

    from atoll.runtime.transport import tcp
    from atoll.runtime.transport.sockets import own

    async def body() -> None:
        async with fronts(tmp_path, "tcp") as here:
            site, _ = await here.site("one", here.kit("north"))
            monkeypatch.setattr(tcp, "own", partial(own, now=datetime.now(UTC) + timedelta(days=400)))
            await here.__aexit__()  # a server that is started again
            with pytest.raises(IdentityError, match=r"site 'north' of 'North' expired on") as found:
                await site
            assert "atoll provision PROJECT --renew north" in str(found.value.remedy)

    asyncio.run(body())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_port_that_is_taken_is_told_of_once_with_what_to_do(transport: str, tmp_path: Path) -> None:
    provision(project(transport), tmp_path / "kits")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = Server(Kit.read(tmp_path / "kits" / "server"), tmp_path / "run", address=address)
        with pytest.raises(ConfigError, match="cannot listen at") as refused:
            asyncio.run(server.serve())
    assert refused.value.what == f"cannot listen at {address}: Address already in use"
    assert "stop the server or program that uses the port, or choose another" in (refused.value.remedy or "")


def test_a_site_takes_columns_with_commas_between_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of `weight,nope` the first is a column of the table; it is the second that the site does not have."""
    provision(project("tcp"), tmp_path / "kits")
    table = tmp_path / "rows.csv"
    table.write_text("patient,weight,y\nu1,70,0\nu2,80,1\n", encoding="utf-8")
    words = ["site", str(tmp_path / "kits" / "north"), "--data", str(table), "--target", "y"]
    for option in (["--drop", "weight,nope"], ["--drop", "weight", "--drop", "nope"]):
        assert run([*words, *option, "--folder", str(tmp_path / "run")]) != 0
        said = " ".join(capsys.readouterr().err.split())
        assert "no column 'nope'" in said
