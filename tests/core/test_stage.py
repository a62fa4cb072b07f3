"""Chains of stages: order, weighting, and what is decoded where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Parts, Sum, merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError
from atoll.core.event import Event, Gaussian
from atoll.core.facets import facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import Guarding, Identity, Stage
from atoll.core.requests.task import Batch, Task
from atoll.engines.inline import Inline


@dataclass(frozen=True)
class Scaled(Stage):
    """A linear stage: times a factor, and back."""

    factor: float = 2.0

    def encode(self, value, context):
        return T.scale(value, self.factor)

    def decode(self, total, public, n):
        return T.scale(total, 1.0 / self.factor)


@dataclass(frozen=True)
class Shifted(Stage):
    """Adds an offset to what is summed, which the server takes off as often as it was added."""

    on: ClassVar = "summand"
    offset: float = 5.0

    def encode(self, value, context):
        return T.map(lambda x: x + self.offset, value)

    def decode(self, total, public, n):
        return T.map(lambda x: x - n * self.offset, total)


@dataclass(frozen=True)
class Squared(Stage):
    """Not summable: roots do not add up."""

    summable: ClassVar[bool] = False

    def encode(self, value, context):
        return T.square(value)

    def decode(self, total, public, n):
        return T.sqrt(total)


@dataclass(frozen=True)
class Seeded(Stage):
    """Multiplies by a public number that every party draws from the round's stream."""

    def public(self, rng):
        return float(rng.generator().uniform(1.0, 2.0))

    def encode(self, value, context):
        return T.scale(value, context.public)

    def decode(self, total, public, n):
        return T.scale(total, 1.0 / public)


CHAINS = [
    [],
    [Identity()],
    [Scaled()],
    [Scaled(3.0), Seeded()],
    [Squared()],
    [Scaled(), Squared()],
    [Scaled(), Shifted()],
    [Seeded(), Shifted(1.0), Shifted(-4.0)],
]
positive = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.5, 4.0)), min_size=1, max_size=5)


@pytest.mark.parametrize("stages", CHAINS, ids=str)
@given(rows=positive)
def test_what_is_encoded_is_decoded(stages, rows):
    """Encoding at every party and decoding the sum gives the sum without stages, for means, sums and single replies."""
    chain, rng = Chain(stages), Rng.of(0)
    public = chain.public(rng)
    for make in (lambda v, w: Mean(v, examples=w), lambda v, w: Sum(v), lambda v, w: Parts(v, examples=w)):
        plain = merge_totals({"u": make(np.array([v]), w).total()} for v, w in rows)["u"].result()
        if make(1.0, 1.0).kind == "parts" and chain.summand_stages:
            continue
        staged = merge_totals(
            {"u": chain.encode(make(np.array([v]), w), public, rng.child(i))[0]} for i, (v, w) in enumerate(rows)
        )["u"]
        decoded = chain.decode(staged, public).result()
        if isinstance(plain, list):
            plain, decoded = ([p.value for p in parts] for parts in (plain, decoded))
        np.testing.assert_allclose(decoded, plain, rtol=1e-9, atol=1e-9)


class Vectorised(Inline):
    vectorised: ClassVar[bool] = True


CARRIED = [(s, k) for s in CHAINS for k in (Mean, Sum, Parts) if k is not Parts or not Chain(s).summand_stages]


@pytest.mark.parametrize(("stages", "kind"), CARRIED, ids=str)
def test_blocks_are_staged_as_single_replies_are(stages, kind):
    values, weights = np.array([1.0, 4.0, 2.5]), np.array([1.0, 3.0, 2.0])

    def reply(v, w):
        return kind({"w": v}) if kind is Sum else kind({"w": v}, examples=w)

    def run(island, message):
        i = island.party.position
        return {"u": reply(values[i : i + 1], float(weights[i]))}

    def many(cohort, message):
        for block in ([2], [0, 1]):
            yield Batch(np.array(block), {"u": reply(values[block][:, None], weights[block])})

    work = Task("t:t", run, many=many)

    async def program(fed):
        return (await fed.sum(fed.parties, work, uplink=stages))["u"]

    single, block = (
        atoll.simulate(program, Community([None] * 3), engine=e, tasks=[work]) for e in (Inline(), Vectorised())
    )
    if kind is Parts:
        single, block = ([p.value["w"].item() for p in parts] for parts in (single, block))
        assert single == pytest.approx(values.tolist())
        assert block == pytest.approx(values.tolist())
        return
    expected = np.average(values, weights=weights) if kind is Mean else values.sum()
    assert single["w"].item() == pytest.approx(expected)
    assert block["w"].item() == pytest.approx(expected)


def test_value_stages_see_the_value_and_summand_stages_the_weighted_value():
    total, sent = Chain([Scaled(2.0), Shifted(5.0)]).encode(
        Mean(np.array([3.0]), examples=10.0), [None, None], Rng.of(0)
    )
    assert total.value.tolist() == [3.0 * 2.0 * 10.0 + 5.0]
    assert sent.tolist() == total.value.tolist()
    assert (total.weight, total.n) == (10.0, 1)


def test_stages_are_undone_in_reverse():
    seen = []

    @dataclass(frozen=True)
    class Noted(Stage):
        label: str = ""

        def encode(self, value, context):
            seen.append(f"+{self.label}")
            return value

        def decode(self, total, public, n):
            seen.append(f"-{self.label}")
            return total

    chain = Chain([Noted("a"), Noted("b")])
    chain.decode(chain.encode(Sum(np.ones(1)), [], Rng.of(0))[0], [])
    assert seen == ["+a", "+b", "-b", "-a"]


def test_measurements_are_left_alone():
    chain = Chain([Scaled(9.0)])
    total, sent = chain.encode(Mean(np.array([3.0]), role="metric"), [None], Rng.of(0))
    assert total.value.tolist() == sent.tolist() == chain.decode(total, [None]).value.tolist() == [3.0]


def test_every_stage_has_its_own_public_stream_and_every_party_the_same():
    chain = Chain([Seeded(), Seeded()])
    assert chain.public(Rng.of(1)) == chain.public(Rng.of(1)) != chain.public(Rng.of(2))
    first, second = chain.public(Rng.of(1))
    assert first != second


def test_a_value_stage_behind_a_summand_stage_is_refused():
    with pytest.raises(
        CompositionError,
        match=r"Scaled acts on the client's value and stands behind Shifted.*put Scaled before Shifted",
    ):
        Chain([Identity(), Shifted(), Scaled()])


def test_single_replies_refuse_summand_stages():
    with pytest.raises(CompositionError, match="Shifted acts on summands, but 'parts' replies are not summed"):
        Chain([Shifted()]).encode(Parts(np.ones(1)), [None], Rng.of(0))


def test_a_stage_that_is_not_summable_is_refused_where_only_sums_are_seen():
    assert not Chain([Scaled(), Squared()]).summable
    with pytest.raises(CompositionError, match=r"Squared is not summable: .*and a mask sees only sums"):
        Chain([Scaled(), Squared()]).require_summable("a mask")


def test_sizes_names_and_settings():
    assert Identity().wire_bits({"w": np.ones(3, np.float32), "b": np.ones(1, np.float64)}) == 3 * 32 + 64
    assert Scaled(4.0).settings() == {"factor": 4.0}
    assert Identity().name == "atoll.core.requests.stage:Identity"
    assert facet(Identity(), Guarding).sensitivity(2.0) == 2.0
    assert not Chain()
    assert Chain([Identity()])


def test_a_stage_of_the_old_form_still_guards() -> None:
    """Its events are in the chain, it draws on the secret, and nothing leaves beside the value: a facet that it does not name is not a promise less."""
    with pytest.warns(
        DeprecationWarning,
        match=r"overrides `secret`, `events`, of the facet Guarding: write class Noisy\(Stage, Guarding\)",
    ):

        class Noisy(Stage):
            secret: ClassVar[bool] = True

            def events(self, sensitivity: float | None) -> tuple[Event, ...]:
                return (Gaussian(noise_multiplier=1.0),)

    chain = Chain([Noisy()])
    assert chain.secret
    assert chain.guards
    assert [event.kind for event in chain.events] == ["gaussian"]
    assert "protection" in {capability.name for capability in Noisy().offers}
