"""Alignment between processes: the same result as in one process, also after `kill -9` in the middle."""

from __future__ import annotations

import csv
import json

import pytest

import atoll
from atoll.cli import run
from atoll.core.requests.cohort import Community
from atoll.core.world import World
from atoll.runs import yaml
from atoll.secure.psi import Circuit, Ecdh, Linkage, Opprf, Oprf, Unbalanced
from atoll.testing import killed_and_resumed
from tests.support.alignment import program_of, shared_keys, tables
from tests.support.worlds import WORLDS

pytestmark = pytest.mark.network

SETS = tables({"bank": [f"u{i}" for i in range(20)], "shop": [f"u{i}" for i in range(12, 50)]})


@pytest.mark.parametrize(
    "protocol",
    [Ecdh(), *(pytest.param(one, marks=pytest.mark.slow) for one in (Unbalanced(), Opprf()))],
    ids=lambda one: type(one).__name__,
)
def test_killed_sites_go_on_to_the_same_result(tmp_path, protocol):
    def make_world(folder, resume):
        return World(Community(dict(SETS)), WORLDS["network"](2), folder=folder, resume=resume)

    life = killed_and_resumed(make_world, program_of(protocol, list(SETS)), tmp_path, points=2, exact_spending=False)
    assert life.result["bank"]["names"] == life.result["shop"]["names"] == shared_keys(SETS)


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        (Circuit(), {"result": "count"}),
        pytest.param(Oprf(), {"learners": ("bank",), "superset": 0.5}, marks=pytest.mark.slow),
        pytest.param(Circuit(), {"result": "sum", "column": "amount", "holder": "shop", "min_count": 5}, marks=pytest.mark.slow),
    ],
    ids=["count", "superset", "sum"],
)  # fmt: skip
def test_killed_sites_compute_on_shares_and_hide_rows(tmp_path, protocol, more):
    data = {**SETS, "shop": {**SETS["shop"], "amount": list(range(38))}}

    def make_world(folder, resume):
        return World(Community(dict(data)), WORLDS["network"](2), folder=folder, resume=resume)

    program = program_of(protocol, list(data), **more)
    found = killed_and_resumed(make_world, program, tmp_path, points=2, exact_spending=False).result["bank"]
    assert (found["count"], found["total"]) == ((None, sum(range(8))) if "column" in more else (8, None))


def test_records_are_linked_between_a_server_two_sites_and_a_linker(tmp_path, capsys):
    people = {
        "bank": {"name": ["anna smith", "bertha jones", "carl meyer"], "town": ["bonn", "ulm", "kiel"]},
        "shop": {"name": ["karl meyer", "anna smyth", "dora klein"], "town": ["kiel", "bonn", "jena"]},
    }
    settings = {"columns": ["name", "town"], "threshold": 0.6, "show": True}
    expected = atoll.simulate(Linkage(**settings), people, engine="inline", progress=False).outcome
    assert expected.count == 2
    (tmp_path / "files").mkdir()
    for name, columns in people.items():
        lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
        (tmp_path / "files" / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    job = tmp_path / "job.yaml"
    job.write_text(yaml.dump({"name": "link", "job": "linkage", "sites": "all", **settings}), encoding="utf-8")
    folder = tmp_path / "trial"
    assert run(["poc", str(job), "--data", str(tmp_path / "files"), "--folder", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["result"]
    assert (told["count"], told["sizes"]) == (expected.count, dict(expected.sizes))
    with (folder / "result" / "pairs.csv").open(encoding="utf-8") as file:
        assert [tuple(map(int, row)) for row in list(csv.reader(file))[1:]] == [tuple(pair) for pair in expected.pairs]
    assert (folder / "kits" / "linker" / "kit.yaml").is_file()
