"""The log of a daemon: a line is one message, whatever a message holds, and the file is rotated."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli import asking
from atoll.cli.asking import line_of, logging_on
from atoll.cli.commands.events import _line
from atoll.cli.output import Output
from atoll.runs.log import one_line

FORGED = "no such site\ninfo: job 7 is finished\r\nand\u2028more\x1b[2J"


def test_a_message_with_line_breaks_is_one_line_of_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with logging_on(Output(False, sys.stdout), tmp_path):
        logging.getLogger("atoll.runtime").warning("%s", FORGED)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("warning: no such site ⏎ info: job 7 is finished ⏎ and ⏎ more\ufffd[2J")
    (entry,) = (tmp_path / "log.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert json.loads(entry)["message"] == FORGED


def test_what_others_said_is_one_line_in_tables_of_jobs_and_events() -> None:
    event = {"when": 0.0, "who": "ann", "what": "moved", "job": "j", "details": {"reason": FORGED}}
    assert len(_line(event).splitlines()) == 1
    job = {"job": "j", "name": FORGED, "state": "failed", "reason": FORGED, "error": None, "sites": []}
    assert len(line_of(job).splitlines()) == 1


@given(st.text())
def test_any_text_becomes_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    assert one_line(one_line(text)) == one_line(text)


def test_the_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_LOG_BYTES", 2000)
    with logging_on(Output(False, sys.stdout), tmp_path):
        for number in range(200):
            logging.getLogger("atoll.runtime").info("line %d", number)
    files = sorted(tmp_path.glob("log.jsonl*"))
    assert [path.name for path in files] == ["log.jsonl", *(f"log.jsonl.{n}" for n in range(1, 6))]
    assert all(path.stat().st_size <= 2000 for path in files)
    last = files[0].read_text().splitlines()[-1]
    assert json.loads(last)["message"] == "line 199"
