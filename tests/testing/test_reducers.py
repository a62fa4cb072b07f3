"""The laws of reducers: honest ones keep them, and every saboteur is named with the law that it breaks."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest

from atoll.core.errors import QuorumError
from atoll.core.federation.reducer import Plain, Reducer, TreeReducer
from atoll.core.requests.island import Secret
from atoll.core.requests.request import Reduced
from atoll.core.requests.task import Task, task
from atoll.testing import check_reducer
from atoll.testing.conformance.secrecy import require_secrecy
from tests.support import double_masked as D
from tests.support.masks import mask
from tests.support.paillier import decrypt, encrypt, pack, prime, unpack


@pytest.mark.quick("Plain", "TreeReducer")
@pytest.mark.parametrize("reducer", [Plain(), TreeReducer(3), D.DoubleMasked()], ids=lambda each: type(each).__name__)
def test_honest_reducers(reducer):
    check_reducer(reducer)


# ---------------------------------------------------------------------- encryption, with a helper that has the key


@task
def make_key(island, message):
    entropy = Secret(island.secret.bytes(32))
    island.state = {"primes": pack([prime(entropy), prime(entropy)])}
    return pack([math.prod(unpack(island.state["primes"]))])


@task
async def encrypted(island, key):
    words, form = D.packed(await island.totals(), 5)
    return {"words": pack(encrypt(m, *unpack(key), island.secret) for m in words.view(np.int64).tolist()), "form": form}


@task
def decrypt_once(island, product):
    primes = unpack(island.state["primes"])
    island.state = {"primes": []}
    return [decrypt(c, *primes) for c in unpack(product)]


@dataclasses.dataclass(frozen=True)
class Encrypted(Reducer):
    """The server multiplies ciphertexts (Paillier 1999); a helper decrypts the product."""

    helper: str = "hub"
    last: Task = decrypt_once
    secure = True

    def check(self, uplink, parties, terms, task):
        super().check(uplink, parties, terms, task)
        if len(parties) < 2 or terms.accept == 1:
            raise QuorumError("one party has no sum")

    async def reduce(self, reduction):
        key = await reduction.ask(self.helper, make_key)
        replies = await reduction.exchange(reduction.parties, encrypted, key, wraps=True, quorum=2)
        square = unpack(key)[0] ** 2
        columns = zip(*(unpack(reply["words"]) for reply in replies), strict=True)
        product = pack(math.prod(column) % square for column in columns)
        words = np.array(await reduction.ask(self.helper, self.last, product), dtype=np.int64).view(np.uint64)
        return Reduced(D.unpacked(words, replies.values[0]["form"], len(replies)), replies.senders.positions)


@task
def decrypt_always(island, product):
    return [decrypt(c, *unpack(island.state["primes"])) for c in unpack(product)]


@pytest.mark.slow
def test_encryption_with_a_helper():
    check_reducer(Encrypted(), others={"hub": None})
    with pytest.raises(
        AssertionError, match=r"the law of hiding from a server that asks twice, .*decrypt_always/0~again"
    ):
        check_reducer(Encrypted(last=decrypt_always), others={"hub": None})


@pytest.mark.slow
def test_what_is_proved_is_left_out():
    """A key in the open is as good as the secret behind it for whoever looks at words alone."""
    known = Altered(honest=D.share, other=share_and_tell)
    require_secrecy(known, proved=[share_and_tell])


# ---------------------------------------------------------------------- they are wrong, or lose something


class Biased(Plain):
    async def reduce(self, reduction):
        return await reduction.fold(parties=reduction.parties[1:])


class Doubles(Plain):
    async def reduce(self, reduction):
        found = await reduction.fold()
        return dataclasses.replace(found, totals={k: t.merge(t) for k, t in found.totals.items()})


class Openly(D.DoubleMasked):
    """The same steps, which nobody needs to look at for their secrecy."""

    secure = False


class WithoutRecovery(Openly):
    """Never asks for the seeds between survivors and lost parties."""

    async def reduce(self, reduction):
        return await super().reduce(_Spoken(reduction, lost=[]))


class IgnoresAccept(Openly):
    async def reduce(self, reduction):
        reduction.terms = dataclasses.replace(reduction.terms, accept=None)
        return await super().reduce(reduction)


class Clobbers(Plain):
    """Notes something where the program's task keeps its own."""

    async def reduce(self, reduction):
        found = await reduction.fold()
        reduction.home = reduction.request.slot
        await reduction.ask_all(reduction.parties, notes_something)
        return found


@task
def notes_something(island, message):
    island.state = {**island.state, "sums": 1}


class Keeps(Openly):
    """Gives back a sum that failed as if nobody had replied."""

    async def reduce(self, reduction):
        try:
            return await super().reduce(reduction)
        except QuorumError:
            return Reduced({}, reduction.parties.positions)


class _Spoken:
    """A reduction whose last superstep is asked in other words."""

    def __init__(self, reduction, **words):
        self._reduction, self._words = reduction, words

    def __getattr__(self, name):
        return getattr(self._reduction, name)

    async def ask_all(self, parties, half, message, **terms):
        return await self._reduction.ask_all(parties, half, {**message, **self._words}, **terms)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("reducer", "words"),
    [
        (Biased(), r"the law of exactness, everyone: \['client-0'\] answered and are not in sum 1"),
        (Doubles(), "the law of exactness, everyone/0/n: 10 is not 5|the law of exactness, everyone.*is not"),
        (
            WithoutRecovery(),
            r"the law of recovery, without client-0 from superstep 2 on \(tests.support.double_masked:masked\)",
        ),
        (IgnoresAccept(), r"the law of terms, with accept=4: .* are in the sum, not \['client-1'"),
        (Clobbers(), "the law of state, everyone: the state of client-0"),
        (Keeps(), "the law of all or nothing, without 3 of 5 parties at superstep 1"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Reducer) else "",
)
def test_one_that_is_wrong_or_loses_something(reducer, words):
    with pytest.raises(AssertionError, match=words):
        check_reducer(reducer)


def test_one_that_gives_up_may_say_so_and_must_not_be_wrong():
    check_reducer(GivesUp(), dropouts=False)
    with pytest.raises(AssertionError, match="the law of recovery, without client-0 from superstep 1 on"):
        check_reducer(GivesUp())
    with pytest.raises(AssertionError, match=r"the law of recovery, without client-0 from superstep 2 on"):
        check_reducer(WithoutRecovery(), dropouts=False)


class GivesUp(Plain):
    async def reduce(self, reduction):
        found = await reduction.fold()
        if len(found.senders) < len(reduction.parties):
            raise QuorumError("not everybody is here")
        return found


# ---------------------------------------------------------------------- the server is shown too much


class InTheClear(D.DoubleMasked):
    """Adds up what everybody sends as it is."""

    half: ClassVar[Task] = None

    async def reduce(self, reduction):
        replies = await reduction.exchange(reduction.parties, self.half, wraps=True)
        words = sum((reply["words"] for reply in replies), np.uint64(0))
        return Reduced(D.unpacked(words, replies.values[0]["form"], len(replies)), replies.senders.positions)


@task
async def clear(island, _):
    words, form = D.packed(await island.totals(), 5)
    return {"words": words, "form": form}


@task
async def jitter(island, _):
    """A few bits of noise below the value, which the sum rounds off."""
    words, form = D.packed(await island.totals(), 5)
    return {"words": words + island.secret.uint64(words.size) % np.uint64(256), "form": form}


class Clear(InTheClear):
    half = clear


class Jitters(InTheClear):
    half = jitter


class Pretends(Plain):
    secure = True

    def check(self, uplink, parties, terms, task):
        return None


class _Passing:
    """An island seen through another object, which changes what it says itself."""

    def __init__(self, island, **more):
        self.__dict__.update(_island=island, **more)

    def __getattr__(self, name):
        return getattr(self._island, name)

    def __setattr__(self, name, value):
        setattr(self._island, name, value)


class _With(_Passing):
    """An island with other secrets."""

    def __init__(self, island, drawn):
        super().__init__(island, secret=_Secret(island, drawn))


@task
def reveal_all(island, message):
    """Shares of every seed there is, behind those that are needed."""
    shares = island.state["shares"]
    return [*D.reveal.run(island, message), *shares.values()]


@task
def reveal_any(island, message):
    """Shares of whatever is asked for, as often as it is."""
    return [island.state["shares"][a][b] for a, b in D.opened(message["kept"], message["lost"])]


@task
def share_and_tell(island, names, threshold):
    """The server gets the seeds as well."""
    D.share.run(island, names, threshold)
    return island.state["seeds"]


@task
def share_alone(island, names, threshold):
    """No masks between two parties: all seeds but the own one are 0."""
    D.share.run(_With(island, lambda to: to == island.name), names, threshold)


@task
def share_with_others(island, names, threshold):
    """No mask of the own: whoever is late is open when the others have opened what they share with it."""
    D.share.run(_With(island, lambda to: to != island.name), names, threshold)


@task
def share_with_a_few(island, names, threshold):
    """Masks between the first three parties, and between the others."""
    few = names[:3] if island.name in names[:3] else names[3:]
    D.share.run(_With(island, lambda to: to in few), names, threshold)


@task
def share_what_is_known(island, names, threshold):
    """Seeds of a stream that the server knows."""
    known = _With(island, lambda to: True)
    known.secret._secret = _Known(island.rng.generator())
    D.share.run(known, names, threshold)


def _first(island):
    """A small whole number of the party's data; 0 for data that are not finite."""
    value = np.ravel(np.asarray(island.data, dtype=np.float64))[0]
    return int(value * 8) if np.isfinite(value) else 0


@task
def share_and_say(island, names, threshold):
    """The server gets a number of the data, before it asks for the sum."""
    D.share.run(island, names, threshold)
    return _first(island)


@task
def share_and_note(island, names, threshold):
    island.note(_first(island))
    D.share.run(island, names, threshold)


@task
async def masked_with_a_weight(island, _):
    """How many examples there are, beside the masked words."""
    totals = await island.totals()

    async def again():
        return totals

    reply = await D.masked.run(_Passing(island, totals=again), _)
    return {**reply, "weights": [float(total.weight) for total in totals.values()]}


class _Padding(_Passing):
    """An island whose letters are longer the larger its data are."""

    def post(self, to, value):
        self._island.post(to, {**value, "padding": b" " * (16 * _first(self))})


@task
def share_in_long_letters(island, names, threshold):
    """The contents are sealed, and a relay sees how long they are."""
    D.share.run(_Padding(island), names, threshold)


@task
async def knocks(island, peers):
    for _ in range(_first(island)):
        await peers.send("hears", True)
    await peers.send("hears", False)


@task
async def speaks_long(island, peers):
    await peers.send("hears", b" " * (16 * _first(island)))


@task
async def hears(island, peers):
    while await peers.recv("says") is True:
        pass


@dataclasses.dataclass(frozen=True)
class Talks(D.DoubleMasked):
    """Two parties talk before the sum; a relay sees how often and how long."""

    says: Task = None

    async def reduce(self, reduction):
        one, other = reduction.parties.names[:2]
        await reduction.session({"says": (one, self.says), "hears": (other, hears)})
        return await super().reduce(reduction)


class _Known:
    def __init__(self, generator):
        self._generator = generator

    def integer(self, below):
        return int(self._generator.integers(min(below, 2**62)))


class _Secret:
    """Draws seeds for some parties, and 0 for others."""

    def __init__(self, island, drawn):
        self._secret, self._drawn = island.secret, drawn
        self._to = [f"client-{i}" for i in range(5) if f"client-{i}" >= island.name]

    def integer(self, below):
        drawn = self._secret.integer(below)
        return drawn if below != 2**64 or self._drawn(self._to.pop(0)) else 0


@dataclasses.dataclass(frozen=True)
class Altered(D.DoubleMasked):
    """The honest protocol with one half exchanged."""

    honest: Task = None
    other: Task = None

    async def reduce(self, reduction):
        return await super().reduce(_Swapped(reduction, self.honest, self.other))


class _Swapped:
    def __init__(self, reduction, honest, other):
        self._reduction, self._honest, self._by = reduction, honest, other

    def __getattr__(self, name):
        return getattr(self._reduction, name)

    def _half(self, half):
        return self._by.with_args(**half.args) if half.name == self._honest.name else half

    async def exchange(self, parties, half, *args, **more):
        return await self._reduction.exchange(parties, self._half(half), *args, **more)

    async def ask_all(self, parties, half, *args, **more):
        return await self._reduction.ask_all(parties, self._half(half), *args, **more)


CLEAR = "the law of hiding of sums of all kinds: word 0 of .* is sent in the clear: no secret changes it"
SHOWN = {
    "in the clear": (Clear(), CLEAR),
    "a little noise": (Jitters(), "the law of hiding of sums of all kinds: .* is not uniform: secrets flip"),
    "masks that are known": (Altered(honest=D.share, other=share_what_is_known), CLEAR),
    "without pairwise masks": (
        Altered(honest=D.share, other=share_alone),
        "the law of hiding when everyone answers: every secret behind .* is opened by .*:reveal/0",
    ),
    "unmasking opens anybody": (
        Altered(honest=D.reveal, other=reveal_all),
        "the law of hiding when everyone answers: every secret behind .* is opened by .*:reveal_all/0",
    ),
    "unmasking opens whoever is asked for": (
        Altered(honest=D.reveal, other=reveal_any),
        "the law of hiding from a server that asks twice, .* is opened by .*:reveal_any/0~again",
    ),
    "the server gets the seeds": (
        Altered(honest=D.share, other=share_and_tell),
        "the law of hiding when everyone answers: every secret behind .* is opened by .*:share_and_tell/0",
    ),
    "without masks of their own": (
        Altered(honest=D.share, other=share_with_others),
        "the law of hiding when client-4 is late: every secret behind .*client-4's reply.* is opened by .*:reveal/0",
    ),
    "a value in the clear before there are masks": (
        Altered(honest=D.share, other=share_and_say),
        CLEAR,
    ),
    "a value in a progress note": (Altered(honest=D.share, other=share_and_note), CLEAR),
    "a weight in the clear": (Altered(honest=D.masked, other=masked_with_a_weight), CLEAR),
    "letters whose lengths tell": (
        Altered(honest=D.share, other=share_in_long_letters),
        CLEAR.replace("of .*", "of 'letters/.*"),
    ),
    "as many messages as the data say": (Talks(says=knocks), CLEAR.replace("of .*", "of 'said/.*")),
    "messages whose lengths tell": (Talks(says=speaks_long), CLEAR.replace("0 of .*", "0 of 'said/.*")),
    "masks that cancel in a part": (
        Altered(honest=D.share, other=share_with_a_few),
        r"the law of hiding when everyone answers: the masks of \['client-[03]'.*cancel among themselves",
    ),
}


@pytest.mark.quick(
    "a weight in the clear",
    "a value in a progress note",
    "letters*",
    "the server gets the seeds",
    "unmasking opens anybody",
)
@pytest.mark.parametrize(("reducer", "words"), SHOWN.values(), ids=SHOWN)
def test_one_that_shows_the_server_too_much(reducer, words):
    with pytest.raises(AssertionError, match=words):
        check_reducer(reducer)


def test_one_mask_for_all_words(monkeypatch):
    monkeypatch.setattr(D, "mask", lambda seed, size: np.repeat(mask(seed, 1), size))
    with pytest.raises(AssertionError, match="the law of hiding of sums of all kinds: one mask serves both"):
        check_reducer(D.DoubleMasked())


class ForOne(D.DoubleMasked):
    """A threshold of one party."""

    def check(self, uplink, parties, terms, task):
        Reducer.check(self, uplink, parties, terms, task)


@pytest.mark.parametrize(
    ("reducer", "words"),
    [
        (Pretends(), "the law of refusal, with a stage that is not summable: no CompositionError was raised"),
        (ForOne(threshold=1), "the law of refusal, with a sum of one reply"),
    ],
    ids=["stages", "one party"],
)
def test_one_that_refuses_too_little(reducer, words):
    with pytest.raises(AssertionError, match=words):
        check_reducer(reducer)
