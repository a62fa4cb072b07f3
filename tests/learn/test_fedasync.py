"""FedAsync (Xie, Koyejo, Gupta 2019, arXiv:1903.03934): mixing at every arrival, staleness, what is dropped and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.aggregation import KeepGlobal, KeepLocal, Renormalised
from atoll.algorithms import (
    QSVRG,
    VRLSGD,
    FedAC,
    FedAdam,
    FedAvg,
    FedDyn,
    FedProx,
    FedSGD,
    Scaffold,
    SparseTernary,
    Upcycled,
)
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.engines.inline import Inline
from atoll.learn import Training
from atoll.pacing import ConstantStaleness, FedAsync, HingeStaleness, PolynomialStaleness
from atoll.rounds.loop import StopRule
from atoll.selection import Everyone, SizeProportional, Uniform
from atoll.stages import QSGD
from tests.support.async_toys import CLIENTS, DATA, FULL, SECONDS, Slow, job, local, survives, train
from tests.support.learn_toys import Fixed, flat, islands

RULES = [ConstantStaleness(), PolynomialStaleness(a=0.5), HingeStaleness(a=2.0, b=1)]


def reference(rounds, *, alpha, weight, arrivals=1, limit=None):
    """The loop of the paper, one client after another: the model, times of rounds and mean staleness."""
    world, w, version, rows = Slow(), np.zeros(6), 0, []
    idle = list(range(CLIENTS))
    for _ in range(rounds):
        world.ask(idle, version, w)
        idle, late, taken = [], [], 0
        while taken < arrivals:
            k, base_version, base = world.answer()
            idle.append(k)
            staleness = version - base_version
            if limit is not None and staleness > limit:
                continue
            share = alpha * weight(staleness)
            w = (1 - share) * w + share * local(k, base)
            version, taken, late = version + 1, taken + 1, [*late, staleness]
        rows.append((world.clock, float(np.mean(late))))
    return w, rows


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("arrivals", [1, 3])
def test_it_is_the_loop_of_the_paper(rule, arrivals):
    found = train(FedAsync(alpha=0.7, staleness=rule, arrivals=arrivals))
    w, rows = reference(12, alpha=0.7, weight=rule.weight, arrivals=arrivals)
    np.testing.assert_allclose(flat(found.params), w, rtol=1e-12)
    assert [(row["t_end"], row["staleness"]) for row in found.metrics] == rows
    assert found.metrics.column("replied") == [arrivals] * 12


def test_alpha_1_replaces_and_alpha_0_leaves():
    replaced = train(FedAsync(alpha=1.0), rounds=1)
    np.testing.assert_allclose(flat(replaced.params), local(0, np.zeros(6)), rtol=1e-13)
    third = train(FedAsync(alpha=1.0), rounds=3)
    np.testing.assert_allclose(flat(third.params), local(2, np.zeros(6)), rtol=1e-12)  # 0 at 1 s, 1 and 2 at 2 s
    left = train(FedAsync(alpha=0.0), rounds=5)
    assert not flat(left.params).any()


def test_one_client_at_a_time_is_never_stale_and_with_alpha_1_local_training():
    found = train(FedAsync(alpha=1.0), seconds=Fixed([1.0] * CLIENTS), selection=Uniform(1), rounds=6)
    assert found.metrics.column("staleness") == [0.0] * 6
    assert found.metrics.column("selected") == [1] * 6
    assert found.metrics[-1]["t_end"] == 6.0


@given(st.integers(0, 50), st.floats(0.0, 3.0), st.floats(0.01, 20.0), st.integers(0, 10))
def test_staleness_functions_begin_at_1_and_do_not_rise(d, a, slope, b):
    for rule in (ConstantStaleness(), PolynomialStaleness(a=a), HingeStaleness(a=slope, b=b)):
        assert rule.weight(0) == 1.0
        assert 0.0 < rule.weight(d + 1) <= rule.weight(d) <= 1.0


def test_staleness_functions_are_those_of_section_5_2():
    """s_a(x) = (x+1)^-a; s_{a,b}(x) = 1 if x <= b else 1/(a(x-b)+1), worked by hand."""
    assert PolynomialStaleness(a=0.5).weight(3) == 0.5
    assert [HingeStaleness(a=10.0, b=4).weight(d) for d in (4, 5, 9)] == [1.0, 1 / 11, 1 / 51]


def test_replies_that_are_too_stale_are_dropped():
    found = train(FedAsync(alpha=0.7, arrivals=2, max_staleness=2))
    w, rows = reference(12, alpha=0.7, weight=lambda d: 1.0, arrivals=2, limit=2)
    np.testing.assert_allclose(flat(found.params), w, rtol=1e-12)
    assert [row["t_end"] for row in found.metrics] == [at for at, _ in rows]
    assert max(found.metrics.column("most_stale")) <= 2
    assert sum(found.metrics.column("late")) == sum(found.metrics.column("wasted")) > 0


def test_a_flight_runs_in_one_block_though_its_replies_come_one_by_one(monkeypatch):
    blocks, fold = [], Inline.fold

    async def watched(self, request, positions):
        blocks.append(positions.tolist())
        return await fold(self, request, positions)

    monkeypatch.setattr(Inline, "fold", watched)
    train(FedAsync(arrivals=4), rounds=3)
    assert blocks == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3]], "each at its first arrival"


def test_a_round_of_the_server_alone_asks_nobody():
    found = train(FedAsync(alpha=0.7), Upcycled(base=FedAvg(**FULL), coefficient=0.3), rounds=6)
    assert found.metrics.column("replied") == [1, 0, 1, 0, 1, 0]
    assert found.metrics.column("selected") == [5, 0, 1, 0, 1, 0]
    first, second = (
        flat(train(FedAsync(alpha=0.7), Upcycled(base=FedAvg(**FULL), coefficient=0.3), rounds=r).params)
        for r in (1, 2)
    )
    np.testing.assert_allclose(second, 1.3 * first, rtol=1e-12)


def test_what_scaffold_keeps_at_its_server_is_the_mean_of_what_clients_keep(monkeypatch):
    """c = (1/N) sum_k c_k when nothing is in flight, though updates were mixed with weights: changes of variates are folded whole."""
    made = job(FedAsync(alpha=0.3, arrivals=CLIENTS), Scaffold(**FULL), rounds=7)
    variates, server = {}, {}
    finish, fold = Scaffold.finish, Scaffold.fold

    def told(self, local, broadcast, client, work):
        reply, state = finish(self, local, broadcast, client, work)
        variates.pop(float(np.asarray(client["control"]["w"]).sum()), None)  # what the client had before
        variates[float(np.asarray(state["control"]["w"]).sum())] = np.asarray(state["control"]["w"])
        return reply, state

    def kept(self, state, sums, info, phase):
        server.update(fold(self, state, sums, info, phase))
        return dict(server)

    monkeypatch.setattr(Scaffold, "finish", told)
    monkeypatch.setattr(Scaffold, "fold", kept)
    atoll.simulate(made, DATA, engine="inline", devices=Fixed([1.0] * CLIENTS))
    assert len(variates) - (0.0 in variates) == CLIENTS, "beside the dry run that tells a reply's form"
    np.testing.assert_allclose(server["control"]["w"], sum(variates.values()) / CLIENTS, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm", [FedProx(mu=0.5, **FULL), FedAdam(**FULL), Scaffold(**FULL)], ids=lambda a: type(a).__name__
)
def test_it_takes_the_algorithms_that_reply_with_an_update(algorithm):
    found = train(FedAsync(alpha=0.5), algorithm, uplink=(QSGD(levels=16),))
    assert np.isfinite(flat(found.params)).all()
    assert flat(found.params).any()


def test_keep_global_scales_by_the_share_of_examples():
    plain = train(FedAsync(alpha=0.5), rounds=1)
    scaled = train(FedAsync(alpha=0.5), rounds=1, aggregation=KeepGlobal())
    np.testing.assert_allclose(flat(scaled.params), flat(plain.params) / CLIENTS, rtol=1e-12)


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_engines_agree(engine):
    data = islands([5, 6, 7, 8, 9])
    made = Training(
        model=atoll.models.logistic(4, 3),
        algorithm=Scaffold(lr=0.1, batch_size=4),
        selection=Everyone(),
        pacing=FedAsync(alpha=0.5, arrivals=3),
        uplink=(QSGD(levels=4),),
        rounds=6,
    )
    one, other = (atoll.simulate(made, data, engine=e, devices=Fixed(SECONDS), workers=2) for e in ("inline", engine))
    np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-5)
    for name in ("t_end", "staleness", "bytes_up", "bytes_down"):
        assert other.metrics.column(name) == one.metrics.column(name)


@pytest.mark.quick("1")
@pytest.mark.parametrize("arrivals", [1, 3])
def test_a_killed_run_goes_on_where_it_was(tmp_path, arrivals):
    life = survives(job(FedAsync(alpha=0.5, arrivals=arrivals), Scaffold(**FULL), rounds=5), tmp_path)
    assert life.records["main"][-1]["version_variance"] >= 0


def test_crashes_are_counted_and_their_clients_asked_again():
    found = train(FedAsync(alpha=0.5, arrivals=2), seconds=Fixed([1.0, 2.0, math.inf, 3.0, 4.0], notice=2.5), rounds=6)
    rows = found.metrics
    assert rows[0]["crashed"] == 1
    assert sum(rows.column("crashed")) > 2
    assert rows.column("replied") == [2] * 6


def test_devices_that_never_answer_end_the_training():
    with pytest.raises(QuorumError, match="requests in a row had no reply"):
        train(FedAsync(), seconds=Fixed([math.inf] * CLIENTS, notice=0.0))


class After(StopRule):
    """Stops at a number of mixed replies."""

    def reason(self, history):
        return "enough" if sum(history.column("replied")) >= 6 else None


def test_stop_rules_and_evaluation_go_by_rounds():
    found = train(FedAsync(arrivals=2), stop=(After(),), rounds=50)
    assert (len(found.metrics), found.reason) == (3, "enough")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"algorithm": QSVRG()}, "QSVRG has phases anchor, train"),
        ({"algorithm": VRLSGD(**FULL)}, "VRLSGD needs every client in every round"),
        ({"algorithm": FedSGD(batch_size=None)}, "FedSGD does not reply with the mean update of a model"),
        ({"algorithm": FedAC(batch_size=None)}, "FedAC also replies with update_ag"),
        ({"algorithm": FedDyn(batch_size=None)}, "FedDyn keeps the same sums of updates at its clients and its server"),
        (
            {"algorithm": SparseTernary(batch_size=None)},
            "is a difference to the one model that all clients have, and FedAsync lets clients work on models of several versions",
        ),
        ({"aggregation": KeepLocal()}, "KeepLocal keeps single models"),
        ({"selection": SizeProportional(3)}, "SizeProportional may draw a client twice"),
        ({"algorithm": Scaffold(**FULL), "pacing": FedAsync(max_staleness=3)}, "Scaffold has clients that keep state"),
    ],
)
def test_what_makes_no_sense_is_refused(more, text):
    parts = {"pacing": FedAsync(), "aggregation": Renormalised(), **more}
    with pytest.raises(CompositionError, match=text):
        job(**parts).learner(DATA)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"arrivals": 0}, "arrivals=0"),
        ({"max_staleness": -1}, "max_staleness=-1"),
        ({"look_again": 0.0}, "look_again=0.0"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ConfigError, match=text):
        FedAsync(**settings)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PolynomialStaleness(a=-1.0), "a=-1.0"),
        (lambda: HingeStaleness(a=0.0), "a=0.0"),
        (lambda: HingeStaleness(b=-1), "b=-1"),
    ],
)
def test_bad_staleness(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
