"""A job's process at the server and at a helper: who plays what, and that neither the server nor a client decides it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.core import message as M
from atoll.core.errors import (
    CheckpointError,
    CompositionError,
    ConfigError,
    JobError,
    LetterError,
    MessageError,
    PolicyError,
    TaskError,
)
from atoll.core.time.clock import run
from atoll.runtime.identity import peer_of
from atoll.runtime.job_spec import parse_job
from atoll.runtime.worker.at_server import run_job
from atoll.runtime.worker.at_site import serve_job
from atoll.runtime.worker.letters import LetterKey
from atoll.runtime.worker.sitedata import SiteData, SitePopulation, load_site_data
from tests.runtime.worker.helping import HOLDER, total
from tests.support.certificates import authority
from tests.support.work_toys import attempt, held, joined, sites_of

HERE = authority()
LIST = HERE.revocation_list()
KITS = {name: HERE.issue("site", name) for name in ("north", "south")}
KITS |= {
    name: HERE.issue("helper", name, plays=plays) for name, plays in (("keys", "key holder"), ("dealing", "dealer"))
}
JOB = {
    "job": "program",
    "program": "tests.runtime.worker.helping:total",
    "helpers": {HOLDER: "key holder"},
    "patience": 30.0,
}
DATA = {"north": [1, 2], "south": [3]}
HOMES = {HOLDER: "keys"}


def helper(plays: str = "key holder", name: str = "keys") -> Callable[[], SiteData]:
    return lambda: load_site_data({}, name, plays)


def key_of(folder: Path, site: str, **more: Any) -> LetterKey:
    words = {"project": "study", "job": "job-1", "site": site, "state": folder / site, "revoked": LIST, **more}
    return LetterKey.make_key(words.pop("credentials", KITS.get(site)), **words)


def sites() -> dict[str, Callable[[], SiteData]]:
    return {**sites_of(DATA), "keys": helper()}


# ---------------------------------------------------------------------- a job


def test_a_key_holder_elsewhere_is_the_one_of_a_simulation(tmp_path: Path) -> None:
    result = held(JOB, sites(), tmp_path, helpers=HOMES)
    simulated = atoll.simulate(total, DATA, engine="inline")
    assert result["result"] == simulated == {"sum": 6, "own": None, "asked": 1}
    about = json.loads((tmp_path / "server" / "manifest.json").read_text())
    assert about["engine"]["sites"] == ["keys", "north", "south"]
    first = (tmp_path / "server" / "sites.msg").read_bytes()
    assert b"keys" in first


def spoken(
    folder: Path, mangle: Callable[[str, Any], Any] = lambda site, frame: frame, **options: Any
) -> tuple[Any, bytes, dict[str, Any]]:
    """One attempt with keys for letters; its result, what reached the server, and how the sites' processes ended."""
    job, book = parse_job(JOB), []
    homes, loads = options.pop("homes", HOMES), options.pop("loads", sites())

    class Relayed:
        def __init__(self, site: str, channel: Any) -> None:
            self.site, self.channel = site, channel

        def __getattr__(self, name: str) -> Any:
            if name in ("post", "feed"):  # the short ways around `send` and `recv`
                raise AttributeError(name)
            return getattr(self.channel, name)

        async def send(self, tree: Any) -> None:
            await self.channel.send(mangle(self.site, copy.deepcopy(tree)))

        async def recv(self) -> Any:
            frame = await self.channel.recv()
            book.append(M.encode(frame))
            return frame

    async def main() -> tuple[Any, dict[str, Any]]:
        async with joined(list(loads)) as (server, site):
            serving = {
                name: asyncio.create_task(
                    serve_job(site[name], job, load, folder / "at" / name, letters=key_of(folder / "keys", name))
                )
                for name, load in loads.items()
            }
            ends: dict[str, Any] = {}
            result = None
            try:
                async with asyncio.timeout(100):
                    relayed = {name: Relayed(name, channel) for name, channel in server.items()}
                    result = await run_job(relayed, job, folder / "server", report=False, helpers=homes)
            except Exception as error:
                ends["server"] = error
            done = await asyncio.gather(*serving.values(), return_exceptions=True)
            return result, ends | dict(zip(serving, done, strict=True))

    result, ends = run(main(), virtual=False)
    return result, b"".join(book), ends


def test_letters_to_and_of_a_helper_are_sealed(tmp_path: Path) -> None:
    result, book, _ = spoken(tmp_path)
    assert result["result"]["sum"] == 6
    assert b"CANARY" not in book


def changes(who: str, **more: Any) -> Callable[[str, Any], Any]:
    def mangle(site: str, frame: Any) -> Any:
        return {**frame, **more} if "roster" in frame and site == who else frame

    return mangle


FALSE: dict[str, tuple[str, dict[str, Any], str]] = {
    "a client's site is to play": (
        "north",
        {"helpers": {HOLDER: "north"}},
        "has this site play key holder, and its kit says nothing",
    ),
    "a helper is to play nothing": (
        "keys",
        {"helpers": {HOLDER: "north"}},
        "play nothing, and its kit says key holder",
    ),
    "another part": ("keys", {"others": {HOLDER: "dealer"}}, r"parties are \{'key-holder': 'dealer'\}, and they are"),
    "a party of its own": (
        "south",
        {"others": {HOLDER: "key holder", "mole": "mole"}},
        "the job's further parties are",
    ),
    "a home of nobody": ("south", {"helpers": {**HOMES, "mole": "keys"}}, "the job's further parties are"),
}


@pytest.mark.parametrize(("who", "told", "said"), FALSE.values(), ids=FALSE)
def test_a_server_that_gives_parts_away_is_refused_by_the_sites(
    who: str, told: dict[str, Any], said: str, tmp_path: Path
) -> None:
    result, _, ends = spoken(tmp_path, changes(who, **told))
    assert result is None
    with pytest.raises(PolicyError, match=said):
        raise ends[who]


def test_a_client_that_the_server_presents_as_a_helper_is_sent_nothing(tmp_path: Path) -> None:
    """The server and one site agree on it; the other site trusts certificates alone."""
    loads = {"north": sites_of(DATA)["north"], "south": helper(name="south")}
    result, book, ends = spoken(tmp_path, homes={HOLDER: "south"}, loads=loads)
    assert result is None
    with pytest.raises(LetterError, match=r"the key of site 'south' is refused: .*role 'site' cannot act as helper"):
        raise ends["server"]
    assert b"CANARY" not in book


# ---------------------------------------------------------------------- keys for letters


def test_a_partys_key_is_that_of_the_helper_that_plays_it(tmp_path: Path) -> None:
    told = {name: key_of(tmp_path, name).signed for name in KITS}
    revoked = HERE.revocation_list(peer_of(KITS["keys"].certificate).serial, number=2)

    def public(party: str, site: str, role: str, **more: Any) -> bytes:
        return key_of(tmp_path, "north", **more).sealing(told, {party: (site, role)}).keys.public(party)

    assert public(HOLDER, "keys", "key holder") == told["keys"].public
    refused = [
        (("x", "south", "key holder"), {}, "role 'site' cannot act as helper"),
        (("x", "dealing", "key holder"), {}, "plays 'dealer', and 'key holder' was meant"),
        (("keys", "keys", ""), {}, "role 'helper' cannot act as site"),
        ((HOLDER, "keys", "key holder"), {"revoked": revoked}, "was revoked"),
    ]
    for where, more, said in refused:
        with pytest.raises(LetterError, match=said):
            public(*where, **more)
    own = key_of(tmp_path, "keys").sealing(told, {HOLDER: ("keys", "key holder")}).keys
    assert own.private(HOLDER) == key_of(tmp_path, "keys").private
    with pytest.raises(LetterError, match=f"{HOLDER} is not a party of site 'north'"):
        key_of(tmp_path, "north").sealing(told, {HOLDER: ("keys", "key holder")}).keys.private(HOLDER)


# ---------------------------------------------------------------------- who is there


def test_a_helper_that_holds_clients_and_a_site_that_holds_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match=r"1 parties, and a helper has no clients \(in site 'keys'\)"):
        held(JOB, {**sites(), **sites_of({"keys": [9]})}, tmp_path / "a", helpers=HOMES)
    with pytest.raises(MessageError, match=r"0 parties, and a site has one at least \(in site 'keys'\)"):
        held(JOB, sites(), tmp_path / "b", helpers={})


def test_no_job_goes_on_without_its_helper(tmp_path: Path) -> None:
    """Nor begins, nor is taken up again: not even one that goes on without others."""
    job = parse_job({**JOB, "on_lost": "drop"})

    async def losing(at: str) -> None:
        async with joined(list(sites())) as (server, site):
            serving = {n: asyncio.create_task(serve_job(site[n], job, load, None)) for n, load in sites().items()}
            if at == "first":
                serving["keys"].cancel()
                site["keys"].close("killed")
            try:
                await run_job(
                    server, job, tmp_path / at, report=False, helpers=HOMES,
                    on_record=lambda row: site["keys"].close("killed"),
                )  # fmt: skip
            finally:
                await asyncio.gather(*serving.values(), return_exceptions=True)

    with pytest.raises(JobError, match=r"lost before it had loaded its data.*\(in site 'keys'\)"):
        run(losing("first"), virtual=False)
    with pytest.raises(TaskError, match=r"the site's job process went away \(in site keys\)"):
        run(losing("middle"), virtual=False)
    assert not list((tmp_path / "middle" / "checkpoints").glob("generation-*"))  # none without what it keeps
    run(attempt(job, sites(), tmp_path, helpers=HOMES), virtual=False)
    others = {name: load for name, load in sites().items() if name != "keys"}
    with pytest.raises(CheckpointError, match=r"site 'keys' is missing.*bring the helper back"):
        run(attempt(job, others, tmp_path, helpers=HOMES, resume=True), virtual=False)


def test_terms_that_say_other_helpers_than_the_job_needs(tmp_path: Path) -> None:
    said = r"helpers=\{\}, and for 2 clients the job needs \{'key-holder': 'key holder'\}"
    with pytest.raises(CompositionError, match=said):
        held({**JOB, "helpers": {}}, sites_of(DATA), tmp_path, helpers={})


def test_a_party_that_nobody_plays_is_asked_for_nothing(tmp_path: Path) -> None:
    """Jobs from before helpers; a party that is named and never asked is no harm."""
    with pytest.raises(ConfigError, match="party number 2 runs at no site"):
        held({"job": "program", "program": "tests.runtime.worker.helping:nobody"}, sites_of(DATA), tmp_path)


# ---------------------------------------------------------------------- what a helper brings


def test_a_helper_may_bring_data_a_policy_or_nothing(tmp_path: Path) -> None:
    bare = load_site_data({}, "keys", "key holder")
    assert (bare.names, bare.sizes, len(bare.population), bare.card, bare.policy, bare.own) == (
        (),
        (),
        0,
        None,
        None,
        None,
    )
    (tmp_path / "strict.yaml").write_text("policy: {allow: [training]}\n")
    strict = load_site_data({"path": str(tmp_path / "strict.yaml")}, "keys", "key holder")
    assert (strict.own, strict.names, strict.policy is None) == (None, (), False)
    made = load_site_data({"factory": "collections:Counter", "arguments": {"a": 3}}, "keys", "key holder")
    assert made.own == {"a": 3}
    with pytest.raises(PolicyError, match=r"the job's own code, tests.runtime.worker.helping:total, may not run here"):
        held(JOB, {**sites_of(DATA), "keys": lambda: strict}, tmp_path / "job", helpers=HOMES)
    brings = held(JOB, {**sites_of(DATA), "keys": lambda: made}, tmp_path / "own", helpers=HOMES)
    assert brings["result"]["own"] == {"a": 3}


def test_data_of_a_party_are_where_it_lives() -> None:
    population = SitePopulation(["a"], [1], [], load_site_data({}, "keys", "dealer").population, {"here": 5})
    assert population.others.get("here") == 5
    with pytest.raises(PolicyError, match="the data of 'elsewhere' are not at this site"):
        population.others.get("elsewhere")
