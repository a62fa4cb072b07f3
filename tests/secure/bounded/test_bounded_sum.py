"""Sums at two servers that check norms on shares: who is within passes, who is beyond is named and left out, and the servers see neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Mean, Sum, Vote
from atoll.core.errors import CompositionError, ConfigError, DataError, LetterError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.sealing import VirtualSealing
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import BoundedSum
from atoll.secure import WordLayout
from atoll.secure.bounded import MOST_OUTSIDE, PROJECTIONS, RATIO, BoundPlan, add, project_rows
from atoll.stages import ScalarQuantizer
from atoll.testing import Timetable, check_reducer
from atoll.testing.lying.sites import Rehearsal

HELPERS = {"first-server": None, "second-server": None, "dealer": None}
SIZE = 60


@task
def numbers(island, message):
    """A mean with its weight, a further value that moves the model, and a metric."""
    update, weight, side = island.data[:SIZE], float(island.data[-1]), island.data[SIZE:-1]
    return {
        "w": Mean({"a": update[:50].astype(np.float32), "b": update[50:]}, examples=weight),
        "c": Sum(side, role="side"),
        "loss": Mean(np.float64(1e6), examples=2.0, role="metric"),
    }


def rows_of(norms, weights=None, side=None, seed=0):
    rng, n = np.random.default_rng(seed), len(norms)
    rows = rng.normal(size=(n, SIZE + 5))
    rows[:, :SIZE] *= (np.array(norms) / np.linalg.norm(rows[:, :SIZE], axis=1))[:, None]
    rows[:, SIZE:-1] *= (np.array(side or [0.5] * n) / np.linalg.norm(rows[:, SIZE:-1], axis=1))[:, None]
    rows[:, -1] = [1.0 + i for i in range(n)] if weights is None else weights
    return rows


def summed(reducer, rows, engine=None, lost=None, asked=numbers, **terms):
    people = Community({f"client-{i}": row for i, row in enumerate(rows)}, others=HELPERS)
    world = World(people, engine or Inline(), cost=Timetable(lost=lost or {}))
    found, fed = run(
        run_program(world, lambda fed: fed.sum(fed.where("client"), asked, None, reducer=reducer, **terms))
    )
    return found, fed


REDUCER = BoundedSum(norm=1.0, max_weight=64.0)


@pytest.mark.parametrize("engine", [Inline, Batched])
def test_who_is_beyond_the_bound_is_named_and_left_out_whatever_the_weights(engine):
    rows = rows_of([0.99, 0.2, 12.0, 1.0, 0.0, 0.7], [64.0, 0.5, 0.01, 1.0, 3.0, 20.0])
    found, _ = summed(REDUCER, rows, engine())
    assert found.senders.names == [f"client-{i}" for i in (0, 1, 3, 4, 5)]
    (why,) = found.rejected.values()
    assert list(found.rejected) == ["client-2"]
    assert why.startswith("its update is longer than norm=1")
    kept = rows[[0, 1, 3, 4, 5]]
    assert np.abs(found["w"]["b"] - np.average(kept[:, 50:SIZE], axis=0, weights=kept[:, -1])).max() < 1e-6
    assert np.abs(found["c"] - kept[:, SIZE:-1].sum(axis=0)).max() < 1e-6
    assert found.weight["w"] == pytest.approx(kept[:, -1].sum())


def test_further_values_that_move_the_model_are_bounded_too_and_metrics_are_not():
    found, _ = summed(REDUCER, rows_of([0.5] * 4, side=[0.9, 30.0, 0.1, 1.0]))
    assert list(found.rejected) == ["client-1"]
    assert found["loss"] == pytest.approx(1e6)


def test_a_party_that_drops_out_is_not_in_the_sum_and_too_few_within_the_bound_are_none():
    found, _ = summed(REDUCER, rows_of([0.5] * 5), lost={":split/": ["client-3"]})
    assert found.n == 4
    with pytest.raises(
        QuorumError,
        match=r"2 parties within norm=1, fewer than 3; beyond it: client-0, client-2.*clip at the parties with Clip",
    ):
        summed(replace(REDUCER, least=3), rows_of([40.0, 0.5, 50.0, 0.5]))
    with pytest.raises(QuorumError, match="the norms could not be compared"):
        summed(REDUCER, rows_of([0.5] * 4), lost={"": ["dealer"]})


# ---------------------------------------------------------------------- what a client that lies can try


def lying(monkeypatch, change):
    """Party ``client-1`` shares other words than its totals have."""
    honest = WordLayout.encode

    def encode(self, totals, party=""):
        lanes = honest(self, totals, party)
        if party == "client-1":
            change(lanes["64"].view(np.ndarray), self)
        return lanes

    monkeypatch.setattr(WordLayout, "encode", encode)
    return list(summed(REDUCER, rows_of([0.9] * 5))[0].rejected)


def first_of(layout, name="w"):
    slots, weight = layout.slots_of(name)
    return slots[0], weight


def put(places, value):
    def change(words, layout):
        words[first_of(layout)[0].start + np.arange(places)] = np.uint64(value % 2**64)

    return change


@pytest.mark.quick("1-9223372036854775808", "50-4294967296")
@pytest.mark.parametrize(
    ("places", "value"),
    [(1, 2**63), (2, 2**63), (4, 2**62), (50, 2**32), (50, 2**63 - 1), (16, 2**60), (1, -(2**55))],
    ids=str,
)
def test_words_whose_squares_wrap_around_do_not_slip_through(monkeypatch, places, value):
    """``sum x^2`` is 0 modulo 2^64 for the first five: a test of squares alone would let them pass."""
    assert lying(monkeypatch, put(places, value)) == ["client-1"]


@pytest.mark.quick("-1.0", "64.5")
@pytest.mark.parametrize("weight", [-1.0, 64.5, 2.0**38, -(2.0**38)])
def test_a_weight_outside_its_range_is_found(monkeypatch, weight):
    def change(words, layout):
        words[first_of(layout)[1].start] = np.uint64(int(weight * 2**24) % 2**64)

    assert lying(monkeypatch, change) == ["client-1"]


def test_a_large_weight_does_not_hide_a_long_update(monkeypatch):
    def change(words, layout):
        slot, weight = first_of(layout)
        words[weight.start] = np.uint64(64 * 2**24)
        words[slot.start : slot.start + slot.size] = np.uint64(64 * 2**24 * 4)  # 4 an entry, so a norm of 28

    assert lying(monkeypatch, change) == ["client-1"]


def test_letters_that_are_swapped_on_their_way_are_refused():
    class Odd(Inline):
        async def run(self, request, positions):
            found = await super().run(request, positions)
            for reply in found:
                if request.task.name.endswith(":split") and reply.party == 1:
                    letters = reply.mail
                    letters["first-server"], letters["second-server"] = (
                        letters["second-server"],
                        letters["first-server"],
                    )
            return found

    with pytest.raises(LetterError, match="envelope says"):
        summed(REDUCER, rows_of([0.9] * 5), Odd())


@pytest.mark.parametrize("shape", ["dense", "one entry", "two entries", "four entries"])
def test_the_chances_are_those_that_are_stated(shape):
    """Many vectors at once, in the clear: within the bound none is refused, at ten times none passes, whatever the shape."""
    rng, count, d = np.random.default_rng(1), 300, 400
    x = rng.normal(size=(count, d)) if shape == "dense" else np.zeros((count, d))
    if shape != "dense":
        x[:, : {"one entry": 1, "two entries": 2, "four entries": 4}[shape]] = 1.0
    x /= np.linalg.norm(x, axis=1)[:, None]

    def refused(norm):
        words = np.rint(x * norm * 2**24).astype(np.int64).view(np.uint64)
        y = project_rows(words, bytes(range(32))).view(np.int64)
        return float((((np.abs(y) > RATIO * 2**24).sum(axis=1)) > MOST_OUTSIDE).mean())

    assert refused(1.0) == 0.0
    assert refused(10.0) == 1.0
    if shape == "dense":
        assert refused(2.5) == 1.0
        assert refused(2.0) > 0.8


def test_projections_are_exact_modulo_two_to_the_64():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 2**64, size=(3, 5000), dtype=np.uint64)
    parts = [x - (share := rng.integers(0, 2**64, size=x.shape, dtype=np.uint64)), share]
    seed = bytes(32)
    whole, split = project_rows(x, seed), sum(project_rows(part, seed) for part in parts)
    assert np.array_equal(whole, split)
    one = project_rows(np.eye(3, 5000, dtype=np.uint64), seed).view(np.int64)
    assert set(np.unique(one)) == {-1, 0, 1}
    assert (one == 0).mean() == pytest.approx(0.5, abs=0.06)
    assert whole.shape == (3, PROJECTIONS)


# ---------------------------------------------------------------------- what the servers see


def test_the_first_server_has_uniform_words_the_second_no_words_and_no_share_outlives_the_sum():
    letters = {"first-server": [], "second-server": []}

    class Looking(Inline):
        async def run(self, request, positions):
            found = await super().run(request, positions)
            for reply in found if request.task.name.endswith(":split") else ():
                for name, seen in letters.items():
                    seen.append(VirtualSealing().open(reply.mail[name]))
            return found

    found, fed = summed(REDUCER, np.repeat(rows_of([0.9]), 20, axis=0), Looking())
    assert found.n == 20
    words = np.concatenate([np.asarray(letter["lanes"]["64"]) for letter in letters["first-server"]]).view(np.uint8)
    expected = len(words) / 256
    assert ((np.bincount(words, minlength=256) - expected) ** 2 / expected).sum() < 370
    assert all(set(letter) == {"plan", "asked", "layout", "seed"} for letter in letters["second-server"])
    tables = fed.world.engine.host.store.tables
    assert not any("BoundedSum" in slot and table.positions().size for slot, table in tables.items())


def test_a_server_gives_the_sum_of_those_within_once_and_no_other():
    answers = []

    class Twice(Inline):
        async def run(self, request, positions):
            first = await super().run(request, positions)
            if request.task.name == add.name:
                kept = request.message["kept"]
                for number, other in enumerate((kept, kept[:-1])):
                    again = replace(request, id=f"{request.id}-{number}", message={"kept": other})
                    answers.extend(await super().run(again, positions))
            return first

    found, _ = summed(REDUCER, rows_of([0.9] * 5), Twice())
    assert found.n == 5
    assert [type(answer.error) for answer in answers] == [PolicyError] * 4


@pytest.mark.slow
def test_the_laws_of_reducers_hold():
    check_reducer(BoundedSum(norm=1e4, max_weight=1024.0), others=HELPERS)


@pytest.mark.slow  # its quick sibling in one process is the first test
@pytest.mark.parametrize("sealing", ["virtual", "real"])
def test_between_processes_servers_and_dealer_talk_and_find_the_same(sealing):
    people = Community({f"client-{i}": row for i, row in enumerate(rows_of([0.9, 0.5, 30.0, 0.7]))}, others=HELPERS)
    world = World(people, Rehearsal(7), clock=Clock(virtual=False), sealing=sealing)
    found, _ = run(
        run_program(world, lambda fed: fed.sum(fed.where("client"), numbers, None, reducer=REDUCER)), virtual=False
    )
    assert found.senders.names == ["client-0", "client-1", "client-3"]
    assert list(found.rejected) == ["client-2"]


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize("settings", [{"norm": 0.0}, {"norm": -1.0}, {"max_weight": 0.0}, {"least": 1}])
def test_settings_without_a_meaning_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=rf"{name}={value}.*use"):
        BoundedSum(**settings)


def test_what_has_no_norm_is_refused():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=4, alpha=1.0, seed=0)
    job = atoll.Training(model=atoll.models.linear(64, 10), rounds=1, uplink=[ScalarQuantizer()], reducer=BoundedSum())
    with pytest.raises(CompositionError, match="ScalarQuantizer makes other words of an update"):
        atoll.simulate(job, islands)

    plan = BoundPlan(tuple("abc"), 2, 1.0, 1.0)
    with pytest.raises(CompositionError, match="'w' has no norm that two servers can check"):
        plan.find_bounded(plan.layout([["w", "mean", "update", "<u4(10)w12"]]))
    wide = BoundPlan(tuple("abc"), 2, 1e6, 1e6)
    with pytest.raises(CompositionError, match=r"need words of more than 64 bits.*use max_weight=\S+ or less"):
        wide.find_bounded(wide.layout([["w", "mean", "update", "<f8(100000)"]]))


@task
def signs(island, message):
    return {"v": Vote(np.full(400, island.data[0]))}


def test_votes_are_numbers_whose_norm_is_bounded():
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    assert summed(BoundedSum(norm=20.0), rows, asked=signs)[0]["v"].tolist() == [1.0] * 400
    with pytest.raises(QuorumError, match="0 parties within norm=2"):
        summed(BoundedSum(norm=2.0), rows, asked=signs)


def test_a_weight_above_the_largest_is_refused_at_the_party():
    with pytest.raises((DataError, QuorumError), match="max_weight"):
        summed(REDUCER, rows_of([0.5] * 3, [65.0, 65.0, 65.0]))


@pytest.mark.slow
def test_a_training_within_the_bound_is_the_plain_one_and_one_beyond_it_stops():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=1.0, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.FedAvg(lr=0.2),
        rounds=3,
        reducer=BoundedSum(norm=3.0, max_weight=4096.0),
    )
    run_ = atoll.simulate(job, islands)
    assert run_.metrics.column("rejected") == [0, 0, 0]
    plain = atoll.simulate(job.replace(reducer=atoll.core.Plain()), islands)
    assert np.abs(run_.params["weight"] - plain.params["weight"]).max() < 1e-5
    with pytest.raises(QuorumError, match=r"within norm=0\.001"):
        atoll.simulate(job.replace(reducer=BoundedSum(norm=0.001)), islands)
