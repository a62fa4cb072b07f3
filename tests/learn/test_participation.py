"""Who took part, at every pace and on every topology, and how evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn import Evaluation, Training
from atoll.pacing import SAFA, FedBuff, HybridFL, Synchronous
from atoll.rounds.history import Participation, jain, participation
from atoll.selection import AFL, FedProf, Oort, PowerOfChoice, Submodular
from atoll.topology import Gossip, Hierarchical
from tests.support.fedprof_toys import spoiled, watched
from tests.support.learn_toys import islands
from tests.support.selection_toys import Devices

SIZES = [5, 6, 7, 8, 9, 10]


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40))
def test_jains_index_lies_between_one_over_n_and_one(amounts):
    assert 1 / len(amounts) - 1e-12 <= jain(amounts) <= 1 + 1e-12


def test_jains_index_by_hand():
    assert jain([3, 3, 3]) == 1.0
    assert jain([0, 0, 7, 0]) == 0.25
    assert jain([1, 2, 3]) == pytest.approx(36 / 42)
    assert jain([0, 0]) == 1.0
    with pytest.raises(ConfigError, match="amounts of 2 clients"):
        jain([1, -1])


def test_counts_histogram_and_groups_by_hand():
    rows = [
        {"selected_clients": [0, 1, 1], "replied_clients": [1, 1]},
        {"selected_clients": [2], "replied_clients": [2]},
        {"round": 3},
    ]
    found = participation(rows, 4)
    assert found.selected.tolist() == [1, 2, 1, 0]
    assert found.replied.tolist() == [0, 2, 1, 0]
    assert found.histogram() == {0: 2, 1: 1, 2: 1}
    assert found.fairness == pytest.approx(9 / (4 * 5))
    assert found.by_group(["", "noise", "", "noise"]) == {
        "": {"clients": 2.0, "selected": 1.0, "replied": 0.5},
        "noise": {"clients": 2.0, "selected": 1.0, "replied": 1.0},
    }


def test_what_it_cannot_count():
    with pytest.raises(ConfigError, match="no round recorded who took part"):
        participation([{"round": 1}], 3)
    with pytest.raises(ConfigError, match="a round names client 5 of 3"):
        participation([{"selected_clients": [5], "replied_clients": []}], 3)
    with pytest.raises(ConfigError, match="1 groups for 2 clients"):
        Participation(np.zeros(2, dtype=int), np.zeros(2, dtype=int)).by_group(["a"])


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"pacing": Synchronous(deadline=4.5)},
        {"pacing": SAFA(deadline=4.5)},
        {"pacing": FedBuff(buffer=2)},
        {"topology": Hierarchical(groups=2)},
        {"topology": Hierarchical(groups=2), "pacing": HybridFL(deadline=9.0), "selection": atoll.Uniform(0.5)},
        {"topology": Gossip()},
    ],
    ids=repr,
)
def test_rows_agree_with_their_counts(parts):
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=FedAvg(lr=0.1),
        rounds=4,
        evaluation=Evaluation(participants=True),
        **{"selection": atoll.Uniform(3), **parts},
    )
    devices = None if "topology" in parts and "pacing" not in parts else Devices([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    rows = atoll.simulate(job, islands(SIZES), engine="inline", devices=devices).metrics
    found = rows.participation(len(SIZES))
    # At SAFA's pace replies that come in time and are not taken stay in the cache.
    taken = sum(row.get("picked", row["replied"]) for row in rows)
    assert found.replied.sum() == taken > 0
    assert found.selected.sum() == sum(row["selected"] for row in rows)
    plain = atoll.simulate(
        job.replace(evaluation=Evaluation()), islands(SIZES), engine="inline", devices=devices
    ).metrics
    assert "selected_clients" not in plain[0]


def test_participation_by_quality_of_the_data():
    digits = atoll.data.iid(atoll.data.digits(), parties=10, seed=0)
    noisy = atoll.data.corrupt(digits, {"fake": 0.5}, seed=0)
    job = Training(
        model=atoll.models.mlp(64, 10, hidden=(16,)),
        algorithm=FedAvg(lr=0.2),
        selection=FedProf(3),
        rounds=10,
        evaluation=Evaluation(participants=True),
    )
    found = atoll.simulate(job, noisy).metrics.participation(10)
    groups = found.by_group(noisy.tags)
    assert len(groups) == 2
    assert sum(group["clients"] for group in groups.values()) == 10
    (spoilt,) = [name for name in groups if name]
    assert groups[spoilt]["replied"] < groups[""]["replied"]


# Rules in compositions


RULES = [AFL(2), PowerOfChoice(2, d=3), PowerOfChoice(2, d=3, variant="rpow"), Oort(2)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_rules_at_the_edges_know_their_members(rule):
    """The second edge's members lie at positions 3 to 5 of the roster, and its rule has three columns."""
    job = Training(
        model=atoll.models.linear(4, 3),
        selection=rule,
        topology=Hierarchical(groups=[[0, 2, 4], [1, 3, 5]]),
        rounds=4,
        evaluation=Evaluation(participants=True),
    )
    found = atoll.simulate(job, islands(SIZES), engine="inline").metrics.participation(6)
    assert found.replied.sum() == 16


@pytest.mark.parametrize("rule", [FedProf(2), Submodular(2, every=2)], ids=repr)
def test_profiles_at_the_edges(rule):
    job = Training(
        model=atoll.models.mlp(64, 10, hidden=(8,)),
        algorithm=FedAvg(lr=0.2),
        selection=rule,
        topology=Hierarchical(groups=[[0, 2, 4], [1, 3, 5]]),
        rounds=3,
    )
    assert atoll.simulate(job, spoiled(parties=6)).metrics[-1]["replied"] == 4


def safa(rule):
    return Training(
        model=atoll.models.mlp(64, 10, hidden=(8,)),
        algorithm=FedAvg(lr=0.1, epochs=2),
        selection=rule,
        pacing=SAFA(deadline=4.5, lag_tolerance=3),
        rounds=6,
    )


@pytest.mark.parametrize("rule", [AFL(3), Oort(3)], ids=repr)
def test_rules_that_compare_losses_under_safa(rule):
    devices = Devices([1.0, 2.0, 3.0, 4.0, 6.0, 8.0], lost=[1])
    rows = atoll.simulate(safa(rule), spoiled(parties=6), engine="inline", devices=devices).metrics
    assert rows[-1]["replied"] > 0


@pytest.mark.slow
def test_profiles_of_several_versions_under_safa():
    """Slow clients profile an older model; each is compared with the server's own of the same one."""
    devices = Devices([1.0, 2.0, 3.0, 4.0, 6.0, 8.0])
    rule = watched(6, lag=5, alpha=1.0)
    atoll.simulate(safa(rule), spoiled(parties=6), engine="inline", devices=devices)
    late = [(seen.round - seen.versions).tolist() for seen in rule.log]
    assert max(max(ages, default=0) for ages in late) >= 1
    assert all(min(ages, default=0) >= 0 for ages in late)
    for seen, state in zip(rule.log, rule.states, strict=True):
        expected = dict(zip(seen.replied.positions.tolist(), seen.versions.tolist(), strict=True))
        assert {k: int(state["version"][k]) for k in expected} == expected


def test_nodes_without_a_server_have_nobody_to_report_to():
    with pytest.raises(CompositionError, match="AFL compares what clients report, and Gossip has no server"):
        Training(model=atoll.models.linear(4, 3), selection=AFL(3), topology=Gossip())
