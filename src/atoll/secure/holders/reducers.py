"""Secure sums with one more party that holds the seeds of all masks (Prasad et al. 2022, section 3): it sees seeds, the server sees masked words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.event import AttestationSimulated
from atoll.core.exposure import Exposure
from atoll.core.requests.party import Parties
from atoll.core.validation import Checked

from ..ballot import Electorate, collect_votes
from ..masking.agreement import Agreement
from ..words import FixedPoint
from ..words.sums import WordSums, common_form, decode_sum, require_enough
from .attestation import Attestation, SimulatedAttestation
from .halves import attest, challenge_of, describe, entrust, masked, open_masks

if TYPE_CHECKING:
    from atoll.core.federation.reduction import Reduction
    from atoll.core.requests.request import Reduced

__all__ = ["ENCLAVE", "SECOND_SERVER", "Enclave", "SeedHolder", "TwoServers"]

ENCLAVE, SECOND_SERVER = "enclave", "second-server"


@dataclass(frozen=True)
class SeedHolder(Checked, WordSums):
    """Base of sums whose masks' seeds one further party holds.

    Every party adds the mask of a fresh seed to its words, sends them to the server, and seals the seed to the holder. The holder adds up the masks of exactly the parties
    in the sum, and the server takes that off. Parties may drop out at any step: only those whose words have arrived are in the sum.

    The server learns the sum, the holder nothing but who took part. If both put together what they have, they see every party's numbers.

    Attributes:
        least: smallest number of parties in a sum; never below 2. The parties tell it to the holder, which refuses fewer.
        codec: how numbers become words.

    Raises:
        ConfigError: a setting makes no sense.
    """

    least: int = 2
    codec: FixedPoint = field(default_factory=FixedPoint)
    holder: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.require_least()

    @property
    def others(self) -> Mapping[str, str]:  # type: ignore[override]
        """The holder."""
        return {self.holder: self.holder}

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        del parties
        apart = f"it does not put what it has together with the {self.holder}"
        return (
            Exposure("server", f"the sum of the replies of {self.least} clients or more, and who took part", apart),
            Exposure(
                self.holder, "who took part; nothing of a reply", "it does not put what it has together with the server"
            ),
            Exposure("other clients", "nothing of a reply"),
        )

    def agreement(self, reduction: Reduction) -> Agreement:
        """What the parties of a sum agree on."""
        names, least = tuple(reduction.parties.names), max(self.least, reduction.terms.quorum)
        uplink = reduction.request.uplink
        return Agreement(
            names,
            len(names) - 1,
            int(reduction.request.key),
            least,
            least,
            False,
            self.codec,
            uplink.bound,
            not uplink.summand_stages,
        )

    async def vouch_holder(self, reduction: Reduction, agreed: Agreement) -> dict[str, Any]:
        """What the parties are told of the holder before they entrust it with a seed."""
        del reduction, agreed
        return {"quote": None, "attestation": None}

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Let the parties entrust their seeds, add up masked words, and take off the sum of the masks."""
        agreed = self.agreement(reduction)
        message = {"agreed": agreed.message(), "holder": self.holder, **await self.vouch_holder(reduction, agreed)}
        entrusted = await reduction.exchange(reduction.parties, entrust, message, quorum=agreed.least)
        found = await reduction.fold(masked, parties=entrusted.senders)
        kept = Parties(reduction.world.roster, found.senders)
        require_enough(kept, agreed.least, type(self).__name__)
        electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint)
        votes = await collect_votes(reduction, kept, [self.holder], electorate)
        told = await reduction.ask_all(kept, describe, quorum=1)
        layout = agreed.layout(common_form(told.values))
        asked = {
            "context": agreed.context(reduction.request.fingerprint, layout.fingerprint),
            "lanes": layout.lengths,
            "agreed": agreed.message(),
            "kept": list(kept.names),
            "votes": votes[self.holder],
        }
        mail = entrusted.mail.only_from(set(kept.names))
        holder = reduction.parties.named(self.holder)
        masks = (await reduction.exchange(holder, open_masks, asked, mail=mail)).values[0]
        lanes = {lane: np.asarray(total.value) - np.asarray(masks[lane]) for lane, total in found.totals.items()}
        return decode_sum(layout, lanes, found.senders)


@dataclass(frozen=True)
class Enclave(SeedHolder):
    """Sums whose seeds an enclave holds: a helper with the role ``enclave``, a process whose memory its own host cannot read.

    A party checks an attestation before it seals its seed. What comes with Atoll is `SimulatedAttestation`, which **proves nothing**: the sum is then as safe as
    with `TwoServers`, and the ledger says so. So ``atoll provision`` refuses an enclave of the server's own organisation.

    Attributes:
        attestation: how parties know the enclave's code.
    """

    attestation: Attestation = field(default_factory=SimulatedAttestation)
    holder: ClassVar[str] = ENCLAVE

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort; a simulated attestation protects nothing."""
        server, enclave, others = super().exposures(parties)
        why = (
            "its attestation is simulated and proves nothing"
            if self.attestation.simulated
            else "its attestation is sound"
        )
        return (server, replace(enclave, assuming=f"{why}; {enclave.assuming}"), others)

    async def vouch_holder(self, reduction: Reduction, agreed: Agreement) -> dict[str, Any]:
        """The enclave's statement for this sum."""
        if self.attestation.simulated:
            reduction.world.note(AttestationSimulated)
        settings: dict[str, Any] = asdict(self.attestation) if is_dataclass(self.attestation) else {}
        spec = {"name": type(self.attestation).__name__, "settings": settings}
        told = await reduction.ask(self.holder, attest, {"attestation": spec, "challenge": challenge_of(agreed)})
        return {"quote": told, "attestation": spec}


@dataclass(frozen=True)
class TwoServers(SeedHolder):
    """Sums at two servers that do not collude: a helper with the role ``second-server`` holds the seeds, and this server gets the masked words.

    The second server must belong to another organisation: ``atoll provision`` refuses one organisation as both.
    """

    holder: ClassVar[str] = SECOND_SERVER
