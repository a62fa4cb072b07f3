"""Jobs whose roles speak from site to site, between real fronts: who connects to whom, who is refused, and what happens without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, IdentityError
from atoll.engines.link import LinkClosed
from atoll.runs import yaml
from atoll.runtime.identity import Credentials, peer_of
from atoll.runtime.line import Channel, LineLost
from atoll.runtime.poc import Poc
from atoll.runtime.provision import ProjectConfig, provision
from atoll.runtime.resources import Resources
from atoll.runtime.site.neighbours import Neighbours, partners
from atoll.runtime.site.site import Site
from atoll.runtime.transport import transport
from tests.support.certificates import Authority, authority
from tests.support.front_toys import World, played, write_data

TALK = """
import numpy as np

import atoll


@atoll.task
async def asks(island, peers, rounds):
    x = np.asarray(island.data.x)
    for _ in range(rounds):
        await peers.send("host", x)
        x = x + await peers.recv("host")
    island.state = x
    return x


@atoll.task
async def hosts(island, peers, rounds):
    own = np.asarray(island.data.x)
    for _ in range(rounds):
        await peers.send("guest", np.tanh(own * await peers.recv("guest")))
    return own


async def talk(fed, sites, rounds=30):
    state = await fed.restore({"heard": None, "sitting": 0})
    while state["sitting"] < 3:
        roles = {"guest": (sites[0], asks.with_args(rounds=rounds)), "host": (sites[1], hosts.with_args(rounds=rounds))}
        state = {"heard": (await fed.session(roles))["guest"], "sitting": state["sitting"] + 1}
        await fed.checkpoint(state)
    return {"x": state["heard"], "bytes": fed.bytes()}


talk.tasks = [asks, hosts]
"""


ONE_AT_A_TIME = asyncio.Lock()


def write_talk(folder: Path, sites: list[str], direct: bool) -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "talking.py").write_text(TALK, encoding="utf-8")
    tree = {"sites": sites, "arguments": {"sites": sites}, "direct": direct, "patience": 60.0}
    (folder / "job.yaml").write_text(
        yaml.dump({"name": "talk", "source": "code", "job": "program", "program": "talking:talk", **tree}),
        encoding="utf-8",
    )
    return folder


async def ran(world: World, folder: Path, sites: list[str], direct: bool) -> tuple[Any, Any, list[str]]:
    """The result of a job, the pairs of sites that spoke directly, and what the sites' logs said of it."""
    async with ONE_AT_A_TIME:  # modules of one name in several folders are no case of ours
        job = (await world.admin.submit(write_talk(folder / "job", sites, direct)))["job"]
    ended = await world.end(job)
    assert ended["state"] == "finished", ended
    await world.admin.result(job, folder / "result")
    manifest = json.loads((folder / "result" / "manifest.json").read_text(encoding="utf-8"))
    lines = [text async for _, node, text in world.admin.logs(job) if node in sites]
    return manifest["result"], manifest["engine"].get("direct"), [line for line in lines if "directly" in line]


@pytest.mark.slow
def test_jobs_speak_directly_where_they_can(tmp_path: Path) -> None:
    """The second site listens, the third under a name that its certificate does not hold: results and what is said are the same either way."""
    folder, data = tmp_path / "project", write_data(tmp_path / "project")
    data["site-3"] = data["site-2"]
    settings = Poc(folder, data).kit("site-3").folder / "kit.yaml"
    settings.write_text(yaml.dump({**yaml.read(settings), "direct": ["localhost"]}), encoding="utf-8")
    data["site-2"] = [*data["site-2"], "--direct", "127.0.0.1:0"]
    data["site-3"] = [*data["site-3"], "--direct", "localhost:0"]

    async def body(world: World) -> None:
        good, bad = ["site-1", "site-2"], ["site-1", "site-3"]
        through, direct, back = await asyncio.gather(
            ran(world, tmp_path / "through", good, False),
            ran(world, tmp_path / "direct", good, True),
            ran(world, tmp_path / "back", bad, True),
        )
        assert through[1:] == (None, [])
        assert direct[1:] == (["site-1 and site-2"], [])
        assert back[1] == []
        results = [found[0]["x"] for found in (through, direct, back)]  # the third site's rows are those of the second
        assert results[0] == results[1] == results[2]
        meters = [found[0]["bytes"] for found in (through, direct, back)]
        assert [meter["bytes_between"] > 0 for meter in meters] == [False, True, False]
        said = [meter["bytes_relayed"] + meter["bytes_between"] for meter in meters]
        assert said[0] == said[1] == said[2] > 0
        assert len(back[2]) == 1
        assert back[2][0].startswith("site 'site-3' is not reached directly, the server relays its messages: ")

    played(folder, body, data=data)


# ---------------------------------------------------------------------- who may connect


HERE = authority()
LIST = HERE.revocation_list()


def site(name: str, usage: str = "both", **more: Any) -> Credentials:
    return HERE.issue("site", name, usage=usage, **more)


@contextlib.asynccontextmanager
async def neighbours(carrier: str, credentials: Credentials, address: str | None = None) -> AsyncIterator[Neighbours]:
    made = Neighbours(credentials, carrier, address)
    made.learn(LIST)
    await made.listen()
    try:
        yield made
    finally:
        await made.close()


async def knocking(carrier: str, address: str, credentials: Credentials) -> None:
    """Connect as a site does; the pipe is closed once it stands."""
    pipe = await transport(carrier).dial(address, credentials, roles=("site",))
    try:
        await asyncio.wait_for(pipe.recv(), 5)  # the other end waits for a greeting: only a refusal comes
    finally:
        await pipe.close()


SOUTH = site("south")
REVOKED = site("revoked")
STRANGERS = {
    "a server": (HERE.issue("server", "server", usage="server"), ""),
    "an admin": (HERE.issue("admin", "anna"), "a certificate for role 'admin' cannot act as site"),
    "another project's site": (site("north", project="hearts"), "belongs to project 'hearts', not 'study'"),
    "another authority's site": (replace(Authority().issue("site", "north"), ca=HERE.pem), ""),
    "a revoked site": (REVOKED, "was revoked"),
}


@pytest.mark.parametrize("carrier", ["tcp", "grpc"])
@pytest.mark.parametrize(("stranger", "said"), STRANGERS.values(), ids=STRANGERS)
def test_strangers_are_refused(
    carrier: str, stranger: Credentials, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next good site is let in."""
    # What a stranger's program checks of itself first is its own business.
    module = "atoll.runtime.transport." + {"grpc": "rpc", "tcp": "tcp"}[carrier]
    monkeypatch.setattr(f"{module}.own", lambda credentials: peer_of(credentials.certificate))

    async def main() -> None:
        async with neighbours(carrier, SOUTH, "127.0.0.1:0") as south:
            south.learn(HERE.revocation_list(peer_of(REVOKED.certificate).serial, number=2))
            south.learn(LIST)  # an older issue lets nobody back in
            met: asyncio.Queue[Channel] = asyncio.Queue()
            south.on_open = met.put_nowait
            with pytest.raises((IdentityError, OSError), match=r"\w"):
                await knocking(carrier, south.address, stranger)
            async with neighbours(carrier, site("west")) as west:
                channel = await west.open("south", south.address, "direct/j/1")
                await channel.send({"x": 1})
                got = await met.get()
                assert (got.peer.name, got.name, await got.recv()) == ("west", "direct/j/1", {"x": 1})

    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        asyncio.run(main())
    if said:  # else TLS itself has refused
        assert any(said in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("carrier", ["tcp", "grpc"])
def test_a_site_that_listens_is_no_server(carrier: str) -> None:
    """Not even where its certificate names the server's own host; nor does a server, or another site, pass for the site that is meant."""

    async def main() -> None:
        posing = site("posing", dns=("server", "localhost"))
        async with neighbours(carrier, posing, "127.0.0.1:0") as there, neighbours(carrier, SOUTH) as south:
            with pytest.raises(IdentityError, match="a certificate for role 'site' cannot act as server"):
                await transport(carrier).dial(there.address, SOUTH, "server")
            with pytest.raises(IdentityError, match="site 'posing' of 'Posing' answers where site 'west' was meant"):
                await south.open("west", there.address, "direct/j/1")
            listener = await transport(carrier).listen(
                "127.0.0.1:0", HERE.issue("server", "server"), there._board.accept
            )
            with pytest.raises(IdentityError, match="a certificate for role 'server' cannot act as site"):
                await south.open("west", listener.address, "direct/j/1")
            await listener.close()
        async with (
            neighbours(carrier, site("plain", "client"), "127.0.0.1:0") as plain,
            neighbours(carrier, SOUTH) as south,
        ):
            with pytest.raises(IdentityError, match="no connection to"):  # its certificate was made for dialling only
                await south.open("plain", plain.address, "direct/j/1")

    asyncio.run(main())


def test_nobody_is_let_in_before_the_revocation_list_is_known() -> None:
    async def main() -> None:
        made = Neighbours(SOUTH, "tcp", "127.0.0.1:0")
        await made.listen()
        with pytest.raises((IdentityError, OSError), match="was revoked"):
            await knocking("tcp", made.address, site("west"))
        with pytest.raises(IdentityError, match="not signed by the project's authority"):
            made.learn(Authority().revocation_list())
        await made.close()

    asyncio.run(main())


@pytest.mark.parametrize("who", ["the one that dialled", "the one that listens"])
def test_a_site_that_is_revoked_loses_the_lines_that_it_has(who: str) -> None:
    async def main() -> None:
        west = site("west")
        async with neighbours("tcp", SOUTH, "127.0.0.1:0") as listens, neighbours("tcp", west) as dialled:
            met: asyncio.Queue[Channel] = asyncio.Queue()
            listens.on_open = met.put_nowait
            ends = [await dialled.open("south", listens.address, "direct/j/1"), await met.get()]
            name, gone, other, end = (
                ("west", west, listens, ends[1])
                if who == "the one that dialled"
                else ("south", SOUTH, dialled, ends[0])
            )
            other.learn(HERE.revocation_list(peer_of(gone.certificate).serial, number=2))
            with pytest.raises(LineLost, match=f"the certificate of site '{name}' of .* was revoked"):
                await end.recv()
            again = (
                knocking("tcp", listens.address, west)
                if other is listens
                else dialled.open("south", listens.address, "j")
            )
            with pytest.raises((IdentityError, OSError), match="was revoked"):
                await again

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_line_is_dialled_once_and_again_where_the_other_site_began_anew() -> None:
    async def main() -> None:
        async with neighbours("tcp", site("north")) as north:
            for _ in range(2):
                async with neighbours("tcp", SOUTH, "127.0.0.1:0") as south:
                    met: asyncio.Queue[Channel] = asyncio.Queue()
                    south.on_open = met.put_nowait
                    two = await asyncio.gather(*(north.open("south", south.address, f"direct/j/{i}") for i in range(2)))
                    assert two[0].line is two[1].line
                    assert {(await met.get()).name for _ in two} == {"direct/j/0", "direct/j/1"}
                with pytest.raises(LinkClosed, match="stopped"):
                    await two[0].recv()

    asyncio.run(main())


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", "h:1"]), min_size=1))
def test_of_two_sites_one_dials_if_one_listens(addresses: dict[str, str]) -> None:
    roles = {me: partners(me, addresses) for me in addresses}
    for a in addresses:
        for b in addresses:
            if a != b:
                dials, waits = b in roles[a][0], b in roles[a][1]
                assert (dials, waits) == (a in roles[b][1], a in roles[b][0])
                assert dials + waits == bool(addresses[a] or addresses[b])
                assert not dials or addresses[b]
        assert a not in roles[a][0]
        assert a not in roles[a][1]


def test_a_site_keeps_the_newest_revocation_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """That of its kit to begin with; a server that sends an older one, or one of its own making, changes nothing."""
    kit = Poc(tmp_path, {"north": [], "south": []}).kit("north")
    ca, first = tmp_path / "kits" / "ca", kit.revoked_file.read_bytes()

    def begun() -> Site:
        return Site(kit, {}, tmp_path / "run", Resources(1.0, 0, 0))

    made = begun()
    assert made._neighbours.signed == first
    provision(the_project(), tmp_path / "kits", revoke=["south"])
    second = (ca / "revoked.crl").read_bytes()
    assert made._learn(second)
    for older in (first, Authority().revocation_list(number=9), b"nothing"):
        made._learn(older)
        assert made._neighbours.signed == second
    kit.revoked_file.write_bytes(first)
    again = begun()
    assert again._neighbours.signed == second
    (tmp_path / "run" / "revoked.crl").write_bytes(b"damaged")
    kit.revoked_file.unlink()
    with caplog.at_level(logging.WARNING, "atoll.runtime"):
        assert begun()._neighbours.signed == b""
    assert "a revocation list is ignored" in caplog.text


def the_project() -> ProjectConfig:
    """The project of a `Poc` with the sites north and south."""
    sites = [{"name": name, "org": name, "direct": ["127.0.0.1"]} for name in ("north", "south")]
    people = [{"name": "admin", "org": "poc"}, {"name": "auditor", "org": "poc", "role": "auditor"}]
    servers = [{"name": "server", "hosts": ["127.0.0.1"], "listen": "127.0.0.1"}]
    return ProjectConfig.model_validate({"project": "poc", "servers": servers, "sites": sites, "admins": people})


def test_a_kit_that_is_not_made_to_be_dialled(tmp_path: Path) -> None:
    kit = Poc(tmp_path, {"north": []}).kit("north")
    where = Resources(1.0, 0, 0)
    with pytest.raises(
        ConfigError, match=r"the kit of 'north' does not let others dial it at '10.0.0.1' \(direct: 127.0.0.1\)"
    ):
        Site(kit, {}, tmp_path / "run", where, direct="10.0.0.1:8444")
    Site(kit, {}, tmp_path / "run", where, direct="127.0.0.1:8444")
