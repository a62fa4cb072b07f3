"""The scripts of ``examples/scripts`` between sites: submitted in a bundle, killed in the middle of a round, and with the model of the simulator."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.runs import read_model, yaml
from atoll.runtime.job_spec import importing
from tests.support.front_toys import SITES, World, played

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "scripts" / "federated"
CASES = {
    # script: model, libraries, further arguments
    "plain_numpy": ("plain_numpy:start", (), []),
    "pytorch_loop": ("pytorch_loop:net", ("torch",), []),
    "scikit_learn": ("scikit_learn:classifier", ("sklearn",), []),
    "hugging_face": ("hugging_face:bert", ("transformers", "accelerate"), []),
    "lora": ("hugging_face:adapters", ("transformers", "accelerate", "peft"), ["--lora"]),
    "lightning_module": ("lightning_module:Digits", ("lightning",), []),
}
FILES = {"lora": "hugging_face"}
# Runs a script as it is, and holds its answer to round 2 while a file is there.
HELD = """
import os, runpy, sys, threading
from pathlib import Path
import atoll.client.connection as connection

gate, script, *sys.argv[1:] = sys.argv[1:]
answer = connection.ScriptTask.reply

def reply(task, *given, **named):
    if task.round == 2 and Path(gate).exists():
        print("at the gate", os.getppid(), os.getpid(), flush=True)
        while Path(gate).exists():
            threading.Event().wait(0.01)
    answer(task, *given, **named)

connection.ScriptTask.reply = reply
sys.argv[0] = str(Path(__file__).parent / script)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def write(name: str, folder: Path) -> tuple[dict[str, list[str]], atoll.data.Islands]:
    """A job's folder, each site's rows, and the same rows for the simulator."""
    file = FILES.get(name, name)
    (folder / "code").mkdir()
    shutil.copy(EXAMPLES / f"{file}.py", folder / "code")
    (folder / "code" / "held.py").write_text(HELD, encoding="utf-8")
    model, _, words = CASES[name]
    script = {
        "name": "script", "script": "held.py", "model": {"name": model}, "folder": str(folder), "between": "restart",
        "arguments": [str(folder / "gate"), f"{file}.py", f"{folder}/{{client}}.npz", *words],
        "environment": {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    }  # fmt: skip
    job = {
        "name": name, "sites": SITES, "source": "code", "rounds": 2, "selection": "Everyone", "model": script,
        "evaluation": {"server": False}, "patience": 120.0,
    }  # fmt: skip
    (folder / "job.yaml").write_text(yaml.dump(job), encoding="utf-8")
    data = atoll.data.digits()
    x, y, classes = np.asarray(data.x, dtype=np.float64), np.asarray(data.y), 10
    if file == "hugging_face":
        y, classes = y % 2, 2
        x = np.concatenate([y[:, None] + 1, (x[:, :7] * 20).astype(int) + 3], axis=1).astype(np.int64)
    told, parts = {}, {}
    for i, site in enumerate(SITES):
        rows = slice(i * 60, i * 60 + 60)
        np.savez(folder / f"{site}.npz", x=x[rows], y=y[rows])
        told[site] = [str(folder / f"{site}.npz")]
        parts[site] = atoll.data.Dataset({"x": x[rows], "y": y[rows]}, classes=classes)
    return told, atoll.data.Islands.from_datasets(parts)


async def at_the_gate(world: World, job: str, site: str) -> tuple[int, int]:
    """Wait for a site's script in round 2; return its parent and itself."""
    async with asyncio.timeout(300):
        async for _, who, text in world.admin.logs(job, follow=True):
            if who == site and "at the gate" in text:
                parent, own = text.split()[-2:]
                return int(parent), int(own)
    raise AssertionError("nobody came to the gate")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of PEFT about Transformers
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_script_between_sites_survives_kills_and_equals_the_simulator(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 2 one site's script is killed, and then the other's whole job process: the job goes on from its checkpoint."""
    for library in CASES[name][1]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"needs {library}")
    monkeypatch.setenv("ATOLL_CONFINE", "never")  # so that processes have their names here
    told, islands = write(name, tmp_path)
    gate = tmp_path / "gate"
    gate.touch()
    found: dict[str, Any] = {}

    async def body(world: World) -> None:
        job = (await world.admin.submit(tmp_path / "job.yaml"))["job"]
        _, script = await at_the_gate(world, job, SITES[0])
        os.kill(script, signal.SIGKILL)
        process, _ = await at_the_gate(world, job, SITES[1])
        os.kill(process, signal.SIGKILL)
        gate.unlink()
        ended = await world.end(job)
        assert ended["state"] == "finished", ended
        lines = [(who, text) async for _, who, text in world.admin.logs(job)]
        assert any(who == SITES[0] and "It begins once more" in text for who, text in lines)
        await world.admin.result(job, tmp_path / "result")
        found.update(read_model(tmp_path / "result" / "model.safetensors"))

    played(tmp_path / "project", body, data=told)
    with importing(tmp_path / "code"):
        from atoll.runtime.job_spec import load_job

        training = load_job(tmp_path / "job.yaml").made()
        simulated = atoll.simulate(training, islands, engine="inline")
    for leaf, value in T.items(simulated.params):
        np.testing.assert_allclose(found[leaf], np.asarray(value), rtol=1e-6, atol=1e-7)
    assert sys.modules.get("held") is None  # no site and no server imports what it only runs
