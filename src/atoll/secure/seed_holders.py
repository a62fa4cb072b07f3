"""Sums behind a party that holds the seeds of all masks: an enclave, or a second server."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import MessageError, PolicyError
from atoll.core.event import AttestationSimulated
from atoll.core.exposure import Exposure
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.party import Parties
from atoll.core.requests.task import Batch, task
from atoll.core.validation import Checked

from .ballot import Electorate, collect_votes, ready_to_vote, require_majority
from .keystream import SEED, add_masks, derived
from .masking.agreement import Agreement
from .masking.party_steps import least_of
from .words import CodedBlock, FixedPoint, WordLayout, WordSums, common_form, decode_sum, form_of, require_enough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island
    from atoll.core.requests.request import Reduced

__all__ = [
    "Attestation",
    "ENCLAVE",
    "Enclave",
    "SECOND_SERVER",
    "SeedHolder",
    "SimulatedAttestation",
    "TwoServers",
    "attest",
    "attestation_of",
    "describe",
    "entrust",
    "masked",
    "open_masks",
    "register_attestation",
]


# ------------------------------------------------------------------ attestation: how a party knows which code an enclave runs, before it trusts it with a seed


@runtime_checkable
class Attestation(Protocol):
    """What an enclave's hardware vouches for. A real one wraps a vendor's quotes (SGX, SEV-SNP, Nitro).

    The party calls `verify` on what the enclave answered to a fresh challenge, and seals its seed to that enclave only if it passes.
    """

    @property
    def simulated(self) -> bool:
        """Whether it proves nothing; the ledger records that."""
        ...

    def quote(self, challenge: bytes) -> bytes:
        """At the enclave: a statement about its code, bound to a challenge."""
        ...

    def verify(self, quote: bytes, challenge: bytes) -> None:
        """At a party: accept the statement.

        Raises:
            PolicyError: the enclave runs other code, or the statement answers another challenge.
        """
        ...


@dataclass(frozen=True)
class SimulatedAttestation(Attestation):
    """A stand-in without hardware: it has the steps and the sizes of an attestation and **proves nothing**, since anyone can compute its quotes.

    Attributes:
        measurement: what the parties expect of the enclave's code.
    """

    # A name that parties compare, not an address: it stays as it was where the module has moved.
    measurement: str = "atoll.secure.holders"

    @property
    def simulated(self) -> bool:
        """True."""
        return True

    def quote(self, challenge: bytes) -> bytes:
        """A hash of the measurement and the challenge, 32 bytes."""
        return hashlib.sha256(b"atoll simulated quote" + self.measurement.encode() + b"\0" + challenge).digest()

    def verify(self, quote: bytes, challenge: bytes) -> None:
        """Compare the quote with the expected one."""
        if quote != self.quote(challenge):
            raise PolicyError(
                f"the enclave's quote does not vouch for {self.measurement!r}",
                where="attestation",
                remedy="look at the enclave: it runs other code, or answers another challenge",
            )


# ------------------------------------------------------------------ the halves of a sum whose masks' seeds a third party holds, as tasks
#
# ==========  ========  =====================================================================  =========================
# superstep   who       what it does                                                           the server gets
# ==========  ========  =====================================================================  =========================
# attest      holder    vouches for its code (an enclave)                                      the statement
# entrust     party     draws a seed, and seals it to the holder                               nothing
# masked      party     runs the task, and adds the mask of its seed to its words              masked words, added up
# describe    party     tells what its totals are, which is the same at every party            names, kinds and shapes
# open_masks  holder    adds up the masks of the parties in the sum                            the sum of their masks
# ==========  ========  =====================================================================  =========================
#
# A holder opens one set a sum, and binds itself to it in its record (`bind_set`), whatever crashes or is replayed. Between organisations it opens the set for which the parties
# vote. The letters say how many parties the sum must have at least, so a server cannot ask for the masks of a few.


_ATTESTATIONS: dict[str, type[Any]] = {"SimulatedAttestation": SimulatedAttestation}


def register_attestation(kind: type[Any]) -> type[Any]:
    """Make an attestation known by its class's name, as a decorator: a dataclass whose settings are plain values. Every party registers it."""
    _ATTESTATIONS[kind.__name__] = kind
    return kind


def attestation_of(spec: dict[str, Any]) -> Attestation:
    """An attestation from its name and settings; see `register_attestation`.

    Raises:
        PolicyError: no attestation of that name is known here.
    """
    if spec["name"] not in _ATTESTATIONS:
        raise PolicyError(
            f"an attestation {spec['name']!r}",
            where="attestation",
            remedy=f"use one of {sorted(_ATTESTATIONS)}, or register it",
        )
    made: Attestation = _ATTESTATIONS[spec["name"]](**spec["settings"])
    return made


@task
def attest(island: Island, message: Tree) -> bytes:
    """The holder's statement about its code, for a challenge."""
    del island
    return attestation_of(message["attestation"]).quote(message["challenge"])


@task
def entrust(island: Island, message: Tree) -> None:
    """Draw a seed and seal it to the holder, once its statement is accepted."""
    agreed, holder = Agreement.of(message["agreed"]), message["holder"]
    agreed.place(island.name)
    island.bind_letters(agreed.fingerprint)
    if message["quote"] is not None:
        attestation_of(message["attestation"]).verify(message["quote"], challenge_of(agreed))
    seed = island.secret.bytes(SEED)
    island.post(holder, {"seed": seed, "agreed": agreed.fingerprint, "least": agreed.least})
    island.state = {"agreed": message["agreed"], "seed": seed}


def challenge_of(agreed: Agreement) -> bytes:
    """What the enclave's statement must be bound to: this sum."""
    return hashlib.sha256(b"atoll attestation" + agreed.fingerprint).digest()


def _mask(island: Island, agreed: Agreement, layout: WordLayout, lanes: dict[str, Any]) -> None:
    """Add the party's mask, and forget the seed."""
    context = agreed.context(island.asked, layout.fingerprint)
    add_masks(lanes, [(derived(island.state["seed"], "held", context), False)])
    electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint)
    form = np.frombuffer(M.encode(layout.form), dtype=np.uint8)
    island.state = {"form": form, **ready_to_vote(island, electorate)}


def _read_agreement(island: Island) -> Agreement:
    if island.state is None or "seed" not in island.state:
        raise PolicyError(
            "masked words without a seed", where="masked sum", remedy="look at the server: it left out a step"
        )
    return Agreement.of(island.state["agreed"])


def _masked_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """`masked` for a cohort in blocks."""
    del message
    for block in cohort.totals(least_of(cohort)):
        islands = [cohort.island(i) for i in block.positions.tolist()]
        agreed = [_read_agreement(island) for island in islands]
        made = CodedBlock.of(block, agreed[0].layout, [island.name for island in islands])
        for row, i in enumerate(made.good):
            _mask(islands[i], agreed[i], made.layout, {lane: words[row] for lane, words in made.lanes.items()})
        yield Batch(made.positions, {lane: Sum(words) for lane, words in made.lanes.items()}, errors=made.errors)


@task(many=_masked_many)
async def masked(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, by lane."""
    del message
    agreed = _read_agreement(island)
    totals = await island.totals(agreed.least)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    _mask(island, agreed, layout, lanes)
    return {lane: Sum(words) for lane, words in lanes.items()}


@task
def describe(island: Island, message: Tree) -> Tree:
    """Reply with the form of the totals, see `form_of`."""
    del message
    return M.decode(np.asarray(island.state["form"]).tobytes())


@task
def open_masks(island: Island, message: Tree) -> Tree:
    """At the holder: the sum of the masks of all whose letters are here, once.

    Args:
        island: the holder.
        message: what the masks are bound to (``context``), the word counts by lane (``lanes``), the agreement, the names of the parties in the sum (``kept``),
            and their votes.

    Raises:
        PolicyError: fewer parties than they demand, or letters of another sum.
    """
    agreed, kept = Agreement.of(message["agreed"]), list(message["kept"])
    island.bind_letters(agreed.fingerprint, entrust.name)
    letters = island.inbox
    for name, letter in letters.items():
        _require_seed(name, letter, agreed.fingerprint)
    if set(letters) != set(kept):
        raise PolicyError(
            f"the masks of {len(letters)} parties for a sum of {len(kept)}",
            where="masked sum",
            remedy="look at the server",
        )
    electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint)
    require_majority(island, electorate, kept, message["votes"])
    least = max((letter["least"] for letter in letters.values()), default=2)
    if len(letters) < max(2, least):
        raise PolicyError(
            f"the masks of {len(letters)} parties, fewer than {max(2, least)}",
            where="masked sum",
            remedy="look at the server, or invite more parties",
        )
    lanes = {lane: np.zeros(count, dtype=word_dtype(int(lane))) for lane, count in message["lanes"].items()}
    add_masks(lanes, [(derived(letter["seed"], "held", message["context"]), False) for letter in letters.values()])
    return {lane: Words.of(words, int(lane)) for lane, words in lanes.items()}


def _require_seed(name: str, letter: Any, agreed: bytes) -> None:
    """Require a letter of *entrust* for this sum.

    Raises:
        MessageError: it is none.
        PolicyError: it is for another sum.
    """
    kinds = {"seed": bytes, "agreed": bytes, "least": int}
    sound = isinstance(letter, dict) and all(isinstance(letter.get(part), kind) for part, kind in kinds.items())
    if not sound or len(letter["seed"]) != SEED:
        raise MessageError(
            f"{name} sealed a letter without a seed", where="masked sum", remedy=f"leave {name} out, and look at it"
        )
    if letter["agreed"] != agreed:
        raise PolicyError(
            f"{name} has entrusted its seed to another sum", where="masked sum", remedy="look at the server"
        )


# ------------------------------------------------------------------ secure sums with one more party that holds the seeds of all masks (Prasad et al. 2022, section 3)
#
# Secure sums with one more party that holds the seeds of all masks (Prasad et al. 2022, section 3): it sees seeds, the server sees masked words.


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
