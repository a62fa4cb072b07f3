"""What goes with what, by rows alone: the laws of ``compose``, parts that nobody knew before, and the table of capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll import aggregation, pacing
from atoll.core import capability as core
from atoll.core.capability import SINGLE_REPLIES, Capability, Need
from atoll.core.errors import CompositionError
from atoll.core.federation.reducer import Plain, Reducer
from atoll.learn import Aggregation, Training, capabilities
from atoll.learn.capabilities import ALL, EVERYONE, ONE_MODEL, Placed, compose, lack_of, require_composed
from atoll.learn.composition import LATER, parts_of, prepared_parts
from atoll.topology import Star
from tests.learn.capability_table import PAGE, declared, table, written
from tests.support.part_examples import ALGORITHMS, DATA


def part(slot: str, needs: Any = (), offers: Any = (), name: str = "") -> Placed:
    return Placed(slot, name or slot, tuple(needs), lack_of(frozenset(offers)))


EACH = Capability("each", of=("a", "b"), means="Each must.", lack="does not", instead="another")
SOME = Capability("some", of=("a", "b"), means="One is enough.", lack="does not", instead="another", some=True)
NEEDS = {c.name: Need(c, "wants it", "something else") for c in (EACH, SOME)}


# ---------------------------------------------------------------------- laws

SLOTS = st.sampled_from(["a", "b", "c"])
ROWS = st.lists(st.sampled_from([EACH, SOME]), unique=True)
PARTS = st.lists(st.tuples(SLOTS, ROWS, ROWS), max_size=6)


def made(rows: list[tuple[str, list[Capability], list[Capability]]]) -> list[Placed]:
    return [
        part(slot, [NEEDS[c.name] for c in needs], offers, f"{slot}{i}") for i, (slot, needs, offers) in enumerate(rows)
    ]


@given(PARTS)
def test_a_need_is_met_by_each_of_the_others_or_by_one_where_one_is_enough(rows: Any) -> None:
    """Beside an oracle that says it with ``all`` and ``any``."""
    unmet = {(m.part.name, m.need.capability.name) for m in compose(made(rows))}
    for i, (slot, needs, _) in enumerate(rows):
        others = [offers for j, (where, _, offers) in enumerate(rows) if j != i and where in ("a", "b")]
        for capability in needs:
            good = [capability in offers for offers in others]
            met = (any(good) or not good) if capability.some else all(good)
            assert ((f"{slot}{i}", capability.name) in unmet) == (not met)


@given(PARTS, st.randoms(use_true_random=False))
def test_the_order_of_the_parts_does_not_matter(rows: Any, draw: Any) -> None:
    placed = made(rows)
    mixed = draw.sample(placed, len(placed))

    def unmet(parts: Any) -> set[tuple[str, str]]:
        return {(m.part.name, m.need.capability.name) for m in compose(parts)}

    assert unmet(placed) == unmet(mixed)


@given(PARTS)
def test_who_offers_more_is_refused_no_oftener(rows: Any) -> None:
    def unmet(rows: Any) -> set[tuple[str, str]]:
        return {(m.part.name, m.need.capability.name) for m in compose(made(rows))}

    assert unmet([(slot, needs, [EACH, SOME]) for slot, needs, _ in rows]) == set()
    richer = [
        (slot, needs, [*offers, EACH] if i == 0 and EACH not in offers else offers)
        for i, (slot, needs, offers) in enumerate(rows)
    ]
    assert unmet(richer) <= unmet(rows)


def test_a_slot_that_is_filled_later_may_still_meet_a_need() -> None:
    asks = part("c", [NEEDS["some"]])
    assert [m.lacking.slot for m in compose([asks, part("a")])] == ["a"]
    assert list(compose([asks, part("a")], later=("b",))) == []
    assert list(compose([part("c", [NEEDS["each"]]), part("a")], later=("b",))) != []


def test_a_part_does_not_meet_its_own_need() -> None:
    alone = part("a", [NEEDS["some"]], [SOME])
    assert list(compose([alone])) == []
    assert [m.lacking.name for m in compose([alone, part("b")])] == ["b"]


def test_a_refusal_names_both_parts_the_capability_the_place_and_the_remedy() -> None:
    parts = [part("a", [NEEDS["each"]], name="One"), part("b", name="Other")]
    with pytest.raises(CompositionError, match="One wants it") as caught:
        require_composed(parts)
    assert caught.value.what == "One wants it, and Other does not (missing: each)"
    assert (caught.value.where, caught.value.remedy) == ("Training.a", "use something else, or another")


# ---------------------------------------------------------------------- parts that nobody knew before


@dataclass(frozen=True)
class Median(Aggregation):
    """A user's own: it looks at single replies."""

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, Need(SINGLE_REPLIES, "takes the median of single replies", "Renormalised()"))


@dataclass(frozen=True)
class Masked(Reducer):
    """A user's own: it reveals sums."""

    secure = True


TRUSTED = Capability(
    "trusted server",
    of=("topology",),
    means="The server is trusted.",
    lack="has a server that nobody vouches for",
    instead="Vouched()",
)


@dataclass(frozen=True, kw_only=True)
class Careful(atoll.FedAvg):
    """Needs a capability that its author made up."""

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, Need(TRUSTED, "sends what only a trusted server may see", "FedAvg()"))


@dataclass(frozen=True)
class Vouched(Star):
    """Offers it."""

    @property
    def offers(self) -> frozenset[Capability]:
        return super().offers | {TRUSTED}


def test_parts_of_ones_own_are_composed_by_rows() -> None:
    model = atoll.models.linear(4, 2)
    with pytest.raises(
        CompositionError,
        match=r"Median takes the median of single replies, and Masked reveals sums only \(missing: single replies\)",
    ):
        Training(model=model, aggregation=Median(), reducer=Masked())
    Training(model=model, aggregation=Median())
    Training(model=model, reducer=Masked())


def test_a_capability_of_ones_own_is_composed_by_rows() -> None:
    model = atoll.models.linear(4, 2)
    with pytest.raises(
        CompositionError,
        match=r"Careful sends .*, and Star has a server that nobody vouches for \(missing: trusted server\).*Vouched",
    ):
        Training(model=model, algorithm=Careful(lr=0.1))
    job = Training(model=model, algorithm=Careful(lr=0.1), topology=Vouched(), rounds=1)
    assert len(atoll.simulate(job, DATA, engine="inline").metrics) == 1


def test_a_synchronous_pacing_with_rounds_of_its_own_needs_a_server_that_holds_them() -> None:
    """Any topology keeps the terms of ``Synchronous``; nobody but ``Star`` would run the course of this one."""

    @dataclass(frozen=True, kw_only=True)
    class Patient(pacing.Synchronous):
        def course(self, context: Any) -> Any:
            return super().course(context)

    job = {"model": atoll.models.linear(4, 2), "topology": atoll.topology.Hierarchical()}
    Training(**job, pacing=pacing.Synchronous())
    with pytest.raises(
        CompositionError, match="Patient paces the rounds of a server, and Hierarchical has rounds of its own"
    ):
        Training(**job, pacing=Patient())


def test_a_rule_that_draws_in_its_own_way_is_no_uniform_sample() -> None:
    @dataclass(frozen=True)
    class First(atoll.Uniform):
        def invite(self, candidates: Any, count: int, state: Any) -> Any:
            return np.arange(count)

    assert capabilities.SAMPLE in atoll.Uniform(2).offers
    assert capabilities.SAMPLE not in First(2).offers
    assert (atoll.Uniform(2).distinct(6), First(2).distinct(6), atoll.Everyone().distinct(6)) == (2, None, 6)


def test_an_aggregation_that_combines_in_its_own_way_is_no_plain_mean() -> None:
    class Halved(aggregation.Renormalised):
        def combine(self, combined: Any, params: Any, memory: Any, info: Any) -> Any:
            return super().combine(combined, params, memory, info)

    assert capabilities.PLAIN_MEAN in aggregation.Renormalised().offers
    assert capabilities.PLAIN_MEAN not in Halved().offers


def test_a_plain_reducer_that_hides_replies_is_not_plain() -> None:
    class Hidden(Plain):
        secure = True

    class Stepwise(Plain):
        async def reduce(self, reduction: Any) -> Any:
            return await super().reduce(reduction)

    assert Plain().plain
    assert not Hidden().plain
    assert not Stepwise().plain
    assert SINGLE_REPLIES not in Hidden().offers


# ---------------------------------------------------------------------- the capabilities


def test_every_capability_is_listed_once() -> None:
    known = [c for module in (core, capabilities) for c in vars(module).values() if isinstance(c, Capability)]
    assert set(known) == set(ALL)
    assert len({c.name for c in ALL}) == len(ALL)


def test_capabilities_are_offered_in_slots_that_a_training_has() -> None:
    job = Training(model=atoll.models.linear(4, 2))
    slots = {placed.slot for placed in prepared_parts(job, job.learner(DATA), 6)} | {"uplink", "algorithm.uplink"}
    slots |= {"privacy"}
    assert {slot for c in ALL for slot in c.of} <= slots
    assert set(LATER) == {placed.slot for placed in prepared_parts(job, job.learner(DATA), 6)} - {
        p.slot for p in parts_of(job)
    }


def test_every_capability_is_offered_by_somebody_and_needed_by_somebody() -> None:
    offers, needs = declared()
    assert {c.name for c in ALL if not offers[c]} == set()
    assert {c.name for c in ALL if not needs[c]} == set()


def test_the_page_has_the_table_of_capabilities() -> None:
    assert written() == table(), f"run: python -m tests.learn.capability_table, which writes {PAGE.name}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wrapper_keeps_what_its_base_needs(name: str) -> None:
    """The rows of the algorithm inside reach the others through any wrapper that a part of the training puts around it."""
    base = ALGORITHMS[name]()
    around = aggregation.KeepLocal().algorithm(base)
    assert set(base.needs) <= set(around.needs)
    assert base.offers == around.offers


def test_a_cohort_of_all_offers_everyone_whatever_the_rule_is_called() -> None:
    job = Training(model=atoll.models.linear(4, 2), selection=atoll.Uniform(4))
    learner = job.learner(DATA)

    def lack(population: int) -> str:
        return next(p for p in prepared_parts(job, learner, population) if p.slot == "cohort").lack(EVERYONE)

    assert lack(4) == ""
    assert lack(6) == "invites 4 of 6"


def test_a_pacing_of_several_versions_offers_no_single_model() -> None:
    kinds = (pacing.FedAsync(), pacing.FedBuff(), pacing.Tiered(), pacing.PartialBarrier(), pacing.SAFA())
    assert [kind for kind in kinds if ONE_MODEL in kind.offers] == []
    assert ONE_MODEL in pacing.Synchronous().offers
