"""``atoll result`` on a folder: the named results that stay there."""

from __future__ import annotations

import json

import atoll
from atoll.cli.app import run
from atoll.core.persistence.files import read_message


@atoll.task
def leaves(island, message):
    island.leave("index", island.data)


async def program(fed):
    await fed.ask_all(fed.parties, leaves)


def said(capsys, *words):
    code = run(["result", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_results_of_a_simulation_are_listed_and_copied(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atoll.simulate(program, {"north": [1, 2], "south": [3]}, engine="inline", folder="run")
    code, listed = said(capsys, "--folder", "run")
    assert code == 0
    assert [(row["party"], row["name"]) for row in listed["results"]] == [("north", "index"), ("south", "index")]
    code, told = said(capsys, "index", "--folder", "run")
    assert (code, told["error"]["what"]) == (2, "2 parties have a result 'index'")
    assert "--party: north, south" in told["error"]["remedy"]
    code, told = said(capsys, "index", "--folder", "run", "--party", "south")
    assert (code, told["file"]) == (0, "index.msg")
    assert read_message(tmp_path / "index.msg") == [3]
    code, told = said(capsys, "--folder", "nowhere")
    assert (code, told["results"]) == (0, [])


def test_a_job_must_be_named(tmp_path, capsys):
    code, told = said(capsys)
    assert code == 2
    assert "no kit was given" in told["error"]["what"]
