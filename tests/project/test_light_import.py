"""``import atoll`` is light: NumPy and nothing else. Processes load what they use, told by modules and not by seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.network

HEAVY = [
    "torch",
    "pydantic",
    "rich",
    "typer",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
    "pyarrow",
    "jinja2",
    "ruamel",
]

PROBE = """
import json, sys, time
import numpy
begin = time.perf_counter()
before = set(sys.modules)
{statement}
seconds = time.perf_counter() - begin
libraries = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print(json.dumps({{"seconds": seconds, "libraries": sorted(libraries)}}))
"""


def loaded_by(statement: str) -> dict[str, object]:
    """What a statement loads in a fresh interpreter that has NumPy already."""
    run = [sys.executable, "-W", "error", "-c", PROBE.format(statement=statement)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_import_atoll_loads_numpy_only() -> None:
    found = loaded_by("import atoll")
    print(f"import atoll takes {1000 * float(str(found['seconds'])):.0f} ms on top of NumPy")
    assert found["libraries"] == ["atoll"]


def test_the_rooms_of_a_numpy_training_load_numpy_only() -> None:
    statement = "import atoll; atoll.data; atoll.models; atoll.engines; atoll.Training; atoll.simulate"
    assert found_heavy(statement) == []


def found_heavy(statement: str) -> list[str]:
    """Which heavy libraries a statement loads."""
    libraries = loaded_by(statement)["libraries"]
    assert isinstance(libraries, list)
    return [name for name in HEAVY if name in libraries]


def test_the_probe_sees_a_heavy_library() -> None:
    assert found_heavy("import ruamel.yaml") == ["ruamel"]


TRAINING = ["atoll.learn", "atoll.torch", "atoll.devices", "atoll.stages", "atoll.report", "atoll.simulation"]
LIBRARIES = ["torch", "sklearn", "scipy", "matplotlib", "pandas", "pyarrow", "jinja2"]
ALL_METHODS = [
    "atoll.learn.algorithms.scaffold",
    "atoll.learn.pacing.safa",
    "atoll.stages.dgc",
    "atoll.data.generation",
]
RUN = "import contextlib, io; from atoll.cli.app import run\nwith contextlib.redirect_stdout(io.StringIO()): assert run({words}) == {code}"
JOB = """
import atoll.runtime.worker.process
from atoll.runs import parse_config
parse_config({"data": {"source": "digits"}, "model": {"name": "logistic", "features": 64, "classes": 10}, "algorithm": "fed_prox"})
"""
PROCESSES = {
    # A front knows keys, lines and jobs; nothing of what is trained.
    "a site's front": ("import atoll.runtime.site.site", [*TRAINING, *LIBRARIES, "atoll.data.dataset", "typer"]),
    "a server's front": ("import atoll.runtime.server.server", [*TRAINING, *LIBRARIES, "atoll.data.dataset", "typer"]),
    "whoever asks a server": ("import atoll.runtime.admin", [*TRAINING, *LIBRARIES, "atoll.runs.config"]),
    # The process of a job loads what the job names.
    "the process of a job": (JOB, [*LIBRARIES, *ALL_METHODS, "atoll.cli", "atoll.runtime.server.server"]),
    "the digits": ("import atoll; atoll.data.digits()", ["sklearn", "scipy", "torch", "pandas", "atoll.learn"]),
    # A command loads itself, and none of the others.
    "the version": (RUN.format(words=["--version"], code=0), ["numpy", "ruamel", *TRAINING, *LIBRARIES]),
    "a table of no runs": (
        RUN.format(words=["runs", "--root", "none"], code=0),
        ["numpy", "asyncio", "atoll.runtime", "atoll.cli.commands.run", "atoll.runs.config", *TRAINING, *LIBRARIES],
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_loads_what_it_uses(process: str) -> None:
    statement, others = PROCESSES[process]
    run = [sys.executable, "-W", "error", "-c", f"{statement}\nimport json, sys; print(json.dumps(list(sys.modules)))"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    below = tuple(f"{name}." for name in others)
    assert [name for name in loaded if name in others or name.startswith(below)] == []


def test_a_strategy_of_a_statement_is_found_by_its_name_alone() -> None:
    code = "import sys; from atoll.query.strategies.strategy import *; print(strategy_of('sums:x=1').__name__, [name for name in sys.modules if 'strategies.' in name])"
    said = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (
        said.stdout.strip()
        == "MaskedSums ['atoll.query.strategies.strategy', 'atoll.query.strategies.groupings', 'atoll.query.strategies.unit_sets', 'atoll.query.strategies.sums']"
    )
