"""DP-FTRL: noise that later rounds take back, clients that take turns, and a run that resumes with the same noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Combined
from atoll.learn import RoundInfo, Training
from atoll.learn.selection.base import Candidates
from atoll.mechanisms import DPFTRL, AdaptiveClip
from atoll.pacing import Synchronous
from atoll.privacy import spent
from atoll.privacy.factorisation import prefix_error
from atoll.selection import CyclicGroups, Everyone, Schedule, Uniform

PARTIES = 24
DATA = atoll.data.iid(atoll.data.digits(), parties=PARTIES, seed=0)


def job(rounds: int = 12, selection: Any = None, **more: Any) -> Training:
    privacy = more.pop("privacy", DPFTRL(noise=1.0, clip=1.0))
    return Training(
        model=atoll.models.linear(64, 10),
        algorithm=FedAvg(lr=0.1),
        rounds=rounds,
        privacy=privacy,
        selection=selection or Uniform(4),
        **more,
    )


def run(training: Training, **world: Any) -> Any:
    return atoll.simulate(training, DATA, **{"engine": "inline", "seed": 3, "progress": False, **world})


def installed(training: Training) -> Any:
    return training.installed(DATA, training.learner(DATA))


@pytest.mark.parametrize(
    "kind", [{"factorisation": "banded"}, {"factorisation": "tree"}, {"factorisation": "tree", "restart": 3}]
)
def test_the_sum_of_rounds_has_the_noise_of_the_dense_matrix(kind: dict[str, Any]) -> None:
    """Twelve rounds of zeros: the prefix sums over 100,000 entries against the rows of ``B``, found by unit vectors."""
    part = installed(job(privacy=DPFTRL(noise=1.5, clip=2.0, **kind))).aggregation
    size, memory, prefix, names = 100_000, None, 0.0, Roster(["a"]).all()
    unit, own = None, np.eye(40)
    rows = iter(own)
    total = np.zeros(40)
    for number in range(12):
        nothing = Combined({"update": np.zeros(size)}, 1, {"update": 1.0}, names, names, kinds={"update": "mean"})
        info = RoundInfo(number + 1, 4, 4, PARTIES, secret=Secret(bytes([number]) * 32))
        made, memory = part.combine(nothing, {}, memory, info)
        prefix = prefix + made["update"]
        row, unit = part.factorisation.step(unit, lambda: next(rows).copy())
        total += row
        scale = 1.5 * math.sqrt(part.cost) * 2.0 / 4
        assert prefix.std() == pytest.approx(scale * np.linalg.norm(total), rel=0.02)


def test_rounds_cost_each_client_its_turns(tmp_path: Path) -> None:
    """24 clients in groups of 4 over 12 rounds: two turns each, charged to those in the sum, and no more than the claim."""
    training = job(privacy=DPFTRL(epsilon=4.0, delta=1e-5, clip=1.0))
    made = run(training, folder=tmp_path / "run")
    claim = made.prepared.claim
    assert (claim.attendance.most, claim.attendance.separation) == (2, 6)
    assert 3.99 < claim.epsilon <= 4.0
    ledger = list(Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl"))
    charged = spent(ledger, 1e-5, "pld", "model", "add-remove")
    shares = {name: value for name, value in charged.items() if name.startswith("client")}
    assert len(shares) == PARTIES
    assert all(value == pytest.approx(claim.epsilon, rel=1e-6) for value in shares.values())


def test_correlated_noise_costs_less_than_independent_noise_at_the_same_epsilon() -> None:
    """The prefix sums of the same rounds at the same epsilon: bands, then a tree, against one band."""
    errors = {}
    for name, kind in {"one": {"bands": 1}, "bands": {}, "tree": {"factorisation": "tree"}}.items():
        made = installed(job(rounds=24, privacy=DPFTRL(epsilon=4.0, delta=1e-5, clip=1.0, **kind)))
        part = made.aggregation
        turns = made.claim.attendance.participations, made.claim.attendance.separation
        errors[name] = part.noise * prefix_error(part.factorisation, 24, *turns)
    assert errors["bands"] < 0.75 * errors["one"]


def test_a_killed_run_resumes_with_the_same_noise(tmp_path: Path) -> None:
    class _StopError(Exception):
        pass

    seen: list[dict[str, Any]] = []

    def record(row: dict[str, Any]) -> None:
        seen.append(row)
        if len(seen) == 5:
            raise _StopError("after round 5")

    training = job(rounds=8, checkpoint_every=3)
    with pytest.raises(_StopError, match="after round 5"):
        run(training, folder=tmp_path / "run", on_record=record)
    before = [line["request"] for line in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl")]
    made = run(training, folder=tmp_path / "run", resume=True)
    again = {row["round"]: row for row in made.metrics}
    assert all(again[row["round"]]["test/loss"] == row["test/loss"] for row in seen)
    after = [line["request"] for line in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl")]
    assert after[: len(before)] == before
    assert made.metrics.last("epsilon") == pytest.approx(made.prepared.claim.epsilon)


def test_who_knows_the_seed_does_not_know_the_noise() -> None:
    one, two = run(job(rounds=2)), run(job(rounds=2))
    assert np.abs(one.params["weight"] - two.params["weight"]).min() > 0


# ---------------------------------------------------------------------- turns


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 50))
def test_clients_take_turns_as_declared(population: int, count: int, rounds: int) -> None:
    rule = CyclicGroups(count)
    parties = Roster([f"c{i}" for i in range(population)]).all()
    state = rule.init(parties)
    last: dict[int, int] = {}
    seen: dict[int, int] = {}
    most, separation = rule.turns(population, rounds)
    for number in range(1, rounds + 1):
        chosen = rule.invite(Candidates(parties, number, Rng(0)), count, state).tolist()
        assert len(set(chosen)) == len(chosen) <= rule.cohort_size(population)
        for client in chosen:
            assert number - last.get(client, number - separation) >= separation
            last[client], seen[client] = number, seen.get(client, 0) + 1
    assert max(seen.values()) == most


def test_a_schedule_knows_its_turns() -> None:
    assert Schedule([[0, 1], [2], [0]]).turns(3, 6) == (4, 1)
    assert Schedule([[0], [1], [2]]).turns(3, 3) == (1, 3)
    assert Everyone().turns(5, 7) == (7, 1)


def test_a_uniform_sample_becomes_groups_that_take_turns() -> None:
    assert installed(job()).selection == CyclicGroups(4)
    everyone = installed(job(selection=Everyone(), privacy=DPFTRL(noise=1.0, clip=1.0, factorisation="tree")))
    assert everyone.aggregation.cost == sum(min(12, 2**level) for level in range(4))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"factorisation": "fft"}, "factorisation='fft'"),
        ({"adapt": AdaptiveClip()}, "the same clip in all of them"),
        ({"amplified": True}, "needs no secret sample"),
        ({"factorisation": "tree", "bands": 3}, "bands=3 of a tree"),
        ({"restart": 3}, "restart=3 of bands"),
        ({"adversary": "server"}, "before the server sees anything"),
    ],
)
def test_settings_without_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DPFTRL(**{"noise": 1.0, "clip": 1.0, **settings})


def test_turns_that_are_too_close_and_invitations_before_them_are_refused() -> None:
    with pytest.raises(ConfigError, match="bands=6 or fewer"):
        installed(job(privacy=DPFTRL(noise=1.0, clip=1.0, bands=7)))
    with pytest.raises(CompositionError, match="before their turn"):
        job(pacing=Synchronous(deadline=5.0, over_select=1.5))


def test_a_round_of_several_sums_is_refused() -> None:
    """A client in two sums of a round would move neighbouring rows, which bands do not count."""
    with pytest.raises(CompositionError, match="and DINGO has 15 phases"):
        job().replace(algorithm=atoll.algorithms.DINGO())


def test_optimal_bands_are_for_the_rounds_of_the_training_and_cost_less() -> None:
    errors = {}
    for kind in ("banded", "optimal"):
        made = installed(job(rounds=24, privacy=DPFTRL(epsilon=4.0, delta=1e-5, clip=1.0, factorisation=kind)))  # type: ignore[arg-type]
        part, taking = made.aggregation, made.claim.attendance
        errors[kind] = part.noise * prefix_error(part.factorisation, 24, taking.participations, taking.separation)
        assert made.claim.epsilon == pytest.approx(4.0, rel=1e-3)
    assert part.factorisation.rounds == 24
    assert errors["optimal"] < errors["banded"]
