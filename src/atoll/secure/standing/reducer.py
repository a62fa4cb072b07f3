"""Masked sums whose parties agree on keys once: the multi-round secure aggregation of Flamingo (Ma et al. 2023), with chains of keys and shares among neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.capability import EXCESS_REMOVED, Capability
from atoll.core.errors import ConfigError
from atoll.core.exposure import Exposure
from atoll.core.requests.party import Parties

from ..masking.halves import label_of
from ..masking.reducer import SecureAggregation
from ..words.sums import common_form, decode_sum, require_enough
from .halves import introduce, join, masked, reveal, vote
from .opening import KeySetUp, RoundOpening, is_introduced, is_joined
from .terms import MOST, StandingTerms, label_of_path

if TYPE_CHECKING:
    from atoll.core.federation.reduction import Reduction
    from atoll.core.requests.request import PartialSum, Reduced
    from atoll.core.requests.results import Exchanged, Replies

    from ..masking.agreement import Agreement

__all__ = ["MultiRound"]


@dataclass(frozen=True)
class MultiRound(SecureAggregation):
    """`SecureAggregation` with one set-up of keys for many sums: the same sums, losses and assumptions, with a superstep, an agreement in pairs and the letters with shares once in ``sums`` sums.

    In the set-up every two neighbours agree on the first link of a chain of keys, and each party deals its holders shares of the secrets of all sums to come. Each sum takes one
    link of every chain, so that secrets which are opened tell nothing of another sum. What the chains come from is never shared and never opened. The seeds that a party shares
    with its neighbours lie at the server, under a key for each sum, of which holders have shares: if the party is lost, they open the key of this sum alone.

    A set-up serves sums of its own parties, or of as many of them as leave each ``threshold`` holders. A party that joins, a party whose reply was refused, a sum that fails
    and a server that starts again make the next sum begin with a new set-up. So it pays where the same parties take part again and again, as organisations do, and not where
    each round samples a few of many.

    It has no virtual masks. The steps and bytes of a sum of `SecureAggregation` follow from its agreement and its losses alone, so a simulation can count them without making a key. Here they depend on the
    sums before: whether the keys still serve, which parties have them, and which link each chain has come to. To know that, a simulation must keep the parties' states and the server's memory as they are, which is
    what the masks cost. ``SecureAggregation(masks="virtual")`` gives the same sums in a simulation.

    Attributes:
        sums: the most sums that one set-up serves.

    Raises:
        ConfigError: a setting makes no sense.
    """

    sums: int = 20
    lasting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.sums <= MOST:
            raise ConfigError(f"sums={self.sums}", where="MultiRound", remedy=f"use a number from 1 to {MOST}")
        if self.masks != "real":
            raise ConfigError(
                f"masks={self.masks!r}",
                where="MultiRound",
                remedy="use masks='real', or SecureAggregation(masks='virtual')",
            )

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a job: all that `SecureAggregation` does, but for taking excess noise back."""
        return super().offers - {EXCESS_REMOVED}

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        server, others = super().exposures(parties)
        once = f"the sites' folders are not set back to an earlier day; keys serve up to {self.sums} sums, and a stolen one tells nothing of sums before the theft"
        return (replace(server, assuming=f"{server.assuming}; {once}"), others)

    # ------------------------------------------------------------------ the protocol

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Agree on keys if there are none that serve, add up masked words, let the parties reveal, and take the masks off."""
        wanted, memory = self.agreement(reduction), reduction.memory
        known = memory.pop("keys", None)  # whatever goes wrong from here, the next sum begins anew
        setup, odd = None if known is None else KeySetUp.of(known), dict[str, str]()
        if fresh := setup is None or not setup.serves(wanted, self.sums):
            setup = await self._agreed_keys(reduction, wanted)
            odd = setup.settle()
        terms = StandingTerms(setup.terms_of(wanted), setup.label, setup.next, setup.places(wanted.names))
        setup.next += 1
        agreed, quorum, roster = terms.agreed, max(wanted.least, setup.agreed.threshold), reduction.world.roster
        named = {roster.position(name): why for name, why in odd.items()}
        asked = reduction.parties.named(*(agreed.names[i] for i in terms.who))
        require_enough(asked, quorum, "MultiRound", named)
        found = await reduction.fold(masked, terms.message(), parties=asked, at=f"{setup.label}/{terms.round}")
        kept = Parties(roster, found.senders)
        require_enough(kept, quorum, "MultiRound", found.rejected)
        opening, forms = await self._opening(reduction, terms, setup, asked, kept)
        result = _open_sum(reduction, terms, found, opening, forms)
        if not (found.rejected or found.errors or opening.wrong):
            memory["keys"] = setup.message()
        result.counts["key_set_ups"] = int(fresh)
        result.rejected.update(named)
        return result

    async def _agreed_keys(self, reduction: Reduction, agreed: Agreement) -> KeySetUp:
        """Let the parties introduce themselves and agree on keys; they keep them whatever becomes of the sum."""
        quorum, label = max(agreed.least, agreed.threshold), label_of_path(reduction.slot)
        steps = reduction.set_up(label)
        told = {"agreed": agreed.message(), "id": label, "sums": self.sums}
        first: Exchanged = await steps.exchange(reduction.parties, introduce, told, quorum=quorum)
        said = {n: one for n, one in first.by_name().items() if is_introduced(agreed, self.sums, n, one)}
        begun = first.senders.named(*said)
        require_enough(begun, quorum, "MultiRound")
        second = await steps.exchange(begun, join, {"id": label}, mail=first.mail.only_from(set(said)), quorum=quorum)
        joined = {n: one for n, one in second.by_name().items() if is_joined(agreed, self.sums, n, one)}
        return KeySetUp(agreed, label, self.sums, said, joined)

    async def _opening(
        self, reduction: Reduction, terms: StandingTerms, setup: KeySetUp, asked: Parties, kept: Parties
    ) -> tuple[RoundOpening, list[Any]]:
        """Let the parties vote on the set, if the server may lie, and reveal its shares; return them with the forms of their totals."""
        agreed = terms.agreed
        places = [agreed.place(name) for name in kept.names]
        lost = [agreed.place(name) for name in asked.without(kept).names]
        message = {"id": terms.setup, "round": terms.round, "kept": places, "lost": lost}
        label, mail, who, some = label_of(places, lost), None, kept, min(agreed.threshold, len(kept))
        if agreed.active:
            voted: Exchanged = await reduction.exchange(kept, vote, message, at=label, quorum=some)
            mail, who = voted.mail.only_from(set(voted.senders.names)), voted.senders
        shown: Replies = await reduction.exchange(who, reveal, message, at=label, mail=mail, quorum=some)
        told = {name: reply for name, reply in shown.by_name().items() if isinstance(reply, dict) and "form" in reply}
        opening = RoundOpening(agreed, setup.dealt(terms.round), places, lost, setup=setup, round=terms.round)
        for name, reply in told.items():
            opening.take(agreed.place(name), reply.get("shares"))
        return opening, [reply["form"] for reply in told.values()]


def _open_sum(
    reduction: Reduction, terms: StandingTerms, found: PartialSum, opening: RoundOpening, forms: list[Any]
) -> Reduced:
    """The totals of the sum, and how many parties dealt or revealed what is wrong."""
    layout = terms.agreed.layout(common_form(forms))
    lanes = {lane: np.array(total.value) for lane, total in found.totals.items()}
    opening.unmask(lanes, terms.context(reduction.request.fingerprint, layout.fingerprint))
    return decode_sum(layout, lanes, found.senders, wrong=len(opening.wrong))
