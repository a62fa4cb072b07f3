"""A job between real fronts over mutual TLS, whose job processes are real: what passes through the server, and a kill in the middle of it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.runs import yaml
from atoll.runtime.daemon import control
from atoll.runtime.line import Channel
from tests.support.hostile import Besieged, Kits, besieged, good_site, played
from tests.support.waiting import until

NAMES = ["localhost", "north", "south"]
MODULE = Path(__file__).parents[1] / "worker" / "whispers.py"


def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The job's module, for a simulation."""
    spec = importlib.util.spec_from_file_location("murmurs", MODULE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "murmurs", made)
    spec.loader.exec_module(made)
    return made


def write_job(folder: Path, dies: Path) -> Path:
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "murmurs.py").write_text(MODULE.read_text(encoding="utf-8"), encoding="utf-8")
    tree = {
        "name": "whisper", "sites": NAMES, "source": "source", "job": "program", "program": "murmurs:whisper",
        "arguments": {"names": NAMES, "dies": str(dies)}, "patience": 60.0,
    }  # fmt: skip
    (folder / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    return folder


async def ended(siege: Besieged, job: str) -> Any:
    async with siege.admin() as admin:
        async for found in admin.watch(job):
            if found[0]["state"] in ("finished", "failed", "aborted"):
                return found[0]
    raise AssertionError("the watch has ended")


@pytest.mark.slow
@pytest.mark.both_carriers
def test_no_byte_that_reaches_the_server_says_what_parties_tell_each_other(
    kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's process is killed in the middle of the exchange: the letters of the checkpoint open in the next attempt."""
    passed: list[bytes] = []
    forward = control._forward

    async def written_down(source: Channel, target: Channel, moved: Any) -> Any:
        take = source.recv_block

        async def taken(*_: Any) -> Any:  # and passes nothing on by itself
            block = await take()
            passed.append(bytes(block.content))
            return block

        monkeypatch.setattr(source, "recv_block", taken, raising=False)
        return await forward(source, target, moved)

    monkeypatch.setattr(control, "_forward", written_down)
    dies = tmp_path / "dies"
    dies.mkdir()
    (dies / "dies-south").touch()
    found: dict[str, Any] = {}

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, contextlib.AsyncExitStack() as stack:
            for name in NAMES:
                await stack.enter_async_context(good_site(siege.kit(name), siege.address, tmp_path / name))
            async with siege.admin() as admin:
                job = (await admin.submit(write_job(tmp_path / "job", dies)))["job"]
                keys = [tmp_path / name / "site" / "record" / job / "letters.key" for name in NAMES]
                await until(lambda: not (dies / "dies-south").exists())
                assert [stat.S_IMODE(key.stat().st_mode) for key in keys] == [0o600] * 3
                found["end"] = await ended(siege, job)
                await admin.result(job, tmp_path / "result")
            await until(lambda: not any(key.exists() for key in keys))  # it goes with the job

    played(body, 240.0)
    assert found["end"]["state"] == "finished", found
    assert found["end"]["attempts"] == 2
    result = json.loads((tmp_path / "result" / "manifest.json").read_text(encoding="utf-8"))["result"]
    here = module(monkeypatch)
    whole = b"".join(passed)
    assert here.CANARY.encode() not in whole
    assert here.OPEN.encode() in whole  # so what passed is really there
    assert not any(
        here.CANARY.encode() in path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file()
    )
    same = atoll.simulate(
        lambda fed: here.whisper(fed, NAMES, dies=str(dies)),
        {name: [1] for name in NAMES},
        engine="inline",
        sealing="real",
    )
    assert json.loads(json.dumps(same)) == result  # its bytes among it
