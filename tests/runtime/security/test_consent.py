"""A site's consent, in its own file: whose jobs run there, which ones, with how much and when."""

from __future__ import annotations

import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll.runtime.site.site as front
from atoll.core.errors import AtollError, ConfigError, PolicyError
from atoll.runs import yaml
from atoll.runtime.bundle import Manifest, verify
from atoll.runtime.consent import Consent, Hours, parse_consent
from atoll.runtime.identity import Peer
from atoll.runtime.worker import site_spec
from atoll.runtime.worker.headers import look_at_headers
from tests.support.forging import forged
from tests.support.hostile import Besieged, Kits, besieged, good_site, played
from tests.support.waiting import until

ANNA, OTTO, EVE = (
    Peer(name, "admin", org, 0, "lungs") for name, org in (("anna", "uni"), ("otto", "uni"), ("eve", "x"))
)
RULES = {"anna": "any", "*@uni": "built-in", "eve": ["statistics", "ct:*"]}
MEANS = {"name": "means", "job": "statistics", "sites": ["north"], "patience": 60.0}
PROGRAM = {
    "name": "own",
    "job": "program",
    "program": "own:run",
    "source": "source",
    "sites": ["north"],
    "patience": 60.0,
}
CODE = """
import pathlib
import threading

import atoll


@atoll.task
def wait(island, gate):
    pathlib.Path(gate + ".runs").touch()
    while gate and pathlib.Path(gate).exists():
        threading.Event().wait(0.01)
    return 1


async def run(fed, gate=""):
    return await fed.ask("north", wait, gate)
"""


@pytest.mark.parametrize("rules", [RULES, dict(reversed(RULES.items()))])
def test_a_name_decides_before_patterns(rules: dict[str, Any]) -> None:
    made = parse_consent({"people": rules}, "north")
    assert [made.of(who) for who in (ANNA, OTTO, EVE)] == [None, ("*",), ("statistics", "ct:*")]
    with pytest.raises(PolicyError, match="admin 'zoe' of 'x' may run nothing here") as found:
        made.of(Peer("zoe", "admin", "x", 0, "lungs"))
    assert found.value.where == "consent of site 'north'"
    assert Consent("north").of(EVE) is parse_consent(None, "north").of(EVE) is None
    with pytest.raises(PolicyError, match="may run nothing here"):
        parse_consent({"people": {}}, "north").of(ANNA)
    shut_out = parse_consent({"people": {"eve": [], "*": "any"}}, "north")  # a policy's empty `allow` allows everything
    assert shut_out.of(ANNA) is None
    with pytest.raises(PolicyError, match="admin 'eve' of 'x' may run nothing here"):
        shut_out.of(EVE)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"peple": {}}, "Did you mean"),
        ({"people": {"anna": "all"}}, "all"),
        ({"jobs": 0}, "jobs=0"),
        ({"hours": ["8-18"]}, "'8-18' are no hours"),
        ({"hours": ["Mon-Sunday"]}, "are no hours"),
        ({"hours": ["Mon 08:00-25:00"]}, "are no hours"),
        ({"resources": {"memory": "much"}}, "is not a size"),
        ({"resources": {"cpus": -1.0}}, "cpus"),
        ([], "should be a mapping of settings"),
        ({"people": None}, "people has no value"),  # all of its lines are comments now
        ({"jobs": 1, "hours": None}, "hours has no value"),
    ],
)
def test_a_consent_that_makes_no_sense_is_refused_before_the_site_connects(
    tree: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_consent(tree, "north")
    np.savez(tmp_path / "rows.npz", x=np.ones((4, 2)), y=np.array([0, 1, 0, 1]))
    (tmp_path / "site.yaml").write_text(yaml.dump({"path": "rows.npz", "consent": tree}))
    with pytest.raises(AtollError, match=words):
        look_at_headers(site_spec(str(tmp_path / "site.yaml")), "north")


@pytest.mark.parametrize(
    ("text", "within", "without"),
    [  # 5 January 2026 is a Monday
        ("Mon-Fri 19:00-07:00", ["05 19:00", "06 06:59", "10 06:59", "09 23:59"], ["05 06:59", "05 18:59", "10 07:00", "10 19:00"]),
        ("Sat-Sun", ["10 00:00", "11 23:59"], ["09 23:59", "12 00:00"]),
        ("08:00-18:00", ["05 08:00", "11 17:59"], ["05 07:59", "05 18:00"]),
        ("Fri-Mon 12:00-12:00", ["09 12:00", "13 11:59"], ["09 11:59", "13 12:00"]),
        ("Wed", ["07 12:00"], ["06 12:00", "08 00:00"]),
    ],
)  # fmt: skip
def test_hours_are_of_a_week(text: str, within: list[str], without: list[str]) -> None:
    hours = Hours.of(text)
    for clock, there in [(clock, True) for clock in within] + [(clock, False) for clock in without]:
        assert hours.has(datetime.strptime(f"2026-01-{clock}", "%Y-%m-%d %H:%M")) is there, clock


@pytest.mark.parametrize(
    ("files", "may", "words"),
    [
        ([], ["FedAvg"], None),
        ([], "built-in", None),
        ([("source/ct.py", b"")], "built-in", r"the job's own code, ct:\*, may not run here, for admin 'anna'"),
        ([("source/ct.py", b"")], ["ct:*"], None),
        ([("source/numpy.cpython-311-x86_64-linux-gnu.so", b"")], ["ct:*"], r"numpy:\*, may not run here"),
        ([("source/a/__init__.py", b"")], ["ct:*"], r"own code, a:\*, may not run here"),
    ],
)
def test_code_is_refused_before_it_is_unpacked(
    files: list[tuple[str, bytes]], may: Any, words: str | None, kit: Kits
) -> None:
    anna = kit("ours/anna").credentials()
    text = yaml.dump({"name": "a", "job": "training", "algorithm": "FedAvg"}).encode()
    verified = verify(forged([("job.yaml", text), *files], anna), ca=anna.ca, project="lungs")
    consent = parse_consent({"people": {"anna": may}}, "north")
    if words is None:
        assert consent.admit(verified) == (("*",) if may == "built-in" else tuple(may))
        return
    with pytest.raises(PolicyError, match=words):
        consent.admit(verified)


async def submitted(siege: Besieged, who: str, tree: dict[str, Any], **arguments: Any) -> str:
    text = yaml.dump({**tree, **({"arguments": arguments} if arguments else {})}).encode()
    files = [("job.yaml", text), *([("source/own.py", CODE.encode())] if "source" in tree else [])]
    manifest = Manifest.of(files, secrets.token_hex(16), time.time_ns() // 1000)
    bundle = forged(files, siege.kit(who).credentials(), manifest=manifest)
    frame = {"op": "submit", "bundle": bundle, "token": manifest.nonce}
    answer = await siege.ask(who, frame)
    assert "error" not in answer, answer
    return str(answer["job"]["job"])


def consent(**rules: Any) -> str:
    return yaml.dump({"consent": rules})


@pytest.mark.parametrize("carrier", ["tcp", pytest.param("grpc", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_people_run_what_the_site_lets_them_and_the_file_decides_anew_for_each_job(
    carrier: str, kit: Kits, tmp_path: Path
) -> None:
    async def body() -> None:
        rules = consent(people={"anna": "any", "*@university": "built-in"})
        async with (
            besieged(kit, tmp_path, carrier) as siege,
            good_site(siege.kit("north"), siege.address, tmp_path / "north", rules),
            siege.admin() as admin,
        ):
            by_anna = await admin.wait(await submitted(siege, "anna", PROGRAM))
            assert by_anna["state"] == "finished", by_anna
            by_otto = await admin.wait(await submitted(siege, "otto", PROGRAM))
            assert (by_otto["state"], by_otto["error"]["kind"]) == ("failed", "PolicyError")
            assert by_otto["reason"].startswith("the job's own code, own:run, may not run here, for admin 'otto'")
            assert "consent of site 'north'" in by_otto["error"]["where"]
            assert not (tmp_path / "north" / "site" / "jobs" / by_otto["job"] / "state").exists()  # nothing was begun
            plain = await admin.wait(await submitted(siege, "otto", MEANS))
            assert plain["state"] == "finished", plain
            file = tmp_path / "north" / "site.yaml"
            file.write_text(f"path: rows.npz\n{consent(people={'otto': ['FedAvg']})}")
            other = await admin.wait(await submitted(siege, "otto", {**MEANS, "name": "more"}))
            assert other["reason"] == "statistics may not run here"
            assert "consent of site 'north'" in other["error"]["where"]
            nobody = await admin.wait(await submitted(siege, "anna", MEANS))
            assert nobody["reason"] == "admin 'anna' of 'university' may run nothing here"

    played(body, 240.0)


@pytest.mark.slow
@pytest.mark.both_carriers
def test_resources_and_hours_are_the_sites(kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job waits until the site opens, is stopped when it closes, goes on when it opens again, and ends when consent is withdrawn."""
    monkeypatch.setattr(front, "_LOOK", 0.05)
    now = [datetime(2026, 1, 5, 12, 0)]
    gate = tmp_path / "gate"
    gate.touch()
    rules: dict[str, Any] = {"resources": {"cpus": 2.0}, "jobs": 1, "hours": ["19:00-07:00"]}

    async def body() -> None:
        async with (
            besieged(kit, tmp_path) as siege,
            good_site(siege.kit("north"), siege.address, tmp_path / "north", consent(**rules), clock=lambda: now[0]),
            siege.admin() as admin,
        ):
            large = await submitted(siege, "anna", {**MEANS, "resources": {"cpus": 3.0}})
            made = await submitted(siege, "anna", PROGRAM, gate=str(gate))
            await said(siege, made, "site 'north' is closed at Mon 12:00: its hours are 19:00-07:00")
            now[0] = datetime(2026, 1, 5, 19, 0)
            assert "site 'north' has 2 CPUs, and the job asks for 3 CPUs" in (await admin.wait(large))["reason"]
            await until((tmp_path / "gate.runs").exists)
            second = await submitted(siege, "anna", {**MEANS, "name": "second"})
            await said(siege, second, "site 'north' runs 1 jobs, its most at once")
            await admin.abort(second)
            now[0] = datetime(2026, 1, 6, 7, 0)
            await said(siege, made, "site 'north' is closed at Tue 07:00: its hours are 19:00-07:00")
            assert (await admin.job(made))["attempts"] == 1
            (tmp_path / "gate.runs").unlink()
            now[0] = datetime(2026, 1, 6, 23, 0)
            await until((tmp_path / "gate.runs").exists)
            assert (await admin.job(made))["attempts"] == 2
            (tmp_path / "north" / "site.yaml").write_text(f"path: rows.npz\n{consent(people={'otto': 'any'})}")
            ended = await admin.wait(made)
            assert (ended["state"], ended["reason"]) == ("failed", "admin 'anna' of 'university' may run nothing here")

    played(body, 240.0)


async def said(siege: Besieged, job: str, words: str) -> None:
    """Wait until a job waits for this reason."""
    async with siege.admin() as admin:
        async for found in admin.watch(job):
            if found[0]["state"] == "queued" and words in found[0]["reason"]:
                return


@pytest.mark.network
@pytest.mark.both_carriers
def test_a_consent_that_cannot_be_read_lets_nothing_begin(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            besieged(kit, tmp_path) as siege,
            good_site(siege.kit("north"), siege.address, tmp_path / "north"),
            siege.admin() as admin,
        ):
            file = tmp_path / "north" / "site.yaml"
            file.write_text("path: rows.npz\nconsent: {people: {anna")
            made = await submitted(siege, "anna", MEANS)
            await said(siege, made, "site 'north' cannot read its consent")
            file.write_text("path: rows.npz\n")
            assert (await admin.wait(made))["state"] == "finished"

    played(body)
