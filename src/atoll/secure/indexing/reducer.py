"""Secure indexing: the server sees how often each codeword was used, and no index of any party."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.facets import facet
from atoll.core.message import Words
from atoll.core.requests.request import Reduced
from atoll.core.requests.stage import Worded
from atoll.core.validation import Checked

from ..ballot import collect_votes
from ..words import FixedPoint, WordSums
from .counts import BITS, CountNoise, count_indices, join_totals, noisy
from .party_steps import ENCLAVE, SERVERS, IndexPlan, add, send
from .points import depth_of, key_bits

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Terms
    from atoll.core.requests.task import Task

__all__ = ["SecureIndexing"]

_HELPERS = {
    "enclave": {ENCLAVE: "enclave"},
    "shares": dict.fromkeys(SERVERS, "index server"),
    "keys": dict.fromkeys(SERVERS, "index server"),
}


@dataclass(frozen=True)
class SecureIndexing(Checked, WordSums):
    """Add up the indices of ``ProductQuantizer`` as counts: ``H_m[r]`` is the weight of the parties whose block ``m`` has codeword ``r``.

    The server decodes ``sum_r H_m[r] C_r``. Prasad, Ghosh, Cormode, Mironov, Yousefpour, Stock 2022, "Reconciling Security and Communication Efficiency in Federated
    Learning", algorithm 1.

    * ``by="enclave"``: parties seal their indices for an enclave, ``ceil(log2 k)`` bits a block, and it tells the server the counts. The enclave sees the
      indices, and the numbers beside them. Atoll does not attest it: in a simulation, and here, it is a party that you trust.
    * ``by="shares"``: each of two servers gets a share of every row of ``k`` words, ``k p`` bits a block in all, with ``p = ceil(log2(n max_weight/unit + 1))``.
    * ``by="keys"``: each of two servers gets a key of a point function (`points`), shorter than shares for many codewords. Two servers that tell
      each other what they got see everything; one alone sees nothing.

    Counts show more than the sum: how many parties chose which codeword. A sum of fewer than ``least`` parties is refused, by the reducer and by the helpers. The counts of
    each block must add up to the weight of the parties; else the sum is not used. Numbers beside the indices travel as fixed-point words, the same way.
    A party that drops out has sent everything or nothing. Helpers add up only letters of parties that agreed on the same plan and were asked the same, so a server that sends
    parties different models gets nothing.

    Attributes:
        by: ``"enclave"``, ``"shares"`` or ``"keys"``.
        least: smallest number of parties in a sum; never below 2.
        max_weight: largest weight of a party, public.
        unit: weights are whole numbers of this unit; examples have 1. With equal weights, ``max_weight=1`` makes the shortest shares.
        codec: how numbers become words.
        noise: noise that the helpers add to what they tell the server, see `CountNoise`; ``max_weight`` is then 1, and no numbers go beside the indices.

    Raises:
        ConfigError: a setting makes no sense.
    """

    by: str = "enclave"
    least: int = 2
    max_weight: float = 4096.0
    unit: float = 1.0
    codec: FixedPoint = field(default_factory=FixedPoint)
    noise: CountNoise | None = None
    indexes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        where = "SecureIndexing"
        if self.by not in _HELPERS:
            raise ConfigError(f"by={self.by!r}", where=where, remedy='use "enclave", "shares" or "keys"')
        self.require_least("the counts of one are its indices")
        sound = math.isfinite(self.max_weight) and math.isfinite(self.unit) and 0 < self.unit <= self.max_weight
        if not sound or self.max_weight / self.unit > 2**32:
            raise ConfigError(
                f"max_weight={self.max_weight}, unit={self.unit}", where=where,
                remedy="use positive numbers, the unit not above max_weight and not below max_weight / 2^32",
            )  # fmt: skip
        if self.noise is not None and self._most != 1:
            raise ConfigError(
                f"max_weight={self.max_weight} with noise",
                where=where,
                remedy="use max_weight=1.0 and unit=1.0: noise is for a weight of 1",
            )
        object.__setattr__(self, "others", _HELPERS[self.by])

    def bits(self, parties: int) -> int:
        """Bits of a count: ``ceil(log2(n max_weight/unit + 1))``."""
        if self.noise is not None and self.by != "enclave":
            return BITS  # shares of noisy counts, which have a sign
        return max(1, (parties * self._most).bit_length())

    def block_bits(self, codewords: int, parties: int) -> int:
        """Bits that a party sends for the index of a block, over all helpers: ``ceil(log2 k)``, ``k p``, or those of two keys.

        Args:
            codewords: ``k``.
            parties: size of the cohort.
        """
        bits = self.bits(parties)
        if self.by == "enclave":
            return max(1, (codewords - 1).bit_length())
        return codewords * bits if self.by == "shares" else 2 * key_bits(codewords, bits, depth_of(codewords, bits))

    @property
    def _most(self) -> int:
        return int(self.max_weight / self.unit + 1e-9)

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts and terms that could show the indices of a few, and measurements beside noise; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            QuorumError: the cohort is too small.
        """
        super().check(uplink, parties, terms, task)
        if self.noise is not None and not uplink.guards:
            raise CompositionError(
                "noise on counts, and measurements that leave without noise",
                where="SecureIndexing",
                remedy="put Clip(bound, alone=True) into the uplink: then nothing but the update leaves",
            )

    def require_libraries(self) -> None:
        """An enclave needs none."""
        if self.by != "enclave" or self.noise is not None:
            super().require_libraries()

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        del parties
        told = "the counts of codewords, with noise" if self.noise is not None else ""
        if self.noise is not None and self.noise.space == "codewords":
            told = "sums of codewords, with noise"
        counts = told or f"how many of {self.least} clients or more chose which codeword, block by block"
        helpers = tuple(self.others)
        if self.by == "enclave":
            return (
                Exposure("server", counts, "it does not put what it has together with the enclave"),
                Exposure(helpers[0], "the reply of every client", "it keeps them to itself: nothing attests its code"),
                Exposure("other clients", "nothing of a reply"),
            )
        apart = "the two servers do not put together what they have"
        return (
            Exposure("server", counts, apart),
            *(Exposure(name, "nothing of a reply", apart) for name in helpers),
            Exposure("other clients", "nothing of a reply"),
        )

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Let the parties seal their indices, the helpers add them up, and check the counts."""
        uplink, names = reduction.request.uplink, tuple(reduction.parties.names)
        least = max(self.least, reduction.terms.quorum)
        plan = IndexPlan(
            self.by, names, least, self.bits(len(names)), self.unit, self._most, self.codec, uplink.bound, not uplink.summand_stages,
            self.noise, self._books(reduction),
        )  # fmt: skip
        sent = await reduction.exchange(reduction.parties, send, plan.message(), wraps=True, quorum=least)
        if any(said != sent.values[0] for said in sent.values):
            raise QuorumError(
                "parties replied with totals of different forms, which have no sum",
                where="SecureIndexing",
                remedy="let every party reply with the same aggregates, of the same shapes and dtypes, under one codebook",
            )
        form, sizes = sent.values[0]["form"], sent.values[0]["sizes"]
        layout = plan.layout(form)
        votes = await collect_votes(reduction, sent.senders, self.others, plan.electorate())
        message = {"plan": plan.message(), "lengths": layout.lengths, "sizes": sizes, "votes": votes}
        helpers = reduction.parties.named(*self.others)
        mail = sent.mail.only_from(set(sent.senders.names))
        found = (await reduction.exchange(helpers, add, message, mail=mail, quorum=len(helpers))).values
        lanes = {
            name: Words.of(
                sum((np.asarray(one["lanes"][name]) for one in found[1:]), np.asarray(found[0]["lanes"][name])),
                int(name),
            )
            for name in layout.lengths
        }
        made = layout.decode(lanes, len(sent))
        weights = {
            name: total.weight if total.kind == "mean" else float(total.n) for name, total in made.totals.items()
        }
        sums: list[Any] = [
            sum(parts[1:], parts[0]) for parts in zip(*(map(np.asarray, one["counts"]) for one in found), strict=True)
        ]
        if self.noise is None:
            counts = count_indices(sizes, sums, plan.bits, self.unit, weights)
        else:
            counts = noisy(sizes, sums, BITS, plan.grid(sizes)[1] if self.noise.space == "codewords" else 1.0)
        clamped = (
            {"words": layout.clamping, "coded": layout.clamping * len(sent), "clamped": made.clamped}
            if layout.clamping
            else {}
        )
        summed = self.noise is not None and self.noise.space == "codewords"
        return Reduced(join_totals(made.totals, counts, summed=summed), sent.senders.positions, counts=clamped)

    def _books(self, reduction: Reduction) -> dict[str, list[Any]]:
        """The codebooks by aggregate, if the helpers add up codewords."""
        if self.noise is None or self.noise.space == "counts":
            return {}
        request, made = reduction.request, dict[str, list[Any]]()
        for i, stage in enumerate(request.uplink.stages):
            if facet(stage, Worded).indexes and isinstance(request.public[i], dict):
                for name, known in (request.public[i].get("of") or {}).items():
                    made[name] = list(known["books"])
        if not made:
            raise CompositionError(
                "noise on sums of codewords, and no codebook yet",
                where="SecureIndexing",
                remedy="give the data public rows, to which the first codebook is fitted",
            )
        return made
