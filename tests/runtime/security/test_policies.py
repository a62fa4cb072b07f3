"""Sites' policies in real jobs over mutual TLS: each site has the last word, and the server learns who refused and why."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from atoll.runs import yaml
from tests.support.hostile import Besieged, Kits, besieged, good_site, played

POLICIES = {
    "localhost": "policy: {largest_reply: 2000, tasks: ['asking:*']}\n",
    "north": "policy: {stages: [{name: Clip, bound: 1.0}], allow: ['asking:*', FedAvg]}\n",
    "south": "policy: {smallest_cohort: 2, tasks: ['asking:weigh']}\n",
}
PROGRAM = """
import numpy as np

import atoll
from atoll.core.errors import QuorumError
from atoll.stages import Clip


@atoll.task
def weigh(island, message):
    return {"x": atoll.Sum({"w": np.ones(message)})}


@atoll.task
def peek(island, message):
    return {"x": atoll.Sum({"w": np.asarray(island.data.x).sum(axis=0)})}


async def ask(fed):
    told = {}
    for name, task, size, uplink, quorum in (
        ("plain", weigh, 10, [], 1),
        ("loose", weigh, 10, [Clip(5.0)], 1),
        ("good", weigh, 10, [Clip(0.5)], 2),
        ("large", weigh, 1000, [Clip(0.5)], 2),
        ("other", peek, 0, [Clip(0.5)], 2),
        ("alone", weigh, 10, [], 2),
    ):
        try:
            got = await fed.sum(fed.parties, task, size, uplink=uplink, quorum=quorum, at=name)
        except QuorumError as error:
            got = error.combined
        told[name] = [sorted(got.senders.names), dict(sorted(got.rejected.items())), sorted(got.value)]
    return told
"""


def write_job(folder: Path, **settings: Any) -> Path:
    (folder / "source").mkdir(parents=True)
    (folder / "source" / f"{settings['module']}.py").write_text(PROGRAM, encoding="utf-8")
    tree = {"name": "ask", "source": "source", "job": "program", "program": f"{settings.pop('module')}:ask"}
    (folder / "job.yaml").write_text(yaml.dump({**tree, "patience": 60.0, **settings}), encoding="utf-8")
    return folder


async def ended(siege: Besieged, job: str) -> Any:
    async with siege.admin() as admin:
        async for found in admin.watch(job):
            if found[0]["state"] in ("finished", "failed", "aborted"):
                return found[0]
    raise AssertionError("the watch has ended")


@pytest.mark.slow
@pytest.mark.both_carriers
def test_every_site_has_the_last_word(kit: Kits, tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, contextlib.AsyncExitStack() as stack:
            for name, policy in POLICIES.items():
                await stack.enter_async_context(good_site(siege.kit(name), siege.address, tmp_path / name, policy))
            everyone = sorted(POLICIES)
            async with siege.admin() as admin:
                good = (await admin.submit(write_job(tmp_path / "good", module="asking", sites=everyone)))["job"]
                found["good"] = await ended(siege, good)
                await admin.result(good, tmp_path / "result")
                other = (await admin.submit(write_job(tmp_path / "bad", module="prying", sites=everyone)))["job"]
                found["bad"] = await ended(siege, other)

    played(body, 240.0)
    assert found["good"]["state"] == "finished", found
    told = json.loads((tmp_path / "result" / "manifest.json").read_text(encoding="utf-8"))["result"]
    lacks, few = (
        "the uplink lacks Clip(bound=1.0)",
        "a sum may have 1 replies, but this site requires at least 2",
    )
    assert _short(told) == {
        "plain": (["localhost"], {"north": lacks, "south": few}, True),
        "loose": (["localhost"], {"north": lacks, "south": few}, True),
        "good": (["localhost", "north", "south"], {}, True),
        "large": (["north", "south"], {"localhost": "a reply of 8128 bytes is larger than 2000"}, True),
        "other": (["localhost", "north"], {"south": "the task asking:peek may not run here"}, True),
        "alone": (["localhost", "south"], {"north": lacks}, True),
    }
    assert found["bad"]["state"] == "failed"
    said = found["bad"]["error"]
    assert said["kind"] == "PolicyError"
    assert "the job's own code, prying:" in said["what"]
    assert "may not run here" in said["what"]
    assert "north" in said["where"]
    assert "use one of asking:*, FedAvg, let the site add 'prying:" in said["remedy"]


def _short(told: Any) -> dict[str, Any]:
    """Who is in each sum, the beginning of why others are not, and whether there is a value."""
    begin = ("the uplink lacks Clip(bound=1.0)", "a sum may have 1 replies, but this site requires at least 2",
             "the task asking:peek may not run here", "a reply of 8128 bytes is larger than 2000")  # fmt: skip
    return {
        name: (
            senders,
            {who: next((b for b in begin if b in why), why) for who, why in rejected.items()},
            bool(value),
        )
        for name, (senders, rejected, value) in told.items()
    }
