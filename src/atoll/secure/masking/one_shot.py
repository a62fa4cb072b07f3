"""Secure sums with one recovery for all who drop out (LightSecAgg: So et al. 2022)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, LetterError, MessageError, PolicyError, QuorumError
from atoll.core.exposure import Exposure
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.task import task
from atoll.core.validation import Checked

from ..ballot import Electorate, cast_vote, ready_to_vote, require_majority
from ..keystream import SEED, add_masks, derived, keystream
from ..shares.domain import WordRing
from ..words import FixedPoint, WordSums, common_form, decode_sum, form_of, require_enough, require_threshold
from .agreement import Agreement
from .party_steps import label_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.federation.reducer import Reduction
    from atoll.core.requests.island import Island
    from atoll.core.requests.request import Reduced

    from ..shares.domain import Array
    from ..words import WordLayout

__all__ = ["Code", "GaloisRing", "OneShot", "code_words", "sum_shares", "vote_on_sum"]


# ------------------------------------------------------------------ galois rings: words modulo ``2^64`` with as many points as an erasure code needs
#
# A code whose any ``U`` of ``n`` shares give the message evaluates a polynomial at ``n`` points whose differences have inverses. Modulo ``2^p`` only two numbers are
# such points. The ring ``GR(2^64, m) = Z_2^64[x] / h(x)``, for a polynomial ``h`` of degree ``m`` that is irreducible modulo 2, has ``2^m`` of them: the elements whose
# coefficients are 0 and 1. An element is ``m`` words, so ``m`` words of a message make one element, and the code adds no byte (Abspoel et al. 2019, section 2).
#
# Everything is linear over the words, so it holds modulo any ``2^p`` as well.


@dataclass(frozen=True)
class GaloisRing:
    """``GR(2^64, m)``; elements are arrays of uint64 whose last axis has the ``m`` coefficients.

    Attributes:
        m: degree, 1 to 16.
    """

    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.m <= 16:
            raise ConfigError(f"m={self.m}", where="GaloisRing", remedy="use a degree of 1 to 16")

    @classmethod
    def with_points(cls, n: int) -> GaloisRing:
        """The smallest ring with ``n`` points that are not 0."""
        return cls(max(1, n.bit_length()))

    @functools.cached_property
    def modulus(self) -> int:
        """``h`` modulo 2, as the bits of a number: the first irreducible one."""
        return next(
            h for h in range((1 << self.m) | 1, 2 << self.m, 2 if self.m > 1 else 1) if _is_irreducible(h, self.m)
        )

    @functools.cached_property
    def _powers(self) -> Array:
        """``x^m ... x^(2m-2)`` as elements, one a row: what a product's high coefficients become."""
        low = np.array([self.modulus >> i & 1 for i in range(self.m)], dtype=np.uint64)
        rows = [np.negative(low)]
        for _ in range(self.m - 2):
            last = rows[-1]
            shifted = np.concatenate([np.zeros(1, dtype=np.uint64), last[:-1]])
            rows.append(shifted + last[-1] * rows[0])
        return np.stack(rows) if self.m > 1 else np.zeros((0, 1), dtype=np.uint64)

    def points(self, n: int) -> Array:
        """``n`` elements, none 0, whose differences have inverses, ``(n, m)``.

        Raises:
            ConfigError: the ring has fewer.
        """
        if n >= 1 << self.m:
            raise ConfigError(f"{n} points", where=f"GaloisRing({self.m})", remedy=f"use m={n.bit_length()}")
        return (np.arange(1, n + 1, dtype=np.uint64)[:, None] >> np.arange(self.m, dtype=np.uint64)) & np.uint64(1)

    def mul(self, a: Array, b: Array) -> Array:
        """The product, entry by entry; leading axes broadcast."""
        m = self.m
        shape = np.broadcast_shapes(a.shape, b.shape)
        wide = np.zeros((*shape[:-1], 2 * m - 1), dtype=np.uint64)
        for i in range(m):
            wide[..., i : i + m] += a[..., i : i + 1] * b
        made = wide[..., :m].copy()
        for i in range(m - 1):
            made += wide[..., m + i : m + i + 1] * self._powers[i]
        return made

    def matrices(self, a: Array) -> Array:
        """For each element the matrix ``M`` with ``M b = a b`` for coefficients ``b``, ``(..., m, m)``."""
        columns = [self.mul(a, np.eye(self.m, dtype=np.uint64)[i]) for i in range(self.m)]
        return np.stack(columns, axis=-1)

    def inverse(self, a: Array) -> Array:
        """The inverse of elements that are not 0 modulo 2: of the residue field by Fermat, then lifted by Newton's ``b (2 - ab)``.

        Raises:
            ConfigError: an element has none.
        """
        residue = a & np.uint64(1)
        if not residue.any(axis=-1).all():
            raise ConfigError("an element that is 0 modulo 2 has no inverse", where="GaloisRing")
        made, square = self.one(residue.shape[:-1]), residue
        for _ in range(1, self.m):  # a^(2^m - 2) = a^2 a^4 ... a^(2^(m-1))
            square = self.mul(square, square) & np.uint64(1)
            made = self.mul(made, square) & np.uint64(1)
        if self.m == 1:
            made = residue
        two = self.one(residue.shape[:-1]) * np.uint64(2)
        for _ in range(6):  # right modulo 2, 4, 16, ... 2^64
            made = self.mul(made, two - self.mul(a, made))
        return made

    def one(self, shape: tuple[int, ...]) -> Array:
        """The element 1 in an array of a shape."""
        made = np.zeros((*shape, self.m), dtype=np.uint64)
        made[..., 0] = 1
        return made

    def vandermonde(self, points: Array, count: int) -> Array:
        """Powers ``0 ... count - 1`` of points, as one matrix over words, ``(points m, count m)``."""
        power, rows = self.one((len(points),)), list[Any]()
        for _ in range(count):
            rows.append(self.matrices(power))
            power = self.mul(power, points)
        return np.concatenate(
            np.moveaxis(np.stack(rows), 0, 2).reshape(len(points), self.m, -1, self.m).reshape(len(points), self.m, -1),
            axis=0,
        )

    def interpolation(self, points: Array) -> Array:
        """The inverse of the square `vandermonde` of points: from values to coefficients, as one matrix over words, ``(k m, k m)``.

        Coefficients of the Lagrange basis: ``prod (x - p_i)`` divided by ``x - p_j`` (Horner), over ``prod (p_j - p_i)``.
        """
        k = len(points)
        master = self.one((1,))  # highest coefficient first
        for p in points:
            master = np.concatenate([master, np.zeros((1, self.m), dtype=np.uint64)]) - np.concatenate(
                [np.zeros((1, self.m), dtype=np.uint64), self.mul(master, p)]
            )
        rows = [self.one((k,))]
        for i in range(1, k):
            rows.append(master[i] + self.mul(rows[-1], points))
        value = self.one((k,))
        for i in range(k):
            apart = points - points[i]
            apart[i] = self.one(())
            value = self.mul(value, apart)
        scaled = [self.mul(row, self.inverse(value)) for row in rows[::-1]]  # coefficient 0 first, one column a point
        return np.concatenate([np.concatenate(list(self.matrices(row)), axis=1) for row in scaled], axis=0)


def _is_irreducible(h: int, m: int) -> bool:
    """Whether a polynomial over F_2 of degree ``m`` has no factor of degree ``m / 2`` or less."""
    return all(_remainder(h, f) for f in range(2, 1 << (m // 2 + 1)))


def _remainder(a: int, b: int) -> int:
    while a.bit_length() >= b.bit_length():
        a ^= b << (a.bit_length() - b.bit_length())
    return a


# ------------------------------------------------------------------ masks as a code
#
# Masks as a code: shares of a mask that add up, and the party's halves of a sum that one vector of each party opens (So et al. 2022).
# ============  ====================================================================  ======================================
# superstep     the party                                                             the server gets
# ============  ====================================================================  ======================================
# code_words    runs the task, adds the mask of a fresh seed to its words, and seals  masked words, and what the totals are
# to every party its share of the mask
# vote_on_sum   adds up its shares of the masks of the parties in the sum, and tells  nothing
# the others who is in it (between organisations)
# sum_shares    shows that total, once                                                the sum of the shares
# ============  ====================================================================  ======================================


@dataclass(frozen=True)
class Code:
    """A linear code over words: ``parties`` shares of a vector, any ``threshold`` of which give it, and any ``private`` of which tell nothing.

    The vector is cut into ``threshold - private`` pieces, the high coefficients of a polynomial over a Galois ring. The low coefficients are noise. Share ``i`` is the
    value at point ``i``. Shares of several vectors add up to shares of their sum.

    Attributes:
        parties: number of shares.
        threshold: shares that give the vector.
        private: shares that tell nothing; below the threshold.
    """

    parties: int
    threshold: int
    private: int

    @functools.cached_property
    def ring(self) -> GaloisRing:
        """The ring, with a point for each party."""
        return GaloisRing.with_points(self.parties)

    @functools.cached_property
    def _evaluation(self) -> Array:
        return self.ring.vandermonde(self.ring.points(self.parties), self.threshold)

    def elements(self, length: int) -> int:
        """Ring elements of a piece of a vector."""
        return -(-length // (self.ring.m * (self.threshold - self.private)))

    def share_length(self, length: int) -> int:
        """Words of a share."""
        return self.ring.m * self.elements(length)

    def shares(self, vector: Array, noise: Array, bits: int) -> Array:
        """The shares of a vector of words, ``(parties, share_length)``.

        Args:
            vector: the words.
            noise: ``private * share_length`` uniform words.
            bits: word length ``p``.
        """
        each, pieces = self.elements(len(vector)), self.threshold - self.private
        filled = np.zeros(pieces * self.ring.m * each, dtype=np.uint64)
        filled[: len(vector)] = vector
        rows = np.concatenate([noise.astype(np.uint64), filled]).reshape(self.threshold * self.ring.m, each)
        return WordRing(max(2, bits)).dot(self._evaluation, rows).reshape(self.parties, -1)

    def open_shares(self, shares: Mapping[int, Any], length: int, bits: int) -> tuple[Array, list[int]]:
        """The vector, and the places of shares beyond the threshold that do not fit it.

        Args:
            shares: party's place -> its share; ``threshold`` or more.
            length: words of the vector.
            bits: word length ``p``.
        """
        places, ring, words = sorted(shares), self.ring, WordRing(max(2, bits))
        first, rest = places[: self.threshold], places[self.threshold :]
        rows = np.concatenate([np.asarray(shares[i]).astype(np.uint64).reshape(ring.m, -1) for i in first])
        coefficients = words.dot(ring.interpolation(ring.points(self.parties)[first]), rows)
        # A threshold of shares fixes the polynomial, so every further share is a check of it.
        again = [words.dot(self._evaluation[i * ring.m : (i + 1) * ring.m], coefficients) for i in rest]
        nothing = np.zeros(rows.shape[1] * ring.m, dtype=np.uint64)
        sent = [words.add(np.asarray(shares[i]).astype(np.uint64), nothing) for i in rest]
        wrong = [i for i, row, share in zip(rest, again, sent, strict=True) if not np.array_equal(row.ravel(), share)]
        return coefficients[self.private * ring.m :].reshape(-1)[:length], wrong


@task
async def code_words(island: Island, message: Tree) -> Tree:
    """Reply with the masked words of the party's totals, and seal to every party its share of the mask."""
    agreed = Agreement.of(message["agreed"])
    totals = await island.totals(agreed.least)
    code = Code(len(agreed.names), agreed.threshold, int(message["private"]))
    if not 1 <= code.private < code.threshold:
        raise PolicyError(
            f"a mask that {code.private} parties must not open with a threshold of {code.threshold}",
            where="masked sum",
            remedy="look at the server",
        )
    agreed.place(island.name)
    island.bind_letters(agreed.fingerprint)
    layout = agreed.layout(form_of(totals))
    lanes = layout.encode(totals, island.name)
    seed = island.secret.bytes(SEED)
    context = agreed.context(island.asked, layout.fingerprint)
    own = (derived(seed, "one-shot mask", context), False)
    masks = {lane: np.zeros(len(words), dtype=word_dtype(int(lane))) for lane, words in lanes.items()}
    # The mask alone, which is shared out in code. The same mask goes onto the words below.
    add_masks(masks, [own])
    rows: list[dict[str, Any]] = [{} for _ in agreed.names]
    for lane, mask in masks.items():
        bits = int(lane)
        noise = keystream(derived(seed, f"one-shot noise {lane}"), bits, code.private * code.share_length(len(mask)))
        for row, share in zip(rows, code.shares(mask, np.asarray(noise), bits), strict=True):
            row[lane] = Words.of(share.astype(mask.dtype), bits)
    for name, row in zip(agreed.names, rows, strict=True):
        island.post(name, {"context": context, "lanes": row})
    add_masks(lanes, [own])
    electorate = Electorate(agreed.names, agreed.least, agreed.fingerprint, code.private)
    island.state = {"agreed": message["agreed"], "context": context, **ready_to_vote(island, electorate)}
    return {"words": lanes, "form": layout.form}


@task
def vote_on_sum(island: Island, message: Tree) -> None:
    """Add up my shares of the masks of the parties in the sum, and tell these parties who is in it, once."""
    kept, total = _list_kept(island, message), _total_of(island, message)
    label = cast_vote(island, kept)
    for name in kept:
        island.post(name, label)
    island.state = {**island.state, "total": total}


@task
def sum_shares(island: Island, message: Tree) -> Tree:
    """Reply with the sum of my shares of the masks of the parties in the sum, once."""
    kept = _list_kept(island, message)
    state = island.state
    if island.remote and "total" not in state:
        raise PolicyError("shares before a vote", where="masked sum", remedy="look at the server: it left out a step")
    votes = island.letters if "total" in state else {}
    require_majority(island, Electorate.of(state["electorate"]), kept, votes, vote_on_sum.name)
    total = state["total"] if "total" in state else _total_of(island, message)
    return {lane: Words.of(np.asarray(words), int(lane)) for lane, words in total.items()}


def _list_kept(island: Island, message: Tree) -> list[str]:
    """Names of the parties in the sum.

    Raises:
        PolicyError: the party has sent no words, or the set would tell a sum of a few.
    """
    state = island.state
    if not state or "context" not in state:
        raise PolicyError("shares without words", where="masked sum", remedy="look at the server: it left out a step")
    agreed, kept = Agreement.of(state["agreed"]), set(message["kept"])
    agreed.require_set(kept, set(), agreed.place(island.name), island.organisation)
    return [agreed.names[place] for place in sorted(kept)]


def _total_of(island: Island, message: Tree) -> dict[str, Any]:
    """The sum of a party's shares of the masks of the parties in the sum, by lane."""
    state = island.state
    agreed, kept = Agreement.of(state["agreed"]), set(message["kept"])
    island.bind_letters(agreed.fingerprint, code_words.name)
    letters = island.inbox
    missing = sorted(agreed.names[place] for place in kept if agreed.names[place] not in letters)
    if missing or len(letters) != len(kept):
        raise PolicyError(
            f"letters of {len(letters)} parties for a sum of {len(kept)}; without {missing[:1]}",
            where="masked sum",
            remedy="look at the server",
        )
    forms = {name: _form_of(name, letter) for name, letter in letters.items()}
    odd = [name for name, form in forms.items() if form != forms[island.name]]
    if odd:
        raise MessageError(
            f"{odd[0]} sealed shares of other sizes", where=island.name, remedy=f"leave {odd[0]} out, and look at it"
        )
    strangers = [name for name, letter in letters.items() if bytes(letter["context"]) != bytes(state["context"])]
    if strangers:
        raise PolicyError(
            f"{strangers[0]} was asked something else than {island.name}: another model, cohort or code",
            where="masked sum",
            remedy="look at the server: it told parties different things",
        )
    total: dict[str, Any] = {}
    for letter in letters.values():
        for lane, share in letter["lanes"].items():
            total[lane] = np.asarray(share) + total[lane] if lane in total else np.array(share)
    return total


def _form_of(name: str, letter: Any) -> dict[str, Any]:
    """Shape and dtype of a letter's shares by lane.

    Raises:
        MessageError: names the sender of a letter that has none.
    """
    lanes = letter.get("lanes") if isinstance(letter, dict) and isinstance(letter.get("context"), bytes) else None
    if not isinstance(lanes, dict) or not all(isinstance(share, np.ndarray) for share in lanes.values()):
        raise MessageError(
            f"{name} sealed a letter without shares", where="masked sum", remedy=f"leave {name} out, and look at it"
        )
    return {lane: (share.shape, share.dtype) for lane, share in lanes.items()}


# ------------------------------------------------------------------ secure sums with one recovery for all who drop out (LightSecAgg: So et al. 2022)


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
