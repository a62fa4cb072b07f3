"""``atoll jobs --watch``: every change is shown, until Ctrl-C. ``atoll resume``: the job goes on. ``atoll events`` and ``sites``: what an auditor sees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.cli import run
from atoll.core.errors import JobError
from atoll.core.persistence.trail import AuditEvent
from atoll.runtime import admin
from atoll.runtime.provision import ProjectConfig, provision
from atoll.runtime.server.dispatch import JobNews
from atoll.runtime.server.looking import Looking, People
from atoll.runtime.server.site_session import Sighting
from atoll.runtime.store.records import JobState, Submission
from tests.support.memory_store import MemoryStore

LIFE = [JobState.SCHEDULED, JobState.DEPLOYING, JobState.RUNNING, JobState.FAILED]
INTERRUPTED = 130
STATS = SimpleNamespace(round_trip=0.012, skew=-2.5, resumes=3, received_bytes=2**20, sent_bytes=0)
SEEN = {"south": Sighting(0.0, "[x]", "5"), "north": Sighting(0.0, "[x]", "6")}
PEER: Any = SimpleNamespace(name="ann", role="admin")
SESSIONS = {
    name: SimpleNamespace(
        name=name, connected=here, line=SimpleNamespace(peer=SimpleNamespace(org="[x]", plays=""), stats=lambda: STATS)
    )
    for name, here in (("south", False), ("north", True))
}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    settings = {
        "project": "p",
        "servers": [{"name": "server", "hosts": ["localhost"]}],
        "admins": [{"name": "ann", "org": "x"}],
    }
    return provision(ProjectConfig.model_validate(settings), tmp_path / "kits").folder / "ann"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A server without a network: whenever somebody has seen all there is, its job moves on; after its end comes Ctrl-C."""
    store, news = MemoryStore(), JobNews()
    dispatcher = SimpleNamespace(sessions=SESSIONS, why=lambda record: record.reason)
    members = SimpleNamespace(clients=["north", "south", "west"], plays={})
    seen = SimpleNamespace(of=SEEN.get, revoked=lambda site: site == "south", list_revoked=lambda: ["south"])
    looking = Looking(store, dispatcher, news, lambda job: Path(job), members, seen)  # type: ignore[arg-type]
    said: dict[str, Any] = {"submitter": "ann", "org": "x", "spec": {}}
    store.submit(Submission(name="[b]calm", token="1", **said), now=0.0, who="ann")
    job = store.submit(Submission(name="walk", token="2", **said), now=0.0, who="ann").id
    coming = list(LIFE)

    class Near(admin.Admin):
        async def __aenter__(self) -> Near:
            looking._turns = People()  # of this command's loop
            return self

        async def one(self, op: str, **fields: Any) -> Any:
            if op == "resume":
                return {
                    "job": looking._summary(
                        store.resume(fields["job"], now=2.0, who="admin 'ann'", token=fields["token"])
                    )
                }
            if op in ("events", "sites"):
                return await anext(getattr(looking, f"_{op}")(PEER, {"op": op, **fields}))
            if fields.get("seen") is not None:
                if not coming:
                    raise KeyboardInterrupt
                state = coming.pop(0)
                store.move(job, state, now=1.0, reason="no [room]" if state is JobState.FAILED else "")
            return await anext(looking._jobs(PEER, {"op": op, **fields}))  # type: ignore[arg-type]

    monkeypatch.setattr(admin, "Admin", Near)
    return store


@pytest.mark.parametrize("command", [["resume", "--wait", "2"], ["logs", "--follow", "2"]])
def test_ctrl_c_says_that_the_job_goes_on(
    kit: Path,
    server: MemoryStore,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*told: Any) -> Any:
        raise KeyboardInterrupt

    job = server.jobs()[1].id
    for state in LIFE:
        server.move(job, state, now=1.0)
    monkeypatch.setattr(admin.Admin, "wait", interrupted)
    monkeypatch.setattr(admin.Admin, "logs", interrupted)
    assert run([*command, "--kit", str(kit)]) == INTERRUPTED
    said = capsys.readouterr().err
    assert f"The job continues; `atoll abort {job}` ends it." in said
    assert "checkpoint" not in said


def test_every_change_is_shown_on_a_terminal(
    kit: Path, server: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    assert run(["jobs", "--watch", "--kit", str(kit)]) == INTERRUPTED
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    rows = [line.split()[1:3] for line in shown.splitlines() if line.startswith("00000002-")]
    assert list(dict.fromkeys(state for _, state in rows)) == [
        "queued",
        *LIFE,
    ]  # in place, each drawn over the one before
    assert "[b]calm" in shown
    assert "no [room]" in shown


def test_in_a_file_each_change_is_a_line(kit: Path, server: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "--watch", "--kit", str(kit)]) == INTERRUPTED
    said = capsys.readouterr().err
    assert "checkpoint" not in said  # nothing runs here
    times, lines = [], []
    for line in said.splitlines():
        if " 0000000" in line:
            times.append(line[:19])
            lines.append(line[20:].split(maxsplit=3))
    assert times == ["1970-01-01 00:00:00"] * 2 + ["1970-01-01 00:00:01"] * len(LIFE)
    assert [line[2] for line in lines if line[1] == "walk"] == ["queued", *LIFE]
    assert [line[2] for line in lines if line[1] == "[b]calm"] == ["queued"]  # what has not changed is not said again
    assert lines[-1][3] == "no [room]"


def test_json_is_one_object(kit: Path, server: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "--watch", "--json", "--kit", str(kit)]) == 0
    assert capsys.readouterr().out.count('"state": "queued"') == 2


def test_resume_answers_with_the_job_that_goes_on(
    kit: Path, server: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    job = server.jobs()[1].id
    for state in LIFE:
        server.move(job, state, now=1.0)
    assert run(["resume", "2", "--json", "--kit", str(kit)]) == 0  # named by its number
    assert json.loads(capsys.readouterr().out)["state"] == "queued"
    assert run(["resume", job, "--json", "--kit", str(kit)]) == JobError.exit_code
    assert "goes on by itself" in json.loads(capsys.readouterr().out)["error"]["what"]


def test_events_show_who_did_what(kit: Path, server: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    server.move(server.jobs()[1].id, JobState.ABORTED, now=1.0, who="admin 'eve'", reason="[b]why")
    assert run(["events", "--kit", str(kit)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["submit" in line for line in lines] == [True, True, False]
    assert "admin 'eve'  moved  00000002-" in lines[-1]
    assert "reason=[b]why" in lines[-1]
    assert run(["events", "2", "--json", "--kit", str(kit)]) == 0
    told = json.loads(capsys.readouterr().out)["events"]
    assert [(event["number"], event["what"]) for event in told] == [(2, "submit"), (3, "moved")]


def test_a_long_trail_is_read_to_its_end(kit: Path, server: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2500):  # a request brings a thousand
        server.record(AuditEvent(when=float(number), who="auditor 'x'", what="asked"))
    assert run(["events", "--json", "--kit", str(kit)]) == 0
    told = [event["number"] for event in json.loads(capsys.readouterr().out)["events"]]
    assert told == list(range(1, 2503))


def test_sites_show_how_their_lines_are(kit: Path, server: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sites", "--kit", str(kit)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:3] for row in rows] == [
        ["north", "[x]", "there"],
        ["south", "[x]", "revoked"],
        ["west", "never", "came"],
    ]
    assert rows[0][5:] == rows[1][5:] == ["12", "ms", "-2.5", "s", "1.0", "0.0", "3"]
    assert rows[1][3:5] == ["1970-01-01", "00:00:00"]
    assert rows[2][3:] == ["never"]
    assert run(["sites", "--json", "--kit", str(kit)]) == 0
    told = json.loads(capsys.readouterr().out)["sites"]
    assert [(row["connected"], row["seen"]) for row in told[1:]] == [(False, 0.0), (False, None)]
