"""``atoll poc``: what real processes reach is what the simulator reaches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.cli import run
from atoll.cli.commands import poc
from atoll.cli.commands.poc import poc_job
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.runs import RunFolder, load_model, read_model, result_of, yaml
from atoll.runtime.job_spec import parse_job
from atoll.runtime.poc import Poc, digits_at, parts_of, site_names, write_parts
from atoll.runtime.provision import Kit

COUNTING = """
import atoll


@atoll.task
def count(island, message):
    return {"rows": atoll.Sum(len(island.data))}


async def census(fed):
    return {"rows": (await fed.sum(fed.parties, count, {}))["rows"]}
"""


@pytest.mark.network
def test_poc_equals_the_simulator(tmp_path: Path) -> None:
    names = site_names(2)
    settings = {**poc_job(names, seed=5), "rounds": 3}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.dump(settings), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli", "poc", str(job), "--sites", "2", "--seed", "5", "--folder", "all", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    config = parse_job(settings)
    training = config.made()
    islands = digits_at(names, seed=5).with_test(config.test_set())
    simulated = atoll.simulate(training, islands, engine="inline", seed=5)
    assert said["accuracy"] == simulated.metrics[-1]["test/accuracy"]
    assert (said["status"], said["rounds"], said["sites"]) == ("finished", 3, names)
    found = read_model(tmp_path / "all" / "result" / "model.safetensors")
    for leaf, value in T.items(simulated.params):
        np.testing.assert_array_equal(found[leaf], np.asarray(value))
    model, rows = load_model(tmp_path / "all" / "result"), config.test_set()
    assert rows is not None
    np.testing.assert_allclose(model.predict_proba(rows.x), simulated.predict_proba(rows.x), rtol=0, atol=1e-9)
    assert (tmp_path / "all" / "result" / "report.html").exists()
    assert RunFolder(tmp_path / "all" / "result").metrics()[-1]["test/accuracy"] == said["accuracy"]
    assert Kit.read(tmp_path / "all" / "kits" / "site-2").role == "site"


@pytest.mark.slow
def test_a_program_prints_what_it_returned(tmp_path: Path) -> None:
    """In words; that the same object is printed with --json is shown above, on a training."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "counting.py").write_text(COUNTING, encoding="utf-8")
    job = {"name": "census", "source": "code", "job": "program", "program": "counting:census"}
    (tmp_path / "job.yaml").write_text(yaml.dump(job), encoding="utf-8")
    words = [sys.executable, "-m", "atoll.cli", "poc", "job.yaml", "--sites", "1", "--folder", "all"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = sum(len(part.dataset()) for part in digits_at(site_names(1)))
    assert f'result: {{"rows": {rows}}}' in done.stdout
    assert " 0 B" not in done.stdout
    said = result_of(RunFolder(tmp_path / "all" / "result"))  # what --json adds the job's id and sites to
    assert said["result"] == {"rows": rows}
    assert said["bytes_up"] > 50


def test_parts_are_the_rows_of_the_simulated_clients(tmp_path: Path) -> None:
    islands = digits_at(site_names(3), alpha=0.1, seed=2)
    files = write_parts(islands, tmp_path)
    assert list(files) == ["site-1", "site-2", "site-3"]
    sizes = []
    for shard in islands:
        with np.load(files[str(shard.name)], allow_pickle=False) as rows:
            np.testing.assert_array_equal(rows["x"], shard.dataset()["x"])
            np.testing.assert_array_equal(rows["y"], shard.dataset()["y"])
            sizes.append(len(rows["y"]))
    assert sum(sizes) + len(islands.test or ()) == 1797


@pytest.mark.network
def test_a_front_that_does_not_begin_says_why(tmp_path: Path) -> None:
    async def body() -> None:
        async with Poc(tmp_path, {"site-1": [str(tmp_path / "absent.npz")]}, transport="tcp"):
            pass

    with pytest.raises(AtollError, match=r"`atoll site` did not start: it ended with exit code 3; .*absent"):
        asyncio.run(body())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_trial_that_is_stopped_leaves_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    steps: list[Any] = []

    async def trial(self: Any, place: Path) -> None:
        (place / "key.pem").touch()
        steps.append(place)
        try:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("put away")

    monkeypatch.setattr(poc._Trial, "run", trial)
    assert run(["poc"]) == 130
    assert steps[1:] == ["put away"]
    assert not steps[0].exists()


# ---------------------------------------------------------------------- one's own data


def test_the_rows_of_one_table_are_divided_and_their_text_stays(tmp_path: Path) -> None:
    rows = [f'{i};"a ""word"", in\ntwo lines {i}"' for i in range(11)]
    (tmp_path / "one.csv").write_text("n;text\n" + "\n".join(rows), encoding="utf-8")
    files = parts_of(tmp_path / "one.csv", "north,south,west", tmp_path / "data", 3)
    assert list(files) == ["north", "south", "west"]
    texts = [file.read_text(encoding="utf-8") for file in files.values()]
    assert all(text.startswith("n;text\n") for text in texts)
    found = [row for text in texts for row in re.findall(r'^\d+;"(?:[^"]|"")*"$', text, re.MULTILINE)]
    assert sorted(found) == sorted(rows)
    assert [text.count("two lines") for text in texts] == [4, 4, 3]
    again = parts_of(tmp_path / "one.csv", "3", tmp_path / "again", 3)
    assert [file.read_text(encoding="utf-8") for file in again.values()] == texts
    assert parts_of(tmp_path / "one.csv", "2", tmp_path / "more", 4)["site-1"].read_text(encoding="utf-8") != texts[0]


def test_arrays_and_parquet_files_are_divided_by_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(20).reshape(10, 2), y=np.arange(10), labels=np.array(["no", "yes"]))
    files = parts_of(tmp_path / "a.npz", None, tmp_path / "data", 0)
    assert list(files) == site_names(3)
    parts = [dict(np.load(file)) for file in files.values()]
    assert sorted(np.concatenate([part["y"] for part in parts]).tolist()) == list(range(10))
    assert all((part["x"][:, 0] == 2 * part["y"]).all() and part["labels"].tolist() == ["no", "yes"] for part in parts)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": list(range(5))}), tmp_path / "t.parquet")
    both = parts_of(tmp_path / "t.parquet", "2", tmp_path / "p", 0)
    assert sorted(n for file in both.values() for n in parquet.read_table(file)["n"].to_pylist()) == [0, 1, 2, 3, 4]


def test_each_site_gets_what_has_its_name(tmp_path: Path) -> None:
    for name in ("north.csv", "south.sqlite", "west.yaml", "keys.npz", ".hidden.csv", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "east").mkdir()
    every = parts_of(tmp_path, None, tmp_path / "data", 0, ("keys", "court"))
    assert {name: file.name for name, file in every.items()} == {
        "east": "east", "north": "north.csv", "south": "south.sqlite", "west": "west.yaml", "keys": "keys.npz",
    }  # fmt: skip
    assert list(parts_of(tmp_path, "west,north", tmp_path / "data", 0)) == ["west", "north"]
    assert list(parts_of(tmp_path, "5", tmp_path / "data", 0)) == ["east", "keys", "north", "south", "west"]
    for words in ("2", "north,nobody"):
        with pytest.raises(ConfigError, match=f"--sites {words}, and .* has east, keys, north, south, west"):
            parts_of(tmp_path, words, tmp_path / "data", 0)
    with pytest.raises(ConfigError, match="there is no file or folder"):
        parts_of(tmp_path / "nowhere", None, tmp_path / "data", 0)
    (tmp_path / "north.npz").touch()
    with pytest.raises(ConfigError, match=r"north\.csv and north\.npz are both of 'north'"):
        parts_of(tmp_path, None, tmp_path / "data", 0)
    (tmp_path / "few.csv").write_text("n\n1\n")
    with pytest.raises(DataError, match="1 rows for 3 sites"):
        parts_of(tmp_path / "few.csv", None, tmp_path / "data", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sites", "0"], "--sites 0"),
        (["--sites", "65"], "--sites 65"),
        (["--sites", "north,North"], "--sites north,North"),
        (["--sites", "north,server"], "'server' cannot be the name of a site"),
        (["--target", "y"], "--target without --data"),
        (["--secure", "--data", "x.csv"], "--secure with --data"),
        (["--secure", "--sites", "3"], "--secure with --sites 3"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["poc", *words, "--json"]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]["what"]


TALKS = """
import atoll


@atoll.task
async def asks(island, peers):
    await peers.send("south", [float(row[0]) for row in island.data.execute("select id from people order by id")])
    return {"both": await peers.recv("south")}


@atoll.task
async def answers(island, peers):
    theirs = set(await peers.recv("north"))
    own = {float(row[0]) for row in island.data.execute("select id from people")}
    await peers.send("north", len(own & theirs))
    return None


async def shared(fed):
    return (await fed.session({"north": ("north", asks), "south": ("south", answers)}))["north"]
"""


@pytest.mark.network
def test_a_protocol_of_ones_own_runs_on_ones_own_databases(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, people in (("north", range(10)), ("south", range(7, 20))):
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / f"{name}.sqlite")) as made:
            made.execute("create table people (id integer)")
            made.executemany("insert into people values (?)", [(n,) for n in people])
            made.commit()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "talks.py").write_text(TALKS, encoding="utf-8")
    job = {"name": "shared", "source": "code", "job": "program", "program": "talks:shared"}
    (tmp_path / "job.yaml").write_text(yaml.dump(job), encoding="utf-8")
    words = ["poc", "job.yaml", "--data", "data", "--sites", "north,south", "--direct", "--folder", "all", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["result"], said["sites"]) == ({"both": 3}, ["north", "south"])
    assert "is connected directly" in (tmp_path / "all" / "daemons.log").read_text(encoding="utf-8")


def _tables(folder: Path) -> Path:
    for name in ("bank", "shop"):
        (folder / "files").mkdir(exist_ok=True)
        (folder / "files" / f"{name}.csv").write_text("id,a\n" + "".join(f"{i:03},{i}\n" for i in range(5 if name == "bank" else 3)))  # fmt: skip
    return folder / "files"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"job": "psi", "sites": ["bank", "shp"]}, "site 'shp', and the trial has bank, shop. Did you mean 'shop'"),
        ({"job": "vertical", "guest": "mill"}, "guest='mill' among 2 parties"),
        ({"job": "vertical", "guest": "bank", "hosts": ["nope"]}, "hosts=\\['nope'\\]"),
        ({"job": "psi"}, None),
    ],
)
def test_a_job_of_other_sites_or_roles_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: Any,
    words: str | None,
) -> None:
    def start(*more: Any, **options: Any) -> None:
        raise AssertionError("it starts")

    monkeypatch.setattr("atoll.runtime.poc.Poc", start)
    job = tmp_path / "job.yaml"
    job.write_text(yaml.dump({"name": "x", "sites": "all", **settings}), encoding="utf-8")
    data = ["--data", str(_tables(tmp_path))] if words else []
    assert run(["poc", str(job), *data, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["error"]["what"]
    assert re.search(words or "jobs of the kind 'psi' read tables", told), told


@pytest.mark.network
def test_an_alignment_of_plain_files_needs_no_more_than_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(yaml.dump({"name": "x", "job": "psi", "sites": "all", "id": "id", "show": True}), encoding="utf-8")
    assert run(["poc", str(job), "--data", str(_tables(tmp_path)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["count"] == 3
