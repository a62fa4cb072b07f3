"""``import atoll`` is light: NumPy and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["torch", "pydantic", "rich", "typer", "sklearn", "scipy", "matplotlib", "pandas", "pyarrow", "jinja2", "yaml"]

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
    assert found_heavy("import yaml") == ["yaml"]
