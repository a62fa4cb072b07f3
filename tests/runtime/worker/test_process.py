"""The process of a job, started as a front starts it: by an order in a file and a line over an inherited socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.persistence.files import read_message, write_message
from atoll.core.requests.wire import unpack_error
from atoll.core.time.clock import run
from atoll.runs import result_of, yaml
from atoll.runtime.daemon.control import relay
from atoll.runtime.daemon.processes import Process
from atoll.runtime.identity import Peer
from atoll.runtime.line import Line, Settings, local_line
from atoll.runtime.network.daemon_ledger import CHANNEL
from atoll.runtime.site.ledger import SiteLedger
from atoll.runtime.transport import local_pipe
from atoll.runtime.worker import site_spec
from atoll.runtime.worker.at_server import JobFolder
from atoll.runtime.worker.process import FRONT_GONE

pytestmark = pytest.mark.network

LINEAR = {"model": {"name": "linear", "features": 2, "outputs": 2}, "algorithm": "FedAvg", "rounds": 2}
MODULE = """
import atoll

@atoll.task
def rows(island, message):
    return {"rows": atoll.Sum(len(island.data) * message["times"])}

async def count(fed, times=1):
    total = await fed.sum(fed.parties, rows, {"times": times})
    print("counted", total["rows"], flush=True)
    return {"rows": int(total["rows"])}
"""


class Front:
    """Starts processes with orders, as the fronts do."""

    def __init__(self, folder: Path, job: dict[str, Any], modules: str = "") -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.pipes: dict[str, Any] = {}
        self.code = folder / "code"
        (self.code / "source").mkdir(parents=True)
        (self.code / "job.yaml").write_text(yaml.dump({"source": "source", **job}), encoding="utf-8")
        (self.code / "source" / "mine_to_count.py").write_text(modules, encoding="utf-8")

    def error(self, name: str) -> Any:
        return unpack_error(read_message(self.folder / f"{name}.error"))

    async def start(self, role: str, name: str, **more: Any) -> tuple[Process, Line]:
        order = {
            "role": role, "name": name, "id": "1", "job": str(self.code / "job.yaml"), "source": str(self.code / "source"),
            "state": str(self.folder / name), "results": str(self.folder / f"{name}-results"), "error": str(self.folder / f"{name}.error"),
            "spool": str(self.folder / "spool"), "data": None, "sites": [], "neighbours": [], "letters": None, **more,
        }  # fmt: skip
        write_message(self.folder / f"{name}.order", order)
        process = await Process.start(
            "atoll.runtime.worker", lambda fd: [str(fd), str(self.folder / f"{name}.order")],
            folder=self.folder, on_line=self.lines.append,
        )  # fmt: skip
        self.pipes[name] = pipe = await local_pipe(process.socket, Peer(name, role, "", 0, ""))
        return process, await local_line(pipe, dialled=False, settings=Settings(greeting=60.0))

    async def job(self, data: dict[str, dict[str, Any]]) -> dict[str, int]:
        """A whole attempt; the exit codes."""
        started = await asyncio.gather(
            self.start("server", "server", sites=list(data)),
            *(self.start("site", name, data=spec) for name, spec in data.items()),
        )
        server = started[0][1]
        joining = [
            asyncio.create_task(relay(server.open(name), line.open("server")))
            for name, (_, line) in zip(data, started[1:], strict=True)
        ]
        for name, (_, line) in zip(data, started[1:], strict=True):
            book = SiteLedger(self.folder / f"{name}-own", name, False, lambda: None)
            joining.append(asyncio.create_task(book.serve(line.open(CHANNEL), "1")))
        codes = await asyncio.wait_for(asyncio.gather(*(process.wait() for process, _ in started)), 60)
        await asyncio.gather(*joining, return_exceptions=True)
        await asyncio.gather(*(line.close() for _, line in started))
        return dict(zip(["server", *data], codes, strict=True))


@pytest.fixture
def data(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Two sites with a CSV file each."""
    rng = np.random.Generator(np.random.PCG64(0))
    specs = {}
    for name, n in (("north", 30), ("south", 20)):
        rows = [f"{a:.3f},{b:.3f},{'ill' if a > b else 'well'}" for a, b in rng.normal(size=(n, 2))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *rows]), encoding="utf-8")
        specs[name] = site_spec(f"{name}.csv", target="outcome", base=tmp_path)
    return specs


@pytest.mark.slow
def test_a_training_over_csv_files_in_processes_of_their_own(tmp_path: Path, data: dict[str, Any]) -> None:
    front = Front(tmp_path / "front", LINEAR)
    assert run(front.job(data), virtual=False) == {"server": 0, "north": 0, "south": 0}, front.lines
    result = result_of(JobFolder(tmp_path / "front" / "server"))
    assert (result["status"], result["rounds"]) == ("finished", 2)
    assert any(line.startswith("round 2: t_start") for line in front.lines), front.lines


def test_a_program_of_the_bundle(tmp_path: Path, data: dict[str, Any]) -> None:
    front = Front(
        tmp_path / "front", {"job": "program", "program": "mine_to_count:count", "arguments": {"times": 3}}, MODULE
    )
    assert run(front.job(data), virtual=False) == {"server": 0, "north": 0, "south": 0}, front.lines
    folder = JobFolder(tmp_path / "front" / "server")
    assert read_message(folder.path / "result.msg") == {"rows": 150}
    assert folder.manifest()["result"] == {"rows": 150}
    assert "counted 150" in front.lines


@pytest.mark.slow
def test_an_error_is_told_in_the_file(tmp_path: Path, data: dict[str, Any]) -> None:
    front = Front(tmp_path / "front", LINEAR)
    spec = {**data["south"], "target": "outcom"}
    codes = run(front.job({**data, "south": spec}), virtual=False)
    assert codes == {"server": 1, "north": 1, "south": 1}
    for name in ("server", "south"):
        assert "no column 'outcom'. Did you mean 'outcome'?" in str(front.error(name))
    assert "south" in str(front.error("server").where)


def test_a_process_whose_front_goes_away_ends_without_an_error(tmp_path: Path, data: dict[str, Any]) -> None:
    front = Front(tmp_path / "front", LINEAR)

    async def gone() -> int:
        process, line = await front.start("server", "server", sites=["north"])
        await front.pipes["server"].close()
        await line.lost.wait()
        return await asyncio.wait_for(process.wait(), 30)

    assert run(gone(), virtual=False) == FRONT_GONE, front.lines
    assert not (tmp_path / "front" / "server.error").exists()
