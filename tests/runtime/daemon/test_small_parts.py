"""The small parts that fronts share, one by one."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from atoll.core.errors import BundleError, IdentityError, MessageError
from atoll.runtime.bundle import Manifest, make_bundle
from atoll.runtime.confinement.walls import JobLimits
from atoll.runtime.daemon.control import text, whole
from atoll.runtime.daemon.job_start import MOST, Lines
from atoll.runtime.daemon.place import LEDGER, Place
from atoll.runtime.daemon.processes import Process
from atoll.runtime.provision import Kit, ProjectConfig, provision


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kit]:
    """A site, an admin and an auditor of one project, and an admin of another."""
    made: dict[str, Kit] = {}
    for project in ("one", "two"):
        folder = tmp_path_factory.mktemp(project)
        people = [{"name": "ann", "org": "x"}, {"name": "bob", "org": "x", "role": "auditor"}]
        settings = {
            "project": "one", "servers": [{"name": "server", "hosts": ["localhost"]}],
            "sites": [{"name": "north", "org": "x"}], "admins": people,
        }  # fmt: skip
        provision(ProjectConfig.model_validate(settings), folder)
        made |= {f"{project}/{name}": Kit.read(folder / name) for name in ("north", "ann", "bob")}
    return made


def bundled(kit: Kit) -> bytes:
    return make_bundle(b"name: job\n", None, kit.credentials())


def test_a_site_unpacks_what_an_admin_has_signed_and_nothing_else(kits: dict[str, Kit], tmp_path: Path) -> None:
    place, site = Place(tmp_path / "job"), kits["one/north"]

    def known(manifest: Manifest) -> bool:
        return True

    good = bundled(kits["one/ann"])
    assert (place.open(good, site, 1, known=known) / "job.yaml").read_bytes() == b"name: job\n"
    altered = bytearray(good)
    altered[good.rindex(b"job.yaml", 0, good.index(b"PK\x01\x02")) + len("job.yaml") + 2] ^= 1
    with pytest.raises(BundleError, match=r"Bad CRC-32 for file 'job\.yaml'"):
        place.open(bytes(altered), site, 2, known=known)
    with pytest.raises(IdentityError, match="auditor"):
        place.open(bundled(kits["one/bob"]), site, 3, known=known)
    with pytest.raises(IdentityError, match="no authority of this project"):
        place.open(bundled(kits["two/ann"]), site, 4, known=known)  # the same names, of somebody else's making
    assert [path.name for path in place.folder.iterdir()] == ["attempt-1"]


@pytest.mark.parametrize("name", ["../up", "/etc", "a/b", "", ".hidden", "a..b", "x" * 81])
def test_an_id_from_the_network_names_no_other_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="is not a job id"):
        Place.of(tmp_path, name)
    assert Place.of(tmp_path, "00000001-a0b1c2").folder == tmp_path / "jobs" / "00000001-a0b1c2"


def test_what_a_site_keeps_of_a_job_is_its_privacy_ledger(tmp_path: Path) -> None:
    place = Place(tmp_path / "jobs" / "1")
    (place.state / "segments").mkdir(parents=True)
    for path in (place.state / LEDGER, place.state / "segments" / "a.msg", place.folder / "order.msg"):
        path.write_text("x", encoding="utf-8")
    place.forget()
    assert [p for p in place.folder.rglob("*") if p.is_file()] == [place.state / LEDGER]
    (place.state / LEDGER).unlink()
    place.forget()
    assert not place.folder.exists()
    place.forget()


def test_lines_go_in_batches_and_a_flood_is_counted() -> None:
    async def body() -> list[list[str]]:
        sent: list[list[str]] = []
        come = asyncio.Event()

        def send(lines: list[str]) -> None:
            sent.append(lines)
            come.set()

        lines = Lines(send)
        lines.add("a")
        lines.add("b")
        assert not sent
        await asyncio.wait_for(come.wait(), 10)
        for number in range(MOST + 7):
            lines.add(str(number))
        lines.flush()
        lines.flush()
        return sent

    first, second = asyncio.run(body())
    assert first == ["a", "b"]
    assert len(second) == MOST + 1
    assert second[-1] == "[7 more lines within 0.1 s, left out]"


def test_frames_that_lack_something_are_refused() -> None:
    assert (text({"op": "x", "job": "1"}, "job"), whole({"op": "x", "attempt": 2}, "attempt")) == ("1", 2)
    for frame in ({"op": "x"}, {"op": "x", "job": 1}, {"op": "x", "job": "1" * 5000}):
        with pytest.raises(MessageError, match="'job' of the frame 'x' is missing or of another kind"):
            text(frame, "job")
    with pytest.raises(MessageError, match="'attempt' of the frame 'x'"):
        whole({"op": "x", "attempt": True}, "attempt")


@pytest.mark.network
@pytest.mark.skipif(sys.platform != "linux", reason="setrlimit as Linux has it")
def test_memory_is_limited_where_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(
        "try:\n    kept = bytearray(1 << 30)\n    print('had')\nexcept MemoryError:\n    print('refused')\n",
        encoding="utf-8",
    )

    async def body(memory: int) -> list[str]:
        said: list[str] = []
        environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        process = await Process.start(
            "hungry",
            lambda _: [],
            folder=tmp_path,
            on_line=said.append,
            environment=environment,
            limits=JobLimits(memory),
        )
        process.socket.close()
        await process.wait()
        return said

    assert asyncio.run(body(512 << 20)) == ["refused"]
    assert asyncio.run(body(0)) == ["had"]
