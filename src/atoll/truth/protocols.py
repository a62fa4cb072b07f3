"""How parties add up what their workers contribute: `PlainReplies`, `Virtual`, `Additive`, `Shamir` and `Masks`.

| protocol | the server sees | connections | who may be lost |
| --- | --- | --- | --- |
| `PlainReplies` | every party's numbers | one | anybody |
| `Additive` | sums | one, in two steps | nobody between the steps |
| `Shamir` | sums | one, in two steps | all but ``threshold`` holders |
| `Masks` | sums | two | as `atoll.reducers.SecureAggregation` says |
| `Virtual` | every party's numbers: a simulation of `Shamir`, which the ledger records | none | as with `Shamir` |

A party turns its contributions into whole numbers (`SumCodec`): ``round(x 2^bits)``. The codec takes the bounds of `TruthModel.terms` and the number of workers, and finds the smallest domain in which no sum can overflow. So all
protocols but the plain one add up the same integers, and their results are equal to the bit.

With shares, a party posts one sealed letter to each *holder*. It has the shares of all tasks, and those of zeros too, so its size tells nothing; of `Shamir`, the letters of some holders have a seed from which the shares follow. The server relays the letters, and then announces whose letters it has: the *senders*.
Every holder adds up the shares of these senders, once (`Island.promise`), and sends the sum.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core import message as M
from atoll.core.errors import ConfigError, DataError, PolicyError, QuorumError
from atoll.core.event import Event, register_event
from atoll.core.exposure import Exposure
from atoll.core.requests.task import Task
from atoll.core.sealing import VirtualSealing
from atoll.core.validation import Checked
from atoll.secure.checked_sums import CheckedTerms, post_checked, sum_checked
from atoll.secure.keystream import SEED
from atoll.secure.masking import SecureAggregation
from atoll.secure.shares import (
    Field,
    WordRing,
    correct_shamir,
    expand_share,
    open_additive,
    open_packed,
    split_additive,
    split_packed,
    split_seeded,
    split_shamir,
)

from .models.model import Arrays, Term
from .planning import plan_committee
from .reporters import ReporterTest, count_rounds, unpack_tasks

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.request import Mailboxes
    from atoll.secure.shares.domain import Array, Domain

    from .reports import TaskLayout

__all__ = [
    "Additive",
    "ContributedSum",
    "Holders",
    "Masks",
    "PlainReplies",
    "Shamir",
    "SharesVirtual",
    "SumCodec",
    "SumRequest",
    "TruthProtocol",
    "Virtual",
]

SMALL_PRIME = 2**32 - 5
"""The largest prime of 32 bits: shares of 4 bytes."""

_LOOK = "look at the server: it asks for a sum that nobody agreed to"


@register_event
@dataclass(frozen=True, kw_only=True)
class SharesVirtual(Event):
    """A simulation added up contributions without sharing them (`Virtual`): nothing hid single ones. It costs no privacy budget."""

    kind: ClassVar[str] = "shares-virtual"
    free: ClassVar[bool] = True


# ------------------------------------------------------------------ numbers as whole numbers


@dataclass(frozen=True)
class SumCodec:
    """How the contributions of one step become whole numbers that add up exactly.

    A worker's entry ``|x| <= bound`` becomes ``round(x 2^bits)``. A party rounds once, after it has added up its workers. So a sum over ``workers`` at ``parties`` is at most
    ``workers bound 2^bits + parties / 2`` in size, and the domain has more than twice as many elements.

    Attributes:
        terms: the arrays of a step, see `TruthModel.terms`.
        bits: bits after the point.
        workers: all workers.
        parties: all parties.
        noise: how far noise moves a sum at most, in steps of ``2^-bits``.

    Raises:
        ConfigError: a term has no finite bound.
    """

    terms: Mapping[str, Term]
    bits: int
    workers: int
    parties: int
    noise: int = 0

    def __post_init__(self) -> None:
        for name, term in self.terms.items():
            if not math.isfinite(term.bound):
                raise ConfigError(f"{name} has no bound", where="SumCodec", remedy="let the model's terms name the largest entry that a worker can have: without one, sums overflow, and no noise hides it")  # fmt: skip

    @functools.cached_property
    def entries(self) -> int:
        """Numbers of a party in this step."""
        return sum(math.prod(term.shape) for term in self.terms.values())

    @property
    def most(self) -> int:
        """The largest size of a sum."""
        bound = max((term.bound for term in self.terms.values()), default=0.0)
        return math.ceil(self.workers * bound * 2.0**self.bits) + self.parties + self.noise

    def field(self) -> Field:
        """The smallest prime field that no sum overflows.

        Raises:
            ConfigError: there is none; names the bits that fit.
        """
        self._require(Field().order)
        return Field(SMALL_PRIME) if 2 * self.most < SMALL_PRIME else Field()

    def ring(self) -> WordRing:
        """The smallest ring of words that no sum overflows.

        Raises:
            ConfigError: there is none; names the bits that fit.
        """
        self._require(1 << 63)
        return WordRing(32) if 2 * self.most < 1 << 32 else WordRing(64)

    def _require(self, order: int) -> None:
        if 2 * self.most < order:
            return
        spare = self.bits - (2 * self.most).bit_length() + order.bit_length() - 1
        remedy = (
            f"use bits={spare} or fewer"
            if spare >= 1
            else "use a model with smaller bounds (a larger delta or floor), or fewer workers"
        )
        raise ConfigError(f"sums of {self.workers:,} workers with {self.bits} bits after the point do not fit {order.bit_length() - 1} bits", where="SumCodec", remedy=remedy)  # fmt: skip

    def encode(self, given: Arrays, workers: int) -> NDArray[np.int64]:
        """Return a party's contributions as whole numbers, ``(entries,)``.

        Args:
            given: the contributions, as the terms say.
            workers: the party's workers, by whom its entries are bounded.

        Raises:
            DataError: a contribution has another shape, is beyond its bound, or is not finite.
        """
        rows = []
        for name, term in sorted(self.terms.items()):
            value = np.asarray(given[name], dtype=np.float64)
            most = float(np.abs(value).max(initial=0.0))
            if value.shape != tuple(term.shape) or not most <= term.bound * workers * (1 + 1e-9) + 1e-300:
                raise DataError(f"{name}: an array of shape {value.shape} with entries up to {most:g}, where {workers} workers add {tuple(term.shape)} up to {term.bound * workers:g}", where="SumCodec", remedy="correct the model's terms: they bound what a worker adds")  # fmt: skip
            rows.append(np.rint(np.ravel(value) * 2.0**self.bits).astype(np.int64))
        return np.concatenate(rows)

    def flatten(self, given: Arrays) -> NDArray[np.float64]:
        """Arrays as one row, in the order of `encode`, ``(entries,)``."""
        return np.concatenate([np.ravel(given[name]) for name in sorted(self.terms)]).astype(np.float64, copy=False)

    def decode(self, numbers: NDArray[np.int64]) -> Arrays:
        """The inverse of `encode` for sums. Sums with noise are brought back to what they can be.

        Raises:
            DataError: a sum is larger than all workers together can make it.
        """
        found, at = {}, 0
        for name, term in sorted(self.terms.items()):
            size = math.prod(term.shape)
            value = numbers[at : at + size].astype(np.float64) / 2.0**self.bits
            limit = term.bound * self.workers + (self.parties + self.noise) * 2.0**-self.bits
            if float(np.abs(value).max(initial=0.0)) > limit * (1 + 1e-9):
                raise DataError(f"a sum of {name} is beyond {limit:g}", where="SumCodec", remedy="somebody added numbers beyond the range: look for the party, or leave new ones out")  # fmt: skip
            if self.noise:
                most = term.bound * self.workers
                value = np.clip(value, -most if term.signed else 0.0, most)
            found[name] = value.reshape(term.shape)
            at += size
        return found


# ------------------------------------------------------------------ the contract


@dataclass(frozen=True)
class Holders:
    """Who adds up for all.

    Attributes:
        names: the holders, in the order of their places.
        threshold: holders whose sums give the result.
    """

    names: tuple[str, ...]
    threshold: int


@dataclass(frozen=True)
class SumRequest:
    """One sum of contributions.

    Attributes:
        senders: the parties that are asked to contribute.
        there: the parties that are there for the second step.
        message: what a party needs to contribute; see `atoll.truth.parties`.
        codec: how contributions become whole numbers.
        at: the path of the sum's requests.
        holders: who adds up; empty where nobody does.
        label: names the sum; a party makes the same of what it knows (`label_sum`).
        test: which tasks have too few reporters to be shown; ``None`` if nothing is withheld.
        least: the smallest number of parties whose sum may be opened.
        tested: the ``senders`` and ``holders`` of the last sum in which it was found out, and who knows it (``by``).
    """

    senders: Parties
    there: Parties
    message: Mapping[str, Any]
    codec: SumCodec
    at: tuple[Any, ...]
    holders: Holders = Holders((), 0)
    label: str = ""
    test: ReporterTest | None = None
    least: int = 2
    tested: Mapping[str, Any] = field(default_factory=dict)


def label_sum(message: Mapping[str, Any], layout: bytes) -> str:
    """Name a sum: letters of one sum open in no other, nor among parties that were told other tasks."""
    return f"{message['number']}-{message['step']}-{message['attempt']}-{hashlib.sha256(layout).hexdigest()[:32]}"


@dataclass(frozen=True)
class ContributedSum:
    """What a sum has come to.

    Attributes:
        values: the sums, by name.
        senders: the parties whose contributions are in it.
        wrong: holders that sent other sums than they hold, or accused a sender falsely.
        cheats: parties whose shares lay on no polynomial; their contributions are not in it.
        virtual: bytes that each party would have sent and received, where nothing was sent; ``None`` where all of it was.
        withheld: the tasks with too few reporters, ``(tasks,)``: nobody opened their sums, which are 0 here; ``None`` if none are withheld.
        tested: the holders that know which these are.
    """

    values: Arrays
    senders: Parties
    wrong: tuple[str, ...] = ()
    cheats: tuple[str, ...] = ()
    virtual: Mapping[str, tuple[int, int]] | None = None
    withheld: NDArray[np.bool_] | None = None
    tested: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartyHalf:
    """The tasks of a party that protocols use.

    Attributes:
        give: replies with the contributions, or with whole numbers, for a sum.
        share: posts shares of them to the holders.
        add: adds up the shares of the senders.
        withhold: goes on with a test of how many report, see `atoll.truth.reporters`.
    """

    give: Task
    share: Task
    add: Task
    withhold: Task


@dataclass(frozen=True, kw_only=True)
class TruthProtocol(Checked):
    """Base class of protocols that add up contributions.

    Attributes:
        shares: whether holders add up shares.
        whole: whether parties give whole numbers.

    Args:
        bits: bits after the point of whole numbers. The results of 8 and more differ in confidences alone; with fewer than 24, a task on which only certain workers report may look like one without reports.
    """

    shares: ClassVar[bool] = False
    whole: ClassVar[bool] = True

    bits: int = 24

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 52:
            raise ConfigError(f"bits={self.bits}", where=type(self).__name__, remedy="use 1 to 52 bits after the point; with fewer than 24, reports of certain workers may look like silence")  # fmt: skip

    def plan_holders(self, parties: int) -> tuple[int, int]:
        """How many holders add up for so many parties, and the threshold; 0 where nobody does.

        Raises:
            ConfigError: the settings do not fit the number of parties.
        """
        del parties
        return 0, 0

    def find_test(self, codec: SumCodec, layout: TaskLayout) -> ReporterTest | None:
        """Which tasks are withheld in a sum; ``None`` if all are shown."""
        del codec, layout
        return None

    def domain(self, codec: SumCodec) -> Domain:
        """Where shares live."""
        return codec.field()

    def count_seeds(self, threshold: int) -> int:
        """How many holders get a seed in place of shares."""
        del threshold
        return 0

    def count_letter(self, entries: int) -> int:
        """Shares of a letter, of so many numbers."""
        return entries

    def count_share_bytes(self, codec: SumCodec, parties: int) -> int:
        """Bytes of the shares that a party sends in a step, without envelopes; of its numbers, where nobody holds shares."""
        holders, threshold = self.plan_holders(parties)
        seeds = self.count_seeds(threshold)
        word = 4 if self.whole and self.domain(codec).bits <= 32 else 8
        return SEED * seeds + word * self.count_letter(codec.entries) * max(holders - seeds, 1)

    async def add_up(self, fed: Federation, half: PartyHalf, asked: SumRequest) -> ContributedSum:
        """Add up the contributions of one step."""
        raise NotImplementedError

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who learns what, assuming what."""
        raise NotImplementedError

    def require_parties(self, parties: int, *, live: bool) -> None:
        """Refuse a number of parties that the protocol cannot serve.

        Raises:
            ConfigError: says why.
        """
        del live
        if parties < 2 and self.whole:
            raise ConfigError(f"{parties} party", where=type(self).__name__, remedy="give two or more: the sum of one is its own contribution")  # fmt: skip
        self.plan_holders(parties)


@dataclass(frozen=True, kw_only=True)
class PlainReplies(TruthProtocol):
    """Parties send what they contribute as it is, in floating point: the oracle of the others. The server sees all of it."""

    whole: ClassVar[bool] = False

    async def add_up(self, fed: Federation, half: PartyHalf, asked: SumRequest) -> ContributedSum:
        """One plain sum."""
        found = await fed.sum(asked.senders, half.give, dict(asked.message), at=asked.at)
        return ContributedSum(
            {name: np.asarray(found[name], dtype=np.float64) for name in asked.codec.terms}, found.senders
        )

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Nothing is hidden."""
        return (Exposure("server", "what each party adds to each task: which tasks it reports on, and from that its reports and how reliable its workers are", "nothing hides it: use Shamir()"),)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Masks(TruthProtocol):
    """Double masks (Bonawitz et al. 2017), which other federations use: the same sums in two connections, since masks of lost parties must be opened afterwards.

    Args:
        threshold: share or number of the parties that open the masks of others; by default just above half of them, and above two thirds against an active server.
        server: ``"honest"`` or ``"active"``; by default active between organisations.
    """

    threshold: float | None = None
    server: Literal["honest", "active"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reducer()

    def _reducer(self, least: int = 2) -> SecureAggregation:
        threshold = None if self.threshold is None else _whole_or_share(self.threshold)
        return SecureAggregation(threshold=threshold, server=self.server, least=least)

    def require_parties(self, parties: int, *, live: bool) -> None:
        """Refuse a threshold that so many parties or an active server break."""
        super().require_parties(parties, live=live)
        self._reducer().holders(parties, active=self.server == "active" or (live and self.server is None))

    async def add_up(self, fed: Federation, half: PartyHalf, asked: SumRequest) -> ContributedSum:
        """One masked sum."""
        asked.codec.ring()
        found = await fed.sum(
            asked.senders,
            half.give,
            dict(asked.message),
            reducer=self._reducer(asked.least),
            quorum=asked.least,
            at=asked.at,
        )
        return ContributedSum(asked.codec.decode(np.asarray(found["words"], dtype=np.int64)), found.senders)

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """What masked sums show."""
        return (*self._reducer().exposures(parties), _sums_seen())


def _whole_or_share(threshold: float) -> float | int:
    return int(threshold) if threshold > 1 else float(threshold)


def _sums_seen() -> Exposure:
    return Exposure("server", "the sum of all contributions to each task, in each iteration", "a task on which one worker alone reports shows what this worker adds: how reliable it is, and what it said")  # fmt: skip


# ------------------------------------------------------------------ shares


@dataclass(frozen=True, kw_only=True)
class Additive(TruthProtocol):
    """Shares that add up: every party holds one of each other party's, so everybody must be there until the sum is known (FedTruthFinder, section 4.2).

    Fewer than all parties learn nothing, even together with the server. The fastest way for parties that are always there.
    """

    shares: ClassVar[bool] = True

    def plan_holders(self, parties: int) -> tuple[int, int]:
        """All parties, all of whom are needed."""
        return parties, parties

    def domain(self, codec: SumCodec) -> Domain:
        """Words of 32 or 64 bits."""
        return codec.ring()

    def split(
        self, numbers: Array, holders: int, threshold: int, domain: Domain, secret: Any
    ) -> Sequence[bytes | Array]:
        """Return the shares of each holder, or the seed from which they follow."""
        del threshold
        return split_additive(numbers, holders, domain, secret)

    def open(
        self, fed: Federation, sums: Mapping[int, Array], holders: Holders, domain: Domain, at: Any
    ) -> tuple[Array, tuple[int, ...]]:
        """Return the sum, and the places of holders whose sums are wrong."""
        del fed, holders, at
        return open_additive([sums[place] for place in sorted(sums)], domain), ()

    async def add_up(self, fed: Federation, half: PartyHalf, asked: SumRequest) -> ContributedSum:
        """Let the senders share, announce who they are, and open the sum of what the holders add up."""
        holders, message = asked.holders, {**asked.message, "holders": list(asked.holders.names)}
        least = max(asked.least, holders.threshold if self.shares_need_all else 2)
        try:
            given = await fed.exchange(asked.senders, half.share, message, quorum=least, at=(*asked.at, "share"))
        except QuorumError as error:
            if not self.shares_need_all:
                raise
            raise QuorumError(f"not all of {len(asked.senders)} parties shared what they contribute to {message['step']}: {error.what}", where="Additive", remedy="use Shamir(), which bears losses") from error  # fmt: skip
        names = sorted(given.senders.names)
        told = _announcement(asked, names)
        here = set(asked.there.names)
        adding = asked.there.named(*(name for name in holders.names if name in here))
        if len(adding) < holders.threshold:
            raise self._too_few(len(adding), holders, asked)
        mail = given.mail.only_from(set(names))
        try:
            if asked.test is not None:
                replies = await self._test_and_add(fed, half, asked, asked.test, adding, told, mail)
            else:
                sums = await fed.exchange(adding, half.add, told, mail=mail, quorum=holders.threshold, at=(*asked.at, "add"))  # fmt: skip
                replies = sums.by_name()
        except QuorumError as error:
            raise self._too_few(0, holders, asked, str(error)) from error
        domain, entries, withheld, shown = self.domain(asked.codec), self.count_letter(asked.codec.entries), None, None
        if asked.test is not None:
            replies, withheld = _split_tested(replies, asked.test)
            shown = asked.test.find_open(withheld)
            entries = int(np.count_nonzero(shown))
        fit, wrong = _fitting(replies, entries, domain)
        if len(fit) < holders.threshold:
            raise self._too_few(len(fit), holders, asked)
        places = {name: place for place, name in enumerate(holders.names)}
        rows = {places[name]: row for name, row in fit.items()}
        numbers, off = self.open(fed, rows, holders, domain, asked.at) if entries else (np.zeros(0, np.uint64), ())
        blamed = tuple(sorted([*wrong, *(holders.names[place] for place in off)]))
        signed = domain.signed(numbers[: asked.codec.entries])
        if shown is not None:
            whole = np.zeros(asked.codec.entries, dtype=np.int64)
            whole[shown] = signed
            signed = whole
        return ContributedSum(
            asked.codec.decode(signed), given.senders, blamed, withheld=withheld, tested=tuple(sorted(fit))
        )

    async def _test_and_add(self, fed: Federation, half: PartyHalf, asked: SumRequest, test: ReporterTest, adding: Parties, told: Mapping[str, Any], mail: Mailboxes) -> Mapping[str, Any]:  # fmt: skip
        """Let the holders find out which tasks have enough reporters, and send the sums of those. Holders that know it from an earlier sum of the same senders send them at once.

        Raises:
            QuorumError: too few holders are left.
        """
        needed = 2 * asked.holders.threshold - 1
        known = asked.tested
        same = known and (list(known["senders"]), list(known["holders"])) == (told["senders"], told["holders"])
        by = set(known["by"]) if same else set[str]()
        knowing = [name for name in adding.names if name in by]
        if len(knowing) >= asked.holders.threshold:
            at = (*asked.at, "add")
            found = await fed.exchange(adding.named(*knowing), half.add, {**told, "known": True}, mail=mail, quorum=asked.holders.threshold, at=at)  # fmt: skip
            return found.by_name()
        got = await fed.exchange(adding, half.add, {**told, "known": False}, mail=mail, quorum=needed, at=(*asked.at, "add"))  # fmt: skip
        for number in range(1, count_rounds(test.least) + 1):
            there = sorted(got.senders.names)
            message = {**told, "round": number, "from": there}
            got = await fed.exchange(got.senders, half.withhold, message, mail=got.mail.only_from(set(there)), quorum=needed, at=(*asked.at, "withhold", number))  # fmt: skip
        return got.by_name()

    @property
    def shares_need_all(self) -> bool:
        """Whether one lost holder ends the sum."""
        return type(self) is Additive

    def _too_few(self, there: int, holders: Holders, asked: SumRequest, why: str = "") -> QuorumError:
        said = f"{there} of {len(holders.names)} holders" if not why else f"too few of {len(holders.names)} holders"
        needed = holders.threshold + (isinstance(self, Shamir) and self.checks)
        if asked.test is not None:
            needed = 2 * holders.threshold - 1
        remedy = (
            "use Shamir(), which bears losses"
            if self.shares_need_all
            else "use a lower threshold, a larger committee, or invite more parties"
        )
        return QuorumError(f"{said} sent their sums of {asked.message['step']} in iteration {asked.message['iteration']}, and {needed} are needed{': ' + why if why else ''}", where=type(self).__name__, remedy=remedy)  # fmt: skip

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Sums alone."""
        return (
            _sums_seen(),
            Exposure(
                "all but one of the other parties, with the server", "nothing but the sums", "all follow the protocol"
            ),
        )


def _announcement(asked: SumRequest, senders: Sequence[str]) -> dict[str, Any]:
    """What holders are told: whose shares they add up."""
    known = {name: asked.message[name] for name in ("number", "step", "attempt")}
    return {**known, "senders": list(senders), "holders": list(asked.holders.names)}


def _fitting(replies: Mapping[str, Any], entries: int, domain: Domain) -> tuple[dict[str, Array], list[str]]:
    """The replies that are arrays of the domain's elements, and who sent something else."""
    fit, wrong = {}, list[str]()
    for name, row in replies.items():
        if domain.are_elements(row, (entries,), packed=True):
            fit[name] = row.astype(np.uint64)
        else:
            wrong.append(name)
    return fit, wrong


def _split_tested(replies: Mapping[str, Any], test: ReporterTest) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """The sums of holders, and the tasks that most of them withhold. A holder that says something else has nothing that fits."""
    told = {
        name: reply["withheld"].tobytes()
        for name, reply in replies.items()
        if isinstance(reply, Mapping) and unpack_tasks(reply.get("withheld"), test.tasks) is not None
    }
    if not told:
        return dict.fromkeys(replies), np.ones(test.tasks, dtype=bool)
    most, _ = Counter(told.values()).most_common(1)[0]
    rows = {name: reply.get("sums") if told.get(name) == most else None for name, reply in replies.items()}
    return rows, np.unpackbits(np.frombuffer(most, dtype=np.uint8), count=test.tasks).astype(bool)


@dataclass(frozen=True, kw_only=True)
class Shamir(Additive):
    """Shamir's shares: ``threshold`` holders give the sum, so all others may be lost in every iteration, at any step (FedTruthFinder, section 4.3).

    Fewer than ``threshold`` colluding holders learn nothing. Contributions of a party that is lost after it has shared still count. Of ``m`` holders that answer, up to ``(m - threshold) / 2`` may send wrong sums: they are corrected,
    and named.

    Without ``checks``, a party may post shares that lie on no polynomial, so that each set of holders opens another sum: nobody can then say who cheats. With them (`atoll.secure.sum_checked`) all holders check each party's shares
    by a public lot before they add up. Whoever cheats is named, and is left out from then on. This takes four more exchanges with the holders in each sum, and two to four times the work.

    A server that lies may announce different senders to different holders; the difference of two sums is one party's contribution. Every holder adds up once, so this needs ``threshold`` holders for each set. With
    ``c`` colluding holders it cannot be if ``2 threshold > holders + c``.

    Args:
        threshold: share or number of the holders whose sums give the result, at least 2 of them. A small one bears more loss, a large one more colluders.
        committee: how many parties hold shares, drawn by a public lot that nobody can choose. 0 means all: then traffic grows with the square of the parties. ``"auto"`` plans size and threshold from ``loss`` and
            ``colluders`` (`plan_committee`); where no committee is smaller than all parties, all hold shares.
        loss: expected share of holders that are lost, for ``"auto"``.
        colluders: share of the parties that may pool what they see, for ``"auto"``.
        seeds: whether the shares of ``threshold - 1`` holders follow from seeds, so that their letters are small (`atoll.secure.shares.split_seeded`). Without seeds, shares hide contributions whatever the colluders can
            compute; the letters that carry them do not.
        checks: whether shares that lie on no polynomial are found before anything is added up; it needs seeds, and one holder more than the threshold.
        min_reporters: workers that must report on a task, or its sums are shown to nobody, in each sum anew: whoever is lost does not count. 0 shows all. The holders multiply on shares, so that they learn whether there are enough and not how many
            (`atoll.truth.reporters`); it takes ``2 threshold - 1`` holders that are there.
        pack: numbers of a party that share a polynomial (`atoll.secure.shares.split_packed`): letters and sums are shorter by this factor. ``threshold`` holders still give the result, and of these ``threshold - pack`` learn nothing together, in
            place of ``threshold - 1``.
    """

    threshold: float = 0.5
    committee: int | str = 0
    loss: float = 0.05
    colluders: float = 0.1
    seeds: bool = True
    checks: bool = False
    min_reporters: int = 0
    pack: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (isinstance(self.committee, str) and self.committee != "auto") or (isinstance(self.committee, int) and (self.committee < 0 or self.committee == 1)):  # fmt: skip
            raise ConfigError(f"committee={self.committee!r}", where="Shamir", remedy='use "auto", 0 for all parties, or 2 and more members')  # fmt: skip
        if not (0 < self.threshold <= 1 or (self.threshold >= 2 and self.threshold == int(self.threshold))):
            raise ConfigError(f"threshold={self.threshold}", where="Shamir", remedy="use a share of the holders above 0 and up to 1, or a whole number of at least 2")  # fmt: skip
        if self.checks and not self.seeds:
            raise ConfigError("checks=True without seeds", where="Shamir", remedy="leave seeds=False out: checked shares follow from seeds")  # fmt: skip
        if self.min_reporters < 0 or self.min_reporters == 1:
            raise ConfigError(f"min_reporters={self.min_reporters}", where="Shamir", remedy="use 2 workers or more, or 0 to show all sums")  # fmt: skip
        if self.min_reporters and self.checks:
            raise ConfigError(f"min_reporters={self.min_reporters} with checks", where="Shamir", remedy="leave checks out: checked sums are opened whole")  # fmt: skip
        if self.pack < 1 or (self.pack > 1 and (self.checks or self.min_reporters)):
            raise ConfigError(f"pack={self.pack}{' with checks' if self.checks else ' with min_reporters' if self.min_reporters else ''}", where="Shamir", remedy="use 1 number of a polynomial or more, and pack=1 with checks or min_reporters")  # fmt: skip
        for name in ("loss", "colluders"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}", where="Shamir", remedy="use a share from 0 to below 1")  # fmt: skip

    def plan_holders(self, parties: int) -> tuple[int, int]:
        """All parties, or a committee, and the threshold."""
        if self.committee == "auto":
            made = self._planned(parties)
            if made is not None:
                return made
        size = self.committee if isinstance(self.committee, int) and self.committee else parties
        if size > parties:
            raise ConfigError(f"committee={size} of {parties} parties", where="Shamir", remedy=f"use 2 to {parties} members, or 0 for all")  # fmt: skip
        threshold = int(self.threshold) if self.threshold > 1 else max(2, math.ceil(self.threshold * size - 1e-9))
        most = size - 1 if self.checks else (size + 1) // 2 if self.min_reporters else size
        if threshold > most:
            why = (
                " with checks, which need one holder more"
                if self.checks
                else f" with min_reporters, which needs {2 * threshold - 1}"
                if self.min_reporters
                else ""
            )
            raise ConfigError(f"threshold={threshold} of {size} holders{why}", where="Shamir", remedy=f"use a threshold of 2 to {most}, or a share of the holders" if most > 1 else f"use more holders, or leave {'checks' if self.checks else 'min_reporters'} out")  # fmt: skip
        if threshold <= self.pack > 1:
            raise ConfigError(f"pack={self.pack} with threshold={threshold}", where="Shamir", remedy=f"use a threshold of {self.pack + 1} or more, or pack fewer numbers: holders below threshold - pack + 1 learn nothing, and one alone must not")  # fmt: skip
        return size, threshold

    def _planned(self, parties: int) -> tuple[int, int] | None:
        """A committee smaller than all parties, if one keeps secrets and recovers."""
        try:
            made = plan_committee(parties, self.loss, self.colluders, bool(self.min_reporters), self.pack)
        except ConfigError:
            return None
        return (made.members, made.threshold) if made.members < parties else None

    @property
    def draws(self) -> bool:
        """Whether a lot may draw the holders."""
        return self.committee != 0

    def find_test(self, codec: SumCodec, layout: TaskLayout) -> ReporterTest | None:
        """The test of ``min_reporters``."""
        return ReporterTest.of(self.min_reporters, codec.terms, layout) if self.min_reporters else None

    def domain(self, codec: SumCodec) -> Domain:
        """A prime field."""
        return codec.field()

    def count_seeds(self, threshold: int) -> int:
        """As many as learn nothing together."""
        return threshold - self.pack if self.seeds else 0

    def count_letter(self, entries: int) -> int:
        """Shares stand for several numbers."""
        return -(-entries // self.pack)

    def split(
        self, numbers: Array, holders: int, threshold: int, domain: Domain, secret: Any
    ) -> Sequence[bytes | Array]:
        """Return the shares of each holder, or the seed from which they follow."""
        if self.pack > 1:
            privacy = threshold - self.pack + 1
            return split_packed(numbers, holders, privacy, self.pack, _as_field(domain), secret, seeds=self.seeds)
        if self.seeds:
            return split_seeded(numbers, holders, threshold, _as_field(domain), secret)
        return split_shamir(numbers, holders, threshold, _as_field(domain), secret)

    async def add_up(self, fed: Federation, half: PartyHalf, asked: SumRequest) -> ContributedSum:
        """As additive shares do, or with checks of who cheats."""
        if not self.checks:
            return await super().add_up(fed, half, asked)
        holders, here = asked.holders, set(asked.there.names)
        there = [name for name in holders.names if name in here]
        if len(there) <= holders.threshold:
            raise self._too_few(len(there), holders, asked)
        try:
            found = await sum_checked(
                fed,
                asked.senders,
                values=asked.codec.entries,
                threshold=holders.threshold,
                at=asked.label,
                holders=asked.there.named(*holders.names),
                there=asked.there.named(*there),
                share=half.share,
                message={**asked.message, "holders": list(holders.names)},
                field=_as_field(self.domain(asked.codec)),
            )
        except QuorumError as error:
            raise self._too_few(0, holders, asked, str(error)) from error
        senders = asked.senders.named(*found.senders)
        return ContributedSum(asked.codec.decode(found.values), senders, found.liars, found.cheats)

    def open(
        self, fed: Federation, sums: Mapping[int, Array], holders: Holders, domain: Domain, at: Any
    ) -> tuple[Array, tuple[int, ...]]:
        """Return the sum, and the places of holders whose sums are wrong.

        Raises:
            DataError: more sums are wrong than can be corrected.
        """
        try:
            found = correct_shamir(sums, holders.threshold, _as_field(domain), fed.secret("decoding", *map(str, at)))
        except DataError as error:
            who = ", ".join(holders.names[place] for place in sorted(sums))
            raise DataError(f"wrong sums among those of {who}: {error.what}", where="Shamir", remedy="use a lower threshold or more holders: m sums correct (m - threshold) / 2 wrong ones") from error  # fmt: skip
        if self.pack == 1:
            return found.values, found.wrong
        right = {place: row for place, row in sums.items() if place not in found.wrong}
        count = self.pack * len(found.values)
        return open_packed(right, holders.threshold - self.pack + 1, self.pack, count, _as_field(domain)), found.wrong

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Sums, and what holders could learn together."""
        sums = (Exposure("server", f"the sum of all contributions to each task on which {self.min_reporters} workers or more report, in each iteration; and which tasks these are", "a site that has all workers of a task shows what they add together"), Exposure("every holder", f"which tasks {self.min_reporters} workers or more report on, in each iteration", "nothing hides it; how many report stays hidden")) if self.min_reporters else (_sums_seen(),)  # fmt: skip
        holders, threshold = self.plan_holders(max(parties, 2))
        safe = threshold - self.pack
        lies = f"the server follows the protocol, or fewer than {2 * threshold - holders} holders collude with it" if 2 * threshold > holders else "the server follows the protocol: with a threshold above one half it may lie"  # fmt: skip
        return (
            *sums,
            Exposure(
                f"up to {safe} of the {holders} holders, together with the server",
                "nothing but the sums",
                lies,
            ),
            Exposure(
                f"{safe + 1} holders that pool their letters",
                "every party's contributions"
                if self.pack == 1
                else f"something of every party's contributions, and {threshold} all of them",
                "fewer collude: a higher threshold bears more colluders and less loss",
            ),
        )


def _as_field(domain: Domain) -> Field:
    if not isinstance(domain, Field):
        raise ConfigError(f"shares over {domain.title}", where="Shamir", remedy="use a prime field: Field()")
    return domain


# ------------------------------------------------------------------ shares by arithmetic


@dataclass(frozen=True, kw_only=True)
class Virtual(TruthProtocol):
    """A simulation of `Shamir`: the same whole numbers, losses and bytes by arithmetic, but nothing is shared or sealed. The ledger records it.

    For campaigns of thousands of workers, whose letters would fill memory.

    Args:
        of: the shares that are left out.
    """

    of: Shamir = field(default_factory=Shamir)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of.checks:
            raise ConfigError("checks of shares that nobody makes", where="Virtual", remedy="leave checks out, or simulate Shamir(checks=True) itself")  # fmt: skip
        if self.of.min_reporters:
            raise ConfigError("tests of shares that nobody makes", where="Virtual", remedy="leave min_reporters out, or simulate Shamir(min_reporters=2) itself")  # fmt: skip

    def plan_holders(self, parties: int) -> tuple[int, int]:
        """Those of the shares."""
        return self.of.plan_holders(parties)

    def require_parties(self, parties: int, *, live: bool) -> None:
        """Refuse real parties: they must share."""
        super().require_parties(parties, live=live)
        if live:
            raise ConfigError("Virtual between organisations: nothing would hide what parties contribute", where="Virtual", remedy="use Shamir()")  # fmt: skip

    async def add_up(self, fed: Federation, half: PartyHalf, asked: SumRequest) -> ContributedSum:
        """A sum of the whole numbers."""
        fed.world.note(SharesVirtual)
        domain = asked.codec.field()
        found = await fed.sum(asked.senders, half.give, dict(asked.message), quorum=asked.least, at=asked.at)
        there = set(asked.there.names)
        left = sum(name in there for name in asked.holders.names)
        if left < asked.holders.threshold:
            raise self.of._too_few(left, asked.holders, asked)
        values = asked.codec.decode(np.asarray(found["words"], dtype=np.int64))
        path = f"{fed.slot}/{half.share.name}/@{'/'.join(map(str, asked.at))}/share"
        sent = _count_virtual(asked, sorted(found.senders.names), there, domain, path, self.of)  # fmt: skip
        return ContributedSum(values, found.senders, virtual=sent)

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Nothing is hidden."""
        return (Exposure("server", "what each party contributes to each task", "this is a simulation without letters: use Shamir() where parties are real"),)  # fmt: skip


def _count_virtual(
    asked: SumRequest, senders: Sequence[str], there: Collection[str], domain: Domain, path: str, of: Shamir
) -> dict[str, tuple[int, int]]:
    """Bytes that each party would have sent and received: the request with its reply and letters, and at holders the letters that they would get, with their own sums."""
    holders, seeds = asked.holders.names, of.count_seeds(asked.holders.threshold)
    row = domain.narrow(np.zeros(of.count_letter(asked.codec.entries), np.uint64))
    message = M.nbytes({**asked.message, "holders": list(holders)})
    told, reply = M.nbytes(_announcement(asked, senders)), M.nbytes(row)
    sizes = {name: len(name.encode()) for name in (*senders, *holders)}
    up, down = dict.fromkeys(senders, M.nbytes(None)), dict.fromkeys(senders, message)
    for place, holder in enumerate(holders):
        entries = 0 if place < seeds else row.size
        got = [_letter_bytes(len(path.encode()), sizes[name] + sizes[holder], place.bit_length() // 8, entries, row.itemsize) for name in senders]  # fmt: skip
        for name, nbytes in zip(senders, got, strict=True):
            up[name] += nbytes
        if holder in there:
            up[holder] = up.get(holder, 0) + reply
            down[holder] = down.get(holder, 0) + told + sum(got)
    return {name: (up.get(name, 0), down.get(name, 0)) for name in {*up, *down}}


@functools.lru_cache(maxsize=4096)
def _letter_bytes(path: int, names: int, number: int, entries: int, width: int) -> int:
    """Bytes of one letter between names of together so many bytes, whose number is so many bytes longer than a small one; without entries it holds a seed."""
    kind: Any = np.uint64 if width == 8 else np.uint32
    content: Any = {"share": np.zeros(entries, kind)} if entries else {"seed": bytes(SEED)}
    sealed = VirtualSealing().seal("x" * (names // 2), "x" * (names - names // 2), "x" * path, 1 << (8 * number - 1) if number else 0, content, bytes)  # fmt: skip
    return int(sealed.nbytes)


# ------------------------------------------------------------------ the party's half of shares


def post_shares(island: Any, protocol: Additive, numbers: NDArray[np.int64], holders: Holders, domain: Domain) -> None:
    """Split a party's whole numbers, and post one letter to each holder."""
    shares = protocol.split(domain.of(numbers), len(holders.names), holders.threshold, domain, island.secret)
    for name, share in zip(holders.names, shares, strict=True):
        island.post(name, {"seed": share} if isinstance(share, bytes) else {"share": domain.narrow(share)})


def post_checked_shares(
    island: Any, numbers: NDArray[np.int64], message: Mapping[str, Any], holders: Holders, domain: Domain, label: str
) -> bytes:
    """Post shares that holders can check, and return what the party commits to.

    Raises:
        PolicyError: the server asks for a sum among other holders, or for another one than its message says.
    """
    terms = CheckedTerms.of(message.get("terms"))
    terms.require(holders.names, holders.threshold, len(numbers), _as_field(domain), label)
    return post_checked(island, numbers, message)


def add_letters(
    island: Any, senders: Sequence[str], least: int, entries: int, domain: Domain, label: str
) -> NDArray[Any]:
    """Add up the shares of the senders that the server has announced, once.

    Args:
        island: the holder.
        senders: names of the senders.
        least: the smallest number of senders that anybody may see a sum of.
        entries: numbers of a letter.
        domain: where shares live.
        label: names the sum.

    Raises:
        PolicyError: there are too few senders, a letter is missing, or the server announced others before.
        LetterError: a letter was altered, or written for another holder or sum.
        DataError: a letter has no shares.
    """
    if len(set(senders)) < max(2, least):
        raise PolicyError(f"a sum of {len(set(senders))} parties, fewer than {max(2, least)}", where=label, remedy=_LOOK)  # fmt: skip
    letters = island.letters
    absent = sorted(set(senders) - set(letters))
    if absent or set(letters) - set(senders):
        who = absent[0] if absent else sorted(set(letters) - set(senders))[0]
        raise PolicyError(f"the server announced {len(set(senders))} senders and delivered {len(letters)} letters: {who} differs", where=label, remedy=_LOOK)  # fmt: skip
    island.promise(f"senders of {label}", hashlib.sha256(M.encode(sorted(set(senders)))).digest())
    total = np.zeros(entries, dtype=np.uint64)
    for name, letter in island.inbox.items():
        row = _read_share(letter, entries, domain)
        if row is None:
            raise DataError(f"{name} sent no shares of {entries} numbers", where=label, remedy=f"leave {name} out, and look at it")  # fmt: skip
        total = domain.add(total, row)
    return domain.narrow(total)


def _read_share(letter: Any, entries: int, domain: Domain) -> Array | None:
    """The shares in a letter, or those that follow from its seed; ``None`` if it has neither."""
    if not isinstance(letter, Mapping):
        return None
    seed, row = letter.get("seed"), letter.get("share")
    if isinstance(seed, bytes) and len(seed) == SEED and isinstance(domain, Field):
        return expand_share(seed, entries, domain)
    if isinstance(row, np.ndarray) and domain.are_elements(row, (entries,), packed=True):
        return row.astype(np.uint64)
    return None
