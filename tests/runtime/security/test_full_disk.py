"""A server whose disk was full for a moment: whom it protects from, and whom it lets in, stays as it was."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import JobError
from atoll.core.persistence.trail import AuditEvent
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.server import site_session
from tests.support.hostile import Besieged, Kits, besieged, good_site, played
from tests.support.waiting import until

Log = pytest.LogCaptureFixture


@pytest.fixture
def project() -> ProjectConfig:
    """As the kits of this folder's other tests, which are nobody's to revoke."""
    return ProjectConfig.model_validate(
        {
            "project": "lungs",
            "servers": [{"name": "server", "hosts": ["127.0.0.1"]}],
            "sites": [{"name": name, "org": name.title()} for name in ("north", "south")],
            "admins": [{"name": "anna", "org": "university"}],
        }
    )


@pytest.fixture
def own(project: ProjectConfig, tmp_path: Path) -> Kits:
    """Kits of this test alone, by ``project/name``."""
    provision(project, tmp_path / "kits")
    read: Callable[[str], Kit] = lambda path: Kit.read(tmp_path / "kits" / path.partition("/")[2])  # noqa: E731
    return read


def filled(siege: Besieged) -> Any:
    """The store's database with no room left in it; the statement that gives it room again."""
    database: Any = siege.server._store._database  # type: ignore[attr-defined]
    connection = database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    for size in (900, 30, 1):
        with contextlib.suppress(JobError):
            while True:
                siege.server._store.record(AuditEvent(when=0, who="x" * size, what="y"))
    return lambda: connection.execute("PRAGMA max_page_count = 1000000")


@pytest.mark.both_carriers
def test_who_is_revoked_is_cut_off_though_it_cannot_be_written_down(
    project: ProjectConfig, own: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Log
) -> None:
    monkeypatch.setattr(site_session, "EVERY", 0.02)

    async def body() -> None:
        async with besieged(own, tmp_path) as siege:
            line = await siege.line("south")
            await line.open("control").send({"op": "hello", "holding": []})
            await until(lambda: "south" in siege.server._dispatcher.sessions)
            make_room = filled(siege)
            provision(project, tmp_path / "kits", revoke=["south"])
            await until(lambda: "cannot be recorded yet" in caplog.text)
            await until(lambda: "south" not in siege.server._dispatcher.sessions)
            make_room()
            await until(lambda: any(event.what == "cut" for event in siege.server._store.events()))

    played(body)


@pytest.mark.both_carriers
def test_a_site_that_cannot_be_listed_takes_part(own: Kits, tmp_path: Path, caplog: Log) -> None:
    caplog.set_level(logging.INFO, "atoll.runtime")

    async def body() -> None:
        async with besieged(own, tmp_path) as siege:
            (tmp_path / "kits" / "server" / "project-sites.txt").unlink()
            siege.server._listed.changed()
            (siege.folder / ".sites.txt.tmp").mkdir()  # what is refused as on a disk that is full
            async with good_site(siege.kit("north"), siege.address, tmp_path / "north"):
                await until(lambda: "north" in siege.server._dispatcher.sessions)

    played(body)
    assert "the visit of site 'north'" in caplog.text
    assert "cannot be recorded: " in caplog.text
