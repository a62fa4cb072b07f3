"""Votes on who is in a sum, before anybody opens it: between organisations, the server may tell parties different sets.

Each party in a sum binds itself in its record to one set, and tells those who open it, in sealed letters that only they read. Who opens, a party or a helper, requires
more than ``(n + c) / 2`` equal votes of a cohort of ``n`` parties, ``c`` of which may collude with the server. Two such majorities have more than ``c`` parties in common,
so an honest party would have voted for both sets, which its record refuses. A split view opens nothing.

A vote is for a sum, a set and an agreement: the letter is sealed in the sum (`Letterbox`), the agreement is authenticated with it (`Island.bind_letters`), and its content is
a hash of the set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.algebra.tree import Tree
from atoll.core.errors import LetterError, MessageError, PolicyError
from atoll.core.requests.task import task

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

__all__ = [
    "Electorate",
    "bind_set",
    "cast_vote",
    "collect_votes",
    "count_votes",
    "hash_set",
    "ready_to_vote",
    "require_majority",
    "vote",
]


@dataclass(frozen=True)
class Electorate:
    """Who votes on the set of a sum.

    Attributes:
        names: the cohort.
        least: smallest number of organisations in the sum.
        agreed: hash of what the parties have agreed on.
        corrupt: parties that may collude with the server; by default as many as votes can bear, fewer than a third.
    """

    names: tuple[str, ...]
    least: int
    agreed: bytes
    corrupt: int | None = None

    @property
    def majority(self) -> int:
        """Votes that open a sum: more than ``(n + c) / 2``."""
        n = len(self.names)
        return (n + ((n - 1) // 3 if self.corrupt is None else self.corrupt)) // 2 + 1

    def message(self) -> Tree:
        """The electorate as a message."""
        return {"names": list(self.names), "least": self.least, "agreed": self.agreed, "corrupt": self.corrupt}

    @classmethod
    def of(cls, message: Any) -> Electorate:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else.
        """
        try:
            return cls(**{**message, "names": tuple(message["names"])})
        except (TypeError, KeyError) as error:
            raise PolicyError(f"an electorate that cannot be read: {error}", where="votes") from error

    def require_set(self, island: Island, kept: Collection[str]) -> None:
        """Refuse a set of others than the cohort, or of too few organisations.

        Raises:
            PolicyError: it is one.
        """
        known, organisations = set(kept) <= set(self.names), {island.organisation(name) for name in kept}
        if not known or len(set(kept)) != len(kept) or len(organisations) < self.least:
            raise PolicyError(
                f"a sum of {len(kept)} parties of {len(organisations)} organisations, with at least {self.least}",
                where="votes",
                remedy="look at the server: it asks for a sum that nobody agreed to",
            )


def hash_set(kept: Collection[str]) -> str:
    """A hash of a set of names."""
    return hashlib.sha256(M.encode(sorted(kept))).hexdigest()[:32]


def bind_set(island: Island, kept: Collection[str], matter: bytes = b"") -> str:
    """Bind a party or a helper to the one set of this sum; return its hash.

    Args:
        island: the party.
        kept: names of the parties in the sum.
        matter: what is added up, see ``Island.matter``. Where the site's policy refuses a second sum of the same over another set, the party binds itself to the set
            under any name: the sums of two sets that differ in one party would tell its reply.

    Raises:
        PolicyError: the party has bound itself to another set.
    """
    label = hash_set(kept)
    island.promise(f"set of {island.sum}", label)
    if matter and island.once:
        island.promise(f"set of {matter.hex()}", label)
    return label


def ready_to_vote(island: Island, electorate: Electorate) -> dict[str, Tree]:
    """What a party keeps in its state, from the step that sends its words to `vote`."""
    return {"electorate": electorate.message(), "matter": island.matter}


def cast_vote(island: Island, kept: Collection[str]) -> str:
    """Bind a party to the set of a sum; return its vote, which it seals to those who open.

    Raises:
        PolicyError: the party has sent nothing for the sum, is not in the set, or has bound itself to another.
    """
    state = island.state
    if not state or "electorate" not in state or island.name not in kept:
        raise PolicyError(
            f"a vote on a sum of {len(kept)} parties that this one is not in",
            where="votes",
            remedy="look at the server: it left out a step, or names other parties",
        )
    electorate = Electorate.of(state["electorate"])
    electorate.require_set(island, kept)
    island.bind_letters(electorate.agreed)
    return bind_set(island, kept, state["matter"])


def _promised_before(message: Tree) -> None:
    """What an earlier step of the sum has promised holds for the vote: without it the party refuses."""
    del message


@task(promise=_promised_before)
def vote(island: Island, message: Tree) -> dict[str, bytes]:
    """Tell the helpers who open a sum who is in it, once; the reply has a sealed vote for each."""
    label = cast_vote(island, list(message["kept"]))
    return {opener: island.seal(opener, label) for opener in message["openers"]}


async def collect_votes(
    reduction: Reduction, kept: Parties, openers: Collection[str], electorate: Electorate
) -> dict[str, dict[str, Any]]:
    """At the server: let the parties in a sum vote; return the sealed votes by opener and voter. Without other organisations nobody votes.

    Raises:
        QuorumError: too few vote.
    """
    if not reduction.between:
        return {name: {} for name in openers}
    asked = {"kept": list(kept.names), "openers": list(openers)}
    voted = await reduction.exchange(kept, vote, asked, at=hash_set(kept.names), quorum=electorate.majority)
    said = {name: reply for name, reply in voted.by_name().items() if isinstance(reply, dict)}
    return {opener: {name: reply[opener] for name, reply in said.items() if opener in reply} for opener in openers}


def count_votes(island: Island, label: str, votes: Mapping[str, Any]) -> int:
    """At who opens: the number of sealed votes, by voter, for a set; a letter that does not open here is no vote."""
    agree = 0
    for name, sealed in votes.items():
        try:
            said = island.open(name, sealed)
        except (LetterError, MessageError):
            continue
        agree += isinstance(said, str) and said == label
    return agree


def require_majority(
    island: Island, electorate: Electorate, kept: Collection[str], votes: Mapping[str, Any], cast_in: str = ""
) -> None:
    """At who opens a sum: bind it to the set, and require a majority for it if other organisations take part.

    Args:
        island: the party or helper.
        electorate: who votes.
        kept: names of the parties in the sum.
        votes: sealed votes by voter.
        cast_in: name of the task that cast them; by default `vote`.

    Raises:
        PolicyError: too few have voted for this set, or another was opened before.
    """
    electorate.require_set(island, kept)
    label = bind_set(island, kept)
    if not island.remote:
        return
    island.bind_letters(electorate.agreed, cast_in or vote.name)
    agree = count_votes(island, label, {name: votes[name] for name in set(votes) & set(kept)})
    if agree < electorate.majority:
        raise PolicyError(
            f"{agree} of {len(electorate.names)} parties vote for this sum, fewer than {electorate.majority}",
            where="votes",
            remedy="look at the server: it may have told parties different sets",
        )
