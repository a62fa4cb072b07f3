"""Secure sums with a bound on every update's norm, which two servers check on shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import CompositionError, ConfigError, QuorumError, SessionError
from atoll.core.exposure import Exposure
from atoll.core.facets import facet
from atoll.core.requests.stage import Worded
from atoll.core.validation import Checked

from ..ballot import collect_votes
from ..shares import deal
from ..words import FixedPoint
from ..words.sums import WordSums, common_form, decode_sum, require_enough
from .halves import DEALER, SERVERS, SHARING, add, compare, receive, split
from .plan import BoundPlan

if TYPE_CHECKING:
    from atoll.core.federation.reduction import Reduction
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.request import Reduced
    from atoll.core.requests.results import Terms
    from atoll.core.requests.task import Task

__all__ = ["BoundedSum"]


@dataclass(frozen=True)
class BoundedSum(Checked, WordSums):
    """Sums at two servers that leave out, by name, every party whose update is longer than ``norm``; no server sees an update.

    A party seals its masked words to the helper ``first-server``, and the seed of the mask to ``second-server``. The two test the norm of each update on their shares, with correlated randomness of a helper
    ``dealer``, and open one bit a party. Then each adds up its shares of the parties that pass, and the server puts the two together.

    The test projects an update on 256 random vectors, which are drawn once all shares have arrived, and counts how many projections are too long. An update within ``norm`` passes. One above ten times ``norm``, whatever its shape,
    is refused, and one of many entries of similar size above 2.5 times: see `atoll.secure.bounded.projections` for the chances and their proofs. Weights are checked too: they are between 0 and ``max_weight``. Metrics and reports, which do not move
    the model, are not. Of a value with numbers and whole numbers, each kind is bounded by itself.

    It assumes two servers that follow the protocol and do not put together what they have, and a dealer that does the same and colludes with neither. Parties may lie as they like.

    Attributes:
        norm: the largest L2 norm of a party's update, and of each further value that moves the model, such as a control variate; before the weight.
        max_weight: the largest weight of a party.
        least: smallest number of parties in a sum; never below 2.

    Raises:
        ConfigError: a setting makes no sense.
    """

    norm: float = 1.0
    max_weight: float = 65536.0
    least: int = 2
    codec: FixedPoint = field(init=False, repr=False, compare=False)
    others: ClassVar[Mapping[str, str]] = {**dict.fromkeys(SERVERS, "index server"), DEALER: DEALER}

    def __post_init__(self) -> None:
        for name in ("norm", "max_weight"):
            given = getattr(self, name)
            if not (math.isfinite(given) and given > 0):
                raise ConfigError(f"{name}={given}", where="BoundedSum", remedy="use a number above 0")
        self.require_least()
        object.__setattr__(self, "codec", FixedPoint(max_weight=self.max_weight))

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse stages whose encodings have no norm; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            QuorumError: the cohort is too small.
        """
        super().check(uplink, parties, terms, task)
        coded = [stage.name for stage in uplink.stages if facet(stage, Worded).words]
        if coded:
            raise CompositionError(
                f"{coded[0]} makes other words of an update than its numbers, which have no norm",
                where="BoundedSum",
                remedy="leave it out, or use TwoServers or SecureAggregation, which check no norm",
            )

    def word_length(self, uplink: Chain, parties: int) -> int:
        """64 bits: a test of norms needs them."""
        del uplink, parties
        return 64

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        del parties
        apart = "the two servers and the dealer follow the protocol, and no two of them put together what they have"
        return (
            Exposure(
                "server",
                f"the sum of the replies of {self.least} clients or more, who took part, and whose update is longer than {self.norm:g}",
                apart,
            ),
            *(
                Exposure(name, f"whose update is longer than {self.norm:g}; nothing else of a reply", apart)
                for name in SERVERS
            ),
            Exposure(DEALER, "how many clients are compared; nothing of a reply", apart),
            Exposure("other clients", "nothing of a reply"),
        )

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Let the parties share their words, the servers test their norms and add up what passes, and put the two sums together."""
        least = max(self.least, reduction.terms.quorum)
        plan = BoundPlan(tuple(reduction.parties.names), least, self.norm, self.max_weight)
        sent = await reduction.exchange(reduction.parties, split, plan.message(), wraps=True, quorum=least)
        layout = plan.layout(common_form([one["form"] for one in sent.values]))
        servers = reduction.parties.named(*SERVERS)
        told = {"plan": plan.message(), "form": layout.form, "asked": reduction.request.fingerprint}
        votes = await collect_votes(reduction, sent.senders, SERVERS, plan.electorate())
        told |= {"sent": list(sent.senders.names), "votes": votes}
        mail = sent.mail.only_from(set(sent.senders.names))
        usable = (await reduction.exchange(servers, receive, told, mail=mail, quorum=len(SERVERS))).values
        names = sorted(set(usable[0]) & set(usable[1]))
        require_enough(sent.senders.named(*names), least, "BoundedSum")
        beyond = await self._beyond(reduction, names)
        kept = sent.senders.named(*(name for name in sent.senders.names if name in names and name not in beyond))
        if len(kept) < least:
            raise QuorumError(
                f"{len(kept)} parties within norm={self.norm:g}, fewer than {least}; beyond it: {', '.join(beyond)}",
                where="BoundedSum",
                remedy="raise norm, clip at the parties with Clip, or invite more parties",
            )
        shares = await reduction.exchange(servers, add, {"kept": list(kept.names)}, quorum=len(SERVERS))
        first, second = shares.values
        made = decode_sum(
            layout,
            {lane: np.asarray(first[lane]) + np.asarray(second[lane]) for lane in layout.lengths},
            kept.positions,
        )
        position = reduction.world.roster.position
        made.rejected.update(
            {
                position(
                    name
                ): f"its update is longer than norm={self.norm:g}, or its weight is not 0 to {self.max_weight:g}"
                for name in beyond
            }
        )
        lost = set(sent.senders.names) - set(names)
        made.rejected.update({position(name): "it sealed shares that are not usable" for name in lost})
        return made

    async def _beyond(self, reduction: Reduction, names: list[str]) -> list[str]:
        """The parties beyond the bound, as both servers find."""
        roles: dict[str, Any] = {name: (name, compare.with_args(me=name, names=names)) for name in SERVERS}
        roles[DEALER] = (DEALER, deal.with_args(parties=list(SERVERS), sharing=SHARING.spec()))
        try:
            found = await reduction.session(roles, at="bound")
        except SessionError as error:
            raise QuorumError(
                f"the norms could not be compared: {error.what}",
                where="BoundedSum",
                remedy=f"start the helpers {', '.join(SERVERS)} and {DEALER}; the sum changed nothing",
            ) from error
        return list(found[SERVERS[0]])
