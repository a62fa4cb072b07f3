"""Ensembles that choose themselves: rules follow their formulas, users find their leaves again, all that is trained is charged, and what makes no sense is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Gaussian
from atoll.core.federation.federation import run_program
from atoll.core.requests.island import Secret
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.data import Dataset, Islands
from atoll.engines import Inline
from atoll.ensemble import (
    AttributeClusters,
    CentroidClusters,
    EnsembleRelease,
    Federated,
    ListedClusters,
    PrivateLeaf,
    RandomClusters,
    Search,
    account_ensemble,
)
from atoll.ensemble.accounting import share_epsilon
from atoll.ensemble.model import count_numbers
from atoll.ensemble.regrouping import answer_noisily
from atoll.ensemble.search import choose_count, find_weak, log_losses, settle_moves
from atoll.privacy import RandomisedResponse, epsilon_of
from tests.ensemble.test_federated import leaf, population
from tests.support.killed_trainings import killed_training

DELTA = 1e-5
OPT_IN = ["u0", "u1", "u2"]
SEGMENT = AttributeClusters("segment")
EVERYONE = atoll.selection.Everyone()


# ---------------------------------------------------------------- rules


def test_the_fewest_leaves_that_are_not_worse_beyond_two_standard_errors() -> None:
    base = np.array([0.5, 0.6, 0.4, 0.7])
    near, far = base + np.array([0.02, -0.01, 0.01, 0.0]), base + 0.1
    count, told = choose_count({1: far, 2: near, 4: base})
    gap = near - base
    assert count == 2
    assert told[1] == pytest.approx({"clusters": 2, "loss": near.mean(), "above": gap.mean(), "error": gap.std(ddof=1) / 2})  # fmt: skip
    assert choose_count({1: far, 2: base + 0.05, 4: base})[0] == 4
    assert choose_count({2: base, 4: base, 8: base})[0] == 2  # a tie goes to the fewest
    assert choose_count({1: base[:1] + 1e-9, 2: base[:1]})[0] == 2  # one user has no error


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=24), st.integers(1, 4))  # fmt: skip
def test_moves_leave_no_leaf_with_too_few(rows: list[tuple[int, int, bool]], smallest: int) -> None:
    users = {f"u{i}": own for i, (own, _, _) in enumerate(rows)}
    asked = {f"u{i}": to for i, (_, to, answers) in enumerate(rows) if answers}
    found = settle_moves(users, asked, smallest)
    assert all(found[name] in (users[name], asked.get(name)) for name in users)
    before, after = (np.bincount(list(one.values()), minlength=4) for one in (users, found))
    assert ((after >= smallest) | (after >= before)).all()


def test_leaves_lag_behind_the_median_one() -> None:
    losses = np.array([[0.3, 0.9, 0.9], [0.5, 0.9, 0.9], [0.9, 0.5, 0.9], [0.2, 0.9, 0.8]])
    weak = find_weak(losses, np.array([0, 0, 1, 2]), 0.05)
    assert list(weak) == [2]
    assert weak[2].tolist() == [0.2, 0.9, 0.8]
    assert not find_weak(losses, np.array([0, 0, 1, 2]), 0.31)
    assert list(find_weak(losses[:3], np.array([0, 0, 1]), 0.01)) == [1]  # nobody judges the last leaf


def test_a_leaf_that_gives_no_number_does_not_outweigh_all_rows() -> None:
    import torch
    from torch import nn

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((len(x), 2), float("nan"))

    x = np.zeros((3, 4), np.float32)
    losses = log_losses([nn.Flatten(), Broken()], np.eye(3, 2, dtype=np.float32) * 1e9, np.array([0, 1, 0]))
    assert losses[0] == pytest.approx(np.log(2) / 3)
    assert losses[1] == pytest.approx(12 * np.log(10))
    assert log_losses([Broken()], x[:0], np.zeros(0)).tolist() == [0.0]


def test_answers_follow_randomised_response() -> None:
    """10,000 answers of four leaves at epsilon 1: the true one with e / (e + 3), within four standard deviations; the others alike."""
    secret = Secret(7)
    said = np.bincount([answer_noisily(2, 4, 1.0, secret) for _ in range(10_000)], minlength=4) / 10_000
    true = np.e / (np.e + 3)
    assert abs(said[2] - true) < 4 * np.sqrt(true * (1 - true) / 10_000)
    assert np.ptp(said[[0, 1, 3]]) < 0.03
    assert {answer_noisily(1, 3, 50.0, secret) for _ in range(200)} == {1}


# ---------------------------------------------------------------- the number of leaves


def one_segment(users: int = 12) -> Islands:
    """Users of one segment, whose labels follow the first column."""
    draw = np.random.default_rng(3)
    parts = {}
    for i in range(users):
        x = draw.normal(size=(20, 4)).astype(np.float32)
        parts[f"u{i}"] = Dataset({"x": x, "y": (x[:, 0] > 0).astype(int)}, features=list("abcd"), task="classification")
    return Islands.from_datasets(parts, test=parts["u0"])


def test_it_finds_the_segments_and_one_leaf_where_there_is_one() -> None:
    job = Federated(
        clusters=CentroidClusters(1, ["d"]),
        leaf=leaf(rounds=8, selection=EVERYONE),
        opt_in=OPT_IN,
        smallest=3,
        search=Search(clusters=(1, 3, 5)),
    )
    result = atoll.simulate(job, population(users=15, rows=20))
    found = result.outcome.search
    assert found.clusters == len(result.outcome.leaves) == 3
    assert [row["clusters"] for row in found.candidates] == [1, 3, 5]
    assert "users to train it" in found.candidates[2]["left_out"]
    assert found.candidates[0]["above"] > 2 * found.candidates[0]["error"] > 0
    assert result.prepared.facts(result.outcome)["result"]["search"] == found.plain()
    section = result.prepared.sections(result.outcome)[-1]
    assert (section["title"], section["text"]) == ("What it chose", found.why)
    assert "8 of 8; ended" in str(result)
    same = Federated(clusters=RandomClusters(1), leaf=leaf(rounds=4), opt_in=OPT_IN, search=Search(clusters=(1, 2)))
    assert atoll.simulate(same, one_segment()).outcome.search.clusters == 1


def test_one_candidate_is_the_training_bit_for_bit() -> None:
    islands = population()
    job = Federated(clusters=RandomClusters(4), leaf=leaf(), aggregate="mean", search=Search(clusters=(1,)))
    made, alone = atoll.simulate(job, islands, seed=5).outcome, atoll.simulate(leaf(), islands, seed=5)
    for name, value in made.leaves[0].state_dict().items():
        assert np.array_equal(value, alone.params[name])
    assert made.search.why.startswith("1 leaves: no other number can be trained")


def test_sizes_leave_candidates_out() -> None:
    size = 4 * count_numbers(leaf().model)
    search = Search(clusters=(1, 2, 4), most_bytes=2 * size)
    job = Federated(clusters=RandomClusters(1), leaf=leaf(rounds=1), opt_in=OPT_IN, search=search)
    rows = atoll.simulate(job, population()).outcome.search.candidates
    assert rows[2] == {"clusters": 4, "left_out": f"its leaves have {4 * size} bytes, and {2 * size} are allowed"}
    with pytest.raises(DataError, match="no number of leaves can be trained: its leaves have"):
        Federated(clusters=RandomClusters(1), leaf=leaf(), search=Search(clusters=(2,), most_bytes=9)).prepare(population())  # fmt: skip
    with pytest.raises(DataError, match="users to train it besides"):
        Federated(clusters=RandomClusters(1), leaf=leaf(), search=Search(clusters=(12,))).prepare(population())


# ---------------------------------------------------------------- who is in which leaf


def mixed_up(users: int = 18) -> tuple[ListedClusters, list[int]]:
    """Lists of segments in which every fifth user stands in the wrong one, and the right ones."""
    right = [i % 3 for i in range(users)]
    listed = {str(s): [f"u{i}" for i in range(users) if (right[i] + (i % 5 == 4)) % 3 == s] for s in range(3)}
    return ListedClusters(listed), right


@pytest.mark.quick("block")
@pytest.mark.parametrize("how", ["block", "beside"])
def test_users_find_their_leaf_again(how: str) -> None:
    islands, (listed, right) = population(users=18, rows=24), mixed_up()
    more: dict[str, Any] = {} if how == "block" else {"uplink": [atoll.stages.Clip(1e9)]}
    small = leaf(rounds=4, selection=EVERYONE, algorithm=atoll.FedAvg(lr=0.5, batch_size=None, epochs=8), **more)
    job = Federated(clusters=listed, leaf=small, aggregate="own_leaf", search=Search(recluster=2))
    found = atoll.simulate(job, islands).outcome
    assert found.block == ("" if how == "block" else "uplink")
    assert [found.clusters.users[f"u{i}"] for i in range(18)] == right
    assert found.search.moved == (3, 0)
    assert [one.name for one in found.loss.releases].count("which leaf serves a user best") == 2
    assert found.loss.total == float("inf")
    # Leaves train on from where they were, with their new users: the oracle is a training that starts there.
    before = atoll.simulate(Federated(clusters=listed, leaf=small, aggregate="mean"), islands).outcome.leaves
    on = atoll.simulate(
        small.replace(model=before[2].requires_grad_(True), evaluation=atoll.learn.Evaluation(server=False)),
        islands.subset([i for i in range(18) if right[i] == 2]),
    )
    for name, value in found.leaves[2].state_dict().items():
        assert np.allclose(value, on.params[name], atol=1e-5)


def test_users_stay_on_ties_and_where_a_leaf_would_be_too_small() -> None:
    """A model of no columns serves everybody alike; and where all want to leave a leaf of two, they stay."""
    islands = population(users=9)
    still = leaf(rounds=1, algorithm=atoll.FedAvg(lr=1e-9, batch_size=None))
    job = Federated(clusters=RandomClusters(3), leaf=still, aggregate="mean", smallest=3, search=Search(recluster=1))
    found = atoll.simulate(job, islands).outcome
    assert found.search.moved in ((0,), (1,), (2,), (3,), (4,))
    assert min(np.bincount([found.clusters.users[f"u{i}"] for i in range(9)])) == 3


def test_a_private_leaf_and_moves_go_together() -> None:
    small = leaf(model=atoll.models.mlp(3, 2, (3,)), rounds=2)
    given = {"leaf": small, "aggregate": "mean", "private_leaf": PrivateLeaf(columns=["d"], model=atoll.models.mlp(1, 2, (4,)))}  # fmt: skip
    found = atoll.simulate(Federated(clusters=SEGMENT, search=Search(recluster=1), **given), population()).outcome
    assert found.device is not None
    assert found.search.clusters == 3


# ---------------------------------------------------------------- leaves that lag


@pytest.mark.quick("neighbour")
@pytest.mark.parametrize("warm", ["own", "neighbour"])
def test_a_leaf_that_lags_trains_on_and_is_no_worse(warm: Any) -> None:
    islands = population(users=9, rows=20)
    small = leaf(rounds=2, selection=EVERYONE)
    opt_in = ["u0", "u1", "u2"]
    search = Search(retrain=4, margin=0.0, warm=warm)
    found = atoll.simulate(Federated(clusters=SEGMENT, leaf=small, opt_in=opt_in, search=search), islands).outcome
    plain = atoll.simulate(Federated(clusters=SEGMENT, leaf=small, opt_in=opt_in), islands).outcome
    told = {str(one["leaf"]): one for one in found.search.retrained}
    assert len(told) == 1  # of three leaves, one is above the median
    for s, (one, other) in enumerate(zip(found.leaves, plain.leaves, strict=True)):
        users = [islands.shard(name) for name in opt_in if int(name[1:]) % 3 == s]
        new, old = ([log_losses([model], np.asarray(u["x"]), np.asarray(u["y"]))[0] for u in users] for model in (one, other))  # fmt: skip
        same = all(np.array_equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))  # fmt: skip
        if str(s) in told and told[str(s)]["kept"]:
            assert np.mean(new) == pytest.approx(told[str(s)]["after"])
            assert np.mean(new) < np.mean(old)
        else:
            assert same
    assert found.loss.releases[-1].name.endswith("retrain")


# ---------------------------------------------------------------- what it costs


def release(name: str, users: str, noise: float) -> EnsembleRelease:
    """A release with Gaussian noise."""
    return EnsembleRelease(name, tuple(users), ((Gaussian(noise_multiplier=noise), 1),), DELTA)


def test_a_user_who_has_moved_is_charged_for_both_leaves() -> None:
    """User 2 is in the costly leaf first and in the costly leaf again; composed by hand."""
    first, second = (
        [release("a", "12", 1.0), release("b", "34", 2.0)],
        [release("a", "13", 3.0), release("b", "24", 1.5)],
    )
    answers = [EnsembleRelease("answers", tuple("1234"), ((RandomisedResponse(epsilon=0.5, buckets=2), 1),), DELTA)]
    found = account_ensemble(first, again=[answers, second])
    events = [(1.0, 3.0), (1.0, 1.5), (2.0, 3.0), (2.0, 1.5)]
    by_hand = [
        epsilon_of(
            (*((Gaussian(noise_multiplier=one), 1) for one in own), (RandomisedResponse(epsilon=0.5, buckets=2), 1)),
            DELTA,
        )
        for own in events
    ]
    assert found.total == found.leaves == pytest.approx(max(by_hand), rel=1e-3)
    assert found.total == pytest.approx(by_hand[1], rel=1e-3)
    with pytest.raises(ConfigError, match="'2' is in two releases"):
        account_ensemble(first, again=[[release("a", "12", 1.0), release("b", "2", 1.0)]])


def test_answers_leave_trainings_less_and_may_leave_nothing() -> None:
    found = share_epsilon(4.0, 2, lambda each: 2 * each + 1, besides=1.0)
    assert 4 * 0.998 <= 2 * found + 1 <= 4
    with pytest.raises(ConfigError, match="beside users' answers of epsilon 5 together"):
        share_epsilon(4.0, 2, lambda each: 2 * each + 5, besides=5.0)


def private_leaf(**settings: Any) -> atoll.Training:
    """A leaf with noise for one epsilon of 6; that all users take part is quick to count."""
    given = {"epsilon": 6.0, "clip": 1.0, "delta": DELTA, "amplified": False, **settings}
    more = {"selection": EVERYONE} if not given["amplified"] else {}
    return leaf(rounds=1, privacy=atoll.mechanisms.CentralDP(**given), **more)


@pytest.mark.parametrize("sampled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_that_is_trained_keeps_the_one_epsilon_and_is_in_the_ledger(sampled: bool) -> None:
    job = Federated(
        clusters=RandomClusters(2),
        leaf=private_leaf(amplified=sampled),
        aggregate="mean",
        search=Search(recluster=1, epsilon=1.0),
    )
    data = population(users=6)
    ready = job.prepare(data)
    world = World(data, Inline(), secret_seed=1)  # somebody moves
    world.install(ready)
    found, _ = run(run_program(world, ready.program))
    assert 0.9 * 6 < found.loss.total <= 6
    events: dict[str, list[Any]] = {}
    for one in found.loss.releases:
        for user in one.users:
            events.setdefault(user, []).extend(one.events)
    assert {len(own) for own in events.values()} == {3}  # the first leaf, the answer, the leaf after it
    by_hand = max(epsilon_of(tuple(own), DELTA, "pld", "model", "add-remove") for own in events.values())
    assert found.loss.total == pytest.approx(by_hand, rel=2e-3)
    said = [one for one in world.ledger if one["kind"] == "randomised-response"]
    assert sorted(one["party"] for one in said) == sorted(events)
    assert {(one["epsilon"], one["buckets"], one["unit"]) for one in said} == {(1.0, 2, "user")}
    plain = Federated(clusters=RandomClusters(2), leaf=private_leaf(), aggregate="mean", search=Search(retrain=1), opt_in=["u0"])  # fmt: skip
    assert plain.prepare(data).most(9) is None  # a site that asks beforehand is told that nobody knows


def test_candidates_share_the_one_epsilon() -> None:
    job = Federated(clusters=RandomClusters(1), leaf=private_leaf(), opt_in=["u0", "u1"], search=Search(clusters=(1, 2)))  # fmt: skip
    found = atoll.simulate(job, population(users=6)).outcome
    assert found.loss.leaves < 0.9 * found.loss.total
    assert 0.99 * 6 < found.loss.total <= 6
    assert len(found.loss.releases) == 3


# ---------------------------------------------------------------- crashes, and what is refused


@pytest.mark.quick("moves")
@pytest.mark.parametrize("how", ["moves", "candidates"])
def test_a_search_that_is_killed_goes_on(how: str, tmp_path: Path) -> None:
    search = Search(recluster=1, retrain=1, margin=0.0, clusters=(1, 2) if how == "candidates" else ())
    small = leaf(model=atoll.models.mlp(4, 2, (2,)), rounds=1)
    job = Federated(clusters=RandomClusters(2), leaf=small, opt_in=["u0", "u1"], smallest=1, search=search)
    found = killed_training(job, population(users=6, rows=6), tmp_path, points=3)
    assert len(found.result.search.candidates) == len(search.clusters)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"search": Search(clusters=(1, 2))}, "judged by labels of opt-in users, and there are none"),
        ({"search": Search(retrain=2)}, "judged by labels of opt-in users, and there are none"),
        ({"search": Search(clusters=(1, 2)), "clusters": SEGMENT, "opt_in": 0.2}, "as many leaves as its column has values"),
        ({"search": Search(recluster=1), "clusters": RandomClusters(1)}, "there is one leaf: nobody can move"),
        ({"search": Search(clusters=(1, 2)), "clusters": CentroidClusters(1, ["y"]), "opt_in": 0.2}, "is the label"),
        ({"search": Search(recluster=1), "leaf": leaf(privacy=atoll.mechanisms.CentralDP(epsilon=4.0, clip=1.0, delta=DELTA))}, "CentralDP protects their labels"),
    ],
)  # fmt: skip
def test_searches_that_make_no_sense_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(CompositionError, match=said):
        Federated(**{"clusters": RandomClusters(2), "leaf": leaf(), "aggregate": "mean", **more}).prepare(population())


@pytest.mark.parametrize(
    "given",
    [
        {}, {"clusters": (2, 1)}, {"clusters": (0,)}, {"clusters": "12"}, {"recluster": -1}, {"recluster": 1, "margin": -1.0}, {"recluster": 1, "epsilon": 0.0},
        {"recluster": 1, "most_bytes": 9}, {"clusters": (1, 2), "most_bytes": 0}, {"retrain": 1, "warm": "cold"},
    ],
)  # fmt: skip
def test_settings_of_a_search_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Remedy"):
        Search(**given)
