"""Central differential privacy: what is released is what the guarantee says, whoever takes part, whatever is repeated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg, MimeSVRG, Scaffold
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Gaussian, Ledger
from atoll.core.requests.chain import Chain
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Combined
from atoll.learn import RoundInfo, Training
from atoll.learn.private.central import Clipped
from atoll.mechanisms import CentralDP
from atoll.privacy import Budget, epsilon_of
from atoll.runs.config import RunConfig, validated
from atoll.selection import Everyone, FixedSample, PoissonSample, Uniform
from atoll.stages import Clip, GaussianNoise

DATA = atoll.data.iid(atoll.data.digits(), parties=30, seed=0)
MILD = {"noise": 1.5, "clip": 1.0, "accountant": "rdp"}


def job(rounds: int = 3, selection: Any = None, algorithm: Any = None, **more: Any) -> Training:
    return Training(
        model=atoll.models.linear(64, 10),
        algorithm=algorithm or FedAvg(lr=0.1),
        selection=selection or Uniform(10),
        rounds=rounds,
        **{"privacy": CentralDP(**MILD), **more},
    )


def run(training: Training, **world: Any) -> Any:
    return atoll.simulate(training, DATA, **{"engine": "inline", "seed": 3, "progress": False, **world})


def events(folder: Any) -> list[dict[str, Any]]:
    found = list(Ledger(folder / "checkpoints" / "ledger.jsonl"))
    return [line for line in found if line["kind"] == "gaussian"]


# ---------------------------------------------------------------------- what is released


def installed(**settings: Any) -> Any:
    training = job(privacy=CentralDP(**{**MILD, **settings}))
    return training.installed(DATA, training.learner(DATA))


def total(values: list[np.ndarray[Any, Any]]) -> Combined:
    """The replies of some clients, all with weight 1."""
    value = sum(values) / len(values) if values else np.zeros(3)
    everyone = Roster(["a"]).all()
    return Combined(
        {"update": value}, len(values), {"update": float(len(values))}, everyone, everyone, kinds={"update": "mean"}
    )


def test_noise_and_denominator_are_those_of_the_paper() -> None:
    """The sum over q N, plus noise of standard deviation z clip / (q N), whoever replied: McMahan et al. 2018, Algorithm 1."""
    part = installed(clip=2.0).aggregation
    rows = [np.full(200_000, v) for v in (0.1, 0.4, -0.2)]
    info = RoundInfo(1, 3, 3, 30, secret=Secret(b"x" * 32))
    found, _ = part.combine(total(rows), {}, None, info)
    noise = found["update"] - 0.3 / 10.0
    assert noise.mean() == pytest.approx(0.0, abs=0.004)
    assert noise.std() == pytest.approx(1.5 * 2.0 / 10.0, rel=0.01)


def test_neither_the_number_of_replies_nor_examples_reach_the_fold() -> None:
    part = installed().aggregation
    told = part.disclosed(RoundInfo(4, 17, 12, 30, weight=99.0))
    assert (told.selected, told.replied, told.weight) == (10, 10, None)
    reply = part.algorithm(FedAvg()).finish(
        {"params": {"w": np.ones(2)}}, {"params": {"w": np.zeros(2)}}, None, atoll.learn.LocalWork(500.0, 3.0)
    )[0]
    assert float(reply["update"].weight) == 1.0


VECTORS = st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4).map(np.array)


@given(st.lists(VECTORS, max_size=5), VECTORS, VECTORS, st.sampled_from(["add-remove", "replace-one"]))
def test_no_neighbours_move_the_sum_further_than_declared(
    others: list[Any], one: Any, other: Any, neighbours: str
) -> None:
    """Before noise, with and without a client, or with another in its place."""
    part = installed(clip=0.7, neighbours=neighbours).aggregation
    chain = Chain((Clip(0.7, alone=True),))

    def added(clients: list[Any]) -> Any:
        sent = [chain.encode(Mean({"w": v}, examples=1.0), (), Rng(0))[0].value["w"] for v in clients]
        return sum(sent, np.zeros(4))

    after = added(others) if neighbours == "add-remove" else added([*others, other])
    assert np.linalg.norm(added([*others, one]) - after) <= part.sensitivity * (1 + 1e-9)


def test_all_values_of_a_round_are_one_release() -> None:
    """SCAFFOLD sends two values: each has sqrt(2) times the noise, and the ledger one event."""
    training = job(algorithm=Scaffold(lr=0.1))
    made = training.installed(DATA, training.learner(DATA))
    assert made.claim.attendance.values == made.aggregation.values == 2
    rows = {"update": np.zeros(100_000), "control": np.zeros(100_000)}
    everyone = Roster(["a"]).all()
    sums = Combined(rows, 3, dict.fromkeys(rows, 3.0), everyone, everyone, kinds=dict.fromkeys(rows, "mean"))
    found, _ = made.aggregation.combine(sums, {}, None, RoundInfo(1, 3, 3, 30, secret=Secret(b"y" * 32)))
    for value in found.values():
        assert value.std() == pytest.approx(1.5 * math.sqrt(2) / 10.0, rel=0.02)
    assert abs(np.corrcoef(found["update"], found["control"])[0, 1]) < 0.02


def test_measurements_stay_at_the_clients() -> None:
    assert all("loss" not in row for row in run(job()).metrics)


# ---------------------------------------------------------------------- secrets


def test_who_knows_the_seed_knows_neither_noise_nor_sample() -> None:
    one, two = run(job()), run(job())
    assert np.abs(one.params["weight"] - two.params["weight"]).min() > 0
    sizes = [[row["replied"] for row in run(job(rounds=6)).metrics] for _ in range(3)]
    assert len({tuple(row) for row in sizes}) > 1
    same = [run(job(), secret_seed=1).params["weight"] for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_engines_release_and_charge_the_same(tmp_path: Any) -> None:
    found = {}
    for engine in ("inline", "batched"):
        made = run(job(), secret_seed=5, engine=engine, folder=tmp_path / engine)
        found[engine] = (made.params["weight"], [{**e, "request": ""} for e in events(tmp_path / engine)])
    np.testing.assert_allclose(found["inline"][0], found["batched"][0], atol=1e-5)
    assert found["inline"][1] == found["batched"][1]


# ---------------------------------------------------------------------- the ledger


def test_a_secret_sample_charges_everybody_and_a_public_one_those_in_the_sum(tmp_path: Any) -> None:
    run(job(), folder=tmp_path / "secret")
    drawn = events(tmp_path / "secret")
    assert [e["party"] for e in drawn] == ["*"] * 3
    assert {(e["sampling"], e["scheme"], e["drawn_by"], e["noise_multiplier"]) for e in drawn} == {
        (1 / 3, "poisson", "server", 1.5)
    }
    run(job(privacy=CentralDP(**MILD, amplified=False)), folder=tmp_path / "public")
    told = events(tmp_path / "public")
    assert len(told) == 3 * 10
    assert {(e["sampling"], e["party"] != "*") for e in told} == {(1.0, True)}


def test_the_row_and_the_guarantee_say_the_same_at_the_end() -> None:
    made = run(job(rounds=4))
    guarantee = made.prepared.claim
    event = Gaussian(noise_multiplier=1.5, sampling=1 / 3, drawn_by="server")
    assert guarantee.epsilon == epsilon_of(((event, 4),), 1e-5, "rdp", "model", "add-remove")
    assert made.metrics.last("epsilon") == pytest.approx(guarantee.epsilon, rel=1e-12)


def test_an_empty_sample_releases_noise_and_is_charged(tmp_path: Any) -> None:
    """Whether a sample is empty tells about who is in it."""
    made = run(job(selection=PoissonSample(0.01), rounds=6), secret_seed=2, folder=tmp_path / "run")
    assert [row["replied"] for row in made.metrics].count(0) > 0
    assert len(events(tmp_path / "run")) == 6
    assert not any("failed" in row for row in made.metrics)


# ---------------------------------------------------------------------- from epsilon to noise


@pytest.mark.parametrize(
    ("neighbours", "selection", "rate"),
    [("add-remove", PoissonSample(0.2), 0.2), ("replace-one", FixedSample(6), 0.2), ("add-remove", Everyone(), 1.0)],
    ids=["poisson", "fixed", "everyone"],
)
def test_noise_is_the_least_that_keeps_epsilon(neighbours: Any, selection: Any, rate: float) -> None:
    mechanism = CentralDP(epsilon=3.0, delta=1e-4, clip=1.0, neighbours=neighbours, accountant="rdp")
    training = job(selection=selection, rounds=5, privacy=mechanism)
    made = training.installed(DATA)
    guarantee = made.claim
    assert guarantee.attendance.rate == rate
    assert guarantee.epsilon == pytest.approx(3.0, rel=1e-5)
    assert guarantee.epsilon <= 3.0
    assert mechanism.spent(guarantee.attendance, guarantee.noise * 0.999) > 3.0
    assert made.budget == Budget(3.0, 1e-4, method="rdp", adversary="model", neighbours=neighbours)


# ---------------------------------------------------------------------- what people see


def test_a_result_an_explanation_and_a_manifest_name_unit_neighbours_and_adversary(tmp_path: Any) -> None:
    made = run(job(), folder=tmp_path / "run")
    text = str(made)
    explained = job().explain(DATA)
    manifest = atoll.runs.RunFolder(tmp_path / "run").manifest()["privacy"]
    for shown in (text, " ".join(explained.notes), manifest["text"]):
        for word in ("one user", "add-remove neighbours", "whoever gets the model", "delta 1e-05", "rdp"):
            assert word in shown
    assert "a Poisson sample of rate 0.3333 drawn from the server's secret" in text
    assert any("trusted" in exposure.assuming for exposure in explained.exposures)


def test_a_file_names_a_mechanism_as_any_other_part() -> None:
    config = validated(
        RunConfig,
        {
            "data": {"source": "digits"},
            "model": {"name": "linear", "features": 64, "outputs": 10},
            "privacy": {"name": "CentralDP", "epsilon": 2.0, "delta": 1e-5, "clip": 0.5},
        },
        "c.yaml",
    )
    assert config.privacy is not None
    assert config.privacy.build("privacy") == CentralDP(epsilon=2.0, delta=1e-5, clip=0.5)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "epsilon=None, noise=None"),
        ({"epsilon": 1.0, "noise": 1.0}, "give one of them"),
        ({"epsilon": 1.0}, "without a delta"),
        ({"noise": 1.0, "adversary": "server"}, "before the server sees anything"),
        ({"noise": 1.0, "unit": "example"}, "a mechanism for examples"),
        ({"noise": -1.0}, "noise=-1.0"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CentralDP(clip=1.0, **settings)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"uplink": [Clip(1.0), GaussianNoise(1.0)]}, "GaussianNoise protects the replies already"),
        ({"budget": Budget(2.0)}, "the budget counts for adversary 'server'"),
        ({"selection": atoll.selection.Schedule([[0], [1]])}, "invites clients that others can foresee"),
        ({"selection": FixedSample(3)}, "draws one of fixed size"),
        ({"aggregation": atoll.aggregation.Rescaled()}, "Rescaled weights them in its own way"),
        ({"evaluation": atoll.Evaluation(clients=-1)}, "without noise"),
    ],
    ids=["two mechanisms", "budget", "public sample", "fixed sample", "weights", "measures of clients"],
)
def test_parts_with_which_the_guarantee_would_not_hold_are_refused(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(CompositionError, match=said):
        job(**parts)


# ---------------------------------------------------------------------- where clients clip


@given(VECTORS, st.floats(1e-6, 1e6))
def test_a_clip_inside_the_update_bounds_what_leaves(update: Any, bound: float) -> None:
    inside = Clipped(base=FedAvg(), bound=bound)
    start = {"params": {"w": np.zeros(4)}, "lr": 0.1}
    reply, _ = inside.finish({"params": {"w": update}}, start, None, atoll.learn.LocalWork(3.0, 1.0))
    sent, length = reply["update"].value["w"], np.linalg.norm(update)
    assert np.linalg.norm(sent) <= bound * (1 + 1e-9)
    np.testing.assert_allclose(sent, update * min(1.0, bound / length) if length else update, rtol=1e-9)


@pytest.mark.network
def test_blocks_of_pytorch_clip_as_single_clients_do() -> None:
    """The clip is compiled with the update, and the sums are those of clients one by one."""
    training = job(privacy=CentralDP(noise=0.01, clip=0.05, accountant="rdp")).replace(
        model=atoll.models.mlp(64, 10, hidden=(8,)), selection=Everyone()
    )
    made = {e: run(training, engine=e, secret_seed=1).params for e in ("inline", "batched")}
    for name, value in made["inline"].items():
        np.testing.assert_allclose(value, made["batched"][name], atol=2e-5)


def test_a_stage_clips_where_the_update_cannot() -> None:
    """Another stage acts, a pass of another kind replies, or the model sends more than the algorithm's replies."""
    plain = job()
    assert plain.installed(DATA, plain.learner(DATA)).uplink == ()
    for other in (job(uplink=[Clip(9.0)]), job(algorithm=MimeSVRG(lr=0.1))):
        assert Clip(1.0, alone=True) in other.installed(DATA, other.learner(DATA)).uplink
    parts, _ = plain.privacy.install(plain, 30, 1, alone=False)  # type: ignore[union-attr]
    assert parts["uplink"] == (Clip(1.0, alone=True),)


@pytest.mark.parametrize("delta", [1 / 30, 0.5])
def test_a_delta_that_allows_to_publish_a_client_is_refused(delta: float) -> None:
    """With 30 clients, a mechanism that publishes one of 30 at random has epsilon 0 at delta 1/30."""
    training = job(privacy=CentralDP(epsilon=1.0, delta=delta, clip=1.0))
    with pytest.raises(ConfigError, match=r"for 30 clients .*use a delta well below 1/30, such as 0\.001"):
        training.installed(DATA, training.learner(DATA))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"pacing": atoll.pacing.SAFA()}, "SAFA does not know before a round which clients are in it"),
        ({"topology": atoll.topology.Gossip()}, "Gossip has rounds of its own"),
    ],
)
def test_the_reason_is_the_mechanisms_own(parts: dict[str, Any], said: str) -> None:
    """And not that of the aggregation that it installs, which the user has not chosen."""
    with pytest.raises(
        CompositionError, match=f"CentralDP adds noise to the sum of one server's round, and {said}.*Remedy: use a mech"
    ):
        job(**parts)
