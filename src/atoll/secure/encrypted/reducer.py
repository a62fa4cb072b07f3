"""Encrypted sums: the server adds up ciphertexts that it cannot open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.requests.request import Reduced
from atoll.core.validation import Checked

from ..ballot import collect_votes, hash_set
from ..words import FixedPoint, WordSums, require_threshold
from .agreement import EncryptedAgreement, Lane, scheme_named, words_of
from .bfv import BFV
from .paillier import Paillier
from .party_steps import (
    GatheredCiphertexts,
    answer_sum,
    deal_keys,
    encrypt_totals,
    make_keys,
    open_sum,
    threshold_of,
    vote_on_sum,
)
from .scheme import Scheme

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Exchanged, Terms
    from atoll.core.requests.task import Task

__all__ = ["DEALER", "HOLDER", "Encrypted"]

HOLDER, DEALER = "key-holder", "dealer"
_WIDE = 64
"""Bits of a word of numbers whose range is not known."""


@dataclass(frozen=True)
class Encrypted(Checked, WordSums):
    """Sums of encrypted totals: exact, with weights and metrics, whichever parties drop out and when.

    ===============  ==================================================================================================================
    ``keys``         who can open what
    ===============  ==================================================================================================================
    ``"holder"``     A helper with the role ``key-holder``, of another organisation than the server's, makes keys for each sum. It opens
                     the sum, and sees it. It opens one sum of the parties that it was told of, each once and unaltered: see
                     `atoll.secure.encrypted.agreement`. If the holder and the server collude, they see every party's numbers.
    ``"threshold"``  A helper with the role ``dealer`` makes a key for each sum and deals shares to the parties; then its work is over. Any
                     ``threshold`` of them open the sum together, and only the server sees it. Paillier only. If ``threshold`` parties collude
                     with the server, or the dealer does, they see every party's numbers.
    ===============  ==================================================================================================================

    The maker of a key tells its hash to the parties in sealed letters, so that a server cannot send a key of its own. Between organisations those letters go to
    the keys that kits have signed: ``atoll provision --revoke`` shuts a party out of the next sum, and no key outlives a sum.

    Sums equal the fixed-point plain sum to the bit, modulo ``2^p``, with every scheme; see `FixedPoint`.

    Attributes:
        scheme: ``"bfv"``, ``"ckks"``, ``"paillier"`` or ``"batchcrypt"``, or a scheme with settings, such as ``Paillier(key_bits=3072)``. ``"bfv"`` takes the plaintext that
            fits the codec.
        keys: who decrypts.
        threshold: with ``keys="threshold"``, how many parties decrypt together: a number, or a share of the cohort; by default just above half of it.
        server: what is assumed of it, with ``keys="threshold"``: ``"honest"``, or ``"active"``: then each party gets all ciphertexts, compares them with what their
            owners say that they sent, and adds them up itself. By default honest in a simulation and active between organisations.
        least: smallest number of parties in a sum.
        codec: how numbers become words.

    Raises:
        ConfigError: a setting makes no sense.
    """

    scheme: str | Scheme = "bfv"
    keys: str = "holder"
    threshold: float | int | None = None
    server: str | None = None
    least: int = 2
    codec: FixedPoint = field(default_factory=FixedPoint)

    def __post_init__(self) -> None:
        own = scheme_named(self.scheme)
        if self.keys not in ("holder", "threshold"):
            raise ConfigError(f"keys={self.keys!r}", where="Encrypted", remedy='use "holder" or "threshold"')
        if self.keys == "threshold" and type(own) is not Paillier:
            raise ConfigError(
                f"keys='threshold' with scheme={own.name!r}",
                where="Encrypted",
                remedy="use scheme='paillier', or keys='holder'",
            )
        if self.threshold is not None and self.keys == "holder":
            raise ConfigError(
                f"threshold={self.threshold} with keys={self.keys!r}",
                where="Encrypted",
                remedy="use keys='threshold'",
            )
        require_threshold(self.threshold, "Encrypted")
        if self.server not in (None, "honest", "active"):
            raise ConfigError(f"server={self.server!r}", where="Encrypted", remedy='use "honest" or "active"')
        self.require_least()

    @property
    def others(self) -> Mapping[str, str]:  # type: ignore[override]
        """The key holder, or the dealer."""
        return {HOLDER: HOLDER} if self.keys == "holder" else {DEALER: DEALER}

    @property
    def made(self) -> Scheme:
        """The scheme."""
        return scheme_named(self.scheme)

    def _threshold(self, parties: int) -> int:
        if self.keys == "holder":
            return 0
        given = self.threshold
        if given is None:
            return parties // 2 + 1
        return max(2, math.ceil(given * parties - 1e-9)) if isinstance(given, float) and given <= 1 else int(given)

    def fewest(self, parties: int) -> tuple[int, str]:
        """The threshold, or the least sum."""
        count = max(self.least, self._threshold(parties))
        return count, str(count)

    def require_libraries(self) -> None:
        """That of the scheme."""
        self.made.require()

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts, terms and numbers that the scheme cannot add up; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            MissingExtraError: the scheme's library is not installed.
            QuorumError: the cohort is too small.
        """
        super().check(uplink, parties, terms, task)
        agreed = self._agreement(tuple(parties.names), uplink, terms)
        agreed.scheme.check(agreed.form(agreed.lanes(agreed.layout([["x", "mean", "update", "<f8()"]]))))

    def _agreement(
        self, names: tuple[str, ...], uplink: Chain, terms: Terms, active: bool = False
    ) -> EncryptedAgreement:
        least, threshold = max(self.least, terms.quorum), self._threshold(len(names))
        signs = not uplink.summand_stages
        scheme, known = self.made, self.codec.range_of(uplink.bound)
        if self.scheme == "bfv" and known is not None:
            scheme = BFV.fitting(self.codec.narrow("mean", len(names), known)[0])
        return EncryptedAgreement(names, scheme, least, threshold, self.codec, uplink.bound, signs, active)

    # ------------------------------------------------------------------ the protocol

    def sealed_bits(self, bits: int, parties: int, numbers: int, *, wraps: bool = False) -> int:
        """Bits of the ciphertexts of so many words."""
        scheme = BFV.fitting(bits) if self.scheme == "bfv" and not wraps and bits < _WIDE else self.made
        form = Lane(str(bits), bits, numbers, parties, wraps, scheme.most(parties)).form
        return 8 * scheme.sealed_bytes(form)

    def exposures(self, parties: int) -> tuple[Exposure, ...]:
        """Who sees what of the replies of a cohort."""
        nothing = Exposure("other clients", "nothing of a reply")
        if self.keys == "holder":
            apart = "it does not put what it has together with the {}"
            return (
                Exposure(
                    "server", f"the sum of the replies of {self.least} clients or more", apart.format("key holder")
                ),
                Exposure(HOLDER, "that sum, and no single reply", apart.format("server")),
                nothing,
            )
        threshold = self._threshold(parties)
        few = f"fewer than {threshold} of {parties} clients put their shares of the key together with it, and the dealer forgets the key"
        return (
            Exposure("server", f"the sum of the replies of {max(self.least, threshold)} clients or more", few),
            Exposure(DEALER, "nothing of a reply", "it does not see ciphertexts"),
            nothing,
        )

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Let keys be made, add up what the parties encrypt, and let the sum be opened."""
        active = (self.server or ("active" if reduction.between else "honest")) == "active"
        if reduction.between and self.keys == "threshold" and not active:
            raise CompositionError(
                "server='honest' between organisations", where="Encrypted", remedy="leave server out"
            )
        agreed = self._agreement(tuple(reduction.parties.names), reduction.request.uplink, reduction.terms, active)
        maker, half = (DEALER, deal_keys) if agreed.threshold else (HOLDER, make_keys)
        first = await _asked(reduction, maker, half, agreed.message())
        public = first.values[0]
        told = {"agreed": agreed.message(), "public": public}
        second = await reduction.exchange(
            reduction.parties,
            encrypt_totals,
            told,
            mail=first.mail,
            wraps=True,
            quorum=max(agreed.least, agreed.threshold),
        )
        replies = GatheredCiphertexts(agreed, public, second)
        if len(replies.kept) < max(agreed.least, agreed.threshold):
            raise QuorumError(
                f"{len(replies.kept)} usable ciphertexts, fewer than {max(agreed.least, agreed.threshold)}"
                + "".join(f"; {name}: {error}" for name, error in replies.errors.items()),
                where="Encrypted",
                remedy="lengthen the deadline or invite more parties",
            )
        sums, wrong = await self._opened(reduction, agreed, replies, second)
        lanes = agreed.lanes(replies.layout)
        decoded = replies.layout.decode(words_of(lanes, sums, len(replies.kept)), len(replies.kept))
        roster = reduction.world.roster
        kept = reduction.parties[[reduction.parties.names.index(name) for name in replies.kept]]
        errors = {roster.position(name): error for name, error in replies.errors.items()}
        counts, coded = {"wrong_shares": wrong}, replies.layout.clamping * len(replies.kept)
        if coded:
            counts |= {"words": replies.layout.clamping, "coded": coded, "clamped": decoded.clamped}
        return Reduced(decoded.totals, kept.positions, errors=errors, counts=counts)

    async def _opened(
        self, reduction: Reduction, agreed: EncryptedAgreement, replies: GatheredCiphertexts, second: Exchanged
    ) -> tuple[list[Any], int]:
        """The sums of the parties' numbers, and how many parts of the decryption are wrong."""
        mail, label = second.mail.only_from(set(replies.kept)), hash_set(replies.kept)
        kept = reduction.parties[[reduction.parties.names.index(name) for name in replies.kept]]
        if not agreed.threshold:
            votes = await collect_votes(reduction, kept, [HOLDER], agreed.electorate())
            asked = {"kept": replies.kept, "sealed": replies.total, "form": replies.layout.form, "votes": votes[HOLDER]}
            opened = await _asked(reduction, HOLDER, open_sum, asked, at=label, mail=mail)
            return opened.values[0], 0
        asked = {"kept": replies.kept, "sealed": replies.total}
        if agreed.active:
            asked["parts"] = replies.parts
            said = {"kept": replies.kept}
            voted = await reduction.exchange(kept, vote_on_sum, said, at=label, mail=mail, quorum=agreed.threshold)
            kept, mail = voted.senders, voted.mail
        answers = await reduction.exchange(
            kept, answer_sum, asked, at=label, mail=mail if agreed.active else None, quorum=agreed.threshold
        )
        scheme = threshold_of(agreed.scheme)
        sums, wrong = scheme.combine(replies.public, replies.total, replies.form, answers.by_name())
        return sums, len(wrong)


async def _asked(reduction: Reduction, helper: str, half: Task, message: Any, **how: Any) -> Exchanged:
    """Ask a helper.

    Raises:
        QuorumError: it did not answer; the error names it.
    """
    try:
        return await reduction.exchange(reduction.parties.named(helper), half, message, **how)
    except QuorumError as error:
        raise QuorumError(
            f"the {helper} did not answer, and nobody else can open the sum",
            where="Encrypted",
            remedy=f"start the helper {helper!r}; the sum changed nothing, and the next one has new keys",
        ) from error
