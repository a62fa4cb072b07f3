"""Encrypted sums between organisations: a server, three sites, a key holder and a dealer as processes with kits, over mutual TLS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.runs import yaml

pytest.importorskip("gmpy2")
pytest.importorskip("tenseal")

SUMS = """
import numpy as np

import atoll
from atoll.core import Mean, Sum
from atoll.secure import Encrypted
from atoll.secure.encrypted import Paillier

REDUCERS = {"holder": Encrypted(), "threshold": Encrypted(Paillier(), keys="threshold", threshold=2)}


@atoll.task
def rows(island, message):
    count = float(len(island.data))
    return {"x": Mean({"a": np.full(5, count)}, examples=count), "n": Sum(np.float64(count))}


async def sums(fed):
    found = {}
    for name, reducer in REDUCERS.items():
        got = await fed.sum(fed.parties, rows, None, reducer=reducer, at=name)
        found[name] = [got["x"]["a"].tolist(), float(got["n"]), got.weight["x"], got.n]
    return found


async def plain(fed):
    got = await fed.sum(fed.parties, rows)
    return {"plain": [got["x"]["a"].tolist(), float(got["n"]), got.weight["x"], got.n]}


sums.others = {"key-holder": "key-holder", "dealer": "dealer"}
"""


def between(tmp_path: Path, program: str, capsys: Any) -> dict[str, Any]:
    job = tmp_path / program
    (job / "code").mkdir(parents=True)
    (job / "code" / "summing.py").write_text(SUMS, encoding="utf-8")
    tree = {"source": "code", "job": "program", "program": f"summing:{program}", "patience": 120.0}
    (job / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    assert run(["poc", str(job), "--sites", "3", "--folder", str(tmp_path / f"{program}-run"), "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


@pytest.mark.slow
def test_a_key_holder_and_a_dealer_with_kits_open_the_plain_sum(tmp_path: Path, capsys: Any) -> None:
    """Keys of full length. Its quick sibling is `test_a_training_between_real_sites_is_the_simulation`."""
    found = between(tmp_path, "sums", capsys)
    assert found["sites"] == ["site-1", "site-2", "site-3", "dealer", "key-holder"]
    (mean, *expected) = between(tmp_path, "plain", capsys)["result"]["plain"]
    for name in ("holder", "threshold"):
        means, *others = found["result"][name]
        assert means == pytest.approx(mean, abs=1e-6)
        assert others == expected
