"""Secure aggregation: the server sees the sum of the parties' replies and nothing else (Bonawitz et al. 2017; SecAgg+, Bell et al. 2020)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.capability import EXCESS_REMOVED, Capability
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.requests.party import Parties
from atoll.core.requests.request import Reduced
from atoll.core.validation import Checked

from ..words import FixedPoint, WordSums, common_form, decode_sum, require_enough, require_threshold
from .agreement import Agreement
from .party_steps import deal, label_of, masked, reveal, subtract_parts, vote
from .unmasking import Opening, is_dealt

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.request import PartialSum
    from atoll.core.requests.results import Exchanged, Replies

__all__ = ["MaskingPlan", "SecureAggregation", "plan"]


# ------------------------------------------------------------------ how many neighbours and which threshold a masked sum needs, from the loss and corruption that are expected (Bell et al. 2020, semi-honest)


SIGMA, ETA = 40, 30
"""Bits of security and of correctness: something goes wrong with a probability of at most ``2^-40`` and ``2^-30``."""


@dataclass(frozen=True)
class MaskingPlan:
    """The least degree, and the least threshold that it allows.

    Attributes:
        neighbours: neighbours of each party, ``k``.
        threshold: shares that open a seed, ``t``.
    """

    neighbours: int
    threshold: int


@functools.lru_cache(maxsize=256)
def plan(parties: int, loss: float, corrupt: float) -> MaskingPlan:
    """Find the least ``k`` for which a ``t`` exists, and the least such ``t``.

    The neighbours of a party are ``k`` of the other ``n - 1``, at random. With ``c = floor(corrupt n)`` corrupt parties and ``s = floor((1 - loss) n)`` that stay,

    * secrecy: ``n P[X >= t] <= 2^-40`` for ``X`` hypergeometric: ``k`` of ``n - 1`` with ``c`` marked;
    * recovery: ``n P[Y < t] <= 2^-30`` for ``Y`` hypergeometric: ``k`` of ``n - 1`` with ``s`` marked;
    * one piece: ``n (loss + corrupt)^k <= 2^-40``.

    ``k`` is even, half on each side of the ring, or all others. ``t`` is at least 2: one share alone would be the seed.

    Args:
        parties: ``n``.
        loss: share of the parties that drop out.
        corrupt: share of the parties that collude with the server.

    Raises:
        ConfigError: a number makes no sense, or no degree is enough.
    """
    if parties < 2 or not 0 <= loss < 1 or not 0 <= corrupt < 1 or loss + corrupt >= 1:
        raise ConfigError(
            f"parties={parties}, loss={loss}, corrupt={corrupt}",
            where="plan",
            remedy="use 2 parties or more, and shares whose sum is below 1",
        )
    bad, staying, others = (
        math.floor(corrupt * parties),
        min(parties - 1, math.floor((1 - loss) * parties)),
        parties - 1,
    )
    most_bad, most_lost = 2.0**-SIGMA / parties, 2.0**-ETA / parties
    pieces = 2 if loss + corrupt == 0 else math.ceil(math.log(2.0**-SIGMA / parties) / math.log(loss + corrupt))
    for k in range(max(1, min(pieces, others)), others + 1):
        if k % 2 and k < others:  # a ring has half of the neighbours on each side
            continue
        threshold = max(min(2, k), _least_secret(others, bad, k, most_bad))
        if threshold <= k and _below(others, staying, k, threshold) <= most_lost:
            return MaskingPlan(k, threshold)
    raise ConfigError(
        f"{parties} parties with a loss of {loss:g} and {corrupt:g} corrupt have no threshold that both keeps secrets and recovers",
        where="plan",
        remedy="invite more parties, or expect less loss or corruption",
    )


def _least_secret(others: int, marked: int, k: int, most: float) -> int:
    """The least ``t`` with ``P[X >= t] <= most``."""
    tail, t = 0.0, min(k, marked) + 1
    while t > 0:
        tail += _chance(others, marked, k, t - 1)
        if tail > most:
            return t
        t -= 1
    return 0


def _below(others: int, marked: int, k: int, t: int) -> float:
    """``P[Y < t]``."""
    return math.fsum(_chance(others, marked, k, i) for i in range(max(0, k - (others - marked)), t))


def _chance(others: int, marked: int, k: int, i: int) -> float:
    """``P[X = i]`` for ``k`` drawn of ``others``, ``marked`` of which count."""
    if i > marked or k - i > others - marked or i > k:
        return 0.0
    return math.exp(_choose(marked, i) + _choose(others - marked, k - i) - _choose(others, k))


@functools.lru_cache(maxsize=1 << 16)
def _choose(n: int, k: int) -> float:
    """The logarithm of a binomial coefficient."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


# ------------------------------------------------------------------ secure aggregation
#
# Secure aggregation: the server sees the sum of the parties' replies and nothing else (Bonawitz et al. 2017; SecAgg+, Bell et al. 2020).


Server = Literal["honest", "active"]


@dataclass(frozen=True)
class SecureAggregation(Checked, WordSums):
    """Double masks with Shamir recovery: exact sums of all parties that reply, whichever drop out and when.

    A party adds to its words a mask of its own seed and one mask for each neighbour, which cancel in the sum. Seeds are split among the party's holders, its
    neighbours and itself. Once it is known who is in the sum, the holders reveal, for each party in it, the party's own seed, and for each that was lost its
    key: never both. ``threshold`` shares open a seed; fewer tell nothing.

    ``server="honest"`` assumes a server that follows the protocol and is curious, with up to ``threshold - 1`` colluding parties among any party's holders.
    ``server="active"`` assumes one that lies: the parties vote on who is in the sum before they reveal, and the threshold is more than two thirds of the holders. By
    default the server is honest in a simulation and active between organisations. In both, masks are bound to what each party was asked, so a server that sends
    parties different models gets noise.

    Sums are exact modulo ``2^p``: the fixed-point plain sum to the bit, see `FixedPoint`.

    Attributes:
        threshold: shares that open a seed: a number, or a share of the holders. By default it follows from ``loss`` and ``corrupt``, or is just above half of
            the holders (two thirds against an active server).
        neighbours: neighbours of each party; ``"auto"`` computes them and the threshold from ``loss`` and ``corrupt``. By default all parties are neighbours.
        loss: share of the parties that may drop out, for ``"auto"`` and the checks.
        corrupt: share of the parties that may collude with the server.
        least: smallest number of parties in a sum; never below 2.
        server: what is assumed of the server; ``None`` decides by where it runs.
        codec: how numbers become words.
        masks: ``"real"``, or ``"virtual"`` in simulations: the same sums, bytes and steps without the masks, which the ledger records.

    Raises:
        ConfigError: a setting makes no sense.
    """

    threshold: float | int | None = None
    neighbours: int | str | None = None
    loss: float | None = None
    corrupt: float | None = None
    least: int = 2
    server: str | None = None
    codec: FixedPoint = field(default_factory=FixedPoint)
    masks: str = "real"

    def __post_init__(self) -> None:
        if self.server not in (None, "honest", "active"):
            raise ConfigError(f"server={self.server!r}", where="SecureAggregation", remedy='use "honest" or "active"')
        if self.masks not in ("real", "virtual"):
            raise ConfigError(f"masks={self.masks!r}", where="SecureAggregation", remedy='use "real" or "virtual"')
        self.require_least()
        if isinstance(self.neighbours, str) and self.neighbours != "auto":
            raise ConfigError(
                f"neighbours={self.neighbours!r}", where="SecureAggregation", remedy='use a number or "auto"'
            )
        if isinstance(self.neighbours, int) and self.neighbours < 1:
            raise ConfigError(f"neighbours={self.neighbours}", where="SecureAggregation", remedy="use 1 or more")
        for name in ("loss", "corrupt"):
            given = getattr(self, name)
            if given is not None and not 0 <= given < 1:
                raise ConfigError(f"{name}={given}", where="SecureAggregation", remedy="use a share from 0 to below 1")
        require_threshold(self.threshold, "SecureAggregation")

    # ------------------------------------------------------------------ what is agreed

    def holders(self, parties: int, *, active: bool = False) -> tuple[int, int]:
        """Neighbours of each party and the threshold, for a cohort.

        Raises:
            QuorumError: the cohort is too small for the threshold.
            CompositionError: the threshold is one that the stated corruption or loss breaks.
        """
        degree, found = parties - 1, None
        if self.neighbours == "auto":
            made = plan(parties, self.loss or 0.0, self.corrupt or 0.0)
            degree, found = made.neighbours, max(2, made.threshold)
        elif self.neighbours is not None:
            degree = min(int(self.neighbours), parties - 1)
        degree += degree % 2 if degree < parties - 1 else 0  # half of them on each side
        degree = min(degree, parties - 1)
        holders = degree + 1
        threshold = self._threshold(holders, found, active)
        if threshold > holders or parties < self.least:
            raise QuorumError(
                f"{parties} parties, fewer than {max(self.least, threshold)}: the threshold is {threshold} of {holders} holders, the least sum {self.least}",
                where="SecureAggregation",
                remedy="invite more parties or lower the threshold",
            )
        self._require_sound(parties, holders, threshold, active)
        return degree, threshold

    def _threshold(self, holders: int, found: int | None, active: bool) -> int:
        given = self.threshold
        if given is None:
            usual = 2 * holders // 3 + 1 if active else holders // 2 + 1
            return max(found, usual) if found is not None and active else found or min(usual, holders)
        if isinstance(given, float) and given <= 1:
            return max(2, math.ceil(given * holders - 1e-9))
        return int(given)

    def _require_sound(self, parties: int, holders: int, threshold: int, active: bool) -> None:
        """Refuse a threshold that the stated loss or corruption breaks; of a sparse graph `plan` has checked the chances."""
        if active and holders < parties:
            raise CompositionError(
                f"{holders - 1} neighbours of {parties} parties against an active server",
                where="SecureAggregation",
                remedy="leave out `neighbours`: a server that lies orders the parties so that a party's neighbours are all its own",
            )
        if active and 3 * threshold <= 2 * holders:
            raise CompositionError(
                f"a threshold of {threshold} of {holders} holders against an active server",
                where="SecureAggregation",
                remedy=f"use threshold={2 * holders // 3 + 1} or more: a server that tells parties different sets breaks one of at most two thirds",
            )
        if holders < parties and self.neighbours == "auto":
            return
        corrupt, lost = math.floor((self.corrupt or 0) * parties), math.floor((self.loss or 0) * parties)
        if threshold <= min(corrupt, holders - 1):
            raise CompositionError(
                f"a threshold of {threshold}, but {corrupt} of {parties} parties may collude",
                where="SecureAggregation",
                remedy=f"use threshold={corrupt + 1} or more: so many colluding parties open every seed",
            )
        if holders == parties and threshold > parties - lost:
            raise CompositionError(
                f"a threshold of {threshold}, but {lost} of {parties} parties may drop out",
                where="SecureAggregation",
                remedy=f"use threshold={parties - lost} or less: {parties - lost} parties are left to open the seeds",
            )

    def fewest(self, parties: int) -> tuple[int, str]:
        """The threshold, or the least sum. In a sparse graph the threshold is one of a party's holders."""
        _, threshold = self.holders(parties, active=self.server == "active")
        count = max(self.least, threshold if self.neighbours is None else 2)
        return count, f"the threshold of {threshold} and the least sum of {self.least}"

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a job: it takes excess noise back."""
        return super().offers | {EXCESS_REMOVED}

    def require_libraries(self) -> None:
        """Virtual masks need none."""
        if self.masks == "real":
            super().require_libraries()

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        if self.masks == "virtual":
            return (
                Exposure("server", "the reply of every client", "masks='virtual' is a simulation: nothing is hidden"),
            )
        degree, threshold = self.holders(parties, active=self.server == "active")
        least = max(self.least, threshold) if degree == parties - 1 else self.least
        server = (
            "it may lie"
            if self.server == "active"
            else "it follows the protocol"
            if self.server == "honest"
            else "it follows the protocol; between organisations it may lie"
        )
        holders = (
            f"fewer than {threshold} of the {degree + 1} holders of a client's seed put their shares together with it"
        )
        return (
            Exposure(
                "server",
                f"the sum of the replies of {least} clients or more, and who took part",
                f"{server}; {holders}",
            ),
            Exposure(
                "other clients",
                "nothing of a reply",
                f"they are fewer than {threshold} of a client's holders, or the server does not help them",
            ),
        )

    def agreement(self, reduction: Reduction) -> Agreement:
        """What the parties of a sum agree on.

        Raises:
            CompositionError: it trusts the server, between organisations.
        """
        names = tuple(reduction.parties.names)
        active = (self.server or ("active" if reduction.between else "honest")) == "active"
        if reduction.between and not active:
            raise CompositionError(
                "server='honest' between organisations", where="SecureAggregation", remedy="leave server out"
            )
        degree, threshold = self.holders(len(names), active=active)
        least = max(self.least, reduction.terms.quorum)
        uplink = reduction.request.uplink
        order = 0 if degree >= len(names) - 1 else int(reduction.request.key)  # a complete graph has no order
        signs, noise = not uplink.summand_stages, uplink.excess
        parts, most = (0, 0) if noise is None else (noise.parts, noise.most)
        return Agreement(names, degree, order, threshold, least, active, self.codec, uplink.bound, signs, parts, most)

    # ------------------------------------------------------------------ the protocol

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Deal shares, add up masked words, let the parties reveal, and take the masks off."""
        agreed = self.agreement(reduction)
        if self.masks == "virtual":
            from .virtual import reduce_virtually

            return await reduce_virtually(reduction, agreed)
        quorum = max(agreed.least, agreed.threshold)
        dealt = await reduction.exchange(reduction.parties, deal, agreed.message(), quorum=quorum)
        said = {name: reply for name, reply in dealt.by_name().items() if is_dealt(agreed, name, reply)}
        dealers = dealt.senders.named(*said)  # without those that sent no commitments
        found = await reduction.fold(masked, parties=dealers, mail=dealt.mail.only_from(set(said)))
        kept = Parties(reduction.world.roster, found.senders)
        require_enough(kept, quorum, rejected=found.rejected)
        places = [agreed.place(name) for name in kept.names]
        lost = [agreed.place(name) for name in dealers.without(kept).names]
        shown = await self._reveal_shares(reduction, agreed, kept, {"kept": places, "lost": lost})
        opening = Opening(agreed, {agreed.place(name): reply for name, reply in said.items()}, places, lost)
        told = {name: reply for name, reply in shown.by_name().items() if isinstance(reply, dict) and "form" in reply}
        for name, reply in told.items():
            opening.take(agreed.place(name), reply.get("shares"))
            if (part := agreed.excess(len(places))) is not None:
                opening.take(agreed.place(name), reply.get("excess"), part)
        return _open_sum(reduction, agreed, found, opening, [reply["form"] for reply in told.values()])

    async def _reveal_shares(self, reduction: Reduction, agreed: Agreement, kept: Parties, asked: Any) -> Replies:
        """Let the parties vote on the set, if the server may lie, and reveal its shares."""
        label, mail, who, some = label_of(asked["kept"], asked["lost"]), None, kept, min(agreed.threshold, len(kept))
        if agreed.active:
            voted: Exchanged = await reduction.exchange(kept, vote, asked, at=label, quorum=some)
            mail, who = voted.mail.only_from(set(voted.senders.names)), voted.senders
        return await reduction.exchange(who, reveal, asked, at=label, mail=mail, quorum=some)


def _open_sum(
    reduction: Reduction, agreed: Agreement, found: PartialSum, opening: Opening, forms: list[Any]
) -> Reduced:
    """The totals of the sum, and what is wrong with whom."""
    layout = agreed.layout(common_form(forms))
    lanes = {lane: np.array(total.value) for lane, total in found.totals.items()}
    opening.unmask(lanes, agreed.context(reduction.request.fingerprint, layout.fingerprint))
    noise, counts = reduction.request.uplink.excess, dict[str, int]()
    if noise is not None:
        first, seeds = opening.excess(noise)
        for seed in seeds.values():
            subtract_parts(noise, layout, lanes, seed, first)
        if first < noise.anchor:
            counts = {"excess_left": len(opening.kept) - len(seeds)}
    return decode_sum(layout, lanes, found.senders, wrong=len(opening.wrong), counts=counts)
