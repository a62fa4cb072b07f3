"""`atoll poc --secure`: masked sums between real processes, one of which is killed in a round, are those of the plain run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import atoll
from atoll.cli.app import run
from atoll.core.errors import JobError
from atoll.reducers import SecureAggregation
from atoll.runtime.poc import compared, survivors_of
from atoll.selection import Schedule

NAMES = ["north", "south", "east", "west"]


def test_survivors_are_read_from_the_rows():
    rows = [{"round": 1, "replied": 4}, {"round": 2, "replied": 3}]
    assert survivors_of(rows, NAMES, "south") == [[0, 1, 2, 3], [0, 2, 3]]
    with pytest.raises(JobError, match=r"2 of 4 sites were in round 3"):
        survivors_of([{"round": 3, "replied": 2}], NAMES, "south")


def test_a_masked_run_is_within_the_bound_and_another_run_is_not():
    digits = atoll.data.digits()
    islands = atoll.data.dirichlet(digits, parties=4, alpha=0.5, seed=0)
    rounds = [[0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]
    job = atoll.Training(
        model=atoll.models.mlp(64, 10),
        algorithm=atoll.FedAvg(lr=0.1),
        selection=Schedule(rounds),
        rounds=3,
        reducer=SecureAggregation(),
    )
    masked = atoll.simulate(job, islands, engine="inline", seed=3, progress=False).params
    found = compared(job, islands, rounds, masked, seed=3)
    assert 0 < found["difference"] <= found["bound"] < 1e-4
    others = compared(job, islands, [[0, 1, 2, 3]] * 3, masked, seed=3)
    assert others["difference"] > 10 * others["bound"]  # one client more in two rounds is no rounding


def test_too_few_sites_and_a_job_of_ones_own_are_refused(capsys, tmp_path):
    assert run(["poc", "--secure", "--sites", "3", "--json"]) == 2
    assert "--sites 4 or more" in json.loads(capsys.readouterr().out)["error"]["remedy"]


@pytest.mark.slow
def test_a_site_is_killed_and_the_sum_of_the_others_goes_on(capsys, tmp_path):
    assert run(["poc", "--secure", "--sites", "5", "--folder", str(tmp_path / "poc"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["survivors"] == 4
    assert found["survivors_by_round"][:2] == [5, 5]
    assert found["accuracy"] > 0.9
    assert found["difference"] <= found["bound"] < 1e-2
    assert np.isfinite(found["difference"])
