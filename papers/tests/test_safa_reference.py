"""The slow simulation of SAFA's rounds, the time accountings, and the measures of efficiency, against the thesis and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.devices.accounting import (
    COMPAT,
    CORRECTED,
    Accounting,
    RoundAccount,
    effective_update_ratio,
    expected_effective_updates,
    expected_futility,
    expected_synchronisation_ratio,
    futility,
    synchronisation_ratio,
    version_variance,
)
from atoll_papers.safa.reference import Crashes, cached, cfcfm, draw_crashes, fedavg, fedcs, local, quota_of, safa
from atoll_papers.safa.tasks import BOSTON, COPY_SECONDS, KDD, LAG, MNIST, TASKS, TRANSFER_SECONDS, fleet

RNG = np.random.default_rng


def log_of(copies=(1,), taken=(0.0,), asked=(0.0,), unmet=(False,)) -> RoundAccount:
    zeros = np.zeros(len(copies))
    return RoundAccount(
        10, np.array(copies), zeros, np.array(taken), np.array(asked), np.array(unmet), zeros, zeros, zeros
    )


def always(alive: list[list[int]]) -> Crashes:
    """A trace with 1 for a client that finishes and 0 for one that crashes half-way."""
    up = np.array(alive, bool)
    return Crashes(~up, np.where(up, 1.0, 0.5))


# Tables 3.5, 3.7 and 3.9 at C = 1, where N copies go out in each of R rounds: 2.02, 20.40 and 202.00 s (lines 2156, 2213, 2268).
@pytest.mark.parametrize(("task", "printed"), [(BOSTON, 2.02), (MNIST, 20.40), (KDD, 202.00)])
def test_the_printed_distribution_times_are_cumulative(task, printed) -> None:
    log = log_of([task.clients] * task.rounds, *[[0.0] * task.rounds] * 3)
    compat = COMPAT["FedAvg"].distribution(log, COPY_SECONDS)
    assert round(compat.mean(), 2) == printed
    assert compat.mean() == pytest.approx(0.008 * task.clients * (task.rounds + 1) / 2)
    # What one round costs: 0.04, 0.8 and 4.0 s.
    assert CORRECTED.distribution(log, COPY_SECONDS) == pytest.approx([0.008 * task.clients] * task.rounds)


# Table 3.8's FedAvg rows, lines 2241 to 2244, are the same at every probability of crash: T_lim + T_dist.
@pytest.mark.parametrize(
    ("fraction", "printed"), [(0.1, 1640.20), (0.3, 1680.60), (0.5, 1721.00), (0.7, 1761.40), (1.0, 1822.00)]
)
def test_fedavg_rounds_that_all_time_out_last_the_limit_and_the_distribution(fraction, printed) -> None:
    members = fleet(KDD, RNG(0))
    made = fedavg(draw_crashes(100, 500, 0.3, RNG(1)), members.seconds, fraction, RNG(2)).log()
    assert made.unmet.all()
    assert round(COMPAT["FedAvg"].lengths(made, COPY_SECONDS, KDD.limit).mean(), 2) == printed
    assert CORRECTED.lengths(made, COPY_SECONDS, KDD.limit) == pytest.approx([1620.0] * 100)


def test_the_constants_of_the_links() -> None:
    assert round(TRANSFER_SECONDS, 2) == 57.14  # 10 MB over 1.4 Mbit/s
    assert abs(COPY_SECONDS - 0.008) < 1e-15
    assert BOSTON.speeds == (2.0262, 0.0814, 0.2065, 0.3566, 2.5460)


def test_three_rounds_of_each_waiting_rule_by_hand() -> None:
    log = log_of([2, 2, 0], [50.0, 90.0, 0.0], [70.0, 120.0, 30.0], [False, True, True])
    rule = lambda waiting, **more: list(Accounting(waiting, **more).lengths(log, 1.0, 100.0))  # noqa: E731
    assert rule("deadline") == [52.0, 100.0, 100.0]
    assert rule("taken") == [52.0, 92.0, 0.0]
    assert rule("asked") == [72.0, 100.0, 30.0]
    assert rule("deadline", outside=True) == [52.0, 102.0, 100.0]
    assert rule("asked", outside=True, cumulative=True) == [72.0, 104.0, 34.0]
    assert rule("taken", cumulative=True) == [52.0, 94.0, 4.0]
    assert Accounting("deadline") == CORRECTED


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.floats(0, 500), st.floats(0, 500), st.booleans()), min_size=1, max_size=20
    )
)
def test_accountings_are_ordered(rows) -> None:
    log = log_of(*map(list, zip(*rows, strict=True)))
    for waiting in ("deadline", "asked", "taken"):
        inside = Accounting(waiting).lengths(log, 0.01, 200.0)
        assert (inside <= 200.0).all()
        assert (Accounting(waiting, outside=True).lengths(log, 0.01, 200.0) >= inside - 1e-9).all()
        assert (Accounting(waiting, cumulative=True).lengths(log, 0.01, 200.0) >= inside - 1e-9).all()
    strict, lax = (Accounting(w).lengths(log, 0.01, 200.0) for w in ("deadline", "taken"))
    assert (strict >= lax - 1e-9).all()


def test_bad_accountings_and_logs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"waiting='nobody'"):
        Accounting("nobody")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"each=-1.0, limit=1.0"):
        CORRECTED.lengths(log_of(), -1.0, 1.0)
    with pytest.raises(ConfigError, match="limit=0"):
        CORRECTED.lengths(log_of(), 1.0, 0)
    with pytest.raises(DataError, match="one number a round"):
        log_of([1, 2], [0.0])
    with pytest.raises(DataError, match="one number a round"):
        log_of([], [], [], [])
    with pytest.raises(DataError, match="clients=0"):
        replace(log_of(), clients=0)


def test_four_rounds_of_safa_by_hand() -> None:
    # Clients 0, 1, 2 in order of speed, one reply a round wanted, tolerance 1. Client 2 crashes in rounds 1, 2 and 3.
    trace = always([[1, 1, 0], [1, 1, 0], [0, 1, 0], [1, 1, 1]])
    made = safa(trace, np.array([1.0, 2.0, 3.0]), 0.3, 1)
    assert made.quota == 1
    assert made.picked.tolist() == [
        [True, False, False],  # first come
        [False, True, False],  # 0 was picked last round: 1 comes first although it is slower
        [False, True, False],  # 0 crashed; 1 was picked last round, and nobody else answers
        [True, False, False],  # 0 and 2 have priority over 1, and 0 is faster
    ]
    assert made.undrafted.tolist() == [[False, True, False], [True, False, False], [False] * 3, [False, True, True]]
    # Client 2 is at version 0: lag 1 in round 2 is tolerated, lag 2 in round 3 is not.
    assert made.sent.tolist() == [[True] * 3, [True, True, False], [True] * 3, [False, True, False]]
    assert made.deprecated.tolist() == [[False] * 3, [False] * 3, [False, False, True], [False] * 3]
    assert made.versions.tolist() == [[0, 0, 0], [1, 1, 0], [2, 2, 2], [2, 3, 2]]
    log = made.log()
    assert log.copies.tolist() == [3, 2, 3, 1]
    assert log.taken.tolist() == [1.0, 2.0, 2.0, 1.0]
    assert log.futile.tolist() == [0, 0, 1, 0]
    assert log.variance == pytest.approx([0, 0, 0, np.var([2, 3, 2])])
    assert not log.unmet.any()
    # As Eq. 3.7 is printed, a lag of 1 is too old already: the example of Fig. 3.1 with tau = 2 fails twice and is overwritten in the third round.
    literal = safa(trace, np.array([1.0, 2.0, 3.0]), 0.3, 2, beyond=False)
    assert literal.deprecated.tolist() == made.deprecated.tolist()


@given(st.integers(2, 12), st.floats(0.05, 1.0), st.floats(0.0, 0.9), st.integers(1, 6), st.integers(0, 99))
def test_what_the_server_holds(clients, fraction, crash, lag, seed) -> None:  # laws 17, 18
    rng = RNG(seed)
    trace = draw_crashes(25, clients, crash, rng)
    made = safa(trace, rng.random(clients) + 0.1, fraction, lag)
    origin, own = cached(made)
    now = np.arange(1, 26)[:, None]
    assert ((origin == now) == made.picked).all()  # an undrafted reply is not in its round's model ...
    later = made.undrafted[:-1] & ~made.picked[1:]
    assert (origin[1:][later] == np.broadcast_to(now[:-1], later.shape)[later]).all()  # ... but in the next one's
    assert own[1:][later].all()
    forced = made.deprecated & ~made.picked
    assert not own[forced].any()
    assert (origin[forced] == np.broadcast_to(now - 1, forced.shape)[forced]).all()
    stays = ~made.picked[1:] & ~made.deprecated[1:] & ~made.undrafted[:-1]
    assert (origin[1:][stays] == origin[:-1][stays]).all()
    assert (now - origin).max() <= lag + 1


def test_compensation_comes_before_arrival() -> None:
    assert cfcfm([4, 2, 0, 1], {4, 2}, 2) == [0, 1]
    assert cfcfm([4, 2, 0, 1], {4, 2}, 3) == [0, 1, 4]
    assert cfcfm([4, 2], {4, 2, 7}, 3) == [4, 2]
    assert cfcfm([], {1}, 3) == []


def test_quotas() -> None:
    assert [quota_of(5, c) for c in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)] == [1, 1, 2, 3, 4, 5]
    assert quota_of(100, 0.07) == 7  # 0.07 * 100 is a little above 7 in floating point


def test_how_long_rounds_wait_by_hand() -> None:
    # Clients 0 to 3 in order of speed, two replies a round wanted.
    trace = always([[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 1, 1]])
    made = safa(trace, np.array([1.0, 2.0, 3.0, 4.0]), 0.5, 5)
    assert made.picked.tolist() == [[True, True, False, False], [False, False, True, True], [False, True, True, False], [True, False, False, True]]  # fmt: skip
    assert made.filled is not None
    assert made.filled.tolist() == [True, True, False, True]
    lax, literal = made.log(), made.log(literal=True)
    # Round 3: 2 was picked last time, and is taken only when 0 and 3 can come no more: at the limit.
    assert lax.unmet.tolist() == [False] * 4
    assert literal.unmet.tolist() == [False, False, True, False]
    assert lax.taken.tolist() == literal.taken.tolist() == [2, 4, 3, 4]
    # Where all have come, the round ends with the last of them.
    whole = safa(always([[1, 1, 1], [1, 1, 1]]), np.array([1.0, 2.0, 3.0]), 0.6, 5)
    assert whole.picked.tolist() == [[True, True, False], [True, False, True]]
    assert whole.log(literal=True).unmet.tolist() == [False, False]
    assert whole.log().taken.tolist() == whole.log(literal=True).taken.tolist() == [2, 3]


def test_a_log_of_records() -> None:
    rows = [
        {"synchronised": 3, "picked": 2, "slowest_picked": 7.5, "version_variance": 0.25, "wasted": 1.5, "selected": 4},
        {"synchronised": 0, "picked": 0, "slowest_picked": None, "version_variance": 0.0, "wasted": 0.0, "selected": 4},
    ]
    log = RoundAccount.of_rows(rows, 4, 2)
    assert log.copies.tolist() == [3, 0]
    assert log.unmet.tolist() == [False, True]
    assert CORRECTED.lengths(log, 0.5, 20.0).tolist() == [9.0, 20.0]
    assert synchronisation_ratio(log) == 3 / 8
    assert futility(log) == 1.5 / 8
    for row in rows:
        row["begun"] = 3.0
    assert futility(RoundAccount.of_rows(rows, 4, 2)) == 1.5 / 6
    with pytest.raises(DataError, match="waiting='asked' needs the time that failed clients would have taken"):
        COMPAT["FedCS"].lengths(log, 0.5, 20.0)
    with pytest.raises(DataError, match="records without synchronised"):
        RoundAccount.of_rows([rows[0], {k: v for k, v in rows[0].items() if k != "synchronised"}], 4, 2)
    with pytest.raises(DataError, match="no records"):
        RoundAccount.of_rows([], 4, 2)


def test_a_log_of_synchronous_rounds() -> None:
    rows = [
        {"synchronised": 3, "replied": n, "wasted": 3.0 - n, "selected": 3, "t_start": t, "t_end": t + s}
        for n, t, s in ((3, 0.0, 7.0), (2, 7.0, 20.0))
    ]
    log = RoundAccount.of_rows(rows, 6, 3)
    assert COMPAT["FedAvg"].lengths(log, 0.5, 20.0).tolist() == [7 + 1.5, 20 + 3.0]
    assert CORRECTED.lengths(log, 0.0, 20.0).tolist() == [7.0, 20.0]
    assert (effective_update_ratio(log), futility(log)) == (2.5 / 6, 1 / 6)


@given(st.integers(2, 12), st.floats(0.05, 1.0), st.floats(0.0, 0.9), st.integers(1, 6), st.integers(0, 99))
def test_invariants_of_safa(clients, fraction, crash, lag, seed) -> None:
    rng = RNG(seed)
    trace = draw_crashes(25, clients, crash, rng)
    made = safa(trace, rng.random(clients) + 0.1, fraction, lag)
    done = ~trace.crashed
    assert ((made.picked | made.undrafted) == done).all()
    assert not (made.picked & made.undrafted).any()
    assert (made.picked.sum(axis=1) == np.minimum(made.quota, done.sum(axis=1))).all()
    lags = np.arange(25)[:, None] - made.versions
    assert lags.min() >= 0
    assert lags.max() <= lag
    assert (lags[made.sent] == 0).all()
    # A client trains from the newest model exactly if it was sent it: whoever crashed last round keeps its own, unless that was too old.
    assert ((lags == 0) == made.sent).all()
    # Nobody who was picked last round is picked while somebody else who finished is not (law 16).
    for t in range(1, 25):
        again = made.picked[t] & made.picked[t - 1]
        assert not again.any() or not (made.undrafted[t] & ~made.picked[t - 1]).any()
    log = made.log()
    assert 0 <= effective_update_ratio(log) <= 1
    assert 0 <= futility(log) <= synchronisation_ratio(log) <= 1


def test_the_same_crashes_meet_every_algorithm() -> None:  # law 22
    trace = draw_crashes(30, 20, 0.4, RNG(0))
    seconds = RNG(1).random(20)
    every = safa(trace, seconds, 1.0, LAG)
    plain = fedavg(trace, seconds, 1.0, RNG(2))
    assert (every.crashed == plain.crashed).all()
    assert (every.picked == plain.picked).all()
    a, b = (fedavg(trace, seconds, 0.3, RNG(5)), fedcs(trace, seconds, 0.3, RNG(5), seconds, 2.0))
    assert (a.asked == b.asked).all()
    slow = fedcs(trace, seconds, 0.3, RNG(5), seconds, 0.5)
    assert not (slow.asked & (seconds > 0.5)).any()
    assert (slow.asked == (a.asked & (seconds <= 0.5))).all()


def test_local_training_is_merged_once() -> None:
    made = local(draw_crashes(10, 6, 0.3, RNG(0)), np.ones(6), 0.5, RNG(1))
    assert not made.sent.any()
    assert made.picked.sum() == made.picked[-1].sum() == 6
    assert (made.asked.sum(axis=1) == 3).all()


def traces(task, crash: float, count: int = 20, rounds: int | None = None):
    """Logs of SAFA on ``count`` traces, from round tau + 2 on."""
    for seed in range(count):
        rng = RNG(seed)
        trace = draw_crashes(rounds or task.rounds, task.clients, crash, rng)
        log = safa(trace, rng.random(task.clients) + 0.1, 0.3, LAG).log()
        columns = {n: v[LAG + 1 :] for n, v in vars(log).items() if n != "clients"}
        yield RoundAccount(clients=log.clients, **columns)


@pytest.mark.parametrize("crash", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_the_closed_forms_of_synchronisation_and_futility(task, crash) -> None:  # laws 10, 11
    logs = list(traces(task, crash))
    wanted = expected_synchronisation_ratio(crash, LAG)
    assert np.mean([synchronisation_ratio(log) for log in logs]) == pytest.approx(
        wanted, abs=0.02 if task is BOSTON else 0.01
    )
    assert np.mean([futility(log) for log in logs]) == pytest.approx(expected_futility(crash, LAG), abs=0.01)


# Table A.6's means over C, lines 4117 to 4120, and the two readings of Eq. 3.7 at cr = 0.7.
def test_the_tables_follow_the_text_and_not_the_equation() -> None:
    for crash, printed in ((0.1, 0.9006), (0.3, 0.7018), (0.5, 0.5134), (0.7, 0.3436)):
        assert expected_synchronisation_ratio(crash, LAG) == pytest.approx(printed, abs=0.012)
    assert expected_synchronisation_ratio(0.7, LAG, literal=True) == pytest.approx(0.3606, abs=1e-4)
    assert [round(expected_futility(c, LAG), 4) for c in (0.1, 0.3, 0.5, 0.7)] == [0.0, 0.0005, 0.0079, 0.04]
    trace = draw_crashes(2000, 50, 0.7, RNG(3))
    literal = safa(trace, np.ones(50), 0.3, LAG, beyond=False).log()
    assert synchronisation_ratio(literal) == pytest.approx(
        expected_synchronisation_ratio(0.7, LAG, literal=True), abs=0.004
    )


@pytest.mark.parametrize("crash", [0.1, 0.3, 0.5, 0.7])
def test_fedavg_wastes_half_of_what_crashes(crash) -> None:  # law 12
    log = fedavg(draw_crashes(400, 100, crash, RNG(7)), np.ones(100), 0.5, RNG(8)).log()
    assert futility(log) == pytest.approx(expected_futility(crash), abs=0.01)
    assert effective_update_ratio(log) == pytest.approx(expected_effective_updates(0.5, crash, after=False), abs=0.01)
    assert synchronisation_ratio(log) == 0.5


@given(st.integers(3, 40), st.floats(0.05, 1.0), st.floats(0.0, 0.9), st.integers(0, 99))
def test_selection_after_training_uses_more(clients, fraction, crash, seed) -> None:  # law 9
    rng = RNG(seed)
    trace = draw_crashes(15, clients, crash, rng)
    after = safa(trace, np.ones(clients), fraction, LAG).log()
    before = fedavg(trace, np.ones(clients), fraction, rng).log()
    assert (after.effective >= before.effective).all()
    finished = (~trace.crashed).sum(axis=1)
    assert (after.effective == np.minimum(finished, quota_of(clients, fraction))).all()


@pytest.mark.parametrize(("fraction", "crash"), [(0.1, 0.3), (0.5, 0.3), (0.7, 0.3), (0.5, 0.7)])
def test_effective_updates_of_safa(fraction, crash) -> None:  # Eq. 3.8
    log = safa(draw_crashes(50, 1000, crash, RNG(1)), RNG(2).random(1000), fraction, LAG).log()
    assert effective_update_ratio(log) == pytest.approx(
        expected_effective_updates(fraction, crash, after=True), abs=0.01
    )


def test_versions_vary_with_the_tolerance_and_only_with_crashes() -> None:  # law 19
    calm = safa(draw_crashes(50, 20, 0.0, RNG(0)), np.ones(20), 0.3, LAG).log()
    assert version_variance(calm) == 0.0
    assert synchronisation_ratio(calm) == 1.0
    trace = draw_crashes(300, 100, 0.7, RNG(1))
    grown = [version_variance(safa(trace, np.ones(100), 0.3, lag).log()) for lag in (1, 2, 3, 5, 10)]
    assert grown == sorted(grown)
    assert grown[0] > 0


def test_fleets_follow_their_task() -> None:
    for task in TASKS.values():
        made = fleet(task, RNG(4))
        assert made.sizes.sum() == task.rows
        assert made.sizes.min() >= max(20, task.batch_size)
        assert made.speeds.min() >= task.slowest
        assert len(made.speeds) == task.clients
        assert made.training == pytest.approx(made.sizes * task.epochs / task.batch_size / made.speeds)
        assert (made.seconds - made.forecast) == pytest.approx([TRANSFER_SECONDS] * task.clients)
    assert (fleet(MNIST, RNG(4)).sizes == fleet(MNIST, RNG(4)).sizes).all()
