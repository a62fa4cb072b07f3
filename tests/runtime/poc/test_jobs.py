"""Jobs between real processes: from submission to the result, and what happens to those that fail or are stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.cli.asking import line_of
from atoll.core.errors import ConfigError, JobError, PolicyError
from atoll.runtime.admin import Admin
from tests.support.front_toys import DEADLINE, SITES, World, played, typed, write_job


@pytest.mark.both_carriers
@pytest.mark.slow
def test_a_day_of_a_project(tmp_path: Path) -> None:
    """One project for many questions: starting its processes takes most of the time."""
    gate = tmp_path / "gate"

    async def body(world: World) -> None:
        admin = world.admin
        # Two at once: the first waits at the gate, the second passes it by.
        gate.touch()
        first = (await admin.submit(write_job(tmp_path / "a", arguments={"gate": str(gate)})))["job"]
        await world.until(first, "server", "done 2")
        second = (await admin.submit(write_job(tmp_path / "b", name="other")))["job"]
        assert (await world.end(second))["state"] == "finished"
        assert (await admin.job(first))["state"] == "running"
        with pytest.raises(JobError, match="the job has no results: it is running"):
            await world.result(first, tmp_path / "early")
        gate.unlink()
        assert (await world.end(first))["state"] == "finished"
        x = await world.result(first, tmp_path / "one")
        np.testing.assert_array_equal(x, await world.result(second, tmp_path / "two"))
        assert {"manifest.json", "metrics.jsonl", "config.yaml"} <= {p.name for p in (tmp_path / "one").iterdir()}

        # The log holds what every node has said, in order.
        lines = [(node, text) async for _, node, text in admin.logs(second)]
        for node in SITES:
            said = [text for who, text in lines if who == node and text.startswith("round")]
            assert said == [f"round {i}" for i in range(1, 7)]
        shown = await typed(world, "logs", second)
        assert [(line["node"], line["text"]) for line in shown["lines"]] == lines
        shown = await typed(world, "jobs")
        assert [(job["name"], job["state"]) for job in shown["jobs"]] == [(n, "finished") for n in ("walk", "other")]
        fetched = await typed(world, "result", second, "--out", str(tmp_path / "three"))
        assert {"manifest.json", "result.msg"} <= set(fetched["files"])

        await _failing(world, tmp_path)
        clone = await _aborted(world, second, tmp_path)
        assert not np.array_equal(x, await world.result(clone, tmp_path / "other"))
        await _refused(world, second, tmp_path)

    played(tmp_path / "project", body)


async def _failing(world: World, tmp_path: Path) -> None:
    """The kind of a task's error reaches whoever submitted the job, with its place; its words are in the log of the site."""
    told = await typed(world, "submit", str(write_job(tmp_path / "f", arguments={"fail": True})), "--wait", code=6)
    assert told["error"]["kind"] == "TaskError"
    assert told["error"]["what"] == "ValueError: «…»"  # its words may quote a row
    assert "the site's own log has the words" in told["error"]["remedy"]
    assert "site-" in told["error"]["where"]
    ended = (await world.admin.jobs())[-1]
    told = await typed(world, "submit", str(write_job(tmp_path / "w", arguments={"rounds": 2})), "--wait")
    assert (told["state"], told["result"]["round"]) == ("finished", 2)  # a wait ends with what was found
    assert (ended["state"], ended["attempts"]) == ("failed", 1)  # it would fail again
    assert "site-" in line_of(ended)  # as `atoll jobs` shows it
    with pytest.raises(ConfigError, match="sights"):
        await world.admin.submit(write_job(tmp_path / "g", sights="all"))
    never = (await world.admin.submit(write_job(tmp_path / "h", resources={"gpus": 8})))["job"]
    ended = await world.end(never)
    assert (ended["state"], ended["attempts"]) == ("failed", 0)
    assert "has 0 GPUs" in ended["error"]["what"]


async def _aborted(world: World, job: str, tmp_path: Path) -> str:
    """Aborting stops the processes and frees what they held: for a clone, which with another seed is another walk."""
    gate = tmp_path / "shut"
    gate.touch()
    whole = {"arguments": {"gate": str(gate), "at": 2}, "resources": {"cpus": 64.0}}
    holds = (await world.admin.submit(write_job(tmp_path / "i", **whole)))["job"]
    await world.until(holds, "server", "done 1")
    with pytest.raises(ConfigError, match=r"foo=.* is not a setting.*\(in --set\)"):
        await world.admin.clone(job, ["foo.bar=1"])
    waits = str((await typed(world, "clone", job, "--set", "seed=1", "--set", "resources.cpus=64"))["job"])
    async with asyncio.timeout(DEADLINE):
        async for found in world.admin.watch(waits):
            if "has 0 CPUs free" in found[0]["reason"]:
                break
    ended = await typed(world, "abort", holds)
    assert (ended["state"], ended["reason"]) == ("aborted", "aborted by admin 'admin' of 'poc'")
    clone = await world.end(waits)
    assert (clone["state"], clone["name"], clone["error"]) == ("finished", "other", None)
    assert (await world.admin.abort(holds))["state"] == "aborted"  # the same once more
    with pytest.raises(JobError, match="has ended already: it is finished"):
        await world.admin.abort(waits)
    with pytest.raises(JobError, match="nobody"):
        await world.admin.abort("nobody")
    return waits


async def _refused(world: World, job: str, tmp_path: Path) -> None:
    """An auditor looks and does nothing else; what was tried is on record."""
    async with Admin(world.poc.kit("auditor"), world.poc.address) as auditor:
        assert (await auditor.one("about"))["atoll"] == atoll.__version__
        assert len(await auditor.jobs()) == len(await world.admin.jobs())
        assert [line async for line in auditor.logs(job)]
        await auditor.result(job, tmp_path / "audit")
        with pytest.raises(PolicyError, match="auditor 'auditor' of 'poc' may not ask for 'abort'"):
            await auditor.abort(job)
        with pytest.raises(PolicyError, match="may not ask for 'bundle'"):
            await auditor.clone(job)
        with pytest.raises(PolicyError, match="may not ask for 'submit'"):
            await auditor.submit(write_job(tmp_path / "k"))
        with pytest.raises(ConfigError, match="'walking:wlak' cannot be imported"):
            await auditor.submit(write_job(tmp_path / "l", program="walking:wlak"))  # before anybody is asked
        assert [site["site"] for site in await auditor.sites() if site["connected"]] == SITES
        events = [event async for event in auditor.events()]
    refused = [(event["who"], event["details"]["request"]) for event in events if event["what"] == "refused"]
    who = "auditor 'auditor' of 'poc'"
    assert refused == [(who, "abort"), (who, "bundle"), (who, "submit")]
    with pytest.raises(ConfigError, match="is the kit of site 'site-1'"):
        Admin(world.poc.kit("site-1"))


LEAVING = """
import asyncio
import sys


async def leave():
    sys.exit(4)


async def walk(fed, how=""):
    if how == "directly":
        sys.exit("enough")
    if how == "by a key":
        raise KeyboardInterrupt
    asyncio.create_task(leave())
    await asyncio.Event().wait()
"""


@pytest.mark.both_carriers
@pytest.mark.slow
def test_a_program_that_would_end_its_process_fails_once_and_says_so(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        (write_job(tmp_path / "job") / "code" / "walking.py").write_text(LEAVING, encoding="utf-8")
        for how, said in (
            ("directly", "the program called sys.exit('enough')"),
            ("by a key", "the program raised KeyboardInterrupt"),
            ("elsewhere", "the program called sys.exit(4)"),
        ):
            made = await world.admin.submit(tmp_path / "job", [f"arguments.how={how}"])
            ended = await world.end(made["job"])
            assert (ended["state"], ended["attempts"], ended["reason"]) == ("failed", 1, said)

    played(tmp_path / "project", body)


@pytest.mark.slow
@pytest.mark.both_carriers
def test_an_abort_that_meets_a_killed_server_is_repeated_in_peace(tmp_path: Path) -> None:
    """The server dies with the abort written down and its answer on the way: the command asks again, and gets the answer."""
    gate = tmp_path / "gate"
    gate.touch()

    async def body(world: World) -> None:
        made = (await world.admin.submit(write_job(tmp_path / "job", arguments={"gate": str(gate)})))["job"]
        await world.until(made, "server", "done 2")
        asking = world.admin.ask("abort", job=made)
        assert (await anext(asking))["job"]["state"] == "aborted"  # as good as lost
        world.poc.process("server").kill()
        await world.poc.process("server").wait()
        await world.poc.start("server")
        assert (await world.admin.abort(made))["state"] == "aborted"
        shown = await typed(world, "abort", made)
        assert (shown["state"], shown["reason"]) == ("aborted", "aborted by admin 'admin' of 'poc'")

    played(tmp_path / "project", body)
