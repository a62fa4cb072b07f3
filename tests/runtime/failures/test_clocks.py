"""Clocks that are wrong, in real processes: where they do no harm work goes on, where certificates hold by them the refusal names the clock."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.bulk_job import BULK
from tests.support.failing_world import World, ended, until, world, write_job

HOUR = 3600


def built(folder: Path) -> Path | None:
    """The library that moves a process's clock; None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = folder / "skewed_clock.so"
    source = Path(__file__).with_name("skewed_clock.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True, timeout=60
    )
    return library


def test_wrong_clocks(tmp_path: Path) -> None:
    library = built(tmp_path)
    if library is None:
        pytest.skip("no C compiler on Linux here, which would build a clock; test_doctor.py asks at other times")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def at(hours: float) -> list[str]:
        return ["env", f"LD_PRELOAD={library}", f"SKEW={int(hours * HOUR)}"]

    async def doctor(here: World, name: str, hours: float) -> dict[str, Any]:
        """What the doctor finds at a clock: step -> finding."""
        command = [*at(hours), sys.executable, "-m", "atoll.cli", "doctor", str(here.folder / "kits" / name), "--json"]
        made = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=tmp_path)
        said, _ = await made.communicate()
        return {finding["step"]: finding for finding in json.loads(said)["findings"]}

    async def refused(here: World, name: str) -> str:
        """Why a front ends as it begins."""
        await here.start(name, wait=False)
        front = here.fronts[name]
        assert front.process is not None
        await until(f"end of {name}", lambda: front.process is not None and front.process.returncode is not None)
        assert await front.end() == 11  # of IdentityError
        assert front.answer is not None
        error = front.answer["error"]
        return f"{error['what']} | {error['remedy']}"

    async def play() -> None:
        # Five hours ahead: nothing of the work depends on it, and the doctor says so.
        async with world(tmp_path / "project", port=port, before={"site-2": at(5)}) as here:
            admin = await here.admin()
            job = (await admin.submit(write_job(tmp_path / "job", BULK, arguments={"rounds": 2, "size": 9})))["job"]
            assert (await ended(admin, job))["state"] == "finished"
            found, right = await asyncio.gather(doctor(here, "admin", 5), doctor(here, "admin", 0))
            assert "its clock is 18000 s behind this machine's" in found["clock skew"]["said"]
            assert "set both clocks by a time server" in found["clock skew"]["remedy"]
            assert right["clock skew"]["state"] == "ok"

            # Before the first day of a certificate, and after its last.
            await here.fronts["site-2"].end()
            for hours, word in ((-48, "is valid from"), (24 * 900, "expired on")):
                here.before["site-2"] = at(hours)
                said, found = await asyncio.gather(refused(here, "site-2"), doctor(here, "site-2", hours))
                assert word in said
                assert "clock" in said
                assert found["validity"]["state"] == "problem"
                assert "set this machine's clock" in found["validity"]["remedy"]

            # A server with such a clock could serve nobody: it says why instead.
            await here.fronts["server"].end()
            here.before["server"] = at(-48)
            said = await refused(here, "server")
            assert "is valid from" in said
            assert "clock" in said

    asyncio.run(play())
