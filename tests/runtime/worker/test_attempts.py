"""Attempts that die, and those that follow: the final model is that of a job that nobody disturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import AtollError, CheckpointError, DataError, JobError, MessageError, QuorumError, TaskError
from atoll.core.time.clock import run
from atoll.data import Dataset
from atoll.runs import RunFolder
from atoll.runtime.job_spec import parse_job
from atoll.runtime.worker.at_server import run_job
from atoll.runtime.worker.at_site import serve_job
from tests.support.work_toys import held, joined, sites_of

JOB: dict[str, Any] = {
    "model": {"name": "mlp", "features": 64, "outputs": 10, "hidden": [8]},
    "algorithm": {"name": "Scaffold", "lr": 0.1, "epochs": 1, "batch_size": 16},
    "selection": "Everyone",
    "rounds": 5,
    "seed": 3,
    "patience": 20.0,
}


@pytest.fixture(scope="module")
def parts() -> dict[str, Dataset]:
    rows = atoll.data.digits()
    return {name: rows.take(slice(60 * i, 60 * i + 60)) for i, name in enumerate(("a", "b", "c"))}


@pytest.fixture(scope="module")
def undisturbed(parts: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    held(JOB, sites_of(parts), folder)
    return (folder / "server" / "model.safetensors").read_bytes()


class Died(Exception):
    """The server's process."""


def dying(round_: int) -> Any:
    def record(row: dict[str, Any]) -> None:
        if row["round"] == round_:
            raise Died(f"after round {round_}")

    return record


def test_a_server_that_dies_goes_on_from_its_checkpoint(
    parts: dict[str, Dataset], undisturbed: bytes, tmp_path: Path
) -> None:
    rounds: list[int] = []
    for round_ in (1, 3, 4):
        with pytest.raises(Died, match="after round"):
            held(JOB, sites_of(parts), tmp_path, resume=True, on_record=dying(round_), on_start=rounds.append)
    result = held(JOB, sites_of(parts), tmp_path, resume=True, on_start=rounds.append)
    assert rounds == [0, 0, 2, 3]
    assert (tmp_path / "server" / "model.safetensors").read_bytes() == undisturbed
    assert result["rounds"] == 5
    assert [row["round"] for row in RunFolder(tmp_path / "server").metrics()] == [1, 2, 3, 4, 5]


def test_the_log_says_that_a_run_goes_on_only_where_it_does_and_calls_no_stop_an_error(
    parts: dict[str, Dataset], tmp_path: Path
) -> None:
    def stopping(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise asyncio.CancelledError("by somebody")

    with pytest.raises(asyncio.CancelledError, match="by somebody"):
        held(JOB, sites_of(parts), tmp_path, resume=True, on_record=stopping)
    folder = RunFolder(tmp_path / "server")
    first = folder.log_file.read_text()
    assert "the run goes on" not in first
    assert "the run was stopped" in first
    assert "ended early" not in first
    assert folder.status() == "interrupted"
    held(JOB, sites_of(parts), tmp_path, resume=True)
    assert "the run goes on" in folder.log_file.read_text().removeprefix(first)


async def losing_b(job: Any, parts: dict[str, Dataset], folder: Path) -> None:
    """An attempt whose site ``b`` is killed after round 2."""
    async with joined(list(parts)) as (server, site):
        serving = {
            name: asyncio.create_task(serve_job(site[name], job, load, folder / "at" / name))
            for name, load in sites_of(parts).items()
        }

        def record(row: dict[str, Any]) -> None:
            if row["round"] == 2:
                serving["b"].cancel()
                site["b"].close("killed")

        try:
            await run_job(server, job, folder / "server", report=False, on_record=record)
        finally:
            await asyncio.gather(*serving.values(), return_exceptions=True)


def test_a_site_that_dies_ends_the_attempt_and_the_next_one_is_none_the_worse(
    parts: dict[str, Dataset], undisturbed: bytes, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=r"the site's job process went away \(in site b\)"):
        run(losing_b(parse_job(JOB), parts, tmp_path), virtual=False)
    held(JOB, sites_of(parts), tmp_path, resume=True)
    assert (tmp_path / "server" / "model.safetensors").read_bytes() == undisturbed


def test_an_algorithm_that_needs_everyone_asks_again_where_a_site_was_lost(
    parts: dict[str, Dataset], tmp_path: Path
) -> None:
    """The round was closed without the site, which is written down; it has failed, so that whoever resumes the job asks all of them."""
    job = {
        **JOB,
        "algorithm": {"name": "VRLSGD", "lr": 0.1, "batch_size": 16, "steps": 4},
        "on_lost": "drop",
        "rounds": 3,
    }
    needs = r"2 of 3 .*VRLSGD needs every client in every round \(in round 3, main/"
    with pytest.raises(QuorumError, match=needs):
        run(losing_b(parse_job(job), parts, tmp_path), virtual=False)
    assert held(job, sites_of(parts), tmp_path, resume=True)["status"] == "finished"
    assert [row["replied"] for row in RunFolder(tmp_path / "server").metrics()] == [3, 3, 3]


def test_a_site_may_not_come_back_with_other_data(parts: dict[str, Dataset], tmp_path: Path) -> None:
    with pytest.raises(Died, match="after round"):
        held(JOB, sites_of(parts), tmp_path, on_record=dying(1))
    fewer = {**parts, "b": parts["b"].take(slice(0, 59))}
    outcomes: dict[str, Any] = {}
    with pytest.raises(CheckpointError, match=r"it came back with 59 rows, and it began with 60 \(in site 'b'\)"):
        held(JOB, sites_of(fewer), tmp_path, resume=True, outcomes=outcomes)
    assert all("it began with 60" in str(outcomes[name]) for name in "abc"), "every site is told"
    with pytest.raises(CheckpointError, match=r"site 'c' is missing, and the job began with it"):
        held(JOB, sites_of({k: parts[k] for k in "ab"}), tmp_path, resume=True)


def test_a_site_may_not_go_on_with_other_values_in_as_many_rows(
    parts: dict[str, Dataset], undisturbed: bytes, tmp_path: Path
) -> None:
    """Before the first checkpoint a job begins anew, with the data as they are then; after it, only the same data give the undisturbed model."""
    columns = {"x": np.asarray(parts["b"].x)[::-1].copy(), "y": parts["b"].y}
    other = {**parts, "b": parts["b"].with_columns(columns)}
    with pytest.raises(Died, match="after round"):
        held(JOB, sites_of(other), tmp_path, on_record=dying(1))
    with pytest.raises(Died, match="after round"):
        held(JOB, sites_of(parts), tmp_path, resume=True, on_record=dying(3))
    with pytest.raises(CheckpointError, match=r"other values in its rows than it had .*\(in site b\)"):
        held(JOB, sites_of(other), tmp_path, resume=True)
    held(JOB, sites_of(parts), tmp_path, resume=True)
    assert (tmp_path / "server" / "model.safetensors").read_bytes() == undisturbed


def test_a_site_that_came_later_is_let_go(parts: dict[str, Dataset], undisturbed: bytes, tmp_path: Path) -> None:
    with pytest.raises(Died, match="after round"):
        held(JOB, sites_of(parts), tmp_path, on_record=dying(2))
    outcomes: dict[str, Any] = {}
    held(JOB, sites_of({**parts, "d": parts["a"]}), tmp_path, resume=True, outcomes=outcomes)
    assert "the job began without this site" in str(outcomes["d"])
    assert (tmp_path / "server" / "model.safetensors").read_bytes() == undisturbed


def test_a_job_may_go_on_without_a_site(parts: dict[str, Dataset], tmp_path: Path) -> None:
    job = {**JOB, "algorithm": "FedAvg", "on_lost": "drop"}
    with pytest.raises(Died, match="after round"):
        held(job, sites_of(parts), tmp_path, on_record=dying(2))
    result = held(job, sites_of({k: parts[k] for k in "ab"}), tmp_path, resume=True)
    assert result["status"] == "finished"
    replied = [row["replied"] for row in RunFolder(tmp_path / "server").metrics()]
    assert replied == [3, 2, 2, 2, 2]


def test_sites_that_disagree_are_told_so(parts: dict[str, Dataset], tmp_path: Path) -> None:
    other = {**parts, "c": parts["c"].with_columns({"x": parts["c"].x[:, :10]})}
    outcomes: dict[str, Any] = {}
    said = r"at site 'b' column 'x' is float32 of shape \(64,\), and at site 'c' column 'x' is float32 of shape \(10,\)"
    with pytest.raises(DataError, match=said):
        held(JOB, sites_of(other), tmp_path, outcomes=outcomes)
    assert {type(outcomes[name]) for name in "abc"} == {DataError}
    assert RunFolder(tmp_path / "server").manifest()["error"]["kind"] == "DataError"


def test_an_error_of_a_site_reaches_the_server_with_its_place(parts: dict[str, Dataset], tmp_path: Path) -> None:
    def broken() -> Any:
        raise DataError("no column 'dose'", where="data of site 'b', rows.csv", remedy="correct the table")

    with pytest.raises(DataError, match=r"no column 'dose' \(in site 'b': data of site 'b', rows\.csv\)"):
        held(JOB, {**sites_of(parts), "b": broken}, tmp_path)


def test_a_model_that_does_not_fit_one_sites_rows_is_refused_there(parts: dict[str, Dataset], tmp_path: Path) -> None:
    wrong = {**JOB, "model": {"name": "mlp", "features": 63, "outputs": 10}}
    with pytest.raises(DataError, match=r"cannot take inputs of shape \(2, 64\)"):
        held(wrong, sites_of(parts), tmp_path)


def test_no_site_speaks_for_another(parts: dict[str, Dataset], tmp_path: Path) -> None:
    async def false_hello(job: Any) -> None:
        async with joined(["a", "b"]) as (server, site):
            for name, says in (("a", "a"), ("b", "a")):
                await site[name].send({"hello": {"parties": [says], "sizes": [1], "card": None}})
            await run_job(server, job, tmp_path / "server", report=False)

    with pytest.raises(
        MessageError, match=r"it says that it holds party 'a', which is not one of its own \(in site 'b'"
    ):
        run(false_hello(parse_job(JOB)), virtual=False)


@pytest.mark.parametrize(
    "frame",
    [
        {"hello": {"parties": ["a"], "sizes": [-1], "card": None}},
        {"hello": {"parties": ["a"], "sizes": [1, 2], "card": None}},
        {"hello": {"parties": [], "sizes": [], "card": None}},
        {"hello": {"parties": ["a"], "sizes": [1], "card": {"task": "theft"}}},
        {"hello": None},
        [],
        {"error": {"kind": "os.system"}},
    ],
)
def test_a_malformed_hello_is_refused(frame: Any, tmp_path: Path) -> None:
    async def spoken(job: Any) -> None:
        async with joined(["a"]) as (server, site):
            await site["a"].send(frame)
            await run_job(server, job, tmp_path / "server", report=False)

    with pytest.raises(MessageError, match=r"not? (a hello|data card|an error|a frame|.*site 'a')"):
        run(spoken(parse_job(JOB)), virtual=False)


def test_a_site_that_stays_silent_is_lost_by_the_one_rule(parts: dict[str, Dataset], tmp_path: Path) -> None:
    async def silent(job: Any) -> None:
        async with joined(["a"]) as (server, _):
            await run_job(server, job, tmp_path / "server", report=False)

    with pytest.raises(JobError, match=r"lost before it had loaded its data: no progress for 0\.05 s \(in site 'a'\)"):
        run(silent(parse_job({**JOB, "patience": 0.05})), virtual=False)


def test_a_folder_of_another_job_is_refused(parts: dict[str, Dataset], tmp_path: Path) -> None:
    with pytest.raises(Died, match="after round"):
        held(JOB, sites_of(parts), tmp_path, on_record=dying(1))
    with pytest.raises(AtollError, match=r"algorithm\.name, .* differ from the run in the folder"):
        held({**JOB, "algorithm": {**JOB["algorithm"], "name": "FedAvg"}}, sites_of(parts), tmp_path, resume=True)
