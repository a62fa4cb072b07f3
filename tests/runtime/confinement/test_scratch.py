"""What a job may write in total."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atoll.runtime.admin import Admin
from atoll.runtime.confinement.folders import measure_folders as written
from tests.support.walls import Walled, open_folder, played, write_job

HOARDER = """
from pathlib import Path

import atoll


async def run(fed):
    for number in range(10_000):
        (Path.cwd() / str(number)).write_bytes(bytes(range(256)) * 4096)
    print("all written", flush=True)
"""


def test_what_is_written_is_what_lies_on_the_disk(tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (far / "large").write_bytes(bytes(1 << 20))
    mine = tmp_path / "mine"
    (mine / "deep" / "deeper").mkdir(parents=True)
    assert written([mine]) == 0
    (mine / "deep" / "deeper" / "file").write_bytes(os.urandom(100_000))
    one = written([mine])
    assert 100_000 <= one < 120_000
    (mine / "link").symlink_to(far / "large")
    (mine / "folder").symlink_to(far)
    os.link(mine / "deep" / "deeper" / "file", mine / "twice")
    with (mine / "holes").open("wb") as file:
        file.truncate(1 << 30)
    assert written([mine]) - one <= 3 * 8192  # names, but no bytes of others, and none twice
    assert written([mine, far, tmp_path / "nowhere"]) > one + (1 << 20) - 8192


@pytest.mark.slow  # its quick siblings are above
@pytest.mark.both_carriers
@pytest.mark.parametrize("confine", ["auto", "never"])
def test_a_job_that_writes_without_end_is_ended_with_the_reason(tmp_path: Path, confine: str) -> None:
    with open_folder() as folder:
        options = {name: ["--confine", confine, "--scratch", "64MiB"] for name in ("server", "north")}
        walled = Walled(folder, options=options)

        async def body(admin: Admin) -> None:
            said = await walled.run(admin, write_job(tmp_path / "hoards", HOARDER), state="failed")
            assert "all written" not in said.get("server", [])
            (job,) = await admin.jobs()
            assert "more than the 67,108,864 that jobs may write here" in str(job["error"])
            assert "--scratch" in str(job["error"])

        played(walled, body)
        left = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert left < 64 << 20, "the attempt's folder went with it"
