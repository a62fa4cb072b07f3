"""Who is asked, what they report, whose replies are taken, and what the round's row says of the rest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, Mime
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.reducer import Plain
from atoll.learn import Training
from atoll.pacing import Synchronous
from atoll.selection import Selection
from tests.support.learn_toys import islands
from tests.support.selection_toys import Devices

SIZES = [5, 6, 7, 8]


@dataclasses.dataclass(frozen=True)
class Watching(Selection):
    """Everyone who is there, and what the rule is told."""

    log: list = dataclasses.field(default_factory=list)
    count: int = 4

    def cohort_size(self, population):
        return self.count

    def invite(self, candidates, count, state):
        self.log.append(("candidates", candidates.parties.positions.tolist(), candidates.sizes(), candidates.seconds()))
        return np.arange(len(candidates.parties))

    def accept(self, seen, state):
        self.log.append(seen)
        return state


def train(selection, devices, rounds=1, **pacing):
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=FedAvg(),
        selection=selection,
        pacing=Synchronous(**pacing),
        rounds=rounds,
    )
    return atoll.simulate(job, islands(SIZES), engine="inline", devices=devices)


def test_a_rule_sees_who_is_there_their_sizes_and_their_forecasts():
    rule = Watching()
    result = train(rule, Devices([1.0, 4.0, 2.0, 3.0], away=[1]))
    kind, positions, sizes, seconds = rule.log[0]
    assert (kind, positions, list(sizes), seconds.tolist()) == ("candidates", [0, 2, 3], [5, 7, 8], [1.0, 2.0, 3.0])
    seen = rule.log[1]
    assert (seen.round, seen.replied.positions.tolist(), seen.seconds.tolist()) == (1, [0, 2, 3], [1.0, 2.0, 3.0])
    assert seen.row["replied"] == 3
    assert result.metrics[0]["t_end"] == 3.0


def test_nobody_there_is_an_error_that_says_when():
    with pytest.raises(QuorumError, match=r"none of 4 parties is available at 0 s"):
        train(Watching(), Devices([1.0] * 4, away=range(4)))


def test_a_row_tells_crashes_late_replies_copies_and_wasted_work():
    rule = Watching(count=4)
    row = train(rule, Devices([1.0, 9.0, 2.0, 3.0], lost=[3]), deadline=5.0).metrics[0]
    named = {name: row[name] for name in ("crashed", "late", "synchronised", "wasted", "replied")}
    assert named == {"crashed": 1, "late": 1, "synchronised": 4, "wasted": 1.5, "replied": 2}
    assert rule.log[1].seconds.tolist() == [1.0, 2.0]


def test_a_deadline_that_nobody_can_meet_names_the_fastest():
    with pytest.raises(
        ConfigError, match=r"no client can answer within deadline=0\.5 s; the fastest, client-0, takes 1 s"
    ):
        train(Watching(), Devices([1.0, 4.0, 2.0, 3.0]), deadline=0.5)


def test_the_size_of_replies_is_known_beforehand():
    devices = Devices([1.0] * 4)
    result = train(Watching(), devices)
    assert devices.plans[0].up * 4 == result.metrics.bytes_up


@dataclasses.dataclass(frozen=True)
class EvenFirst(Watching):
    """Takes even clients, and is full with two of them."""

    picks = True

    def take(self, arrived, count, state):
        places = np.flatnonzero(arrived % 2 == 0)[:2]
        return places, int(places[1]) if len(places) == 2 else None


def test_a_rule_may_choose_among_replies():
    rule = EvenFirst()
    result = train(rule, Devices([5.0, 1.0, 3.0, 9.0]))
    assert rule.log[1].replied.positions.tolist() == [0, 2]
    assert result.metrics[0]["t_end"] == 5.0
    assert result.metrics[0]["late"] == 2


@dataclasses.dataclass(frozen=True)
class Surveying(Watching):
    """Asks two for their loss, invites the worse of them."""

    @property
    def reports(self):
        return {"loss": None}

    def survey(self, candidates, count, state):
        return np.array([3, 1])

    def heard(self, seen, state):
        assert seen.replied.positions.tolist() == [1, 3]
        losses = [float(value) for value in seen.reports["loss"]]
        self.log.append(losses)
        return {"worst": int(seen.replied.positions[int(np.argmax(losses))])}

    def invite(self, candidates, count, state):
        return np.array([state["worst"]])


def test_a_survey_comes_before_and_reports_with_every_reply():
    rule = Surveying(count=1)
    result = train(rule, None, rounds=2)
    losses, seen = rule.log[0], rule.log[1]
    assert losses == pytest.approx([np.log(3)] * 2)  # a linear model of zeros on 3 classes
    assert seen.replied.positions.tolist() == [1]
    assert len(seen.reports["loss"]) == 1
    assert seen.examples.tolist() == [6.0]
    assert float(seen.own("loss")) == pytest.approx(np.log(3), rel=1e-6)
    assert result.metrics[0]["bytes_up"] > 0
    assert rule.log[2] != losses  # the second survey is about another model


class Hidden(Plain):
    secure = True


def test_reports_are_refused_where_single_replies_are_hidden():
    with pytest.raises(CompositionError, match="looks at what single clients report"):
        Training(model=atoll.models.linear(4, 3), selection=Surveying(count=1), reducer=Hidden())


def test_a_skipped_round_tells_what_it_cost():
    rows = train(
        Watching(), Devices([1.0, 9.0, 2.0, 3.0], lost=[2, 3]), deadline=5.0, quorum=2, on_failure="skip"
    ).metrics
    row = rows[0]
    assert "fewer than the quorum of 2" in row["failed"]
    told = {name: row[name] for name in ("replied", "crashed", "late", "synchronised", "wasted")}
    # Client 0 answered in time, for nothing; 1 is late; 2 and 3 crashed half-way.
    assert told == {"replied": 0, "crashed": 2, "late": 2, "synchronised": 4, "wasted": 3.0}
    assert row["bytes_down"] > 0


@pytest.mark.parametrize("aggregation", [atoll.aggregation.Renormalised(), atoll.aggregation.KeepGlobal()])
def test_a_quorum_of_none_is_content_with_nobody(aggregation):
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=FedAvg(),
        selection=Watching(),
        aggregation=aggregation,
        pacing=Synchronous(deadline=5.0, quorum=0),
        rounds=2,
    )
    result = atoll.simulate(job, islands(SIZES), engine="inline", devices=Devices([1.0] * 4, lost=range(4)))
    assert result.metrics.column("failed") == ["no client replied"] * 2
    assert result.metrics[-1]["t_end"] == 10.0


class Metered(Devices):
    """Every request costs a client 3600 joules."""

    def plan(self, parties, plan):
        return dataclasses.replace(super().plan(parties, plan), energy=np.full(len(parties), 3600.0))


def test_energy_and_copies_of_all_phases_and_surveys_are_in_the_row():
    def row(selection, algorithm):
        job = Training(model=atoll.models.linear(4, 3), algorithm=algorithm, selection=selection, rounds=1)
        return atoll.simulate(job, islands(SIZES), engine="inline", devices=Metered([1.0] * 4)).metrics[0]

    phases = row(Watching(), Mime())
    assert (phases["selected"], phases["synchronised"], phases["energy_wh"]) == (4, 8, 8.0)
    surveyed = row(Surveying(count=1), FedAvg())
    assert (surveyed["selected"], surveyed["energy_wh"]) == (1, 3.0)  # two were asked for a report


class Nightly(Devices):
    """Nobody is there for the first 10 seconds."""

    def available(self, parties, now):
        return np.full(len(parties), now >= 10.0)


def test_a_round_that_finds_nobody_waits_for_its_deadline_where_rounds_may_be_skipped():
    rows = train(Watching(), Nightly([1.0] * 4), rounds=4, deadline=6.0, on_failure="skip").metrics
    assert [row["replied"] for row in rows] == [0, 0, 4, 4]
    assert [row["t_end"] for row in rows] == [6.0, 12.0, 13.0, 14.0]
    assert "none of 4 parties is available at 0 s" in rows[0]["failed"]
    with pytest.raises(QuorumError, match="none of 4 parties is available"):
        train(Watching(), Nightly([1.0] * 4), rounds=4, deadline=6.0)


def test_a_survey_is_charged_the_size_of_its_reports():
    devices = Devices([1.0] * 4)
    train(Surveying(count=1), devices)
    survey = next(plan for plan in devices.plans if plan.request.endswith("survey"))
    assert 0 < survey.up < survey.down / 2


def test_forecasts_know_of_the_reports():
    """A profile is one more pass over the rows."""
    works = []

    class Looking(Devices):
        def forecast(self, parties, plan):
            works.append(plan.work().epochs.tolist())
            return super().forecast(parties, plan)

    @dataclasses.dataclass(frozen=True)
    class Profiling(Watching):
        @property
        def reports(self):
            return {"profile": {"layer": "auto"}}

    job = Training(model=atoll.models.mlp(4, 3, hidden=(5,)), algorithm=FedAvg(), selection=Profiling(), rounds=1)
    atoll.simulate(job, islands(SIZES), engine="inline", devices=Looking([1.0] * 4))
    assert works[0] == [2.0] * 4
