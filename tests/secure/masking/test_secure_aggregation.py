"""Secure aggregation: the sum to the bit for every pattern of losses, nothing else for the server, and a refusal of everything that would tell more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.algebra.aggregate import Mean, Sum, Vote
from atoll.core.errors import CompositionError, ConfigError, LetterError, PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import SecureAggregation
from atoll.secure import FixedPoint, WordLayout
from atoll.secure.masking.agreement import Agreement
from atoll.secure.masking.party_steps import deal
from atoll.stages import Clip
from atoll.testing import Timetable, check_reducer
from atoll.testing.conformance.secrecy import Onlooker

NAMES = [f"client-{i}" for i in range(6)]
STEPS = ("deal", "masked", "vote", "reveal")
CODEC = FixedPoint(value_bits=12, weight_bits=6, max_weight=64.0, value_range=4.0)


def reply_of(row):
    return {
        "w": Mean({"a": row[:3].astype(np.float32), "b": row[3]}, examples=float(abs(row[0]) * 8 + 1)),
        "v": Vote(row[:2]),
        "n": Sum(np.int64(row[1] * 100), role="side"),
        "loss": Mean(np.float64(row[2]), examples=2.0, role="metric"),
    }


@task
def numbers(island, message):
    return reply_of(island.data + message)


def fixed_point_sum(data, who, message, codec, parties):
    """The oracle: each survivor's whole numbers, added up as Python integers."""
    rows = {i: {name: a.total() for name, a in reply_of(data[i] + message).items()} for i in who}
    layout = WordLayout.of(rows[who[0]], codec, parties)
    lanes = [layout.encode(row) for row in rows.values()]
    sums = {
        k: np.array([sum(int(one[k][j]) for one in lanes) % 2 ** int(k) for j in range(len(lanes[0][k]))], np.uint64)
        for k in lanes[0]
    }
    return {name: (total.result(), total.weight) for name, total in layout.decode(sums, len(who)).totals.items()}


def summed(reducer, data, lost=None, engine=None, **terms):
    world = World(Community(list(data)), engine or Inline(), cost=Timetable(lost=lost or {}))
    found = run(run_program(world, lambda fed: fed.sum(fed.parties, numbers, 0.25, reducer=reducer, **terms)))[0]
    return found, world


def data_of(seed, parties=6):
    return np.random.default_rng(seed).normal(size=(parties, 4)) * 2


@given(
    lost=st.dictionaries(st.sampled_from(STEPS), st.sets(st.integers(0, 5), max_size=3), max_size=3),
    server=st.sampled_from(["honest", "active"]),
    degree=st.sampled_from([None, 4]),
    masks=st.sampled_from(["real", "virtual"]),
    engine=st.sampled_from([Inline, Batched]),
    seed=st.integers(0, 3),
)
@settings(max_examples=settings.default.max_examples // 2, deadline=None)
def test_the_sum_is_the_fixed_point_sum_to_the_bit_or_none_at_all(lost, server, degree, masks, engine, seed):
    """Every pattern of losses, step by party: above the threshold exact, one below an error and no sum."""
    degree = None if server == "active" else degree
    threshold = 5 if server == "active" and degree is None else 4
    reducer = SecureAggregation(threshold=threshold, neighbours=degree, server=server, codec=CODEC, masks=masks)
    data, steps = data_of(seed), [s for s in STEPS if s != "vote" or server == "active"]
    gone, alive = {}, set(range(6))
    for step in steps:
        gone[step] = lost.get(step, set()) & alive
        alive -= gone[step]
    kept = sorted(set(range(6)) - gone["deal"] - gone["masked"])
    paths = {f":{step}/": [NAMES[i] for i in who] for step, who in gone.items()}
    if degree is None and (len(alive) < threshold or len(kept) < threshold):
        with pytest.raises(QuorumError, match="fewer than"):
            summed(reducer, data, paths, engine())
        return
    try:
        found, _ = summed(reducer, data, paths, engine())
    except QuorumError:
        assert degree is not None, "a complete graph recovers down to its threshold"
        return
    assert [NAMES.index(name) for name in found.senders.names] == kept
    expected = fixed_point_sum(data, kept, 0.25, CODEC, 6)
    for name, (value, weight) in expected.items():
        leaves = value.values() if isinstance(value, dict) else [value]
        ours = found.value[name].values() if isinstance(value, dict) else [found.value[name]]
        assert all(np.array_equal(a, b) for a, b in zip(ours, leaves, strict=True)), name
        assert found.weight[name] == weight


@pytest.mark.parametrize("server", ["honest", "active"])
def test_virtual_masks_take_the_same_steps_bytes_and_sums(server):
    rows = []
    for masks in ("real", "virtual"):
        for engine in (Inline, Batched):
            reducer = SecureAggregation(threshold=5, server=server, codec=CODEC, masks=masks)
            found, world = summed(reducer, data_of(1), {":masked/": ["client-2"]}, engine())
            rows.append((found.bytes_up, found.bytes_down, found.senders.names, found["w"]["a"].tolist(), found.counts))
            assert any(entry["kind"] == "masks-virtual" for entry in world.ledger) == (masks == "virtual")
            traffic = world.traffics["main"].meter.totals()
            rows[-1] += (traffic["messages_relayed"], traffic["bytes_relayed"])
    assert all(row == rows[0] for row in rows)
    assert rows[0][0] > 6 * 100


@pytest.mark.slow
@pytest.mark.parametrize("reducer", [SecureAggregation(threshold=3), SecureAggregation(threshold=4, server="active")])
def test_the_laws_of_reducers_hold(reducer):
    """*deal* replies with a public key of X25519 and hashes of uniform shares, which tell nothing: it is proved in its docstring."""
    check_reducer(reducer, proved=[deal])


def work_many(cohort, message):
    from atoll.core.requests.task import Batch

    rows = np.array([cohort.shard(i) for i in range(len(cohort))]) * message
    yield Batch(np.arange(len(cohort)), {"x": Mean({"x": rows}, examples=np.ones(len(rows)))})


@task(many=work_many)
def work(island, message):
    return {"x": Mean({"x": island.data * message}, examples=1.0)}


def test_a_block_of_parties_gives_the_same_words_one_by_one():
    data = data_of(3)
    world = {engine: World(Community(list(data)), engine(), secret_seed=7) for engine in (Inline, Batched)}

    def program(fed):
        return fed.sum(fed.parties, work, 2.0, reducer=SecureAggregation(codec=CODEC))

    one, many = (run(run_program(made, program))[0] for made in world.values())
    assert one["x"]["x"].tolist() == many["x"]["x"].tolist()
    assert (one.bytes_up, one.bytes_down) == (many.bytes_up, many.bytes_down)


# ---------------------------------------------------------------------- what the server sees


def sights(data, seed):
    """All masked words of one sum, party by party, as the server receives them."""
    onlooker = Onlooker()
    world = World(Community(list(data)), onlooker, seed=seed)
    run(
        run_program(
            world, lambda fed: fed.sum(fed.parties, numbers, 0.0, reducer=SecureAggregation(codec=CODEC), at=seed)
        )
    )
    found: dict[str, list[int]] = {}
    for at, word in onlooker.sight.words.items():
        if ":masked/" in at.request and at.path.endswith("/value"):
            found.setdefault(at.party, []).append(word)
    return found


def test_masked_words_are_uniform_and_tell_nothing_of_the_data():
    """Chi-square of the low bytes over many sums of extreme data, and a correlation with it within five standard errors."""
    rng, low, signs = np.random.default_rng(0), [], []
    for seed in range(30):
        up = rng.choice([-1.0, 1.0], size=6)
        seen = sights(np.repeat(3.5 * up[:, None], 4, axis=1), seed)
        for i, name in enumerate(NAMES):
            low += [word & 255 for word in seen[name]]
            signs.append((up[i], (seen[name][0] & 255) - 127.5))
    counts = np.bincount(low, minlength=256)
    expected = len(low) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 370
    x, y = np.array(signs).T
    assert abs(np.corrcoef(x, y)[0, 1]) < 5 / len(x) ** 0.5


# ---------------------------------------------------------------------- refusals, with numbers and remedies


@pytest.mark.parametrize(
    ("reducer", "error", "why"),
    [
        (SecureAggregation(threshold=2, corrupt=0.4), CompositionError, r"a threshold of 2, but 2 of 6 parties may collude.*threshold=3 or more"),
        (SecureAggregation(threshold=6, loss=0.2), CompositionError, r"a threshold of 6, but 1 of 6 parties may drop out.*threshold=5 or less"),
        (SecureAggregation(threshold=4, server="active"), CompositionError, r"a threshold of 4 of 6 holders against an active server.*threshold=5"),
        (SecureAggregation(least=7), QuorumError, r"6 parties, fewer than 7: .* the least sum 7"),
        (SecureAggregation(threshold=7), QuorumError, r"6 parties, fewer than 7: the threshold is 7 of 6 holders"),
        (SecureAggregation(codec=FixedPoint(value_bits=50, weight_bits=20, value_range=1.0)), CompositionError, r"50 value bits, 20 weight bits and a sum of 6 parties need words of 73 bits.*value_bits=41"),
    ],
)  # fmt: skip
def test_what_cannot_be_sound_is_refused_before_anyone_is_contacted(reducer, error, why):
    world = World(Community(list(data_of(0))), Inline())

    async def program(fed):
        with pytest.raises(error, match=why):
            await fed.sum(fed.parties, numbers, 0.0, reducer=reducer)
        return fed.bytes()["messages_down"]

    assert run(run_program(world, program))[0] == 0


def test_a_cohort_closed_below_the_threshold_is_refused():
    with pytest.raises(CompositionError, match=r"accept=3, below the threshold of 4 .*use accept=4 or more"):
        summed(SecureAggregation(threshold=4), data_of(0), accept=3)


@pytest.mark.parametrize(
    "setting",
    [
        {"server": "kind"}, {"masks": "paper"}, {"least": 1}, {"neighbours": "some"}, {"neighbours": 0}, {"threshold": -1},
        {"threshold": 1}, {"threshold": 5.5}, {"loss": 1.0}, {"loss": -0.1}, {"corrupt": 7.0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(setting):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))}="):
        SecureAggregation(**setting)


def test_a_number_that_is_clamped_is_counted_and_one_that_cannot_be_is_refused():
    data = data_of(0)
    data[2, 0] = 1000.0
    with pytest.raises(atoll.AtollError, match=r"the weight 8003 of 'w' is above max_weight=64.*max_weight=8192"):
        summed(SecureAggregation(codec=CODEC), data)
    found, _ = summed(SecureAggregation(codec=replace(CODEC, max_weight=2.0**14)), data)
    assert found.counts == {"words": 4, "coded": 24, "clamped": 1, "wrong_shares": 0}


def test_a_bound_of_the_uplink_is_the_range():
    """With Clip(1.0) and no range, an update's words have 24 + 8 + 5 bits, and the sum is the plain one up to rounding."""
    data = data_of(0, 20)
    found, _ = summed(SecureAggregation(), data, uplink=[Clip(1.0)])
    plain, _ = summed(atoll.core.Plain(), data, uplink=[Clip(1.0)])
    np.testing.assert_allclose(found["w"]["a"], plain["w"]["a"], atol=1e-4)
    assert found.counts["words"] == 4


# ---------------------------------------------------------------------- attacks on the protocol


def test_seeds_of_another_set_than_that_of_the_sum_are_noticed(monkeypatch):
    """The server takes off the masks of five parties, but the words of six are in the sum."""
    from atoll.secure.masking.unmasking import Opening

    right = Opening.unmask

    def wrong(self, lanes, context):
        self.kept = self.kept[1:]
        right(self, lanes, context)

    monkeypatch.setattr(Opening, "unmask", wrong)
    with pytest.raises(QuorumError, match="the masks of the sum did not cancel"):
        summed(SecureAggregation(codec=CODEC), data_of(0))


def test_a_server_that_sends_other_models_gets_noise():
    """Pasquini et al. 2022: masks follow from what each party was asked, so they do not cancel."""
    data = data_of(2)

    class TwoModels(Inline):
        async def fold(self, request, positions):
            if request.wraps is None:
                return await super().fold(request, positions)
            from atoll.core.requests.request import PartialSum

            other = replace(request, wraps=replace(request.wraps, message=0.26))
            one = super().fold
            return PartialSum.zero().merge(*[await one(other if p == 3 else request, np.array([p])) for p in positions])

    honest, _ = summed(SecureAggregation(), data)
    noise, _ = summed(SecureAggregation(), data, engine=TwoModels())
    assert abs(int(noise["n"]) - int(honest["n"])) > 10**6
    assert abs(noise.weight["w"] - honest.weight["w"]) > 1e6
    with pytest.raises(QuorumError, match=r"numbers clamped: the masks of the sum did not cancel"):
        summed(SecureAggregation(codec=CODEC), data, engine=TwoModels())


def test_a_wrong_share_is_found_named_and_worked_around():
    from atoll.secure.masking import party_steps

    data = data_of(4)

    class Lying(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            for reply in replies:
                if request.task.name == party_steps.reveal.name and reply.party in self.liars:
                    shares = reply.value["shares"]
                    shares.update({name: bytes([share[0] ^ 1]) + share[1:] for name, share in shares.items()})
            return replies

    engine = Lying()
    engine.liars = [1]
    found, _ = summed(SecureAggregation(threshold=4), data, {":masked/": ["client-5"]}, engine)
    assert found["w"]["b"] == pytest.approx(
        summed(SecureAggregation(threshold=4), data, {":masked/": ["client-5"]})[0]["w"]["b"]
    )
    assert found.counts["wrong_shares"] == 1
    engine.liars = [1, 2]
    with pytest.raises(
        QuorumError,
        match=r"3 right shares of the seed of client-0, fewer than the threshold of 4; client-1: its share of the seed of client-\d is not",
    ):
        summed(SecureAggregation(threshold=4), data, {":masked/": ["client-5"]}, engine)


@pytest.mark.parametrize(
    ("step", "said", "wrong"),
    [
        ("reveal", lambda value: {**value, "shares": {**value["shares"], "nobody": b"", "": 3}}, 1),
        ("reveal", lambda value: {**value, "shares": [1, 2]}, 1),
        ("reveal", lambda value: {**value, "shares": dict.fromkeys(value["shares"], "text")}, 1),
        ("reveal", lambda value: {"form": value["form"]}, 1),
        ("reveal", lambda value: 7.0, 0),
        ("deal", lambda value: None, 0),
        ("deal", lambda value: {**value, "shares": value["shares"][:-1]}, 0),
        ("deal", lambda value: {**value, "key": "text"}, 0),
    ],
)
def test_a_reply_that_is_none_of_the_protocol_is_worked_around(step, said, wrong):
    """One party cannot stop the sum of the others by what it replies."""
    data = data_of(4)

    class Odd(Inline):
        async def run(self, request, positions):
            replies = await super().run(request, positions)
            odd = [r.party == 1 and f":{step}/" in request.id for r in replies]
            return [replace(r, value=said(r.value)) if o else r for r, o in zip(replies, odd, strict=True)]

    found, _ = summed(SecureAggregation(threshold=4), data, engine=Odd())
    who = [i for i in range(6) if step == "reveal" or i != 1]
    assert [int(name[-1]) for name in found.senders.names] == who
    assert int(found["n"]) == fixed_point_sum(data, who, 0.25, FixedPoint(), 6)["n"][0]
    assert found.counts["wrong_shares"] == wrong


def test_a_key_that_is_none_names_its_dealer():
    from types import SimpleNamespace

    from atoll.secure.masking import party_steps

    island = SimpleNamespace(name="a", state={"key": b"k" * 32})
    for letter in ({"key": bytes(32)}, {"key": b"short"}, {"key": 5}, {}, None):
        with pytest.raises(LetterError, match=r"client-3 dealt a key that is not usable"):
            party_steps.pair_of(island, "client-3", letter, b"")


def test_a_sparse_graph_is_refused_against_a_server_that_lies():
    """Whoever orders the names chooses each party's neighbours: all of one party's could be the server's own."""
    with pytest.raises(CompositionError, match=r"4 neighbours of 6 parties against an active server.*leave out"):
        summed(SecureAggregation(threshold=4, neighbours=4, server="active"), data_of(0))
    agreed = Agreement(NAMES, 4, 0, 4, 2, True, CODEC)
    with pytest.raises(PolicyError, match="4 neighbours of 6 parties against a server that may lie"):
        Agreement.of(agreed.message())


def test_virtual_masks_end_where_real_ones_cannot_be_opened():
    """In a sparse graph a party may lose too many of its holders, though the sum has enough parties."""
    lost = {":masked/": ["client-0", "client-1"]}
    for masks in ("real", "virtual"):
        with pytest.raises(QuorumError, match="fewer than"):
            summed(SecureAggregation(threshold=4, neighbours=4, masks=masks), data_of(0), lost)


def _asking(request_of):
    """A server that asks the parties of a sum once more."""

    class Asking(Inline):
        second = None

        async def run(self, request, positions):
            replies = await super().run(request, positions)
            if ":reveal/" in request.id and self.second is None:
                self.second = await super().run(request_of(request), positions)
            return replies

    return Asking()


@pytest.mark.parametrize("server", ["honest", "active"])
def test_no_party_reveals_for_a_second_set(server):
    from atoll.secure.masking.party_steps import label_of

    def other(request):
        kept, lost = request.message["kept"][1:], [*request.message["lost"], request.message["kept"][0]]
        name = request.id.rpartition("@")[0] + "@" + label_of(kept, lost)
        return replace(request, id=name, message={"kept": kept, "lost": lost})

    for changed in (other, lambda r: replace(r, id=r.id + "~")):
        engine = _asking(changed)
        summed(SecureAggregation(threshold=5, server=server), data_of(0), engine=engine)
        assert all(isinstance(reply.error, PolicyError) for reply in engine.second)


def test_split_survivor_sets_open_nothing():
    """An active server tells half of the parties that client-0 is in the sum and half that it is lost: no votes agree, so nobody reveals."""
    from atoll.secure.masking import party_steps

    class Splitting(Inline):
        refused = 0

        async def run(self, request, positions):
            if request.task.name not in (party_steps.vote.name, party_steps.reveal.name):
                return await super().run(request, positions)
            kept = request.message["kept"]
            fewer = {"kept": kept[1:], "lost": [kept[0]]}
            label = party_steps.label_of(fewer["kept"], fewer["lost"])
            other = replace(request, id=request.id.rpartition("@")[0] + "@" + label, message=fewer)
            half = len(positions) // 2
            replies = [*await super().run(request, positions[:half]), *await super().run(other, positions[half:])]
            if request.task.name == party_steps.reveal.name:
                self.refused = sum(isinstance(reply.error, PolicyError) for reply in replies)
            return replies

    engine = Splitting()
    with pytest.raises(PolicyError, match="agree on who is in the sum, fewer than the threshold of 5"):
        summed(SecureAggregation(threshold=5, server="active"), data_of(0), engine=engine)
    assert engine.refused == 6
