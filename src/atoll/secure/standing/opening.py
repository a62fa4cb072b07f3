"""The server's half of masked sums with standing keys: what it knows of a set-up, and how it opens one sum."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll.core.errors import QuorumError

from ..keystream import SEED, derived
from ..masking.agreement import Agreement
from ..masking.seeds import commitment
from ..masking.unmasking import Opening
from .chain import USES, hide_seed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.core.algebra.tree import Tree

__all__ = ["KeySetUp", "RoundOpening", "is_introduced", "is_joined"]


def _has(reply: Any, sizes: Mapping[str, int]) -> bool:
    return isinstance(reply, dict) and all(
        isinstance(reply.get(part), bytes) and len(reply[part]) == nbytes for part, nbytes in sizes.items()
    )


def is_introduced(agreed: Agreement, sums: int, name: str, reply: Any) -> bool:
    """Whether a reply to *introduce* has a public key, a commitment to each secret, and one to each share."""
    each = SEED * sums
    shares = len(USES) * each * len(agreed.holders(agreed.place(name)))
    return _has(reply, {"public": SEED, "own": each, "key": each, "shares": shares})


def is_joined(agreed: Agreement, sums: int, name: str, reply: Any) -> bool:
    """Whether a reply to *join* has the seeds of the party's pairs, and a commitment to each."""
    names = reply.get("names") if isinstance(reply, dict) else None
    near = {agreed.names[i] for i in agreed.graph[agreed.place(name)]}
    if not isinstance(names, list) or not set(map(str, names)) <= near or len(set(names)) != len(names):
        return False
    return _has(reply, dict.fromkeys(("sealed", "checks"), SEED * sums * len(names)))


@dataclass
class KeySetUp:
    """What the server knows of a set-up.

    Attributes:
        agreed: the agreement of the set-up; a sum has its own least number, codec and bound.
        label: the set-up's name.
        sums: how many sums it serves.
        introduced: name of a party -> its reply to *introduce*.
        joined: name -> its reply to *join*.
        next: number of the next sum.
    """

    agreed: Agreement
    label: str
    sums: int
    introduced: Mapping[str, Any]
    joined: Mapping[str, Any]
    next: int = 0

    def message(self) -> Tree:
        """The set-up as a message, for a checkpoint."""
        own = {name: getattr(self, name) for name in ("label", "sums", "next")}
        return {**own, "agreed": self.agreed.message(), "introduced": {**self.introduced}, "joined": {**self.joined}}

    @classmethod
    def of(cls, message: Any) -> KeySetUp:
        """The inverse of `message`."""
        return cls(**{**message, "agreed": Agreement.of(message["agreed"])})

    def settle(self) -> dict[str, str]:
        """Leave out parties whose pairs' seeds are others than their neighbours say; return why, by name."""
        found = dict[str, str]()
        while pairs := self._disagreeing():
            counts = Counter(name for pair in pairs for name in pair)
            most = max(counts.values())
            for name in [name for name, count in counts.items() if count == most]:
                other = next(b if a == name else a for a, b in pairs if name in (a, b))
                found[name] = f"it has other keys with {other} than {other} has with it"
            self.joined = {name: said for name, said in self.joined.items() if name not in found}
        return found

    def _disagreeing(self) -> list[tuple[str, str]]:
        """The pairs of neighbours that have derived different seeds, or one of them none."""
        names, here = self.agreed.names, self.joined
        near = {name: {names[j] for j in self.agreed.graph[self.agreed.place(name)]} for name in here}
        pairs = [(a, b) for a in sorted(here) for b in sorted(near[a] & set(here)) if a < b]
        return [(a, b) for a, b in pairs if self._checks(a, b) != self._checks(b, a) or not self._checks(a, b)]

    def _checks(self, name: str, other: str) -> list[bytes]:
        said = self.joined[name]
        if other not in said["names"]:
            return []
        at, width = said["names"].index(other), len(said["names"])
        return [said["checks"][SEED * (k * width + at) : SEED * (k * width + at + 1)] for k in range(self.sums)]

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """The places of those among some parties that have joined."""
        return tuple(sorted(self.agreed.place(name) for name in names if name in self.joined))

    def serves(self, agreed: Agreement, sums: int) -> bool:
        """Whether another sum of these parties can use it: it has one left, all are in it, and each has enough holders among them."""
        places = set(self.places(agreed.names))
        return (
            self.next < self.sums == sums
            and len(places) == len(agreed.names)
            and (agreed.active, _degree(agreed)) == (self.agreed.active, _degree(self.agreed))
            and all(len(places & set(self.agreed.holders(i))) >= self.agreed.threshold for i in places)
        )

    def terms_of(self, agreed: Agreement) -> Agreement:
        """The agreement of a sum of some of its parties: its own numbers, among the holders of the set-up."""
        own = self.agreed
        return replace(agreed, names=own.names, degree=own.degree, order=own.order, threshold=own.threshold)

    def dealt(self, at: int) -> dict[int, Any]:
        """What each party has committed to for one sum, as `Opening` reads it."""
        found = {}
        for name, said in self.introduced.items():
            i = self.agreed.place(name)
            width = len(USES) * len(self.agreed.holders(i)) * SEED
            part = {use: said[use][at * SEED : (at + 1) * SEED] for use in ("own", "key")}
            found[i] = {**part, "shares": said["shares"][at * width : (at + 1) * width]}
        return found

    def hidden_pair(self, name: str, other: str, at: int) -> tuple[bytes, bytes]:
        """The seed of a pair in one sum as a party has left it, under its key, and the commitment to it."""
        said = self.joined[name]
        where = SEED * (at * len(said["names"]) + said["names"].index(other))
        return said["sealed"][where : where + SEED], said["checks"][where : where + SEED]


def _degree(agreed: Agreement) -> int | None:
    """Neighbours of each party; ``None`` if all are neighbours, however many they are."""
    return None if agreed.degree >= len(agreed.names) - 1 else agreed.degree


@dataclass
class RoundOpening(Opening):
    """`Opening` of one sum under standing keys: the key of a lost party opens the seeds of its pairs that it has left at the server.

    Attributes:
        setup: the set-up; required.
        round: number of the sum.
    """

    setup: KeySetUp = None  # type: ignore[assignment]
    round: int = 0

    def is_seed(self, use: str, dealer: int, seed: bytes) -> bool:
        """Whether opened shares are what their dealer has committed to."""
        return bool(commitment("seed", seed) == self.dealt[dealer][use])

    def pair(self, key: bytes, lost: int, other: int, context: bytes) -> bytes:
        """The seed of the mask that a lost party, whose key of this sum was opened, shares with another."""
        name = self.agreed.names[other]
        sealed, check = self.setup.hidden_pair(self.agreed.names[lost], name, self.round)
        seed = hide_seed(key, name, sealed)
        if commitment("pair", seed) != check:
            who = self.agreed.names[lost]
            self.wrong[lost] = f"it left another seed with {name} than it has committed to"
            raise QuorumError(
                f"{who} left another seed with {name} than it has committed to",
                where="masked sum",
                remedy=f"leave {who} out, and look at it",
            )
        return derived(seed, "pair", context)
