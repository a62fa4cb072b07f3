"""Daemons that have lost their memory: a server started from a copy of its folder, a site without its ledger, a result that cannot be sent."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import CheckpointError, IdentityError, JobError, MessageError
from atoll.core.event import Gaussian, Ledger
from atoll.runtime.admin import Admin
from atoll.runtime.daemon.monitor import KnownServer, SiteTokens
from atoll.runtime.site.ledger import SiteLedger
from tests.support.walls import DEADLINE, PLAIN, Walled, open_folder, played, write_job

COUNT = """
import os
from pathlib import Path

import atoll


@atoll.task
def count(island, message):
    return {"n": atoll.Sum(float(len(island.data.x)))}


async def run(fed, plant=False):
    n = float((await fed.sum(fed.parties, count))["n"])
    state = Path.cwd().parent.parent / "state"
    if plant:
        os.mkfifo(state / "model.bin")
        (state / "a name.txt").write_text("x")
        (state / "linked.txt").symlink_to("/etc/hostname")
    return {"n": n}
"""


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.02)


@pytest.mark.slow  # its quick sibling is the law below
def test_a_server_started_from_a_copy_of_its_folder_is_refused_by_its_sites(tmp_path: Path) -> None:
    with open_folder() as folder:
        walled = Walled(folder)
        place, token, copy = walled.place("server"), walled.place("north") / "server.token", folder / "copy"

        async def body(admin: Admin) -> None:
            await until(token.exists)
            before = token.read_text()
            await walled.fronts["server"].end()
            shutil.copytree(place, copy)
            for path in (copy, *copy.rglob("*")):
                if os.geteuid() == 0:
                    os.chown(path, PLAIN, PLAIN)
            await walled.start("server")
            await walled.run(admin, write_job(tmp_path / "first", COUNT))  # the same folder: nobody minds
            await until(lambda: token.read_text() != before)
            await walled.fronts["server"].end()
            walled.options["server"] = ["--folder", str(copy)]
            await walled.start("server")
            async with asyncio.timeout(DEADLINE):
                assert await walled.fronts["north"].end(0) == 11
            assert "the server does not know what this site last did with it" in "\n".join(walled.fronts["north"].said)
            walled.options["north"] = ["--accept-restored-server"]
            assert (await walled.start("north"))["connected"]
            await walled.run(admin, write_job(tmp_path / "second", COUNT))

        played(walled, body)


@pytest.mark.network
def test_a_site_that_has_run_jobs_does_not_start_without_its_ledger_and_what_is_no_result_is_named(
    tmp_path: Path,
) -> None:
    with open_folder() as folder:
        walled = Walled(folder)
        ledger = walled.place("north") / "ledger.jsonl"

        async def body(admin: Admin) -> None:
            await walled.run(admin, write_job(tmp_path / "first", COUNT, arguments={"plant": True}))
            await _results(walled, admin, tmp_path)
            await walled.fronts["north"].end()
            ledger.unlink()
            said = await walled.start("north")
            assert await walled.fronts["north"].end(0) != 0
            assert "was replaced: it does not have the line" in said["error"]["what"]
            assert "--accept-lost-ledger" in said["error"]["remedy"]
            walled.options["north"] = ["--accept-lost-ledger"]
            assert (await walled.start("north"))["connected"]
            await walled.fronts["north"].end()
            walled.options["north"] = []
            assert (await walled.start("north"))["connected"]  # it was accepted once, for good

        played(walled, body)


async def _results(walled: Walled, admin: Admin, folder: Path) -> None:
    (job,) = await admin.jobs()
    withheld: dict[str, str] = {}
    found = await admin.result(job["job"], folder / "result", withheld=withheld)
    assert "result.msg" in {path.name for path in found}
    wanted = {"a name.txt": "a name that results cannot have", "linked.txt": "a link", "model.bin": "a pipe"}
    assert withheld == wanted
    typed = await asyncio.create_subprocess_exec(
        *walled.typed("result", job["job"], "--out", str(folder / "typed")), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await typed.communicate()
    assert json.loads(out)["withheld"] == wanted
    for path in (walled.place("server") / "jobs" / job["job"] / "state").iterdir():
        if path.is_file() and not path.is_symlink():
            path.unlink()
    with pytest.raises(JobError, match=r"no results.*linked.txt is a link; model.bin is a pipe"):
        await admin.result(job["job"], folder / "none")


def noted(folder: Path, lines: int) -> SiteLedger:
    book = SiteLedger(folder, "north", False, lambda: None)
    for number in range(lines):
        asyncio.run(
            book.answer("1", {"op": "spend", "event": Gaussian(noise_multiplier=2.0).pack(), "parties": ["north"], "request": f"r#{number}"})
        )  # fmt: skip
    return book


@settings(max_examples=25)
@given(st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_a_ledger_that_lost_lines_is_refused_and_a_whole_one_is_not(lines: int, left: int, ran: bool) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        noted(folder, lines)
        path = folder / "ledger.jsonl"
        content = path.read_bytes().splitlines(keepends=True) if lines else []
        if left < lines:
            path.write_bytes(b"".join(content[:left]))
            with pytest.raises(CheckpointError, match="does not have the line"):
                SiteLedger(folder, "north", False, lambda: None, ran=ran)
            SiteLedger(folder, "north", False, lambda: None, ran=ran, accept_lost=True)
        SiteLedger(folder, "north", False, lambda: None, ran=ran)
        (folder / "ledger.noted").unlink()
        if ran and not min(lines, left):
            with pytest.raises(CheckpointError, match="is missing, and the site has run jobs"):
                SiteLedger(folder, "north", False, lambda: None, ran=True)
        else:
            assert len(list(Ledger(path))) == min(lines, left)


STEPS = st.lists(st.sampled_from(["offer", "lost offer", "lost answer", "server dies", "site dies"]), max_size=12)


@settings(max_examples=25)
@given(STEPS, STEPS)
def test_no_kill_makes_an_honest_pair_refuse_and_a_copy_is_found_once_a_token_was_confirmed(
    before: list[str], after: list[str]
) -> None:
    with TemporaryDirectory() as place:
        top = Path(place)
        server, site = SiteTokens(top / "server"), KnownServer(top / "token")
        moved = 0

        def play(steps: list[str]) -> int:
            nonlocal server, site, moved
            for step in steps:
                if step == "server dies":
                    server = SiteTokens(top / "server")
                elif step == "site dies":
                    site = KnownServer(top / "token")
                else:
                    frame = server.offer("north")
                    if step != "lost offer":
                        token = site.take(frame)
                        if step != "lost answer":
                            server.confirm("north", token)
                            moved += 1
            return moved

        play([*before, "offer"])
        shutil.copytree(top / "server", top / "copy")
        done = moved
        play(after)
        copied = SiteTokens(top / "copy")
        if moved > done:
            with pytest.raises(IdentityError, match="does not know what this site last did"):
                site.take(copied.offer("north"))
            site.take(server.offer("north"))
        empty = SiteTokens(top / "empty")
        with pytest.raises(IdentityError, match="--accept-restored-server"):
            site.take(empty.offer("north"))
        again = KnownServer(top / "token", accept_restored=True)
        again.take(empty.offer("north"))
        with pytest.raises(IdentityError, match="older backup"):
            again.take(server.offer("north"))


def test_a_server_that_has_shown_nothing_gives_no_orders(tmp_path: Path) -> None:
    site = KnownServer(tmp_path / "token")
    site.require_shown()  # there is nothing to show yet
    frame = SiteTokens(tmp_path).offer("north")
    site.take(frame)
    site.require_shown()
    site.begin()
    with pytest.raises(MessageError, match="gives orders before it has shown"):
        site.require_shown()
    for wrong in (
        {},
        {"was": "x", "now": frame["now"]},
        {"was": [], "now": "short"},
        {"was": ["a"] * 3, "now": frame["now"]},
    ):
        with pytest.raises(MessageError, match="no tokens of the server"):
            site.take(wrong)
    site.take(frame)
    site.require_shown()
