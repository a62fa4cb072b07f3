"""Sums by Shamir's shares in which cheats are named: senders whose shares are none, holders that accuse falsely or add up wrongly.

`sum_checked` takes these supersteps over the waist's channels:

1. *share*: each sender posts a sealed letter to each holder, with its shares of all values and of `add_masks`'s random ones, or the seed from which they follow, and a salt. It replies with commitments to all letters.
2. *receive*: each holder opens its letters, binds itself to them, and replies with what they would commit to. Where that differs from the sender's commitment, the sender publishes the one share
   (*reveal*), or is out.
3. A public lot among the holders (`atoll.secure.draw_lot`). Nobody knows it before all letters are bound.
4. *show*: each holder shows a combination of its shares of each sender. Senders whose combinations lie on no polynomial are out; where few holders are off, these open the letter (*open*), and
   `judge_opening` names the sender or the holder.
5. *add*: each holder adds up the values of the senders that are left; `correct_shamir` corrects wrong sums and names their holders.

**Promised**, if the server follows the protocol and of the ``m`` holders that answer at most ``(m - t) / 2`` cheat: the sum is that of the senders that are not named, each shared a polynomial,
and whoever is named cheated. Fewer than ``t`` holders learn nothing of a sender that follows the protocol, less one for each holder that accuses it falsely, since it then publishes that share. A sender refuses to
publish ``t`` shares. **Not promised:** anything against a server that says that holders were accused who were not: each of them would open one letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core import message as M
from atoll.core.errors import ConfigError, LetterError, PolicyError, QuorumError
from atoll.core.requests.island import Secret
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from atoll.core.sealing import hash_parts

from .keystream import SEED, derived
from .lot import accept_lot, draw_lot
from .shares.checks import (
    add_masks,
    commit_share,
    correct_shamir,
    count_masks,
    draw_factors,
    find_wrong_sharings,
    judge_opening,
    mix_shares,
    opens_commitment,
)
from .shares.domain import Array, Field, SeededWords
from .shares.sharing import expand_share, split_seeded

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.task import Task
    from atoll.core.time.deadline import Deadline

__all__ = [
    "CheckedSum",
    "CheckedTerms",
    "add_checked",
    "open_letters",
    "post_checked",
    "receive_letters",
    "reveal_shares",
    "send_values",
    "show_mixed",
    "sum_checked",
]

_HASH = 32
_ABREAST = 16
"""Senders whose shares a holder mixes at once."""


def _scope_name(at: Any) -> str:
    return f"checked@{at}"


@dataclass(frozen=True)
class CheckedTerms:
    """What all parties of a checked sum know.

    Attributes:
        holders: who holds shares, in order of place.
        threshold: holders whose sums give the result, ``t``.
        values: numbers of each sender.
        prime: of the field, see `atoll.secure.shares.Field`; sums must stay below half of it in size.
        name: names the sum within the job.

    Raises:
        ConfigError: a setting makes no sense, or there are too few holders to check anything.
    """

    holders: tuple[str, ...]
    threshold: int
    values: int
    prime: int
    name: str

    def __post_init__(self) -> None:
        if len(set(self.holders)) < len(self.holders) or not 2 <= self.threshold < len(self.holders):
            raise ConfigError(f"threshold={self.threshold} of {len(set(self.holders))} holders", where="checked sum", remedy="use a threshold of 2 or more and at least one holder more: others check nothing")  # fmt: skip
        if self.values < 1:
            raise ConfigError(f"{self.values} values", where="checked sum", remedy="share one or more")

    @property
    def field(self) -> Field:
        """Where shares live."""
        return Field(self.prime)

    @property
    def width(self) -> int:
        """Shares of a letter: of all values and masks."""
        return self.values + count_masks(self.field)

    def context(self, sender: str, holder: str) -> str:
        """What a commitment is for."""
        return "\n".join((self.name, str(self.threshold), *self.holders, sender, holder))

    @property
    def digest(self) -> bytes:
        """What letters are bound to: a letter opens only where the terms are the sender's."""
        return hash_parts("terms of a checked sum", M.encode(self.message()))

    def require(self, holders: Sequence[str], threshold: int, values: int, field: Field, at: Any) -> None:
        """Refuse terms that a party does not expect: call it in the task that shares, where a party knows who holds shares and which sum this is.

        Args:
            holders: who holds shares, in order of place.
            threshold: holders whose sums give the result.
            values: numbers of each sender.
            field: where shares live.
            at: the sum's name within the program.

        Raises:
            PolicyError: the server says something else.
        """
        wanted = CheckedTerms(tuple(holders), threshold, values, field.prime, self.name)
        if self != wanted or self.name.rpartition("/")[2] != _scope_name(at):
            raise PolicyError(f"other terms of the sum {at} than were agreed on", where="checked sum", remedy="look at the server: it asks for a sum that nobody agreed to")  # fmt: skip

    def message(self) -> dict[str, Any]:
        """The terms as a message."""
        return {"holders": list(self.holders), "threshold": self.threshold, "values": self.values, "prime": self.prime, "name": self.name}  # fmt: skip

    @classmethod
    def of(cls, message: Any) -> CheckedTerms:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else.
        """
        try:
            made = cls(tuple(message["holders"]), int(message["threshold"]), int(message["values"]), int(message["prime"]), str(message["name"]))  # fmt: skip
            made.field  # noqa: B018 - it refuses what is no prime
        except (TypeError, KeyError, ValueError, ConfigError) as error:
            raise PolicyError(f"terms of a sum that cannot be read: {error}", where="checked sum") from error
        return made


@dataclass(frozen=True, eq=False)
class CheckedSum:
    """A sum, and who cheated.

    Attributes:
        values: the sum of the senders' values, as signed numbers.
        senders: whose values are in it.
        cheats: senders that shared no polynomial; their values are not in it.
        liars: holders that accused a sender falsely, or sent other sums than they hold.
    """

    values: NDArray[np.int64]
    senders: tuple[str, ...]
    cheats: tuple[str, ...] = ()
    liars: tuple[str, ...] = ()


# ------------------------------------------------------------------ at the parties


def _letters(terms: CheckedTerms, masked: Array, seed: bytes) -> dict[str, tuple[bytes | Array, bytes]]:
    """Each holder's share, or the seed of it, and salt."""
    source = SeededWords(seed, "checked shares")
    made = split_seeded(masked, len(terms.holders), terms.threshold, terms.field, source)
    salts = (derived(seed, "checked salt", holder.encode()) for holder in terms.holders)
    packed = (share if isinstance(share, bytes) else terms.field.narrow(share) for share in made)
    return {name: (share, salt) for name, share, salt in zip(terms.holders, packed, salts, strict=True)}


def post_checked(island: Island, values: Any, message: Any) -> bytes:
    """At a sender: post shares of whole numbers, and return the commitments, which the task must reply with.

    Call it in a task of your own that `sum_checked` is given; `send_values` is one for ``island.data``. If it must know who adds up, let it read ``CheckedTerms.of(message["terms"])``.

    Args:
        island: the sender.
        values: whole numbers, as many as the terms say.
        message: what the task was sent.

    Raises:
        PolicyError: the terms cannot be read.
        DataError: the numbers do not fit the field.
        ConfigError: there are more or fewer numbers.
    """
    terms = CheckedTerms.of(message["terms"])
    made = terms.field.of(values)
    if made.shape != (terms.values,):
        raise ConfigError(f"values of shape {made.shape}", where="checked sum", remedy=f"share {terms.values} numbers")
    seed = island.secret.bytes(32)
    masked = add_masks(made, terms.field, island.secret)
    own = {"seed": seed, "masked": masked}  # a letter to oneself: nothing of a sender has to be kept
    commitments = []
    island.bind_letters(terms.digest)
    for holder, (share, salt) in _letters(terms, masked, seed).items():
        more = own if holder == island.name else {}
        island.post(holder, {"share": share, "salt": salt, **more})
        commitments.append(commit_share(share, salt, terms.context(island.name, holder)))
    if island.name not in terms.holders:
        island.post(island.name, own)
    return b"".join(commitments)


@task
def send_values(island: Island, message: Any) -> bytes:
    """Share ``island.data``, whole numbers."""
    return post_checked(island, island.data, message)


def _is_share(share: Any, terms: CheckedTerms) -> bool:
    if isinstance(share, bytes):
        return len(share) == SEED
    return terms.field.are_elements(share, (terms.width,), packed=True)


@task
def receive_letters(island: Island, message: Any) -> bytes:
    """At a holder: open all letters, bind to them, and reply with what each of them commits to; zeros for one that is no share."""
    terms, senders = CheckedTerms.of(message["terms"]), [str(name) for name in message["senders"]]
    shares, salts, found = list[Any](), list[bytes](), list[bytes]()
    own: dict[str, Any] = {}
    island.bind_letters(terms.digest)
    for sender in senders:
        letter = _opened(island, sender)
        if sender == island.name:  # a letter opens once, so what `reveal_shares` may need is kept
            own = {name: letter[name] for name in ("seed", "masked") if name in letter}
        share: Any = letter.get("share")
        salt: Any = letter.get("salt")
        good = _is_share(share, terms) and isinstance(salt, bytes) and len(salt) == _HASH
        salts.append(salt if good else bytes(_HASH))
        shares.append(share if good else bytes(SEED))
        found.append(commit_share(share, salt, terms.context(sender, island.name)) if good else bytes(_HASH))
    told = b"".join(found)
    island.promise(f"letters of the sum {terms.name}", hash_parts(*senders, told))
    island.state = {"terms": terms.digest, "senders": senders, "shares": shares, "salts": salts, "own": own}
    return told


def _opened(island: Island, sender: str) -> Mapping[str, Any]:
    """A letter's content; nothing for one that does not open."""
    try:
        letter = island.letters.get(sender)
        found = {} if letter is None else island.open(sender, letter)
    except LetterError:
        return {}
    return found if isinstance(found, Mapping) else {}


@task
def reveal_shares(island: Island, message: Any) -> list[Any]:
    """At a sender: publish the shares of holders who say that their letter is none: once, and fewer than the threshold."""
    terms, holders = CheckedTerms.of(message["terms"]), [str(name) for name in message["holders"].get(island.name, ())]
    if len(holders) >= terms.threshold or not set(holders) <= set(terms.holders):
        raise PolicyError(f"{len(holders)} published shares with threshold {terms.threshold} would show the values", where="checked sum", remedy="look at the server, or at the holders that say that their letters are none")  # fmt: skip
    island.promise(f"published shares of the sum {terms.name}", hash_parts(*sorted(holders)))
    state = island.state
    island.bind_letters(terms.digest)
    own = state["own"] if _received(state, terms) else _opened(island, island.name)
    if not {"seed", "masked"} <= set(own):
        raise PolicyError(f"{island.name} has shared nothing in the sum {terms.name}", where="checked sum", remedy="look at the server: it asks who is no sender")  # fmt: skip
    letters = _letters(terms, own["masked"], own["seed"])
    return [list(letters[name]) for name in holders]


def _received(state: Any, terms: CheckedTerms) -> bool:
    """Whether a holder's state has the letters of this sum."""
    return isinstance(state, Mapping) and state.get("terms") == terms.digest


def _held(island: Island, message: Any) -> tuple[CheckedTerms, list[str], list[Any], list[bytes]]:
    """What a holder has received, with the shares that were published since in their places.

    Raises:
        PolicyError: it has received nothing under these terms: a server that changes their name could ask for two sums of the same letters.
    """
    terms, state = CheckedTerms.of(message["terms"]), island.state
    if not _received(state, terms) or "shares" not in state:
        raise PolicyError(f"{island.name} has received no letters of the sum {terms.name}", where="checked sum", remedy="ask holders for `receive_letters` first, with the same terms")  # fmt: skip
    senders, shares, salts = [str(name) for name in state["senders"]], list(state["shares"]), list(state["salts"])
    for sender, (share, salt) in message["published"].get(island.name, {}).items():
        if _is_share(share, terms):
            shares[senders.index(sender)], salts[senders.index(sender)] = share, salt
    return terms, senders, shares, salts


@task
def show_mixed(island: Island, message: Any) -> Array:
    """At a holder: the combinations of its shares of each sender, ``(senders, masks)``, by the lot."""
    terms, _, shares, _ = _held(island, message)
    lot = accept_lot(island, message["lot"], at=message["at"])
    factors, made = draw_factors(lot.value, terms.values, terms.field), list[Array]()
    for begin in range(0, len(shares), _ABREAST):
        rows = np.stack([expand_share(share, terms.width, terms.field) for share in shares[begin : begin + _ABREAST]])
        made.append(mix_shares(rows, factors, terms.field))
    return np.concatenate(made)


@task
def open_letters(island: Island, message: Any) -> list[Any]:
    """At a holder that is off the polynomials of some senders: their letters."""
    terms, senders, shares, salts = _held(island, message)
    asked = [senders.index(str(name)) for name in message["disputed"].get(island.name, ())]
    island.promise(f"opened letters of the sum {terms.name}", hash_parts(*(senders[i] for i in sorted(asked))))
    return [[shares[i], salts[i]] for i in asked]


@task
def add_checked(island: Island, message: Any) -> Array:
    """At a holder: the sum of the values of the senders that are left; once. The letters are then forgotten."""
    terms, state = CheckedTerms.of(message["terms"]), island.state
    left = sorted({str(name) for name in message["left"]})
    if len(left) < 2:
        raise PolicyError(f"a sum of {len(left)} senders", where="checked sum", remedy="add up 2 or more: one would be seen")  # fmt: skip
    island.promise(f"senders of the sum {terms.name}", hash_parts(*left))
    if _received(state, terms) and "total" in state:  # asked again, for the same senders
        return np.asarray(state["total"])
    terms, senders, shares, _ = _held(island, message)
    total = np.zeros(terms.width, dtype=np.uint64)
    for name in left:
        total = terms.field.add(total, expand_share(shares[senders.index(name)], terms.width, terms.field))
    row = terms.field.narrow(total[: terms.values])
    island.state = {"terms": terms.digest, "own": {}, "total": row}
    return row


# ------------------------------------------------------------------ at the server


async def sum_checked(
    fed: Federation,
    parties: Parties,
    *,
    values: int,
    threshold: int,
    at: Any,
    holders: Parties | None = None,
    there: Parties | None = None,
    share: Task = send_values,
    message: Mapping[str, Any] | None = None,
    field: Field | None = None,
    retries: int = 2,
    deadline: float | Deadline | None = None,
) -> CheckedSum:
    """Add up whole numbers of parties by Shamir's shares; name and leave out who cheats. See the module.

    Args:
        fed: the federation.
        parties: the senders.
        values: numbers of each.
        threshold: holders whose sums give the result; fewer learn nothing.
        at: the sum's name within the program.
        holders: who holds shares; by default the senders.
        there: the holders that are asked after the sharing; by default all.
        share: the task that shares a party's numbers: one that replies with what `post_checked` returns.
        message: what this task is sent, beside ``terms``.
        field: where shares live; sums stay below half of its prime in size. By default ``2^61 - 1``.
        retries: of the lot, see `atoll.secure.draw_lot`.
        deadline: seconds for each superstep, or a deadline that they share.

    Raises:
        ConfigError: a setting makes no sense.
        QuorumError: too few holders or senders are left.
        DataError: more holders sent wrong sums than can be corrected.
    """
    held = parties if holders is None else holders
    asked = held if there is None else there
    scope = fed.scope(_scope_name(at))
    terms = CheckedTerms(tuple(held.names), threshold, values, (field or Field()).prime, f"{scope.slot}")
    step: dict[str, Any] = {"deadline": deadline}
    told = terms.message()
    given = await fed.exchange(parties, share, {**(message or {}), "terms": told}, at=(at, "share"), **step)
    run = _Check(scope, terms, step, given.by_name(), given.mail)
    received = await scope.exchange(asked, receive_letters, {"terms": told, "senders": run.senders}, mail=run.mail, at="receive", quorum=threshold + 1, **step)  # fmt: skip
    await run.settle_letters(received.by_name())
    answering = received.senders.named(*(name for name in received.senders.names if name not in run.liars))
    lot = await draw_lot(scope, answering, at="factors", retries=retries, deadline=deadline)
    drawn = {"terms": told, "published": run.published, "lot": lot.message(), "at": "factors"}
    shown = await scope.exchange(answering, show_mixed, drawn, at="show", quorum=threshold + 1, **step)
    await run.judge(shown.by_name(), draw_factors(lot.value, values, terms.field), drawn)
    left = [name for name in run.senders if name not in run.cheats]
    if len(left) < 2:
        raise QuorumError(f"{len(left)} senders are left; {', '.join(sorted(run.cheats))} cheated", where=scope.slot, remedy="invite more parties: a sum of one would be seen")  # fmt: skip
    added = await scope.exchange(shown.senders, add_checked, {"terms": told, "published": run.published, "left": left}, at="add", quorum=threshold, **step)  # fmt: skip
    rows = {terms.holders.index(name): row.astype(np.uint64) for name, row in added.by_name().items() if terms.field.are_elements(row, (values,), packed=True)}  # fmt: skip
    opened = correct_shamir(rows, threshold, terms.field, Secret())
    liars = run.liars | {terms.holders[place] for place in opened.wrong} | {name for name in added.senders.names if terms.holders.index(name) not in rows}  # fmt: skip
    return CheckedSum(terms.field.signed(opened.values), tuple(left), tuple(sorted(run.cheats)), tuple(sorted(liars)))


class _Check:
    """What the server knows of one sum: commitments, published shares, and who cheated."""

    def __init__(self, scope: Federation, terms: CheckedTerms, step: Mapping[str, Any], commitments: Mapping[str, Any], mail: Mailboxes) -> None:  # fmt: skip
        self.scope, self.terms, self.step = scope, terms, step
        size = _HASH * len(terms.holders)
        self.cheats = {name for name, told in commitments.items() if not (isinstance(told, bytes) and len(told) == size)}  # fmt: skip
        self.senders = [name for name in commitments if name not in self.cheats]
        self.commitments = {name: commitments[name] for name in self.senders}
        self.mail = mail.only_from(set(self.senders))
        self.liars: set[str] = set()
        self.published: dict[str, dict[str, Any]] = {}

    def commitment(self, sender: str, holder: str) -> bytes:
        """A sender's commitment to a holder's share."""
        place = self.terms.holders.index(holder)
        return bytes(self.commitments[sender][_HASH * place : _HASH * (place + 1)])

    async def settle_letters(self, received: Mapping[str, Any]) -> None:
        """Where a holder has another letter than was committed to, let the sender publish the share. It cheats if it cannot."""
        wanted: dict[str, list[str]] = {}
        for holder, told in received.items():
            if not isinstance(told, bytes) or len(told) != _HASH * len(self.senders):
                self.liars.add(holder)
                continue
            for place, sender in enumerate(self.senders):
                if told[_HASH * place : _HASH * (place + 1)] != self.commitment(sender, holder):
                    wanted.setdefault(sender, []).append(holder)
        most = min((len(received) - self.terms.threshold) // 2, self.terms.threshold - 1)  # holders that may lie
        self.cheats |= {sender for sender, holders in wanted.items() if len(holders) > most}
        wanted = {sender: holders for sender, holders in wanted.items() if sender not in self.cheats}
        if not wanted:
            return
        asked = self.scope.parties.named(*wanted)
        message = {"terms": self.terms.message(), "holders": wanted}
        apart = {name: {name: self.mail.box(name)[name].pack()} for name in wanted if name not in self.terms.holders}
        got = await self.scope.exchange(asked, reveal_shares, message, mail=Mailboxes(apart), at="reveal", quorum=0, **self.step)  # fmt: skip
        replies = got.by_name()
        for sender, holders in wanted.items():
            rows: Any = replies.get(sender)
            fine = isinstance(rows, list) and len(rows) == len(holders)
            for holder, row in zip(holders, rows if fine else [], strict=False):
                fine = fine and self._opens(sender, holder, row)
                if fine:
                    self.published.setdefault(holder, {})[sender] = row
            if not fine:
                self.cheats.add(sender)

    def _opens(self, sender: str, holder: str, row: Any) -> bool:
        """Whether a pair of a share and a salt is what the sender committed to."""
        pair = isinstance(row, list | tuple) and len(row) == 2 and _is_share(row[0], self.terms) and isinstance(row[1], bytes)  # fmt: skip
        return pair and opens_commitment(self.commitment(sender, holder), row[0], row[1], self.terms.context(sender, holder))  # fmt: skip

    async def judge(self, shown: Mapping[str, Any], factors: Array, message: Mapping[str, Any]) -> None:
        """Find senders whose combinations lie on no polynomial, and let holders that are off one open their letters."""
        field, shape = self.terms.field, (len(self.senders), count_masks(self.terms.field))
        places = {name: place for place, name in enumerate(self.terms.holders)}
        fit = {name: row for name, row in shown.items() if field.are_elements(row, shape)}
        self.liars |= set(shown) - set(fit)
        verdict = find_wrong_sharings({places[name]: row for name, row in fit.items()}, self.terms.threshold, field)
        self.cheats |= {self.senders[i] for i in verdict.wrong}
        disputed: dict[str, list[str]] = {}
        for number, off in verdict.disputed.items():
            if self.senders[number] not in self.cheats:
                for at in off:
                    disputed.setdefault(self.terms.holders[at], []).append(self.senders[number])
        if not disputed:
            return
        asked = self.scope.parties.named(*disputed)
        got = await self.scope.exchange(asked, open_letters, {**message, "disputed": disputed}, at="open", quorum=0, **self.step)  # fmt: skip
        replies = got.by_name()
        for holder, senders in disputed.items():
            rows: Any = replies.get(holder)
            for place, sender in enumerate(senders):
                row = rows[place] if isinstance(rows, list) and len(rows) == len(senders) else None
                if row is None or not self._opens(sender, holder, row):
                    self.liars.add(holder)
                    continue
                who = judge_opening(self.commitment(sender, holder), row[0], row[1], self.terms.context(sender, holder), factors=factors, shown=fit[holder][self.senders.index(sender)], field=field)  # fmt: skip
                if who == "sender":
                    self.cheats.add(sender)
                else:
                    self.liars.add(holder)
