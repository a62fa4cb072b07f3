"""Campaigns between real processes over mutual TLS: they find what a simulation finds, bear a site that is killed at any step, and refuse a relay that lies.

Workers w0, w3 and w6 are at the first site, w1 and w4 at the second, and w2 and w5 at the third.
"""

from __future__ import annotations

import csv
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, DataError, LetterError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.runs import yaml
from atoll.runtime import poc
from atoll.truth import Additive, Masks, OneCoin, PlainReplies, Shamir, Truth, TruthModel, TruthResult, WeightedSum
from tests.runtime import lying_server
from tests.support import front_toys
from tests.support.bridge import Bridge
from tests.support.certificates import authority
from tests.truth.test_campaigns import (
    ADD,
    CHECKED,
    LAYOUT,
    PARTS,
    alter,
    drawn,
    other_senders,
    replay,
    share_no_polynomial,
    simulated,
    swap,
)

pytestmark = pytest.mark.network

GONE = {"w1", "w4"}
"""The workers of the site that is killed."""


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    made = Bridge(tmp_path_factory.mktemp("b"), "tcp", authority())
    yield made
    made.close()


def lived(bridge: Bridge, job: Truth, server: type | None = None, **more: Any) -> TruthResult:
    """A campaign between sites on a real clock, under a server whose engine has these methods in place of its own."""
    engine = bridge.engine(on_lost="drop")
    if server is not None:
        engine.__class__ = type("Other", (server, type(engine)), {})
    made = job.prepare(Community(PARTS))
    world = World(Community(PARTS), engine, clock=Clock(virtual=False), sealing="real", seed=2, **more)
    world.install(made)
    outcome: TruthResult = made.outcome(run(run_program(world, made.program), virtual=False)[0])
    return outcome


def campaign(protocol: Any, model: TruthModel | None = None) -> Truth:
    return Truth(model=model or OneCoin(iterations=1), protocol=protocol, label="", **LAYOUT)


# ---------------------------------------------------------------------- the same as a simulation


def title(value: Any) -> str | None:
    """A short id of a protocol."""
    if not hasattr(value, "bits"):
        return None
    more = (
        "withholding"
        if getattr(value, "min_reporters", 0)
        else "checked"
        if getattr(value, "checks", False)
        else getattr(value, "committee", 0) or ""
    )
    return f"{type(value).__name__}{more}"


@pytest.mark.parametrize(
    "protocol",
    [PlainReplies(), Additive(), Shamir(), Shamir(committee=4), Shamir(min_reporters=4), CHECKED, Masks()],
    ids=title,
)
def test_between_sites_every_protocol_finds_what_a_simulation_finds(bridge: Bridge, protocol: Any) -> None:
    job = campaign(protocol)
    found, alone = lived(bridge, job, secret_seed=4), simulated(job)
    np.testing.assert_array_equal(found.fit.broadcast["truth"], alone.fit.broadcast["truth"])
    assert found.truth == alone.truth
    assert found.steps == alone.steps
    assert (found.holders, found.lost, found.wrong) == (alone.holders, (), ())
    assert found.withheld == alone.withheld


def test_sites_make_a_leader_board(bridge: Bridge) -> None:
    job = replace(campaign(Shamir()), ranking=2)
    for found in (lived(bridge, job).ranking, simulated(job).ranking):
        assert set(found[:2]) == {"w4", "w5"}  # both are right as often as can be, so that noise decides
        assert found[2:] == ("w2", "w1", "w0", "w6", "w3")
    gone = lived(bridge, job, killing(":mix_powers", served=False), errors="drop")
    assert gone.ranking == ()
    assert "group 5 has nobody who is left to mix: w4" in gone.unranked
    assert gone.compare_plain().agreement == 1.0  # the truth was known before


# ---------------------------------------------------------------------- a site that is killed


def killing(task: str, *, served: bool) -> type:
    """A server whose second site is killed when a step is first asked of it, or once the site has answered it."""

    class Killing:
        dead = False

        def _kill(self) -> None:
            self.dead = True
            os.kill(self.processes[1].pid, signal.SIGKILL)  # type: ignore[attr-defined]

        def launch(self, request: Any, positions: Any, push: str) -> Any:
            if request.task.name.endswith(task) and not served and not self.dead:
                self._kill()
            return super().launch(request, positions, push)  # type: ignore[misc]

        async def run(self, request: Any, positions: Any) -> Any:
            replies = await super().run(request, positions)  # type: ignore[misc]
            if request.task.name.endswith(task) and served and not self.dead:
                self._kill()
            return replies

    return Killing


BORNE = [
    (Shamir(), "describe", True, 0), (Shamir(), "open", True, 0), (Shamir(), "share", False, 0), (Shamir(), "share", True, 1), (Shamir(), "add", False, 1),
    (Shamir(committee=3, threshold=3), "add", False, 0),
    (CHECKED, "share", True, 1), (CHECKED, "receive_letters", False, 1), (CHECKED, "show_mixed", False, 1), (CHECKED, "add_checked", False, 1),
    (Masks(), "deal", False, 0), (Masks(), "masked", False, 0), (Masks(), "vote", False, 1), (Masks(), "reveal", False, 1), (PlainReplies(), "give", False, 0),
]  # fmt: skip
"""A protocol, the step at which a site is killed, whether it has answered by then, and sums in which its contributions count."""


@pytest.mark.parametrize(("protocol", "task", "served", "counts"), BORNE, ids=title)
def test_a_site_that_is_killed_costs_its_own_reports_alone(
    bridge: Bridge, protocol: Any, task: str, served: bool, counts: int
) -> None:
    result = lived(bridge, campaign(protocol), killing(":" + task, served=served), errors="drop")
    there = [set(one.senders) >= GONE for one in result.steps]
    if "committee" in str(protocol) and getattr(protocol, "committee", 0):
        assert there[-1] is False  # whoever the lot has drawn: another committee adds up what is left
    else:
        assert there == [number < counts for number in range(len(there))]
    if task != "describe":
        assert set(result.lost) == GONE
    assert set(result.parties) | GONE == set(PARTS)
    assert result.compare_plain().max_difference < 2e-5
    assert result.iterations == 1


@pytest.mark.parametrize(("task", "served"), [("share", False), ("share", True), ("add", False)])
def test_additive_shares_end_with_an_error_that_says_what_bears_losses(bridge: Bridge, task: str, served: bool) -> None:
    with pytest.raises(QuorumError, match=r"Remedy: use Shamir\(\)"):
        lived(bridge, campaign(Additive()), killing(":" + task, served=served), errors="drop")


# ---------------------------------------------------------------------- who lies


def lying(lies: Callable[[Any, list[Any]], Any]) -> type:
    """A server that changes what it asks."""

    class Lying:
        def launch(self, request: Any, positions: Any, push: str) -> Any:
            seen = self.__dict__.setdefault("asked", [])
            made = lies(request, seen)
            seen.append(request)
            return super().launch(made, positions, push)  # type: ignore[misc]

    return Lying


@pytest.mark.parametrize(
    ("lies", "said"),
    [
        (alter, r"it was altered.*in a letter of w1 to w2"),
        (swap, r"its envelope says w\d to w[23]"),
        (replay, r"it was altered, or does not match its envelope \(in a letter of w\d to w\d; .*@2/likelihoods"),
        (other_senders, "announced 6 senders and delivered 7 letters: w0 differs"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_relay_that_lies_is_refused_by_name(bridge: Bridge, lies: Any, said: str) -> None:
    with pytest.raises((LetterError, PolicyError), match=said):
        lived(bridge, campaign(Shamir()), lying(lies))


def test_two_sets_of_senders_win_no_second_sum(bridge: Bridge) -> None:
    """After each sum a server asks for another one, without one sender: the difference would be this sender's contribution."""
    refused: list[Any] = []

    class Twice:
        async def run(self, request: Any, positions: Any) -> Any:
            first = await super().run(request, positions)  # type: ignore[misc]
            if request.task.name == ADD:
                names = set(request.message["senders"][1:])
                other = replace(request, id=request.id + "-again", message={**request.message, "senders": sorted(names)}, mail=request.mail.only_from(names))  # fmt: skip
                refused.extend(await super().run(other, positions))  # type: ignore[misc]
            return first

    result = lived(bridge, campaign(Shamir()), Twice)
    assert result.compare_plain().max_difference < 1e-5
    assert len(refused) == 14
    assert all(isinstance(one.error, AtollError) for one in refused)


def test_a_cheating_sender_and_a_cheating_summer_are_named_between_sites(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w1 shares numbers that lie on no polynomial, and w5 adds up wrongly; the truth is that of the others."""

    class Wrong:
        async def run(self, request: Any, positions: Any) -> Any:
            replies = await super().run(request, positions)  # type: ignore[misc]
            for reply in replies:
                if request.task.name.endswith(":add_checked") and reply.party == 5:
                    reply.value = np.asarray(reply.value) + np.asarray(1, dtype=reply.value.dtype)
            return replies

    share_no_polynomial(monkeypatch, "w1")
    result = lived(bridge, campaign(CHECKED), Wrong)
    assert (result.cheats, result.wrong) == (("w1",), ("w5",))
    assert all("w1" not in one.senders for one in result.steps)
    assert result.compare_plain().max_difference < 1e-5


def test_wrong_sums_of_one_site_are_corrected_and_its_workers_named(bridge: Bridge) -> None:
    class Wrong:
        async def run(self, request: Any, positions: Any) -> Any:
            replies = await super().run(request, positions)  # type: ignore[misc]
            for reply in replies:
                if request.task.name == ADD and reply.party in (1, 4):
                    reply.value = np.asarray(reply.value) + np.asarray(1, dtype=reply.value.dtype)
            return replies

    result = lived(bridge, campaign(Shamir(threshold=3)), Wrong)
    assert result.wrong == ("w1", "w4")
    assert result.compare_plain().max_difference < 1e-5


class Boasting(OneCoin):
    """Of two workers, who say that they are more reliable than anybody can be."""

    def contribute(self, step: str, state: Any, reports: Any, broadcast: Any) -> Any:
        given = super().contribute(step, state, reports, broadcast)
        return {name: value * (3.0 if GONE & set(reports.workers) else 1.0) for name, value in given.items()}


def test_a_contribution_beyond_the_range_does_not_leave_its_party(bridge: Bridge) -> None:
    """A state that no worker can be in, such as a trust of 3, is an error of its party; others do not hear of it."""
    with pytest.raises(DataError, match=r"entries up to 3, where 1 workers add .* up to 1"):
        lived(bridge, campaign(Shamir(), Boasting(iterations=1)))
    result = lived(bridge, campaign(Shamir(), Boasting(iterations=1)), errors="drop")
    assert set(result.lost) == GONE


def test_shares_that_are_none_name_their_sender(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.truth import parties

    honest = parties.post_shares

    def posting(island: Any, protocol: Any, numbers: Any, holders: Any, domain: Any) -> None:
        if island.name != "w5":
            return honest(island, protocol, numbers, holders, domain)
        for name in holders.names:
            island.post(name, {"share": np.full(len(numbers), 2**32 - 1, dtype=np.uint32)})
        return None

    monkeypatch.setattr(parties, "post_shares", posting)
    with pytest.raises(DataError, match="w5 sent no shares of 36 numbers"):
        lived(bridge, campaign(Shamir(), WeightedSum(iterations=1)))


# ---------------------------------------------------------------------- daemons


def test_daemons_find_the_truth_and_refuse_other_keys_and_a_worker_of_two_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three jobs of one project: an honest one, one whose server hands out other keys, and one in which both sites claim a worker. Labels stay words: 007 is another class than 7."""
    words = {"c0": "007", "c1": "7", "c2": "duck"}
    sites: dict[str, list[tuple[str, str, str]]] = {"site-1": [], "site-2": []}
    for task, worker, label in drawn(6):
        sites["site-1" if worker < "w3" else "site-2"].append((task, worker, words[label]))
    data = {}
    for name, rows in sites.items():
        data[name] = [str(tmp_path / f"{name}.csv")]
        write_reports(Path(data[name][0]), rows)
    honest = poc._Daemon

    class Daemon(honest):  # type: ignore[valid-type, misc]
        module = property(lambda self: "lying_server" if self.name == "server" else "atoll.cli")

    monkeypatch.setattr(poc, "_Daemon", Daemon)
    monkeypatch.setenv("PYTHONPATH", str(Path(lying_server.__file__).parent))
    monkeypatch.setenv(lying_server.FILE, str(tmp_path / "lie"))

    async def body(world: front_toys.World) -> None:
        tree = {"sites": list(sites), "job": "truth", "model": {"name": "OneCoin", "iterations": 2}, "protocol": {"name": "Shamir", "threshold": 2}}  # fmt: skip

        async def ended(lie: str) -> Any:
            (tmp_path / "lie").write_text(lie, encoding="utf-8")
            job = tmp_path / f"job-{lie}"
            job.mkdir()
            (job / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
            return await world.end((await world.admin.submit(job))["job"])

        done = await ended("honest")
        assert done["state"] == "finished", done
        await world.admin.result(done["job"], tmp_path / "result")
        refused = await ended("swapped")
        assert refused["state"] == "failed"
        assert re.search(r"the key of site 'site-\d' is refused: .* was meant", refused["reason"]), refused
        write_reports(Path(data["site-2"][0]), [*sites["site-2"], ("t0", "w1", "7")])
        twice = await ended("none")
        assert twice["state"] == "failed"
        assert "sites 'site-1' and 'site-2' both claim a worker" in twice["reason"]

    front_toys.played(tmp_path / "project", body, data=data)
    job = Truth(model=OneCoin(iterations=2), protocol=Shamir(threshold=2))
    alone = atoll.simulate(job, sites, engine="inline", progress=False)
    found = list(csv.reader((tmp_path / "result" / "truth.csv").read_text().splitlines()))[1:]
    assert {task: label for task, label, _ in found} == alone.truth
    assert {task: float(sure) for task, _, sure in found} == {t: pytest.approx(s, abs=1e-6) for t, s in alone.confidence.items()}  # fmt: skip


def write_reports(file: Path, rows: list[tuple[str, str, str]]) -> None:
    file.write_text("task,worker,label\n" + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
