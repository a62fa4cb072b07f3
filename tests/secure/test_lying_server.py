"""What parties and helpers refuse a server that lies: each test asks what a protocol never asks, and fails if one guard of the protocol is taken out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, DataError
from atoll.core.federation.federation import run_program
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.request import wire_form
from atoll.core.requests.task import task
from atoll.core.sealing import Letter, VirtualSealing
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.reducers import BoundedSum, Enclave, OneShot, SecureAggregation, SecureIndexing, TwoServers
from atoll.secure.encrypted import BatchCrypt, Digits
from atoll.secure.masking.one_shot import Code
from atoll.stages import Clip, GaussianNoise, RandomK
from atoll.testing.conformance.secrecy import Onlooker
from tests.secure.lying import (
    VALUES,
    LyingServer,
    are_refused,
    asking_afterwards,
    asking_first,
    is_honest,
    letters_of,
    of_set,
    summed,
    with_letters,
    with_letters_of,
)

PARTIES = range(len(VALUES))
ACTIVE = SecureAggregation(server="active")
NEEDED = ACTIVE.holders(len(VALUES), active=True)[1]
"""Votes that open a sum."""


# ---------------------------------------------------------------------- pairwise masks


def test_one_vote_less_than_needed_opens_nothing():
    async def few_votes(server, request, positions):
        return await server.also_ask(with_letters_of(*range(server.votes))(request), positions)

    for votes in (NEEDED, NEEDED - 1):
        server = LyingServer(reveal=few_votes)
        server.votes = votes
        (found,) = summed(ACTIVE, server)
        assert len(server.answers) == len(VALUES)
        if votes == NEEDED:
            assert is_honest(found)
        else:
            assert are_refused(server.answers)
            assert isinstance(found, AtollError)


@pytest.mark.parametrize(("server", "step"), [("honest", "reveal"), ("active", "vote")])
def test_no_party_is_both_in_the_sum_and_lost(server, step):
    """Whoever opens a party's own seed as of the sum and its key as of a lost one shows its words."""
    both = of_set(PARTIES, [0]), of_set(PARTIES, PARTIES), of_set(PARTIES, [5])
    lying = LyingServer(**{step: asking_first(*both)})
    (found,) = summed(SecureAggregation(server=server), lying)
    assert len(lying.answers) == len(both) * len(VALUES)
    assert are_refused(lying.answers)
    assert is_honest(found)


@pytest.mark.parametrize("threshold", range(1, 2 * len(VALUES) // 3 + 1))
def test_a_party_deals_no_shares_for_a_threshold_that_two_sets_can_reach(threshold):
    """Against a server that tells parties different sets, the threshold must be above two thirds of the holders, whatever the server says that it is."""

    def lower(request):
        assert request.message["threshold"] > threshold
        return replace(request, id=request.id + "-lower", message={**request.message, "threshold": threshold})

    lying = LyingServer(deal=asking_first(lower))
    (found,) = summed(ACTIVE, lying)
    assert are_refused(lying.answers)
    assert is_honest(found)


def test_no_party_helps_to_open_a_sum_that_falls_into_pieces():
    """Six parties on a ring, each with two neighbours: two lost ones that are no neighbours leave two arcs, whose masks cancel within each."""
    reducer = SecureAggregation(neighbours=2, threshold=2, server="honest")
    refused = []
    for other in PARTIES[1:]:
        lying = LyingServer({("masked", 0): [0, other]}, reveal=LyingServer.also_ask)
        (found,) = summed(reducer, lying)
        if are_refused(lying.answers):
            assert isinstance(found, AtollError)
            refused.append(other)
        assert len(lying.answers) == len(VALUES) - 2
    assert len(refused) == 3, (
        "two of the five others are neighbours of client-0, and four parties in a row are one piece"
    )


# ---------------------------------------------------------------------- coded masks

ONE_SHOT = OneShot(threshold=4, private=1)


@pytest.mark.parametrize("named", [True, False], ids=["another label", "the same id"])
@pytest.mark.parametrize("when", [asking_first, asking_afterwards])
def test_a_party_adds_up_its_shares_for_one_set_only(when, named):
    """Two sets that differ by one party show the mask of that party."""
    fewer = of_set(PARTIES[1:], named=named)
    told = []

    async def remembering(server, request, positions):
        said = await when(fewer)(server, request, positions)
        told.extend(said)
        return said

    lying = LyingServer(sum_shares=remembering)
    (found,) = summed(ONE_SHOT, lying)
    all_of_them, without_one = (
        {reply.party for reply in some if reply.error is None} for some in (told, lying.answers)
    )
    assert not all_of_them & without_one
    assert when is asking_first or (is_honest(found) and are_refused(lying.answers))


def test_words_that_are_dealt_again_open_no_second_sum():
    """The server has every party deal twice before it opens anything: the first letters give the sum of all, the second would give that of all but one."""
    answers = []

    async def dealing_twice(server, request, positions):
        first = await server.ask(request, positions)
        second = await server.ask(replace(request, id=f"{request.id}-again"), positions)
        server.dealt = letters_of(second)
        return first

    async def opening_twice(server, request, positions):
        answers.append(await server.ask(request, positions))
        other = of_set(PARTIES[1:])(replace(request, mail=server.dealt))
        answers.append(await server.ask(other, positions))
        return answers[0]

    summed(ONE_SHOT, LyingServer(code_words=dealing_twice, sum_shares=opening_twice))
    both = [{reply.party for reply in said if reply.error is None} for said in answers]
    assert not both or not both[0] & both[1]


def test_shares_of_parties_that_were_asked_something_else_are_not_added():
    """One party gets another model than the others: their shares hide different sums, so none is given."""

    async def telling_one_more(server, request, positions):
        other = replace(request, wraps=replace(request.wraps, message=9.0))
        return [*await server.ask(other, positions[:1]), *await server.ask(request, positions[1:])]

    lying = LyingServer(code_words=telling_one_more, sum_shares=LyingServer.also_ask)
    (found,) = summed(ONE_SHOT, lying)
    assert are_refused(lying.answers)
    assert isinstance(found, AtollError)


@pytest.mark.parametrize("label", ["", "-1", "-" + 32 * "0"])
def test_whatever_a_request_is_called_a_party_answers_one_set(label):
    """The server asks for another set first, under a name of its own."""

    def renamed(request):
        fewer = of_set(PARTIES[1:])(request)
        return replace(fewer, id=request.id.rpartition("@")[0] + "@0" + label)

    lying = LyingServer(sum_shares=asking_first(renamed))
    (found,) = summed(ONE_SHOT, lying)
    assert isinstance(found, AtollError) or are_refused(lying.answers)


def test_shares_of_a_mask_hide_it_from_as_many_parties_as_are_promised():
    """What the shares of two parties have beyond the mask is uniform in every bit, and no linear relation binds it or the mask."""
    private, length, bits = 2, 3000, 64
    reducer, sealing, letters, words = OneShot(threshold=5, private=private), VirtualSealing(), [], []

    async def reading(server, request, positions):
        said = await server.ask(request, positions)
        letters.extend({to: sealing.open(letter) for to, letter in reply.mail.items()} for reply in said)
        words.extend(np.asarray(reply.value["words"][str(bits)]) for reply in said)
        return said

    people = Community([0.0] * 6)
    world = World(people, LyingServer(code_words=reading))
    run(run_program(world, lambda fed: fed.sum(fed.parties, zeros.with_args(length=length), reducer=reducer)))
    code = Code(6, 5, private)
    size, m = code.share_length(len(words[0])), code.ring.m
    beyond, columns = [], []
    for mask, boxes in zip(words, letters, strict=True):  # of zeros, the words are the mask
        known = code.shares(mask, np.zeros(private * size, dtype=np.uint64), bits)
        hidden = [np.asarray(boxes[f"client-{i}"]["lanes"][str(bits)]) - known[i] for i in (1, 4)]
        beyond += hidden
        filled = np.zeros((5 - private) * size, dtype=np.uint64)
        filled[: len(mask)] = mask
        columns.append(np.concatenate([part.reshape(-1, size // m) for part in (filled, *hidden)]))
    ones = [(np.concatenate(beyond) >> np.uint64(bit) & np.uint64(1)).mean() for bit in range(bits)]
    assert np.abs(np.array(ones) - 0.5).max() < 5 * 0.5 / np.sqrt(len(np.concatenate(beyond)))
    table = np.concatenate(columns, axis=1)
    assert rank_of_bits(table & np.uint64(1)) == len(table)


@task
def zeros(island, message, length):
    return {"x": Sum(np.zeros(length))}


def rank_of_bits(table):
    """The rank modulo 2 of rows of bits."""
    rows, rank = [int("".join(map(str, row)), 2) for row in table.tolist()], 0
    while rows:
        top = max(rows)
        rows.remove(top)
        if top:
            rank += 1
            rows = [row ^ top if row.bit_length() == top.bit_length() else row for row in rows]
    return rank


# ---------------------------------------------------------------------- helpers


@pytest.mark.parametrize("reducer", [TwoServers(least=4), Enclave(least=4)], ids=["two servers", "enclave"])
def test_a_helper_opens_no_masks_of_fewer_parties_than_these_demand(reducer):
    few = [with_letters_of(*range(count)) for count in (1, 2, 3)]
    lying = LyingServer(open_masks=asking_first(*few))
    (found,) = summed(reducer, lying)
    assert len(lying.answers) == 3
    assert are_refused(lying.answers)
    assert is_honest(found)


def test_a_party_that_colludes_lowers_the_demand_of_no_other():
    """The letter of client-0 asks for two parties, those of the others for four."""

    async def colluding(server, request, positions):
        said = await server.ask(request, positions)
        for to, letter in said[0].mail.items():
            content = {**VirtualSealing().open(letter), "least": 2}
            said[0].mail[to] = Letter(letter.sender, to, letter.request, letter.number, content=content)
        return said

    lying = LyingServer(entrust=colluding, open_masks=asking_first(with_letters_of(0, 1), with_letters_of(0, 1, 2)))
    (found,) = summed(TwoServers(least=4), lying, sealing="virtual")
    assert len(lying.answers) == 2
    assert are_refused(lying.answers)
    assert is_honest(found)


@pytest.mark.parametrize("reducer", [TwoServers(), Enclave()], ids=["two servers", "enclave"])
@pytest.mark.parametrize("pretends", [False, True], ids=["this sum", "the earlier sum"])
def test_a_helper_opens_no_mask_with_the_letter_of_an_earlier_sum(reducer, pretends):
    """client-5 was left out of the first sum, so its letter of it is unopened; the server hands it over among those of the second."""
    letters = []

    async def keeping(server, request, positions):
        said = await server.ask(request, positions)
        letters.append(letters_of(said))
        return said

    async def mixing(server, request, positions):
        first = server.seen["open_masks"][0]
        if request is first:
            return await server.ask(request, positions)
        mail = with_letters(request.mail, letters[0], ["client-5"])
        told = {**request.message, "agreed": (first if pretends else request).message["agreed"]}
        return await server.also_ask(replace(request, mail=mail, message=told), positions)

    lying = LyingServer({("masked", 0): [5]}, entrust=keeping, open_masks=mixing)
    first, second = summed(reducer, lying, sums=2)
    assert is_honest(first, PARTIES[:5])
    assert are_refused(lying.answers)
    assert isinstance(second, AtollError)


BOUNDED = BoundedSum(norm=1000.0, max_weight=64.0)


def mixing_sums(seal, add):
    """A server that keeps what client-5 seals for the first sum from the helpers, and hands it over among the letters of the second."""
    letters = []

    async def keeping(server, request, positions):
        said = await server.ask(request, positions)
        letters.append(letters_of(said))
        return said

    async def mixing(server, request, positions):
        if len(letters) == 1:
            return await server.ask(with_letters_of(*PARTIES[:5])(request), positions)
        mail = with_letters(request.mail, letters[0], ["client-5"])
        return await server.also_ask(replace(request, mail=mail), positions)

    return LyingServer(**{seal: keeping, add: mixing})


def test_two_servers_take_no_share_of_an_earlier_sum():
    """It is usable for neither server."""
    lying = mixing_sums("split", "receive")
    first, second = summed(BOUNDED, lying, sums=2)
    assert len(lying.answers) == 2
    assert all(reply.error is not None or "client-5" not in reply.value for reply in lying.answers)
    assert is_honest(first, PARTIES[:5])
    assert isinstance(second, AtollError) or is_honest(second, PARTIES[:5])


@pytest.mark.parametrize("by", ["enclave", "shares", "keys"])
def test_helpers_count_no_indices_of_an_earlier_sum(by):
    lying = mixing_sums("send", "add")
    _, second = summed(SecureIndexing(by), lying, sums=2)
    assert are_refused(lying.answers)
    assert isinstance(second, AtollError)


# ---------------------------------------------------------------------- norms of hidden updates

SIZE = 60


@task
def row(island, message):
    return {"w": Mean(island.data, examples=1.0)}


def refused_of(norms, anew=None):
    """Who is refused of parties whose updates have these norms, with seeded secrets of which some are drawn anew; and the draws of the servers when they compare."""
    rows = np.random.default_rng(0).normal(size=(len(norms), SIZE))
    rows *= (np.array(norms) / np.linalg.norm(rows, axis=1))[:, None]
    engine = Onlooker(anew)
    people = Community(list(rows), others=dict.fromkeys(BOUNDED.others))
    reducer = BoundedSum(norm=1.0, max_weight=64.0)
    found = run(
        run_program(
            World(people, engine, secret_seed=0), lambda fed: fed.sum(fed.where("client"), row, None, reducer=reducer)
        )
    )[0]
    draws = {name: [draw for draw in engine.sight.draws if draw.party == name] for name in reducer.others}
    return set(found.rejected), {name: some for name, some in draws.items() if some}


def test_neither_server_alone_chooses_how_norms_are_tested():
    """Updates for which the test is a toss-up: with other projections, others are refused. A server that draws its part of them anew changes who is."""
    norms = [*[1.82] * 30, 0.5, 0.5]
    usual, draws = refused_of(norms)
    assert usual == refused_of(norms)[0]
    assert 3 < len(usual) < 27
    servers = [name for name in draws if name.endswith("server")]
    assert len(servers) == 2
    others = [refused_of(norms, dict.fromkeys(draws[name], 1))[0] for name in servers]
    assert usual != others[0] != others[1] != usual


def test_a_projection_beyond_the_bound_counts_on_either_side():
    """At 2.2 times the bound a sixth of all projections is outside, on both sides together: of one side alone there would be too few."""
    refused, _ = refused_of([*[2.2] * 12, 0.9, 0.9])
    assert len(refused) >= 11
    assert not refused & {"client-12", "client-13"}


# ---------------------------------------------------------------------- ciphertexts


def test_batchcrypt_sees_by_its_sign_bits_that_one_party_sent_more_than_its_field_holds():
    """A party codes numbers of 10 bits for fields of the same width, whose 8-bit sums of up to 4 parties then overflow into the signs."""
    scheme = BatchCrypt(key_bits=256, insecure=True)
    honest, wide = Digits(3, 8, 4), Digits(3, 10, 2)
    assert scheme.layout(honest) == scheme.layout(wide)
    public, private = scheme.make_keys(Secret(1))
    rows = [np.array([255, 0, 128], dtype=np.uint64), np.array([200, 1, 5], dtype=np.uint64)]
    sealed = [scheme.encrypt(public, [one], [honest], Secret(i)) for i, one in enumerate(rows)]

    def with_third(*numbers):
        more = scheme.encrypt(public, [np.array(numbers, dtype=np.uint64)], [wide], Secret(9))
        (found,) = scheme.decrypt(private, scheme.add(public, [*sealed, more], [honest]), [honest])
        return found.tolist()

    assert with_third(512, 512, 512) == [255 + 200 + 128, 0 + 1 + 128, 128 + 5 + 128], "in range it is a number as any"
    for far in ((1023, 512, 512), (512, 0, 512), (512, 512, 0)):
        with pytest.raises(DataError, match="1 of 3 sums overflowed, of 3 parties"):
            with_third(*far)


def test_batchcrypt_decrypts_no_sum_of_more_parties_than_its_fields_are_made_for():
    """Five small numbers overflow no sign; the count in the first field says that they are too many."""
    scheme, form = BatchCrypt(key_bits=256, insecure=True), Digits(2, 8, 4)
    public, private = scheme.make_keys(Secret(1))
    sealed = [scheme.encrypt(public, [np.array([128, 129], dtype=np.uint64)], [form], Secret(i)) for i in range(5)]
    (found,) = scheme.decrypt(private, scheme.add(public, sealed[:4], [form]), [form])
    assert found.tolist() == [4 * 128, 4 * 129]
    with pytest.raises(DataError, match="0 of 2 sums overflowed, of 5 parties"):
        scheme.decrypt(private, scheme.add(public, sealed, [form]), [form])


# ---------------------------------------------------------------------- noise of a party

NOISY = [Clip(2.0), GaussianNoise(1.0), RandomK(0.5, shared=True)]


@task
def update(island, message):
    return {"x": Mean(np.full(8, 0.1) * island.data, examples=1.0)}


def told_to(change, uplink):
    """What each party replies to a request with noise, and to the same request with something changed."""
    told = []

    class Asking(Inline):
        async def fold(self, request, positions):
            mine = replace(request, uplink=request.uplink.within(100, hidden=True))
            asked = (mine, mine, change(mine))
            told.extend([[await self.reply_of(r, positions[i : i + 1]) for i in range(3)] for r in asked])
            return await super().fold(replace(request, id=f"{request.id}-honest"), positions)

        async def reply_of(self, request, positions):
            try:
                part = await super().fold(request, positions)
            except AtollError as error:
                return error
            return next(iter(part.errors.values()), None) or M.encode(wire_form(part.totals["x"].value))

    world = World(Community([1.0, 2.0, 3.0]), Asking())
    run(run_program(world, lambda fed: fed.sum(fed.parties, update, None, uplink=uplink, at=1)))
    return told


def through(*stages):
    return lambda request: replace(request, uplink=Chain(stages).within(100, hidden=True))


CHANGES = {
    "less noise": through(NOISY[0], GaussianNoise(0.5), NOISY[2]),
    "another clip": through(Clip(1.0), *NOISY[1:]),
    "other entries": lambda r: replace(r, public=r.uplink.public(Rng.of(99))),
    "more replies": lambda r: replace(r, uplink=r.uplink.within(10_000, hidden=True)),
    "in the open": lambda r: replace(r, uplink=r.uplink.within(100, hidden=False)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_party_uses_its_noise_for_one_way_to_send_a_reply(change):
    """One draw of noise under two scales, clips or encodings: the difference of the replies shows what the noise hid."""
    first, again, other = told_to(CHANGES[change], NOISY)
    for one, same, changed in zip(first, again, other, strict=True):
        assert isinstance(one, bytes)
        assert one == same
        assert isinstance(changed, AtollError) or one == changed
