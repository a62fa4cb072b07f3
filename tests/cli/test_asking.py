"""How people name jobs."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest

from atoll.cli.asking import id_of, telling
from atoll.cli.commands.jobs import _table
from atoll.cli.output import Output


class Jobs:
    async def jobs(self) -> list[dict[str, Any]]:
        return [{"job": "00000001-aaaaaa"}, {"job": "00000010-bbbbbb"}, {"job": "00000012-123456"}]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1", "00000001-aaaaaa"),
        ("10", "00000010-bbbbbb"),
        ("0010", "00000010-bbbbbb"),
        ("00000012-123456", "00000012-123456"),
        ("123456", "123456"),  # no job's number: the server says that there is none
        ("0", "0"),
        ("a", "a"),
    ],
)
def test_a_job_is_named_by_its_id_or_its_number(said: str, meant: str) -> None:
    assert asyncio.run(id_of(Jobs(), said)) == meant  # type: ignore[arg-type]


def test_what_has_not_changed_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    tell = telling(Output(json=False, answer=sys.stdout))
    states = ["queued", "running", "running", "running", "queued", "running", "finished", "finished"]
    for state in states:
        tell({"job": "00000001-aaaaaa", "name": "a", "state": state, "reason": ""})
    said = [line.split()[-1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["queued", "running", "queued", "running", "finished"]


def test_a_table_in_a_file_or_pipe_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    why = "waits for site 'north', which has not come since the server began; " * 9
    job = {"job": "00000001-ab", "name": "n" * 40, "state": "waiting", "attempts": 0, "submitter": "ann", "org": "x",
           "created": 0.0, "sites": ["north", "south"], "reason": why}  # fmt: skip
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
