"""A disk that is full, at a site and at the server: the submitter learns where and which file, nothing is damaged, and work goes on once there is room."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

import pytest

from atoll.runtime.admin import Admin
from atoll.runtime.store.sqlite import SqliteStore
from tests.support.failing_world import WALK, Follower, World, ended, error_of, outcome, until, world, write_job

# The node has a file system of its own, which nobody else sees; `exec` keeps it the process that was started.
ENTER = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=24m none "$0" && exec "$@"'


def why_not(folder: Path) -> str:
    """What this machine lacks for a small disk; nothing if it lacks nothing."""
    folder.mkdir()
    try:
        done = subprocess.run(
            [*ENTER, MOUNT, str(folder), "true"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no mount namespaces here: {error}"
    return "" if done.returncode == 0 else f"no mount namespaces here: {done.stderr.strip()[:200]}"


def fill(file: Path) -> None:
    """Write until nothing can be written any more."""
    with file.open("wb", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while ballast.write(bytes(size)):
                    pass


def test_a_full_disk_ends_the_job_in_words_and_damages_nothing(tmp_path: Path) -> None:
    if reason := why_not(tmp_path / "try"):
        pytest.skip(f"{reason}; tests of stores and checkpoints refuse single writes")
    gate = tmp_path / "gate"
    small = {name: tmp_path / "project" / "run" / name for name in ("server", "site-2")}
    for place in small.values():
        place.mkdir(parents=True)
    job = write_job(tmp_path / "walk", WALK, patience=30.0, arguments={"gate": str(gate)})

    async def failed(here: World, admin: Admin, full: str) -> str:
        """The job on a disk that is filled in round 3."""
        gate.touch()
        made = (await admin.submit(job))["job"]
        follower = Follower(admin, made)
        await until("round 2", lambda: follower.ended or len(follower.of("server", "round")) >= 2)
        ballast = Path(f"/proc/{here.fronts[full].pid}/root", str(small[full]).lstrip("/"), "ballast")
        fill(ballast)
        gate.unlink()
        found = await ended(admin, made)  # while the disk is still full
        assert (found["state"], found["attempts"]) == ("failed", 1), found
        what, where, remedy = error_of(found).split(" | ")
        assert "No space left on device" in what
        assert where.startswith(f"server: {small[full]}" if full == "server" else f"site site-2, {small[full]}")
        assert "free space" in remedy
        await until("the end of all processes", lambda: not any(front.jobs() for front in here.fronts.values()))
        ballast.unlink()
        return str(made)

    async def play() -> None:
        async with world(tmp_path / "project", before={n: [*ENTER, MOUNT, str(p)] for n, p in small.items()}) as here:
            admin = await here.admin()
            broken = [await failed(here, admin, full) for full in small]
            # With room again nothing has to be restarted, and what was written before is whole.
            again = (await admin.clone(broken[0]))["job"]
            assert (await ended(admin, again))["state"] == "finished"
            assert [found["state"] for found in await admin.jobs()] == ["failed", "failed", "finished"]
            whole = await outcome(admin, again, tmp_path / "again")
            # As the remedy has it: then resume.
            for job in broken:
                await admin.resume(job)
                found = await ended(admin, job)
                assert (found["state"], found["attempts"]) == ("finished", 2), found
                assert await outcome(admin, job, tmp_path / job) == whole

    asyncio.run(play())


def test_a_store_keeps_room_for_last_words(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    reserve = tmp_path / ".jobs.sqlite.reserve"
    assert reserve.stat().st_size == 1 << 20
    store.close()
    SqliteStore(tmp_path).close()
    assert reserve.stat().st_size == 1 << 20
