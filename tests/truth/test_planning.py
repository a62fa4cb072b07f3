"""Plans of campaigns: the closed forms of FedTruthFinder's analysis to the last digit, campaigns that are played, and committees by brute force."""

from __future__ import annotations

import json
import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.cli.app import run
from atoll.core.errors import ConfigError
from atoll.truth import plan_committee, plan_truth
from atoll.truth.planning import RECOVERY, SECRECY, _most_stay, _tail

# The binomial with n = 100, t = 50: iterations -> failure by shares and masks at .05, and at .1. The paper says .20 from iteration 3 for masks at .1, and 6 for shares.
FAILURES = {
    2: (0.0, 0.0, 0.0, 0.0005),
    3: (0.0, 0.0, 0.0, 0.2324),
    4: (0.0, 0.0003, 0.0005, 0.9033),
    5: (0.0, 0.0179, 0.0268, 0.9987),
    6: (0.0, 0.1813, 0.2324, 1.0),
    7: (0.0, 0.5585, 0.6313, 1.0),
    8: (0.0003, 0.8654, 0.9033, 1.0),
    9: (0.0029, 0.9763, 0.9856, 1.0),
    10: (0.0179, 0.9974, 0.9987, 1.0),
}
# Leader-boards of 100 users: t, loss -> bound, un-floored, exact, and the rival's two readings. All from the formulas of the paper's Section 5.
RANKINGS = {
    (10, 0.05): ("0.00013", "0.000013", "0.000036", "0.6594", "0.7961"),
    (10, 0.1): ("0.0021", "0.00036", "0.00066", "0.8906", "0.9618"),
    (15, 0.05): ("0.0039", "0.0020", "0.0030", "0.7961", "0.9055"),
    (15, 0.1): ("0.0305", "0.0183", "0.0244", "0.9618", "0.9921"),
    (20, 0.05): ("0.0975", "0.0271", "0.0581", "0.8779", "0.9562"),
    (20, 0.1): ("0.3377", "0.1388", "0.2205", "0.9867", "0.9984"),
    (25, 0.05): ("0.9269", "0.1338", "0.2017", "0.9269", "0.9797"),
    (25, 0.1): ("0.9954", "0.4295", "0.5050", "0.9954", "0.9997"),
}


@pytest.mark.parametrize("iterations", FAILURES)
def test_campaigns_fail_as_often_as_the_table_says(iterations):
    good, bad = (plan_truth(100, 50, loss, iterations, ranking_threshold=10, trials=1) for loss in (0.05, 0.1))
    found = (good.success, good.success_masks, bad.success, bad.success_masks)
    assert tuple(round(1 - success, 4) for success in found) == FAILURES[iterations]


def test_ten_iterations_end_by_shares_and_not_by_masks():
    found = plan_truth(100, 50, 0.05, 10, ranking_threshold=10, trials=1)
    assert (round(found.success, 4), round(found.success_masks, 4)) == (0.9821, 0.0026)


@pytest.mark.parametrize(("case", "expected"), RANKINGS.items())
def test_leader_boards_fail_as_often_as_the_table_says(case, expected):
    found = plan_truth(100, 50, case[1], 1, ranking_threshold=case[0], trials=1)
    got = (
        found.ranking_bound,
        found.ranking_unfloored,
        found.ranking_failure,
        found.ranking_rival,
        found.ranking_rival_printed,
    )
    for value, digits in zip(got, expected, strict=True):
        assert f"{value:.{len(digits) - 2}f}" == digits


@pytest.mark.parametrize(
    ("users", "threshold", "loss", "iterations", "ranks"), [(100, 50, 0.05, 10, 15), (100, 50, 0.1, 6, 20), (7, 4, 0.2, 2, 2)]
)  # fmt: skip
def test_campaigns_that_are_played_end_as_often_as_computed(users, threshold, loss, iterations, ranks):
    found = plan_truth(users, threshold, loss, iterations, ranking_threshold=ranks, trials=20_000, seed=1)
    for name in ("success", "success_masks", "ranking_failure", "ranking_rival"):
        computed = getattr(found, name)
        error = math.sqrt(computed * (1 - computed) / 20_000)
        assert abs(getattr(found.simulated, name) - computed) <= 3 * error, name
    assert found.ranking_failure <= found.ranking_bound
    again = plan_truth(users, threshold, loss, iterations, ranking_threshold=ranks, trials=20_000, seed=1)
    assert again == found


@given(n=st.integers(1, 30), stays=st.sampled_from([0.0, 1e-9, 0.3, 0.95, 1.0]), data=st.data())
@settings(max_examples=25)
def test_the_binomial_is_the_sum_over_counts(n, stays, data):
    threshold = data.draw(st.integers(1, n))
    slow = sum(math.comb(n, i) * stays**i * (1 - stays) ** (n - i) for i in range(threshold, n + 1))
    assert _most_stay(n, threshold, stays) == pytest.approx(slow, rel=1e-12, abs=0)


def test_without_loss_all_ends_well_and_small_losses_are_not_rounded_away():
    found = plan_truth(20, 20, 0.0, 5, ranking_threshold=3)
    assert (found.success, found.success_masks, found.ranking_failure, found.simulated.success) == (1, 1, 0, 1)
    tiny = plan_truth(100, 50, 1e-9, 1, ranking_threshold=0, trials=1)
    assert tiny.ranking_rival == pytest.approx(1e-9)
    assert plan_truth(100_000, 50_000, 0.05, 10, ranking_threshold=10, trials=1).success == pytest.approx(1)


# ------------------------------------------------------------------ committees


@pytest.mark.parametrize(("users", "marked", "members"), [(7, 3, 4), (6, 0, 2), (6, 6, 3), (5, 4, 5)])
def test_the_tail_counts_all_committees(users, marked, members):
    lots = [sum(who < marked for who in lot) for lot in combinations(range(users), members)]
    slow = [sum(found >= i for found in lots) / len(lots) for i in range(members + 2)]
    assert _tail(users, marked, members) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize(
    ("users", "loss", "colluders", "products"),
    [(30, 0.05, 0.1, False), (400, 0.05, 0.1, False), (400, 0.0, 0.3, False), (400, 0.05, 0.1, True)],
)
def test_a_committee_is_the_least_that_keeps_secrets_and_recovers(users, loss, colluders, products):
    found = plan_committee(users, loss, colluders, products)
    marked, lost = math.ceil(colluders * users), math.ceil(loss * users)

    def fits(k: int, t: int) -> bool:
        whole = math.comb(users, k)
        exposed = sum(math.comb(marked, i) * math.comb(users - marked, k - i) for i in range(t, k + 1)) / whole
        most = k - (2 * t - 1 if products else t)  # lost members that it bears
        if most < 0:
            return False
        stuck = sum(math.comb(lost, i) * math.comb(users - lost, k - i) for i in range(most + 1, k + 1)) / whole
        return exposed <= SECRECY and stuck <= RECOVERY

    assert fits(found.members, found.threshold)
    assert not any(fits(found.members, t) for t in range(2, found.threshold))
    assert not any(fits(found.members - 1, t) for t in range(2, found.members))


def test_a_large_crowd_has_a_small_committee():
    sizes = [plan_committee(users, 0.05, 0.1).members for users in (1_000, 10_000)]
    assert max(sizes) < 40  # O(k n_e) of shares for each user, in place of O(n n_e)


# ------------------------------------------------------------------ bad input, and the command


def test_plans_that_make_no_sense_are_refused_in_words():
    for words, numbers in (
        (r"threshold=101 of 100 users.*1 to 100", (100, 101, 0.05, 10)),
        (r"loss=1\.0.*from 0 to below 1", (100, 50, 1.0, 10)),
        (r"loss=nan", (100, 50, math.nan, 10)),
        (r"0 iterations.*1 iteration or more", (100, 50, 0.05, 0)),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_truth(*numbers, ranking_threshold=10)
    with pytest.raises(ConfigError, match=r"ranking_threshold=50, which needs 101 groups of 100 users.*0 to 49"):
        plan_truth(100, 50, 0.05, 10, ranking_threshold=50)
    with pytest.raises(ConfigError, match="10 users, of whom 5 are lost and 5 collude, have no committee"):
        plan_committee(10, 0.5, 0.5)
    with pytest.raises(ConfigError, match=r"colluders=1\.5"):
        plan_committee(10, 0.3, 1.5)


def test_the_command_prints_the_plan(capsys):
    words = "truth plan --users 100 --threshold 50 --loss 0.05 --iterations 10"
    assert run([*words.split(), "--colluders", "0.1", "--trials", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert round(found["success"], 4) == 0.9821
    assert found["ranking_threshold"] == 10  # a tenth of the users
    assert found["committee"]["members"] > found["committee"]["threshold"]
    assert abs(found["simulated"]["success"] - found["success"]) < 0.02
    assert {"success_masks", "ranking_failure", "ranking_bound", "ranking_rival"} <= set(found)
    assert run(words.split()) == 0
    shown = capsys.readouterr().out
    assert "the campaign ends, by shares" in shown
    assert "0.98212" in shown
