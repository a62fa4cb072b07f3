"""Masked sums with standing keys: every sum to the bit under every pattern of losses, one set-up for many, and no secret that tells of another sum."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.errors import CompositionError, ConfigError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import MultiRound, SecureAggregation, SecureTree
from atoll.secure import FixedPoint
from atoll.secure.masking.party_steps import label_of
from atoll.secure.masking.unmasking import SHARE, commitment, open_secret
from atoll.secure.multi_round import ahead, hide_seed, introduce, join, key_of, own_of, pair_of, reveal, vote
from atoll.testing import Timetable, check_reducer
from atoll.testing.conformance.secrecy import Onlooker
from atoll.testing.lying.sites import Rehearsal

PARTIES = 6
CODEC = FixedPoint(value_bits=12, weight_bits=6, max_weight=64.0, value_range=4.0)
STEPS = ("masked", "vote", "reveal")


@task
def numbers(island, message):
    return {"w": Mean(island.data * message, examples=1.0), "n": Sum(np.int64(island.data[0] * 100), role="side")}


def sums_of(reducer, data, cohorts, lost=None, engine=None, terms=None, **kept):
    """A sum for each cohort, one after another; ``None`` for one that fails. ``lost`` maps a sum's number to step -> places."""
    gone = {
        f"test_multi_round:numbers/@{i}//MultiRound/atoll.secure.standing.halves:{step}/": [f"client-{p}" for p in who]
        for i, steps in (lost or {}).items() for step, who in steps.items()
    }  # fmt: skip
    world = World(Community(list(data)), engine or Inline(), cost=Timetable(lost=gone), **kept)

    async def program(fed):
        found = []
        for i, names in enumerate(cohorts):
            try:
                cohort = fed.parties.named(*(f"client-{p}" for p in names))
                found.append(await fed.sum(cohort, numbers, 0.25, reducer=reducer, at=i, **(terms or {})))
            except QuorumError:
                found.append(None)
        return found

    return run(run_program(world, program))[0], world


def plainly(data, who):
    """The fixed-point sum: what `SecureAggregation` gives for parties none of which is lost."""
    world = World(Community([data[i] for i in who]), Inline())
    reducer = SecureAggregation(threshold=2, codec=CODEC)
    return run(run_program(world, lambda fed: fed.sum(fed.parties, numbers, 0.25, reducer=reducer)))[0]


def data_of(seed):
    return np.random.default_rng(seed).normal(size=(PARTIES, 4)) * 2


EVERYONE = tuple(range(PARTIES))


PATTERNS = {
    "lost": st.lists(st.dictionaries(st.sampled_from(STEPS), st.sets(st.integers(0, 5), max_size=3), max_size=3), min_size=3, max_size=3),
    "server": st.sampled_from(["honest", "active"]),
    "degree": st.sampled_from([None, 4]),
    "engine": st.sampled_from([Inline, Batched]),
    "sums": st.sampled_from([1, 2, 5]),
}  # fmt: skip


def to_the_bit_or_none_at_all(lost, server, degree, engine, sums):
    """Three sums in a row, each with its pattern of losses: above the threshold exact, one below an error and no sum, and the next begins anew."""
    degree = None if server == "active" else degree
    threshold = 5 if server == "active" and degree is None else 4
    reducer = MultiRound(threshold=threshold, neighbours=degree, server=server, codec=CODEC, sums=sums)
    data, patterns = data_of(len(lost[0])), []
    for one in lost:
        alive, gone = set(EVERYONE), {}
        for step in STEPS if server == "active" else ("masked", "reveal"):
            gone[step] = one.get(step, set()) & alive
            alive -= gone[step]
        patterns.append((gone, alive, sorted(set(EVERYONE) - gone["masked"])))
    found, _ = sums_of(reducer, data, [EVERYONE] * 3, {i: p[0] for i, p in enumerate(patterns)}, engine())
    for got, (_, alive, kept) in zip(found, patterns, strict=True):
        if got is None:
            assert degree is not None or len(alive) < threshold, "a complete graph recovers down to its threshold"
            continue
        assert len(alive) >= threshold or degree is not None
        assert [int(name[-1]) for name in got.senders.names] == kept
        expected = plainly(data, kept)
        assert got["w"].tolist() == expected["w"].tolist()
        assert int(got["n"]) == int(expected["n"])


@given(**PATTERNS)
@example([{"masked": {0}, "reveal": {1}}, {"masked": {2}}, {}], "honest", None, Inline, 5)
@settings(deadline=None, max_examples=4)
def test_every_sum_is_the_fixed_point_sum_to_the_bit_or_none_at_all(lost, server, degree, engine, sums):
    to_the_bit_or_none_at_all(lost, server, degree, engine, sums)


@pytest.mark.slow
@given(**PATTERNS)
@settings(deadline=None, max_examples=200)
def test_many_patterns_of_losses(lost, server, degree, engine, sums):
    to_the_bit_or_none_at_all(lost, server, degree, engine, sums)


def test_one_set_up_serves_many_sums_of_its_parties_and_no_others():
    data, found = data_of(0), []
    cohorts = [EVERYONE, EVERYONE, (0, 1, 2, 3, 4), EVERYONE, (0, 1, 2), EVERYONE, EVERYONE, EVERYONE]
    found, world = sums_of(MultiRound(threshold=4, sums=5, least=3, codec=CODEC), data, cohorts)
    assert found[4] is None, "three parties are fewer than the threshold of four"
    set_ups = [got.counts["key_set_ups"] for got in found if got is not None]
    assert set_ups == [1, 0, 0, 0, 0, 1, 0], "a sum that is refused beforehand uses no keys"
    assert found[2].n == 5
    for got, cohort in zip(found, cohorts, strict=True):
        if got is not None:
            assert got["w"].tolist() == plainly(data, cohort)["w"].tolist()
    assert found[1].bytes_up < found[0].bytes_up / 5
    assert world.traffics["main"].meter.totals()["messages_relayed"] == 2 * PARTIES**2


def test_a_party_that_joins_later_and_keys_that_are_used_up_make_a_new_set_up():
    data = data_of(1)
    found, _ = sums_of(MultiRound(sums=2), data, [(0, 1, 2, 3), EVERYONE, EVERYONE, EVERYONE])
    assert [got.counts["key_set_ups"] for got in found] == [1, 1, 0, 1]
    assert [got.n for got in found] == [4, 6, 6, 6]


def test_a_sum_after_one_that_was_lost_on_the_way_goes_on_under_the_same_keys():
    """A party that misses sums keeps its keys, and its chains catch up."""
    lost = {0: {}, 1: {"masked": {3}}, 2: {"masked": {3}}}
    found, _ = sums_of(MultiRound(threshold=4, codec=CODEC, sums=4), data_of(2), [EVERYONE] * 4, lost)
    assert [got.n for got in found] == [6, 5, 5, 6]
    assert [got.counts["key_set_ups"] for got in found] == [1, 0, 0, 0]
    assert found[3]["w"].tolist() == plainly(data_of(2), EVERYONE)["w"].tolist()


@pytest.mark.parametrize("server", ["honest", "active"])
def test_supersteps_and_bytes_of_a_sum_that_has_its_keys(server):
    """One superstep fewer than `SecureAggregation`, and no letters but the votes."""
    many, _ = sums_of(MultiRound(server=server), data_of(3), [EVERYONE] * 2)
    world = World(Community(list(data_of(3))), Inline())
    once = run(
        run_program(world, lambda fed: fed.sum(fed.parties, numbers, 0.25, reducer=SecureAggregation(server=server)))
    )[0]
    assert many[1].bytes_up < 0.4 * once.bytes_up
    assert many[0].bytes_up + 19 * many[1].bytes_up < 0.5 * 20 * once.bytes_up


@pytest.mark.slow
@pytest.mark.parametrize("reducer", [MultiRound(threshold=3, sums=2), MultiRound(threshold=4, server="active", sums=3)])
def test_the_laws_of_reducers_hold(reducer):
    """*introduce* and *join* reply with a public key, hashes of secrets, and seeds under one-time pads: their docstrings say so."""
    check_reducer(reducer, proved=[introduce, join])


# ---------------------------------------------------------------------- what is opened, and what stays closed


def seen(data, sums=3, **settings_of):
    """What the server is sent in some sums: request -> party -> reply."""
    replies = {}

    class Looking(Inline):
        async def run(self, request, positions):
            found = await super().run(request, positions)
            replies.setdefault(request.task.name.rpartition(":")[2], []).append({r.party: r.value for r in found})
            return found

    found, world = sums_of(MultiRound(codec=CODEC, **settings_of), data, [EVERYONE] * sums, engine=Looking())
    return replies, found, world


def test_what_is_opened_in_a_sum_tells_nothing_of_another_sum():
    """The server puts all shares of one sum together, and has the secrets of this sum alone; those of the others do not fit."""
    replies, _, _ = seen(data_of(4), threshold=4)
    (said,) = replies["introduce"]
    for number, shown in enumerate(replies["reveal"]):
        shares = {place: reply["shares"]["client-0"] for place, reply in shown.items()}
        seed = open_secret(dict(list(shares.items())[:4]))
        own = [said[0]["own"][32 * k : 32 * k + 32] for k in range(20)]
        assert [k for k, known in enumerate(own) if known == commitment("seed", seed)] == [number]
        assert all(len(share) == SHARE for share in shares.values())


def test_links_go_forward_only_and_their_secrets_are_independent():
    link = bytes(range(32))
    made = [f(ahead(link, k)) for k in range(4) for f in (own_of, key_of, pair_of, lambda made: made)]
    assert len(set(made)) == len(made)
    assert ahead(ahead(link, 2), 3) == ahead(link, 5)
    assert hide_seed(link, "north", hide_seed(link, "north", made[0])) == made[0]
    assert hide_seed(link, "north", made[0]) != hide_seed(link, "south", made[0])


def test_a_party_forgets_its_private_key_and_the_links_that_it_has_used():
    _, _, world = seen(data_of(5), sums=2)
    table = world.engine.host.store.table("main//MultiRound")
    after = table.get(0)
    assert "key" not in after
    assert after["at"] == 2
    found, other = sums_of(MultiRound(), data_of(5), [EVERYONE])
    first = other.engine.host.store.table("main//MultiRound").get(0)
    assert all(len(row) == 2 * SHARE * 18 for row in after["shares"].values()), "shares of past sums are gone"
    assert ahead(first["link"], 1) != first["link"]
    assert found[0].n == PARTIES


def sights(data, seed):
    onlooker = Onlooker()
    world = World(Community(list(data)), onlooker, seed=seed)

    async def program(fed):
        for i in range(3):
            await fed.sum(fed.parties, numbers, 0.25, reducer=MultiRound(codec=CODEC, sums=3), at=10 * seed + i)

    run(run_program(world, program))
    found: dict[tuple[str, int], list[int]] = {}
    for at, word in onlooker.sight.words.items():
        if ":masked/" in at.request and at.path.endswith("/value"):
            number = int(at.request.split("numbers/@")[1].split("/")[0]) % 10
            found.setdefault((at.party, number), []).append(word)
    return found


@pytest.mark.slow  # a quick sibling of the mask of a link is `test_links_go_forward_only_and_their_secrets_are_independent`
def test_masked_words_are_uniform_and_no_two_sums_share_a_mask():
    """The same extreme data in three sums under one set-up: words are uniform, and so are their differences between sums."""
    rng, low, differences = np.random.default_rng(0), [], []
    for seed in range(12):
        up = rng.choice([-1.0, 1.0], size=PARTIES)
        found = sights(np.repeat(3.5 * up[:, None], 4, axis=1), seed)
        low += [word & 255 for row in found.values() for word in row]
        for p, (a, b) in itertools.product(range(PARTIES), itertools.combinations(range(3), 2)):
            name = f"client-{p}"
            differences += [(x - y) & 255 for x, y in zip(found[name, a], found[name, b], strict=True)]
    for bytes_of in (low, differences):
        counts, expected = np.bincount(bytes_of, minlength=256), len(bytes_of) / 256
        assert len(bytes_of) > 1000
        assert ((counts - expected) ** 2 / expected).sum() < 370


# ---------------------------------------------------------------------- a server that lies, and parties that do


async def four_sums(fed):
    found = [await fed.sum(fed.parties, numbers, 0.25, reducer=MultiRound(sums=5), at=i) for i in range(4)]
    return [(got["w"].tolist(), got.n) for got in found]


def live(engine, program=four_sums, data=None, **kept):
    world = World(Community(list(data_of(6) if data is None else data)), engine, clock=Clock(virtual=False), **kept)
    return run(run_program(world, program), virtual=False)[0], world


class Asking(Rehearsal):
    """A server that asks more than the protocol does; ``lies`` makes other requests of each."""

    def __init__(self, lies):
        super().__init__(PARTIES)
        self.lies, self.answers = lies, []

    async def run(self, request, positions):
        first = await super().run(request, positions)
        for other in self.lies(request):
            self.answers += await super().run(other, positions[:-1])
        return first

    async def fold(self, request, positions):
        for other in self.lies(request):
            self.answers += await super().run(other, positions[:-1])
        return await super().fold(request, positions)


def again(request, **message):
    """The same step under another name, with other entries in its message."""
    made = {**request.message, **message}
    label = label_of(made["kept"], made["lost"]) if "kept" in made else "again"
    return replace(request, id=f"{request.id}/{label}", message=made)


@pytest.mark.slow  # its quick sibling asks for another set too
def test_between_parties_the_sums_are_right_and_each_binds_its_words_and_its_set():
    found, _ = live(Rehearsal(PARTIES))
    assert [n for _, n in found] == [PARTIES] * 4


def second_sets(request):
    if request.task.name in (vote.name, reveal.name):
        kept = request.message["kept"]
        yield again(request, kept=kept[:-1], lost=[kept[-1]])


def seeds_of_an_earlier_sum(request):
    if request.task.name in (vote.name, reveal.name) and request.message["round"]:
        kept = request.message["kept"]
        yield again(request, round=request.message["round"] - 1, kept=kept[:-1], lost=[kept[-1]])


@pytest.mark.network
@pytest.mark.quick("another set")
@pytest.mark.parametrize("lies", [second_sets, seeds_of_an_earlier_sum], ids=["another set", "an earlier sum"])
def test_no_seeds_of_a_second_set_or_of_an_earlier_sum(lies):
    engine = Asking(lies)
    found, _ = live(engine)
    assert [n for _, n in found] == [PARTIES] * 4
    assert len(engine.answers) >= 6 * (PARTIES - 1)
    for answer in engine.answers:
        assert isinstance(answer.error, PolicyError)
        assert answer.error.what == "this party does not answer"


@pytest.mark.network
def test_a_state_that_is_set_back_masks_no_other_words_under_a_link_that_was_used():
    """The sites' states are lost and come back as they were after the set-up, their ledgers stay: the server asks for the first sum again, of another model."""
    engine, kept, answers = Rehearsal(PARTIES), {}, []

    class Back(type(engine)):
        async def fold(self, request, positions):
            found = await super().fold(request, positions)
            kept.setdefault("request", request)
            return found

    engine.__class__ = Back

    async def program(fed):
        await fed.sum(fed.parties, numbers, 0.25, reducer=MultiRound(), at=0)
        first = kept["request"]
        for model in (0.25, 0.75):
            other = replace(
                first, id=f"{first.id}/{model}", sum=f"again {model}", wraps=replace(first.wraps, message=model)
            )
            answers.append(await fed.world.engine.run(other, fed.parties.positions))

    live(engine, program)
    assert all(isinstance(a.error, PolicyError) for a in answers[1])


def sent_wrong(change):
    """An engine whose second party's replies to one step are changed."""

    class Wrong(Inline):
        async def run(self, request, positions):
            found = await super().run(request, positions)
            for reply in found:
                if reply.party == 1:
                    change(request.task.name.rpartition(":")[2], reply)
            return found

    return Wrong()


def flip(data):
    return bytes([data[0] ^ 1]) + data[1:]


def test_a_wrong_share_is_found_and_worked_around_and_the_next_sum_begins_anew():
    def change(step, reply):
        if step == "reveal":
            reply.value = {
                **reply.value,
                "shares": {name: flip(share) for name, share in reply.value["shares"].items()},
            }

    found, _ = sums_of(
        MultiRound(threshold=4, codec=CODEC, sums=4), data_of(7), [EVERYONE] * 2, engine=sent_wrong(change)
    )
    assert [got.counts["wrong_shares"] for got in found] == [1, 1]
    assert [got.counts["key_set_ups"] for got in found] == [1, 1]
    assert found[1]["w"].tolist() == plainly(data_of(7), EVERYONE)["w"].tolist()


def test_a_party_with_other_keys_than_its_neighbours_is_named_and_in_no_sum():
    def change(step, reply):
        if step == "join":
            reply.value = {
                **reply.value,
                "checks": flip(reply.value["checks"][:32])
                + flip(reply.value["checks"][32:64])
                + reply.value["checks"][64:],
            }

    found, _ = sums_of(MultiRound(threshold=4, codec=CODEC, sums=4), data_of(8), [EVERYONE], engine=sent_wrong(change))
    assert [name[-1] for name in found[0].senders.names] == ["0", "2", "3", "4", "5"]
    assert "it has other keys with client-" in next(iter(found[0].rejected.values()))
    assert found[0]["w"].tolist() == plainly(data_of(8), (0, 2, 3, 4, 5))["w"].tolist()


def test_a_lost_party_that_left_other_seeds_than_it_said_is_found():
    def change(step, reply):
        if step == "join":
            reply.value = {**reply.value, "sealed": flip(reply.value["sealed"])}

    world = World(Community(list(data_of(9))), sent_wrong(change), cost=Timetable(lost={":masked/": ["client-1"]}))

    def program(fed):
        return fed.sum(fed.parties, numbers, 0.25, reducer=MultiRound(threshold=4, sums=1))

    with pytest.raises(QuorumError, match=r"client-1 left another seed with client-0 than it has committed to"):
        run(run_program(world, program))


# ---------------------------------------------------------------------- policies, settings and trainings


def test_sites_that_insist_on_sums_admit_it_against_a_server_that_may_lie():
    policy = SitePolicy(sums_only=True, smallest_cohort=5)
    found, _ = sums_of(
        MultiRound(least=5, server="active", sums=2), data_of(0), [EVERYONE] * 2, terms={"quorum": 5}, policy=policy
    )
    assert [got.n for got in found] == [6, 6]
    world = World(Community(list(data_of(0))), Inline(), policy=policy)

    def program(fed):
        return fed.sum(fed.parties, numbers, 0.25, reducer=MultiRound(least=5, server="honest"), quorum=5)

    with pytest.raises((PolicyError, QuorumError), match="a sum of 0 parties, but this site requires at least 5"):
        run(run_program(world, program))


@pytest.mark.parametrize(
    ("settings_of", "why"),
    [({"sums": 0}, r"sums=0.*use a number from 1 to 10000"), ({"masks": "virtual"}, r"masks='virtual'.*SecureAggregation\(masks='virtual'\)")],
)  # fmt: skip
def test_settings_without_a_meaning_are_refused(settings_of, why):
    with pytest.raises(ConfigError, match=why):
        MultiRound(**settings_of)


def test_cohorts_that_are_drawn_anew_in_each_round_have_no_standing_keys():
    with pytest.raises(ConfigError, match=r"reducer=MultiRound\(\).*standing keys"):
        SecureTree(MultiRound())


def test_it_takes_no_excess_noise_back():
    privacy = atoll.mechanisms.DistributedDP(noise=1.0, delta=1e-5, clip=1.0, least=4, remove_excess=True)
    with pytest.raises(CompositionError, match="MultiRound"):
        atoll.Training(
            model=atoll.models.linear(4, 2),
            rounds=1,
            privacy=privacy,
            reducer=MultiRound(),
            pacing=atoll.Synchronous(quorum=4),
        )


@pytest.mark.quick("batched")
@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_training_is_that_of_masks_made_anew_and_agrees_on_keys_once(engine):
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=5, alpha=1.0, seed=0)
    job = atoll.Training(model=atoll.models.linear(64, 10), rounds=4, uplink=[atoll.Clip(1.0)])
    ours, theirs = (
        atoll.simulate(job.replace(reducer=reducer), islands, engine=engine)
        for reducer in (MultiRound(), SecureAggregation())
    )
    for name, value in theirs.params.items():
        assert np.array_equal(ours.params[name], value)
    assert ours.metrics.column("key_set_ups") == [1, 0, 0, 0]


def test_a_run_that_is_killed_goes_on_under_its_keys(tmp_path):
    """The server stops between sums. What it knows of the keys is part of the checkpoint, as the parties' states are, and the sum after it is made again with the same words."""

    class Killed(Exception):
        pass

    async def program(fed, stop=None):
        state = await fed.restore({"done": [], "at": 0})
        for i in range(int(state["at"]), 5):
            if stop is not None and i == stop:
                raise Killed("in the middle")
            got = await fed.sum(fed.parties, numbers, 0.25, reducer=MultiRound(codec=CODEC, sums=5), at=i)
            state = {"done": [*state["done"], [*got["w"].tolist(), got.counts["key_set_ups"]]], "at": i + 1}
            if i % 2:
                await fed.checkpoint(state)
        return state["done"]

    def world(**more):
        return World(Community(list(data_of(3))), Inline(), folder=tmp_path, **more)

    with pytest.raises(Killed, match="in the middle"):
        run(run_program(world(), lambda fed: program(fed, 3)))
    found = run(run_program(world(resume=True), program))[0]
    whole = plainly(data_of(3), EVERYONE)["w"].tolist()
    assert [row[:-1] for row in found] == [whole] * 5
    assert [row[-1] for row in found] == [1, 0, 0, 0, 0]
