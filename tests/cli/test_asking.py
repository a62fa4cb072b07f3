"""How people name jobs."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest

from atoll.cli.asking import id_of, line_of, moment_of, telling
from atoll.cli.commands.jobs import _table
from atoll.cli.output import Output
from atoll.core.errors import ConfigError, JobError


class Jobs:
    async def job(self, job: int) -> dict[str, Any]:
        assert isinstance(job, int)
        if job not in (1, 10, 12):
            raise JobError(f"there is no job {str(job)!r}")
        return {"job": {1: "00000001-aaaaaa", 10: "00000010-bbbbbb", 12: "00000012-123456"}[job]}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1", "00000001-aaaaaa"),
        ("10", "00000010-bbbbbb"),
        ("0010", "00000010-bbbbbb"),
        ("00000012-123456", "00000012-123456"),
        ("a", "a"),
        ("1" * 30, "1" * 30),
    ],
)
def test_a_job_is_named_by_its_id_or_its_number(said: str, meant: str) -> None:
    assert asyncio.run(id_of(Jobs(), said)) == meant  # type: ignore[arg-type]


def test_a_number_of_no_job_is_refused_by_the_server() -> None:
    with pytest.raises(JobError, match="there is no job '123456'"):
        asyncio.run(id_of(Jobs(), "123456"))  # type: ignore[arg-type]


def test_what_has_not_changed_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    tell = telling(Output(json=False, answer=sys.stdout))
    states = ["queued", "running", "running", "running", "queued", "running", "finished", "finished"]
    for state in states:
        tell(
            {
                "job": "00000001-aaaaaa",
                "name": "a",
                "state": state,
                "reason": "",
                "error": None,
                "times": [[state, 0.0]],
            }
        )
    said = [line.split()[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["queued", "running", "queued", "running", "finished"]


def test_a_failure_names_where_it_happened() -> None:
    job = {"job": "1-a", "name": "a", "state": "failed", "reason": "it raised", "times": [["failed", 0.0]]}
    place = {"where": "site 'north': task a:b", "what": "it raised"}
    assert line_of({**job, "error": place}).endswith("  site 'north': task a:b: it raised")
    assert line_of({**job, "error": None}).endswith("  it raised")


@pytest.mark.parametrize(
    ("said", "meant"),
    [("90m", 994_600.0), ("36h", 870_400.0), ("7d", 395_200.0), ("1970-01-02", 86400.0), ("1970-01-01 01:00", 3600.0)],
)
def test_a_time_is_a_date_or_so_long_ago(said: str, meant: float) -> None:
    assert moment_of(said, 1_000_000.0) == meant


@pytest.mark.parametrize("said", ["", "d", "-1d", "nand", "yesterday", "2026-13-01", "infh"])
def test_what_is_no_time_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        moment_of(said, 0.0)


def test_a_table_in_a_file_or_pipe_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "waits for site 'north', which has not come since the server began; " * 9
    job = {"job": "00000001-ab", "name": "n" * 40, "state": "waiting", "attempts": 0, "submitter": "ann", "org": "x",
           "created": 0.0, "sites": ["north", "south"], "reason": why, "error": None, "times": [["waiting", 0.0]]}  # fmt: skip
    file = io.StringIO()
    Output(json=False, answer=file).give({}, _table([job]))
    assert why.strip() in file.getvalue()
    assert len(file.getvalue().splitlines()) == 2
    Output(json=False, answer=file).give({}, why)
    assert file.getvalue().splitlines()[-1].strip() == why.strip()
    file = io.StringIO()
    monkeypatch.setenv("COLUMNS", "80")  # somebody wants it so
    Output(json=False, answer=file).give({}, _table([job]))
    assert max(map(len, file.getvalue().splitlines())) == 80
