"""Secure sums with one recovery for all who drop out (LightSecAgg: So et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, LetterError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.message.words import word_dtype
from atoll.core.validation import Checked

from ..words import FixedPoint
from ..words.sums import WordSums, common_form, decode_sum, require_enough, require_threshold
from .agreement import Agreement
from .coded import Code, code_words, sum_shares, vote_on_sum
from .halves import label_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.federation.reduction import Reduction
    from atoll.core.requests.request import Reduced

    from ..words import WordLayout

__all__ = ["OneShot"]


@dataclass(frozen=True)
class OneShot(Checked, WordSums):
    """One mask a party, whose coded shares add up: any ``threshold`` parties open the sum of the masks at once, however many dropped out.

    A party adds the mask of a fresh seed to its words. It cuts the mask into ``threshold - private`` pieces, adds ``private`` pieces of noise, and evaluates them as a
    polynomial at one point for each party. With its words it sends each party its value, sealed. Once it is known who is in the sum, each party adds up the values that it has from
    these parties and shows the total: one vector of ``1 / (threshold - private)`` of the words. Any ``threshold`` of them give the sum of the masks. Double masks open a
    seed for each party, so this costs less where many drop out, and more letters: each party sends ``parties / (threshold - private)`` times its words.

    The paper's code needs a prime field. Ours lives in a Galois ring (`GaloisRing`), so words keep their ``p`` bits.

    Any ``private`` parties learn nothing from their shares. With ``2 threshold > parties + private`` no two sets of parties can be opened, even if the server tells parties
    different sets, and ``private`` of them help it: this is the default, and demanded between organisations.

    Attributes:
        threshold: parties that open the sum: a number, or a share of the cohort; by default the smallest with ``2 threshold > parties + private``.
        private: parties that may put their shares together and learn nothing: a number, or a share of the cohort.
        least: smallest number of parties in a sum; never below 2.
        codec: how numbers become words.

    Raises:
        ConfigError: a setting makes no sense.
    """

    threshold: float | int | None = None
    private: float | int = 0.2
    least: int = 2
    codec: FixedPoint = field(default_factory=FixedPoint)

    def __post_init__(self) -> None:
        require_threshold(self.threshold, "OneShot")
        if not self.private > 0 or (self.private > 1 and self.private != int(self.private)):
            raise ConfigError(
                f"private={self.private}", where="OneShot", remedy="use a number of parties, or a share such as 0.2"
            )
        self.require_least()

    def sizes(self, parties: int) -> tuple[int, int]:
        """Threshold and number of colluding parties, for a cohort.

        Raises:
            QuorumError: the cohort is too small.
            CompositionError: so many colluding parties would open a mask.
        """
        private = _count_parties(self.private, parties, least=1)
        threshold = (
            (parties + private) // 2 + 1 if self.threshold is None else _count_parties(self.threshold, parties, least=2)
        )
        if max(threshold, self.least) > parties:
            raise QuorumError(
                f"{parties} parties, fewer than {max(threshold, self.least)}",
                where="OneShot",
                remedy="invite more parties or lower the threshold",
            )
        if threshold <= private:
            raise CompositionError(
                f"threshold={threshold}, but {private} parties may collude",
                where="OneShot",
                remedy=f"use a threshold of {private + 1} or more: as many colluding parties open every mask",
            )
        return threshold, private

    def fewest(self, parties: int) -> tuple[int, str]:
        """The threshold, or the least sum."""
        threshold, _ = self.sizes(parties)
        return max(self.least, threshold), f"the threshold of {threshold} and the least sum of {self.least}"

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        threshold, private = self.sizes(parties)
        safe = (
            "it may tell parties different sets"
            if 2 * threshold > parties + private
            else "it tells all parties the same set"
        )
        return (
            Exposure(
                "server",
                f"the sum of the replies of {max(self.least, threshold)} clients or more, and who took part",
                f"{safe}; at most {private} clients put their shares together with it",
            ),
            Exposure("other clients", "nothing of a reply", f"at most {private} of them put their shares together"),
        )

    def agreement(self, reduction: Reduction) -> tuple[Agreement, Code]:
        """What the parties of a sum agree on, and the code of their masks.

        Raises:
            CompositionError: between organisations, a server could open two sets.
        """
        names, uplink = tuple(reduction.parties.names), reduction.request.uplink
        threshold, private = self.sizes(len(names))
        if reduction.live and 2 * threshold <= len(names) + private:
            raise CompositionError(
                f"a threshold of {threshold} of {len(names)} parties between organisations",
                where="OneShot",
                remedy=f"use threshold={(len(names) + private) // 2 + 1} or more: a server that tells parties different sets could open two sums",
            )
        least, order = max(self.least, reduction.terms.quorum), int(reduction.request.key)
        agreed = Agreement(
            names, len(names) - 1, order, threshold, least, False, self.codec, uplink.bound, not uplink.summand_stages
        )  # fmt: skip
        return agreed, Code(len(names), threshold, private)

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Collect masked words and sealed shares, let the parties add up the shares of those in the sum, and take the masks off."""
        agreed, code = self.agreement(reduction)
        quorum = max(agreed.least, agreed.threshold)
        message = {"agreed": agreed.message(), "private": code.private}
        sent = await reduction.exchange(reduction.parties, code_words, message, wraps=True, quorum=quorum)
        words, layout = _fitting(agreed, sent.by_name())
        kept = sent.senders.named(*words)
        require_enough(kept, quorum, "OneShot")
        places = [agreed.place(name) for name in kept.names]
        asked, label = {"kept": places}, label_of(places, [])
        mail = sent.mail.only_from(set(kept.names))
        if reduction.between:
            voted = await reduction.exchange(kept, vote_on_sum, asked, mail=mail, at=label, quorum=agreed.threshold)
            kept, mail = voted.senders, voted.mail
        shown = await reduction.exchange(kept, sum_shares, asked, mail=mail, at=label, quorum=agreed.threshold)
        lanes = {lane: _total([one[lane] for one in words.values()]) for lane in layout.lengths}
        rows = {agreed.place(name): said for name, said in shown.by_name().items() if isinstance(said, dict)}
        for lane, total in lanes.items():
            shares = {place: np.asarray(said[lane]) for place, said in rows.items() if lane in said}
            total -= _open_masks(agreed, code, shares, len(total), int(lane)).astype(total.dtype)
        return decode_sum(layout, lanes, sent.senders.named(*words).positions)


def _count_parties(given: float | int, parties: int, *, least: int) -> int:
    return max(least, math.ceil(given * parties - 1e-9)) if isinstance(given, float) and given <= 1 else int(given)


def _fitting(agreed: Agreement, replies: Mapping[str, Any]) -> tuple[dict[str, Any], WordLayout]:
    """The words of each party whose reply is one, and their layout."""
    said = {name: one for name, one in replies.items() if isinstance(one, dict) and {"words", "form"} <= one.keys()}
    layout = agreed.layout(common_form([one["form"] for one in said.values()]))
    sizes = {(lane, (length,), word_dtype(int(lane))) for lane, length in layout.lengths.items()}
    words = {name: one["words"] for name, one in said.items() if isinstance(one["words"], dict)}
    return {
        name: lanes
        for name, lanes in words.items()
        if {(lane, np.shape(one), np.asarray(one).dtype) for lane, one in lanes.items()} == sizes
    }, layout


def _total(rows: list[Any]) -> Any:
    made = np.array(rows[0], copy=True)
    for row in rows[1:]:
        made += np.asarray(row)
    return made


def _open_masks(agreed: Agreement, code: Code, shares: dict[int, Any], length: int, bits: int) -> Any:
    """The sum of the masks of one lane.

    Raises:
        QuorumError: fewer right shares than the threshold.
        LetterError: the shares do not fit together: a party showed a wrong one.
    """
    right = {
        place: share
        for place, share in shares.items()
        if share.shape == (code.share_length(length),) and share.dtype.kind == "u"
    }
    if len(right) < code.threshold:
        raise QuorumError(
            f"{len(right)} shares of the sum of the masks, fewer than the threshold of {code.threshold}",
            where="OneShot",
            remedy="lengthen the deadline or lower the threshold",
        )
    made, wrong = code.open_shares(right, length, bits)
    if wrong:
        names = ", ".join(agreed.names[place] for place in wrong)
        raise LetterError(
            f"the summed shares of {len(right)} parties do not fit together; {names} differ from the first {code.threshold}",
            where="OneShot",
            remedy="look at the parties: one of them showed a wrong sum",
        )
    return made
