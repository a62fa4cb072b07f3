"""The tutorials run in a real notebook kernel, from the first cell to the last; and what Atoll shows in a notebook."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from tests.support.sources import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
PATIENCE = 200


def execute(notebook: Any, folder: Path) -> Any:
    """Run all cells in a kernel of this environment; an error in a cell is raised."""
    client = NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    asyncio.run(client.async_execute())
    return notebook


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel finds no settings of the person who runs the tests."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a notebook draws into its cells


@pytest.mark.quick("hospitals")
@pytest.mark.network
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    execute(notebook, tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_is_saved_with_what_it_shows(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].source.startswith("# ")
    assert any(cell.get("outputs") for cell in notebook.cells)
    assert "/home/" not in path.read_text(encoding="utf-8")


CELL = """import atoll

islands = atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=1.0, seed=0)
job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Everyone(), rounds=3)
result = atoll.simulate(job, islands)
"""


@pytest.mark.network
def test_a_notebook_shows_the_rounds_and_then_the_result_as_a_table(tmp_path: Path) -> None:
    cells = [CELL, "result", "job", "islands", "result.to_pandas()", "result.plot();"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    run, shown, job, data, table, drawn = (cell.outputs for cell in execute(notebook, tmp_path).cells)
    progress = "".join(str(output.get("text", output.get("data", ""))) for output in run)
    assert "3/3" in progress
    for outputs in (shown, job, data, table):
        assert "<table" in outputs[0]["data"]["text/html"]
    assert len(shown[0]["data"]["text/plain"].splitlines()) <= 8
    assert "image/png" in drawn[0]["data"]


LONG = CELL.replace("rounds=3", "rounds=100_000, callbacks=[lambda row: print('round', row['round'], flush=True)]")


@pytest.mark.network
def test_the_stop_button_ends_a_cell_after_the_round_and_leaves_the_result(tmp_path: Path) -> None:
    """The button interrupts the kernel; the next cell finds the result of the rounds so far."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        pressed, said = False, ""
        asked = client.execute(f"{LONG}print(result.reason, len(result.metrics))")
        while True:
            message = client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != asked:
                continue
            said += message["content"].get("text", "")
            if not pressed and "round 3\n" in said:
                manager.interrupt_kernel()
                pressed = True
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        assert client.get_shell_msg(timeout=PATIENCE)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "stopping after this round" in said
    rounds = int(said.split("\ninterrupted ")[1].split()[0])
    assert 3 <= rounds < 100_000
