"""A public lot: random bytes that everybody may see and nobody could choose, for committees, orders and samples.

Each party commits to secret bytes; the server fixes the set of commitments and sends all of them to all parties; then the parties reveal. The lot is a hash of all
revealed bytes in order of name (Blum 1983, for many parties). A commitment is ``SHA-256(lot, attempt, name, salt, bytes)``: it hides the bytes, binds its party to
them, and is of no use to another party or in another lot.

**What is promised.** A party that took part and accepts a lot (`accept_lot`) knows that nobody chose it: not the server, however it lies, and not all other parties
together with it. The party's own bytes are in the lot, and every other commitment was fixed before it revealed them. Its record (`Island.promise`) binds it to one
commitment an attempt, to one set of commitments, and to one lot under a path. Between organisations it reveals only after more than ``(n + c) / 2`` of the parties
invited have told it, in sealed letters, that they were shown the same set (`atoll.secure.ballot`), so that two sets are never both revealed.

**What is not.** Who reveals last knows the lot first, and may withhold: it is named, left out, and the lot is drawn anew. With ``retries = r`` whoever withholds, or
a server that says that somebody did, chooses among up to ``r + 1`` outcomes, so that an outcome of probability ``p`` comes with at most ``1 - (1 - p)^(r + 1)``; a
server may also show one attempt to some parties and the next to others. ``retries=0`` leaves no choice, and lets each party stop the lot. The server chooses whom to
invite and may draw lots under other names: agree on a lot's name beforehand. A party that did not take part has the word of those that did.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.algebra.rng import Rng, hash64
from atoll.core.errors import AtollError, ConfigError, PolicyError, QuorumError
from atoll.core.federation.replies import ReplyVerbs
from atoll.core.requests.task import task

from .ballot import Electorate, count_votes

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.request import Reply
    from atoll.core.time.deadline import Deadline

    Limit = float | Deadline | None

__all__ = ["Lot", "accept_lot", "draw_lot"]

_BYTES = 32
"""Of a party's secret, of its salt, and of the lot: 256 bits."""


def _digest(*parts: Any) -> bytes:
    """SHA-256 of a message, which no other message has."""
    return hashlib.sha256(M.encode(["atoll lot", *parts])).digest()


# ---------------------------------------------------------------------- the result


@dataclass(frozen=True)
class Lot:
    """A public lot.

    Attributes:
        path: the lot's path, unique within the job.
        attempt: how often it was drawn before.
        retries: how often it may have been drawn anew.
        invited: the parties that were invited, in order of name.
        least: smallest number of organisations in it.
        commitments: what each party in it committed to.
        reveals: each party's salt and secret bytes.
        left_out: why parties that were invited are not in it, by name; only the program that draws it knows.
        confirmed: the parties that have verified it, with their own bytes in it; only the program that draws it knows.
    """

    path: str
    attempt: int
    retries: int
    invited: tuple[str, ...]
    least: int
    commitments: Mapping[str, bytes]
    reveals: Mapping[str, bytes]
    left_out: Mapping[str, str] = field(default_factory=dict)
    confirmed: tuple[str, ...] = ()

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties whose bytes are in it, in order of name."""
        return tuple(sorted(self.commitments))

    @functools.cached_property
    def value(self) -> bytes:
        """32 public random bytes."""
        secrets = [self.reveals[name] for name in self.parties]
        return _digest("value", self.path, self.attempt, list(self.invited), list(self.parties), secrets)

    @property
    def rng(self) -> Rng:
        """A stream of random numbers that everybody can compute."""
        return Rng(hash64("lot", self.value.hex()))

    def order(self, names: Iterable[str], use: str = "") -> list[str]:
        """Names in an order that everybody can compute; each order is equally likely.

        Args:
            names: distinct names, in any order.
            use: what it is for; each use of a lot has an order of its own.

        Raises:
            ConfigError: a name occurs twice.
        """
        found = list(names)
        if len(set(found)) < len(found):
            twice = sorted({name for name in found if found.count(name) > 1})
            raise ConfigError(f"{twice[0]!r} occurs twice in a lot", where=self.path, remedy="give each name once")
        return sorted(found, key=lambda name: _place_in_order(self.value, use, name))

    def choose(self, names: Iterable[str], count: int, use: str = "") -> list[str]:
        """Some of the names, such as a committee, in their order; each choice is equally likely.

        Args:
            names: distinct names, in any order.
            count: how many.
            use: what it is for.

        Raises:
            ConfigError: there are fewer names, or one occurs twice.
        """
        found = self.order(names, use)
        if not 0 <= count <= len(found):
            raise ConfigError(f"{count} of {len(found)} names", where=self.path, remedy=f"choose 0 to {len(found)}")
        return found[:count]

    def message(self) -> dict[str, Any]:
        """The lot as a message for parties, which `accept_lot` reads, and for the program's state."""
        return {
            "path": self.path, "attempt": self.attempt, "retries": self.retries, "invited": list(self.invited), "least": self.least,
            "commitments": dict(self.commitments), "reveals": dict(self.reveals),
        }  # fmt: skip

    @classmethod
    def of(cls, message: Any) -> Lot:
        """The inverse of `message`; it verifies that each party revealed what it committed to.

        Raises:
            PolicyError: it is no lot, or names a party whose bytes are others.
        """
        try:
            made = cls(**{**message, "invited": tuple(message["invited"])})
            terms = _Terms(made.retries, made.invited, made.least)
            terms.require(made.attempt, made.commitments)
            if set(made.reveals) != set(made.commitments):
                raise ValueError("not every party has revealed")
            wrong = [name for name in made.parties if not made.opens(name)]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise PolicyError(f"a lot that cannot be read: {error}", where="lot", remedy=_LOOK) from error
        if wrong:
            raise PolicyError(f"{wrong[0]} revealed other bytes than it committed to", where=made.path, remedy=_LOOK)
        return made

    def opens(self, name: str) -> bool:
        """Whether a party revealed what it committed to."""
        return _opens(self.path, self.attempt, name, self.commitments[name], self.reveals.get(name))


def _name(at: Any) -> str:
    return f"lot@{at}"


_LOOK = "look at the server: it asks for a lot that nobody agreed to"


def _opens(path: str, attempt: int, name: str, commitment: bytes, revealed: Any) -> bool:
    good = isinstance(revealed, bytes) and len(revealed) == 2 * _BYTES
    return good and _commitment_to(path, attempt, name, revealed) == commitment


@functools.lru_cache(maxsize=4096)  # in a simulation every party verifies every other's
def _commitment_to(path: str, attempt: int, name: str, revealed: bytes) -> bytes:
    return _digest("commitment", path, attempt, name, revealed)


@functools.lru_cache(maxsize=4096)
def _place_in_order(value: bytes, use: str, name: str) -> bytes:
    return _digest("order", value, use, name)


def _is_commitment(found: Any) -> bool:
    return isinstance(found, bytes) and len(found) == _BYTES


@dataclass(frozen=True)
class _Terms:
    """What all parties of a lot agree on: how often it may be drawn anew, who was invited, and the smallest number of organisations in it."""

    retries: int
    invited: tuple[str, ...]
    least: int

    def message(self) -> dict[str, Any]:
        return {"retries": self.retries, "invited": list(self.invited), "least": self.least}

    @classmethod
    def of(cls, message: Any) -> _Terms:
        return cls(message["retries"], tuple(message["invited"]), message["least"])

    def require(self, attempt: int, commitments: Mapping[str, Any]) -> None:
        """Refuse a set of commitments that the terms do not allow.

        Raises:
            PolicyError: it has too few parties, others than those invited, or is drawn too often.
        """
        whole = all(map(_is_commitment, commitments.values()))
        fits = 0 <= attempt <= self.retries and set(commitments) <= set(self.invited) and len(commitments) >= self.least
        if not (whole and fits and self.least >= 2):
            raise PolicyError(
                f"a lot of {len(commitments)} of {len(self.invited)} parties, at least {self.least}, in attempt {attempt} of {self.retries + 1}",
                where="lot",
                remedy=_LOOK,
            )

    @property
    def electorate(self) -> Electorate:
        return Electorate(self.invited, self.least, b"")


# ---------------------------------------------------------------------- at the parties


def _place_of(island: Island) -> tuple[str, int]:
    """The lot's path and the attempt, from the path of the request alone.

    Raises:
        PolicyError: the request is named otherwise.
    """
    path, _, label = island.request.rsplit("/", 2)
    if not (label.startswith("@") and label[1:].isdecimal() and str(int(label[1:])) == label[1:]):
        raise PolicyError(f"a lot under the name {island.request!r}", where="lot", remedy=_LOOK)
    return path, int(label[1:])


def _bind_terms(island: Island, path: str, terms: _Terms) -> None:
    island.promise(f"terms of the lot {path}", _digest("terms", path, terms.message()))


def _bind_set(island: Island, path: str, attempt: int, terms: _Terms, commitments: Mapping[str, bytes]) -> str:
    """Bind a party to one set of commitments an attempt; return its label, on which parties vote."""
    label = _digest("set", path, attempt, terms.message(), dict(sorted(commitments.items()))).hex()
    island.promise(f"set {attempt} of the lot {path}", label)
    return label


def _own_set(island: Island, commitments: Any) -> tuple[_Terms, bytes, str]:
    """Bind a party to a set of commitments that has its own; return the terms, its secret and the set's label.

    Raises:
        PolicyError: the party has not committed in this attempt, its commitment is another, or it was shown another set before.
    """
    path, attempt = _place_of(island)
    state = island.state
    if not isinstance(state, Mapping) or state.get("attempt") != attempt:
        raise PolicyError(f"{island.name} has not committed in attempt {attempt}", where=path, remedy=_LOOK)
    terms, secret = _Terms.of(state["terms"]), bytes(state["secret"])
    terms.require(attempt, commitments)
    if not _opens(path, attempt, island.name, commitments.get(island.name, b""), secret):
        raise PolicyError(f"the commitment of {island.name} is not in the set", where=path, remedy=_LOOK)
    terms.electorate.require_set(island, commitments)
    return terms, secret, _bind_set(island, path, attempt, terms, commitments)


@task
def commit(island: Island, message: Tree) -> bytes:
    """Commit to fresh secret bytes, once an attempt; a later attempt makes earlier ones void."""
    path, attempt = _place_of(island)
    terms = _Terms.of(message)
    if island.name not in terms.invited or not 0 <= attempt <= terms.retries:
        raise PolicyError(f"attempt {attempt} of {terms.retries + 1} at {island.name}", where=path, remedy=_LOOK)
    _bind_terms(island, path, terms)
    for before in range(attempt):
        island.promise(f"outcome {before} of the lot {path}", "void")
    secret = island.secret.bytes(2 * _BYTES)
    commitment = _digest("commitment", path, attempt, island.name, secret)
    island.promise(f"commitment {attempt} of the lot {path}", commitment)
    island.state = {"attempt": attempt, "secret": secret, "terms": terms.message()}
    return commitment


@task
def vote(island: Island, message: Tree) -> None:
    """Tell the other parties which set of commitments this one was shown, in sealed letters."""
    _, _, label = _own_set(island, message["commitments"])
    for name in sorted(message["commitments"]):
        if name != island.name:
            island.post(name, label)


@task
def reveal(island: Island, message: Tree) -> bytes:
    """Reveal the secret bytes; between organisations only if a majority was shown the same set."""
    terms, secret, label = _own_set(island, message["commitments"])
    if island.remote:
        votes = {name: letter for name, letter in island.letters.items() if name in message["commitments"]}
        agree, majority = 1 + count_votes(island, label, votes), terms.electorate.majority
        if agree < majority:
            raise PolicyError(
                f"{agree} of {len(terms.invited)} parties were shown the same commitments, fewer than {majority}",
                where="lot",
                remedy="look at the server: it may have shown parties different ones",
            )
    return secret


def accept_lot(island: Island, message: Tree, *, at: Any) -> Lot:
    """At a party: verify a lot (`Lot.message`), and bind the party to it: it accepts no other of this name. Call it in a task that uses the lot.

    Who was invited, ``least`` and ``retries`` are what the parties of the lot agreed on; a party that expects others compares them.

    Args:
        island: the party.
        message: the lot.
        at: the lot's name, as this party knows it: a server may have drawn many.

    Raises:
        PolicyError: it has another name; a party revealed other bytes than it committed to; this one was shown another set, took part in a later attempt, or has
            accepted another lot.
    """
    lot = Lot.of(message)
    if lot.path.rpartition("/")[2] != _name(at):
        raise PolicyError(f"the lot {lot.path!r} in place of {at!r}", where="lot", remedy=_LOOK)
    terms = _Terms(lot.retries, lot.invited, lot.least)
    _bind_terms(island, lot.path, terms)
    _bind_set(island, lot.path, lot.attempt, terms, lot.commitments)
    if island.name in lot.commitments:
        island.promise(f"commitment {lot.attempt} of the lot {lot.path}", lot.commitments[island.name])
    island.promise(f"outcome {lot.attempt} of the lot {lot.path}", lot.value)
    island.promise(f"the lot {lot.path}", lot.value)
    return lot


@task
def confirm(island: Island, message: Tree) -> bool:
    """Verify a lot; return whether this party's own bytes are in it."""
    path, attempt = _place_of(island)
    if (message["path"], message["attempt"]) != (path, attempt):
        raise PolicyError(f"the lot {message['path']!r} where {path!r} was drawn", where="lot", remedy=_LOOK)
    lot, state = accept_lot(island, message, at=path.rpartition("lot@")[2]), island.state
    own = isinstance(state, Mapping) and state.get("attempt") == attempt
    return bool(own and lot.reveals.get(island.name) == state["secret"])


# ---------------------------------------------------------------------- at the server


class _Draw(ReplyVerbs):
    """The supersteps of a lot: between organisations a party that refuses or fails counts as one that withholds, whatever it says."""

    def __init__(self, scope: Federation) -> None:
        super().__init__(scope.world, scope.parties, scope.slot, scope.hub, traffic=scope.traffic)
        self.home = scope.home
        self.between = bool(getattr(self.world.engine, "live", False))

    def _took(self, replies: list[Reply]) -> None:
        for reply in replies:
            if self.between and isinstance(reply.error, AtollError):
                reply.rejected, reply.error = reply.error.what, None

    async def draw(self, asked: Parties, terms: _Terms, attempt: int, deadline: Limit) -> tuple[Lot, dict[str, str]]:
        """Commit, vote and reveal. Without other organisations nobody votes.

        Returns:
            The lot, which may lack reveals, and what the parties that are not in it said.
        """
        step: dict[str, Any] = {"at": attempt, "deadline": deadline}
        committed = await self.exchange(asked, commit, terms.message(), quorum=terms.least, **step)
        made = {name: bytes_ for name, bytes_ in sorted(committed.by_name().items()) if _is_commitment(bytes_)}
        within, shown, mail = asked.named(*made), {"commitments": made}, None
        if self.between:
            mail = (await self.exchange(within, vote, shown, quorum=terms.electorate.majority, **step)).mail
        revealed = await self.exchange(within, reveal, shown, mail=mail, quorum=0, **step)
        lot = Lot(self.slot, attempt, **vars(terms), commitments=made, reveals=revealed.by_name())
        return lot, {**committed.rejected, **revealed.rejected}

    async def confirm(self, lot: Lot, deadline: Limit) -> tuple[str, ...]:
        """The parties of a lot that have verified it."""
        within = self.parties.named(*lot.parties)
        told = await self.exchange(within, confirm, lot.message(), at=lot.attempt, quorum=0, deadline=deadline)
        return tuple(sorted(name for name, sure in told.by_name().items() if sure is True))


async def draw_lot(
    fed: Federation, parties: Parties, *, at: Any, retries: int = 2, least: int = 2, deadline: Limit = None
) -> Lot:
    """Draw a public lot among parties. Keep ``lot.message()`` in the program's state: a lot is drawn once.

    Args:
        fed: the federation.
        parties: who is invited.
        at: the lot's name within the program, such as the round.
        retries: how often it is drawn anew without parties that do not reveal; each lets who withholds choose among one more outcome.
        least: smallest number of organisations whose bytes are in it, at least 2; in a simulation each party is one.
        deadline: seconds for each superstep, or a deadline that they share.

    Raises:
        ConfigError: a number makes no sense, or the program has drawn this lot before.
        QuorumError: too few parties take part, or some withheld in the last attempt; it names them.
    """
    scope = fed.scope(_name(at), parties)
    if retries < 0 or not 2 <= least <= len(parties):
        raise ConfigError(
            f"retries={retries} and least={least} for a lot of {len(parties)} parties",
            where=scope.slot,
            remedy="use retries of at least 0, and least from 2 to the number of parties",
        )
    # A second draw under one name would let whoever runs the program choose between two outcomes.
    if scope.counts["drawn"]:
        raise ConfigError(
            f"the lot {at!r} was drawn before",
            where=scope.slot,
            remedy="keep `lot.message()` in the program's state and read it with `Lot.of`, or draw one with another `at`",
        )
    terms, draw, asked = _Terms(retries, tuple(sorted(parties.names)), least), _Draw(scope), parties
    left_out: dict[str, str] = {}
    for attempt in range(retries + 1):
        lot, said = await draw.draw(asked, terms, attempt, deadline)
        absent = {name: _absence(lot, name, said.get(name)) for name in asked.names if not _took_part(lot, name)}
        left_out.update(absent)
        # A party that never committed knew nothing to choose by. One that committed and withheld did, so the lot is drawn anew without it.
        if not set(absent) & set(lot.commitments):
            sure = await draw.confirm(lot, deadline)
            scope.counts["drawn"] += 1
            return replace(lot, left_out=left_out, confirmed=sure)
        asked = asked.named(*(name for name in asked.names if name not in absent))
        if len(asked) < least:
            break
    shown = "; ".join(f"{name} {why}" for name, why in sorted(left_out.items())[:5])
    raise QuorumError(
        f"no lot after {attempt + 1} attempts: {shown}",
        where=scope.slot,
        remedy="leave these parties out, or allow more retries, each of which lets who withholds choose among one more outcome",
    )


def _took_part(lot: Lot, name: str) -> bool:
    return name in lot.commitments and lot.opens(name)


def _absence(lot: Lot, name: str, said: str | None) -> str:
    """Why a party is not in a lot."""
    if name in lot.reveals:
        return "revealed other bytes than it committed to"
    missed = "did not reveal" if name in lot.commitments else "did not commit"
    return missed if said is None else f"{missed} ({said})"
