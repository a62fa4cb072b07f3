"""AdaFedSemi: unlabelled rows at the server, its limits, and a bandit over participation and threshold."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.algorithms import FedAvg, FedProx
from atoll.core.errors import CompositionError, ConfigError
from atoll.data import Islands
from atoll.labels import AdaFedSemi, AdaptiveRounds
from atoll.labels.methods.adafedsemi import POOL
from tests.support.killed_trainings import killed_training
from tests.support.label_toys import gap, images, islands, net, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 8}
ROUNDS = AdaptiveRounds(shares=(0.4, 1.0), taus=(0.3, 0.6), window=1)


def data(share: float = 2.0) -> Islands:
    """Labels at three clients, and 60 rows without a label at the server."""
    return islands(images(share=share)).with_others({POOL: images(60, share=0.0, seed=8)})


def method(**settings: Any) -> AdaFedSemi:
    given = {"tau": 0.3, "pool_steps": 3, "pool_batch": 8, "weak": None, "strong": None, **settings}
    return AdaFedSemi(**(given if "base" in given else {**WORK, **given}))


@pytest.mark.parametrize("base", [FedAvg(**WORK), FedProx(mu=0.5, **WORK)])
def test_without_a_sure_row_it_is_the_algorithm_inside_to_the_bit(base: Any) -> None:
    assert same(trained(method(base=base, tau=1.0), data()), trained(base, data()))


@pytest.mark.slow
def test_the_servers_rows_count_and_engines_agree() -> None:
    one, many = (trained(method(), data(0.5), engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5
    assert gap(one, trained(method(tau=1.0), data(0.5))) > 1e-4


def run(topology: Any = ROUNDS, rounds: int = 10, engine: str = "inline") -> list[Any]:
    job = atoll.Training(model=net(), algorithm=method(), topology=topology, rounds=rounds)
    return list(atoll.simulate(job, data(), engine=engine, seed=1, progress=False).metrics)


def test_the_bandit_tries_every_arm_and_is_paid_for_gains() -> None:
    rows = run()
    assert {(row["share"], row["tau"]) for row in rows} == set(ROUNDS.arms)
    for row in rows:
        assert row["replied"] == (2 if row["share"] == 0.4 else 3)
        assert 0 <= row["pool_used"] <= 1
    rewards = [row["reward"] for row in rows if "reward" in row]
    assert len(rewards) == 9, "a loss is known one window later"
    assert all(0 <= reward <= 1 for reward in rewards)
    assert max(rewards) == 1
    before = [row["labelled_loss"] for row in rows]
    for t in range(1, 10):
        assert (rows[t]["reward"] > 0) == (before[t] < before[t - 1])


def test_a_window_keeps_an_arm() -> None:
    arms = [(row["share"], row["tau"]) for row in run(AdaptiveRounds(shares=(0.4, 1.0), taus=(0.3, 0.6), window=3), 9)]
    assert all(len(set(arms[t : t + 3])) == 1 for t in (0, 3, 6))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit(tmp_path: Any) -> None:
    """What the bandit knows is part of the checkpoint."""
    job = atoll.Training(model=net(), algorithm=method(), topology=ROUNDS, rounds=4)
    killed_training(job, data(), tmp_path, points=5)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(CompositionError, match="FedAvg has no pool of unlabelled rows"):
        trained(FedAvg(**WORK), data(), topology=ROUNDS)
    with pytest.raises(CompositionError, match="AdaptiveRounds sets the share of clients in a round"):
        trained(method(), data(), topology=ROUNDS, selection=atoll.Everyone())
    with pytest.raises(ConfigError, match=r"tau=0\.2 with 4 classes"):
        trained(method(tau=0.2), data())


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"pool_steps": 0}, {"pool_batch": 0}])
def test_settings_without_sense_are_refused(settings: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(ConfigError, match=rf"{name}={value}.*AdaFedSemi"):
        AdaFedSemi(**settings)


@pytest.mark.parametrize(
    "settings", [{"shares": ()}, {"shares": (1.5,)}, {"taus": (0.0,)}, {"window": 0}, {"price": 2.0}, {"discount": 0.0}]
)
def test_rounds_without_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        AdaptiveRounds(**settings)
