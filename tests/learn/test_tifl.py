"""TiFL: profiling, tiers, credits and probabilities, beside small cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Roster
from atoll.devices import BatchRate, Fleet, GeneratedTrace, Throughput
from atoll.models.idle import IdleIslands, IdleModel
from atoll.selection import TiFL
from tests.support.selection_toys import candidates, seen

N = 9


def profiled(rule, silent=()):
    """The memory once all but some have replied, client k after k seconds."""
    state, number = rule.init(Roster(N).all()), 0
    while (state["tier"] < 0).all():
        number += 1
        asked = rule.invite(candidates(N, number), rule.count, state)
        replied = [k for k in asked.tolist() if k not in silent]
        replied = np.array(replied, dtype=int)
        told = seen(N, number, replied, [1.0] * len(replied), seconds=replied.astype(float))
        state = rule.accept(
            atoll.selection.Seen(
                number, Roster(N).all()[asked], told.replied, told.seconds, told.reports, examples=told.examples
            ),
            state,
        )
        assert number < 20
    return state, number


def hold(rule, state, number, losses):
    """One round in which all of the tier drawn report its loss: the tier, and the new memory."""
    asked = np.sort(rule.invite(candidates(N, number), rule.count, state))
    tier = set(state["tier"][asked].tolist())
    assert len(tier) == 1
    (m,) = tier
    return m, rule.accept(seen(N, number, asked, [losses[m]] * len(asked)), state)


def test_everyone_is_profiled_once_and_the_tiers_are_those_of_their_seconds():
    state, rounds = profiled(TiFL(4, tiers=3))
    assert rounds == 3  # nine clients, four at a time
    assert state["tier"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert state["asked"].tolist() == [1] * N


def test_who_never_replies_is_asked_so_often_and_never_again():
    rule = TiFL(9, tiers=2, tries=3)
    state, rounds = profiled(rule, silent=(0, 4))
    assert rounds == 3
    assert state["tier"].tolist() == [2, 0, 0, 0, 2, 0, 1, 1, 1]
    drawn = {int(k) for r in range(40) for k in rule.invite(candidates(N, 10 + r), 9, state)}
    assert drawn == {1, 2, 3, 5, 6, 7, 8}


def test_credits_are_spent_to_the_last_and_then_it_says_so():
    rule = TiFL(2, tiers=3, credits=[4, 0, 2])
    state, number = profiled(rule)
    tiers = []
    for r in range(6):
        m, state = hold(rule, state, number + 1 + r, [1.0, 1.0, 1.0])
        tiers.append(m)
    assert sorted(tiers) == [0, 0, 0, 0, 2, 2]
    with pytest.raises(ConfigError, match="no tier has a credit left in round 50"):
        rule.invite(candidates(N, 50), 2, state)


def test_a_tier_that_the_model_does_badly_on_comes_more_often_and_by_its_rank():
    """Losses 1, 3, 2 that do not fall: after the second look ranks 1, 3, 2 of 6."""
    rule = TiFL(2, tiers=3, every=12)
    state, number = profiled(rule)
    for r in range(24):
        assert np.allclose(state["chance"], 1 / 3)
        _, state = hold(rule, state, number + 1 + r, [1.0, 3.0, 2.0])
    assert np.allclose(state["chance"], [1 / 6, 3 / 6, 2 / 6])
    tiers = [state["tier"][rule.invite(candidates(N, 100 + r), 2, state)[0]] for r in range(600)]
    # The standard error of each share is at most 0.0204.
    assert np.allclose(np.bincount(tiers) / 600, [1 / 6, 3 / 6, 2 / 6], atol=0.08)


def test_probabilities_stay_while_the_tier_of_the_last_round_does_better():
    rule = TiFL(2, tiers=3, every=4)
    state, number = profiled(rule)
    for r in range(16):
        _, state = hold(rule, state, number + 1 + r, np.array([3.0, 2.0, 1.0]) / (1 + r))
    assert np.allclose(state["chance"], 1 / 3)


def test_rounds_are_as_long_as_their_tiers_are_slow():
    """Clients of 1, 2, ... 12 batches a minute; after profiling a round is as long as its tier's slowest, and each tier has its credits."""
    fleet = Fleet(BatchRate(np.arange(1.0, 13.0) / 60), Throughput(1e9), GeneratedTrace(0.1, seed=3))
    job = atoll.Training(
        model=IdleModel(), algorithm=FedAvg(epochs=1, batch_size=10), selection=TiFL(4, tiers=3, credits=8), rounds=20,
        pacing=atoll.Synchronous(on_failure="skip"), evaluation=atoll.Evaluation(participants=True),
    )  # fmt: skip
    rows = list(atoll.simulate(job, IdleIslands([10] * 12), devices=fleet, seed=1).metrics)
    after = [set(row["selected_clients"]) for row in rows[-12:]]
    tiers = [set(range(8, 12)), set(range(4, 8)), set(range(4))]
    assert all(any(cohort == tier for tier in tiers) for cohort in after)
    fast = [row["t_end"] - row["t_start"] for row, cohort in zip(rows[-12:], after, strict=True) if cohort == tiers[0]]
    slow = [row["t_end"] - row["t_start"] for row, cohort in zip(rows[-12:], after, strict=True) if cohort == tiers[2]]
    assert max(fast) < 7.0 < 12.0 < min(slow)


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: TiFL(tiers=0), "tiers=0"),
        (lambda: TiFL(tiers=3, credits=[1, 2]), r"credits=\[1, 2\] for 3 tiers"),
        (lambda: TiFL(credits=-1), "credits=-1"),
        (lambda: TiFL(credits=1.5), r"credits=1\.5"),
        (lambda: TiFL(every=0), "every=0"),
        (lambda: TiFL(tries=0), "tries=0"),
        (lambda: TiFL(tiers=10).init(Roster(9).all()), "tiers=10 of 9 clients"),
    ],
)
def test_settings_that_cannot_be(made, match):
    with pytest.raises(ConfigError, match=match):
        made()
