"""Jobs that a program runs inside, between sites: each site makes their tasks itself, from what the program declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core import message as M
from atoll.core.errors import ConfigError, PolicyError
from atoll.core.persistence.files import read_message
from atoll.core.requests.policy import SitePolicy
from atoll.data import Dataset
from atoll.runtime.job_spec import parse_job
from tests.support.work_models import Pair
from tests.support.work_toys import held, islands_of, site_of, sites_of

JOB = {"job": "program", "program": "tests.support.work_models:Pair", "seed": 4, "patience": 20.0}


@pytest.fixture(scope="module")
def parts() -> dict[str, Dataset]:
    rng = np.random.default_rng(1)
    rows = {name: rng.normal(size=(n, 4)).astype(np.float32) for name, n in (("a", 8), ("b", 11), ("c", 9))}
    return {
        name: Dataset({"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, task="classification", classes=2)
        for name, x in rows.items()
    }


def result(folder: Path) -> Any:
    return read_message(folder / "server" / "result.msg")


def test_each_job_between_sites_has_the_answer_of_the_simulation(parts: dict[str, Dataset], tmp_path: Path) -> None:
    held(JOB, sites_of(parts), tmp_path)
    simulated = atoll.simulate(parse_job(JOB).made(), islands_of(parts), engine="inline", seed=4)
    assert M.equal(result(tmp_path), simulated.outcome)
    weights = [one["weight"] for one in simulated.outcome]
    assert not np.array_equal(*weights)


class Died(Exception):
    """The server's process."""


def test_a_server_that_dies_goes_on_in_both_jobs(
    parts: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(JOB, sites_of(parts), tmp_path / "undisturbed")

    def dying(row: dict[str, Any]) -> None:
        raise Died(f"in round {row['round']}")

    for number in (1, 2):
        monkeypatch.setattr(Pair, "after_round", lambda row, last=number: dying(row) if row["round"] == last else None)
        with pytest.raises(Died, match=f"in round {number}"):
            held(JOB, sites_of(parts), tmp_path / "killed", resume=True)
    monkeypatch.setattr(Pair, "after_round", None)
    held(JOB, sites_of(parts), tmp_path / "killed", resume=True)
    assert M.equal(result(tmp_path / "killed"), result(tmp_path / "undisturbed"))


def test_a_site_is_told_of_every_job_before_the_first_begins(parts: dict[str, Dataset], tmp_path: Path) -> None:
    """What one job may do, another may not: the site sees both."""
    made = {name: site_of(name, part) for name, part in parts.items()}
    made["b"] = replace(made["b"], policy=SitePolicy(allow=("program", "tests.support.work_models:*", "FedAvg")))
    with pytest.raises(PolicyError, match="FedProx may not run here"):
        held(JOB, {name: (lambda one=one: one) for name, one in made.items()}, tmp_path)


def test_a_job_that_no_site_was_told_of_does_not_begin(parts: dict[str, Dataset], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the sites do not know Training"):
        held({**JOB, "program": "tests.support.work_models:Undeclared"}, sites_of(parts), tmp_path)
