"""Who cheats with Shamir's shares: holders that send wrong sums, senders whose shares lie on no polynomial, and entries beyond their range.

| question | function | answer |
| --- | --- | --- |
| which holders sent other sums than they hold? | `correct_shamir` | the values, and the holders, of up to ``(m - t) / 2`` wrong ones among ``m`` |
| which senders shared something that is no polynomial of degree ``t - 1``? | `find_wrong_sharings`, `judge_opening` | the sender, or the holder that accuses it falsely |
| which senders shared an entry beyond its range? | `find_outside`, `escape_odds` | the sender, for entries that a lot draws after the sharing |

**Degrees.** A sender shares one random number or more beside its values (`add_masks`), and publishes a commitment to each holder's share (`commit_share`). Only then a public lot is drawn
(`atoll.secure.lot`), and gives a factor for each value (`draw_factors`). Each holder shows ``mask + sum_j factor_j value_j`` of its shares of each sender (`mix_shares`). These numbers are shares of one
number that the mask hides, so they lie on a polynomial of degree ``t - 1`` if all values do. If one value does not, they do with a probability of ``1/p`` a mask.
Whoever is off the polynomial opens the share that it got, with the salt of its commitment. The commitment is the sender's, and the shown number follows from the share: `judge_opening` names one of
the two. A holder whose letter does not open its commitment must say so before the lot; the sender then publishes that one share (`opens_commitment`), or is named. A share that is opened
tells a server that colludes with holders one share more, so leave ``t`` above the colluders by as many as may accuse.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.core import message as M
from atoll.core.errors import ConfigError, DataError

from .domain import SeededWords
from .operations import negative
from .sharing import expand_share, interpolate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .computation import SharedArray
    from .domain import Array, Field, WordSource

__all__ = [
    "CorrectedShares",
    "SharingVerdict",
    "add_masks",
    "commit_share",
    "correct_shamir",
    "count_masks",
    "draw_entries",
    "draw_factors",
    "escape_odds",
    "find_outside",
    "find_wrong_sharings",
    "judge_opening",
    "mix_shares",
    "opens_commitment",
]

_ODDS = 60
"""A check misses a cheat with a probability of at most ``2^-60`` for each party that it looks at."""


# ------------------------------------------------------------------ wrong sums


@dataclass(frozen=True, eq=False)
class CorrectedShares:
    """What shares say although some are wrong.

    Attributes:
        values: the values.
        wrong: the holders whose shares are wrong, in order of place.
    """

    values: Array
    wrong: tuple[int, ...]


def correct_shamir(
    shares: Mapping[int, Array], threshold: int, field: Field, secret: WordSource, *, most: int | None = None
) -> CorrectedShares:
    """The values of Shamir shares, some of which may be wrong, and whose are wrong.

    The values are interpolated from ``t`` shares, and *all* others are compared with the result. If too many differ, one of the ``t`` is wrong. The shares of one value are a word of a Reed-Solomon code, and a
    holder errs in the same place of all words: so a random combination of all words is decoded (Gao 2003) to find the holders, and the values are interpolated without them. Work on long arrays is that of
    `atoll.secure.shares.open_shamir`, once or twice.

    With ``m`` shares, the result is right and names exactly the holders that are wrong, if those are at most ``most``. Up to ``m - t - most`` wrong holders are noticed: the
    shares are then refused, but nobody is named. More of them that collude can move the values and blame others, as in any scheme: ``t`` right shares are needed beyond all wrong ones.
    So ``most=0`` names nobody and notices as many as can be noticed, and the default corrects as many as can be corrected.

    Args:
        shares: holder's place, from 0 -> its share; ``threshold`` or more of them.
        threshold: shares that give the values.
        field: the field.
        secret: where the combination comes from. Holders must not know it before they send: a wrong one that does can hide from being named, and the shares are then refused.
        most: wrong holders that are corrected; by default ``(m - t) / 2``, rounded down.

    Raises:
        ConfigError: ``most`` cannot be corrected.
        DataError: there are fewer shares than the threshold, more than ``most`` are wrong, or one is no array of the field's elements of the others' shape.
    """
    places = sorted(shares)
    if len(places) < threshold:
        raise DataError(f"{len(places)} shares, and {threshold} are needed", where="correct_shamir", remedy="wait for more holders")  # fmt: skip
    bound = (len(places) - threshold) // 2
    most = bound if most is None else most
    if not 0 <= most <= bound:
        raise ConfigError(f"most={most} wrong of {len(places)} shares with threshold {threshold}", where="correct_shamir", remedy=f"correct 0 to {bound}")  # fmt: skip
    _require_elements(shares, field, "correct_shamir")
    rows = {place: np.ravel(shares[place]) for place in places}
    values, wrong = _compare(rows, tuple(places[:threshold]), field)
    if len(wrong) > most > 0:  # one of the first is wrong
        whole = np.stack(list(rows.values()))
        blamed = _locate_all(field.dot(whole, field.random(secret, (whole.shape[1], count_masks(field)))), places, threshold, field)  # fmt: skip
        if blamed is not None and len(blamed) <= most:
            values, wrong = _compare(rows, tuple(place for place in places if place not in blamed)[:threshold], field)
    if len(wrong) <= most:
        return CorrectedShares(values.reshape(np.shape(shares[places[0]])), wrong)
    raise DataError(
        f"more than {most} of the shares of holders {places} are wrong",
        where="correct_shamir",
        remedy="ask more holders: m shares correct (m - threshold) / 2 wrong ones",
    )


def _compare(rows: Mapping[int, Array], first: tuple[int, ...], field: Field) -> tuple[Array, tuple[int, ...]]:
    """The values by the shares of some places, and the other places that do not fit."""
    others = [place for place in rows if place not in first]
    found = interpolate([rows[place] for place in first], first, (0, *(place + 1 for place in others)), field)
    fits = (np.array_equal(row, rows[place]) for row, place in zip(found[1:], others, strict=True))
    return found[0], tuple(place for place, fit in zip(others, fits, strict=True) if not fit)


def _require_elements(shares: Mapping[int, Array], field: Field, where: str) -> None:
    """Refuse what is no share: a holder that sends it is known to be wrong, so a caller leaves it out."""
    shapes = Counter(np.shape(share) for share in shares.values())
    usual = shapes.most_common(1)[0][0]
    for place, share in sorted(shares.items()):
        fits = np.shape(share) == usual and share.dtype.kind == "u"
        if not (fits and int(share.max(initial=0)) < field.prime):
            raise DataError(f"holder {place} sent an array of shape {np.shape(share)} and type {share.dtype} that is no share of shape {usual} in {field.title}", where=where, remedy="leave this holder out")  # fmt: skip


def _locate_all(words: Array, places: Sequence[int], threshold: int, field: Field) -> set[int] | None:
    """The places that are off the polynomial in one of several words, ``(places, words)``; ``None`` if a word has more errors than can be corrected."""
    found: set[int] = set()
    for word in words.T.tolist():
        wrong = _locate(word, places, threshold, field.prime)
        if wrong is None:
            return None
        found |= wrong
    return found


def _locate(word: Sequence[int], places: Sequence[int], threshold: int, p: int) -> set[int] | None:
    """Decode a word of a Reed-Solomon code (Gao 2003): the places that are off the only polynomial of degree ``threshold - 1`` that is near enough.

    With ``g_0 = prod_i (X - x_i)`` and ``g_1`` through all points, Euclid's algorithm on both stops at the first remainder ``g = u g_0 + v g_1`` of a degree below ``(m + t) / 2``; the polynomial is ``g / v``.
    """
    xs = [place + 1 for place in places]
    whole, through = _interpolant(xs, word, p)
    above, rest, before, v = whole, through, [], [1]
    while 2 * (len(rest) - 1) >= len(xs) + threshold:
        quotient, left = _divide(above, rest, p)
        above, rest, before, v = rest, left, v, _less(before, _times(quotient, v, p), p)
    polynomial, left = _divide(rest, v, p)
    if left or len(polynomial) > threshold:
        return None
    wrong = {place for place, x, y in zip(places, xs, word, strict=True) if _value_at(polynomial, x, p) != y}
    return wrong if 2 * len(wrong) <= len(xs) - threshold else None


def _interpolant(xs: Sequence[int], ys: Sequence[int], p: int) -> tuple[list[int], list[int]]:
    """``prod (X - x)``, and the polynomial through all points, by Newton's steps; coefficients from the lowest."""
    whole, through = [1], list[int]()
    for x, y in zip(xs, ys, strict=True):
        step = (y - _value_at(through, x, p)) * pow(_value_at(whole, x, p), -1, p) % p
        through = _less(through, [-step * a % p for a in whole], p)
        whole = _less([0, *whole], [x * a % p for a in whole], p)
    return whole, through


def _value_at(a: Sequence[int], x: int, p: int) -> int:
    value = 0
    for coefficient in reversed(a):
        value = (value * x + coefficient) % p
    return value


def _trimmed(a: list[int]) -> list[int]:
    """Without leading zeros: the zero polynomial is empty."""
    while a and not a[-1]:
        a.pop()
    return a


def _less(a: Sequence[int], b: Sequence[int], p: int) -> list[int]:
    size = max(len(a), len(b))
    return _trimmed([((a[i] if i < len(a) else 0) - (b[i] if i < len(b) else 0)) % p for i in range(size)])


def _times(a: Sequence[int], b: Sequence[int], p: int) -> list[int]:
    made = [0] * max(0, len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            made[i + j] += x * y
    return _trimmed([x % p for x in made])


def _divide(a: Sequence[int], b: Sequence[int], p: int) -> tuple[list[int], list[int]]:
    """Quotient and remainder."""
    left, head = list(a), pow(b[-1], -1, p)
    quotient = [0] * max(0, len(a) - len(b) + 1)
    for shift in range(len(a) - len(b), -1, -1):
        factor = left[shift + len(b) - 1] * head % p
        quotient[shift] = factor
        if factor:
            for i, x in enumerate(b, shift):
                left[i] = (left[i] - factor * x) % p
    return _trimmed(quotient), _trimmed(left)


# ------------------------------------------------------------------ wrong sharings


def count_masks(field: Field) -> int:
    """How many combinations a check takes so that it misses a cheat with a probability of at most ``2^-60``: one for ``2^61 - 1``, two for 31 bits."""
    return math.ceil(_ODDS / math.log2(field.prime))


def add_masks(values: Array, field: Field, secret: WordSource) -> Array:
    """A sender's values ``(..., values)`` with `count_masks` random ones behind them, which hide what `mix_shares` shows: share all of them."""
    return np.concatenate([values, field.random(secret, (*values.shape[:-1], count_masks(field)))], axis=-1)


def draw_factors(lot: bytes, values: int, field: Field) -> Array:
    """Factors of all values from a lot that nobody could choose, ``(values, masks)``; the same for all senders.

    Args:
        lot: 32 bytes, such as ``Lot.value``, drawn after all commitments are fixed.
        values: values of a sender, without masks.
        field: where the shares live.
    """
    return field.random(SeededWords(lot, "factors of shares"), (values, count_masks(field)))


def mix_shares(shares: Array, factors: Array, field: Field) -> Array:
    """What a holder shows of its shares: ``mask + sum_j factor_j share_j`` for each mask.

    Args:
        shares: of each sender's values and masks, ``(..., values + masks)``.
        factors: of `draw_factors`, ``(values, masks)``.
        field: where they live.

    Returns:
        ``(..., masks)``.
    """
    values, masks = factors.shape
    if shares.shape[-1] != values + masks:
        raise DataError(f"{shares.shape[-1]} shares of a sender where {values} values and {masks} masks are expected", where="mix_shares", remedy="share the values that `add_masks` returns")  # fmt: skip
    return field.add(field.dot(shares[..., :values], factors), shares[..., values:])


@dataclass(frozen=True)
class SharingVerdict:
    """Whose mixed shares lie on no polynomial.

    Attributes:
        wrong: senders whose shares fit no polynomial, whichever ``(m - t) / 2`` holders lie: they cheated.
        disputed: sender -> the holders that are off its polynomial: the sender or the holder cheated, and `judge_opening` says which.
    """

    wrong: tuple[int, ...]
    disputed: Mapping[int, tuple[int, ...]]

    @property
    def fine(self) -> bool:
        """Whether nobody cheated."""
        return not self.wrong and not self.disputed


def find_wrong_sharings(shown: Mapping[int, Array], threshold: int, field: Field) -> SharingVerdict:
    """Compare what holders show of all senders, up to ``(m - t) / 2`` of whom may lie.

    Args:
        shown: holder's place, from 0 -> what `mix_shares` gave it, ``(senders, masks)``; more than ``threshold`` of them, or nothing is checked.
        threshold: ``t``: polynomials have degree ``t - 1``.
        field: where they live.

    Raises:
        DataError: there are not more than ``threshold`` holders, or one showed something else.
    """
    places = sorted(shown)
    if len(places) <= threshold:
        raise DataError(f"{len(places)} holders check polynomials of {threshold} coefficients", where="find_wrong_sharings", remedy=f"have {threshold + 1} or more holders, or a lower threshold")  # fmt: skip
    _require_elements(shown, field, "find_wrong_sharings")
    first, rest = tuple(places[:threshold]), places[threshold:]
    found = interpolate([shown[place] for place in first], first, tuple(place + 1 for place in rest), field)
    fits = np.logical_and.reduce([(row == shown[place]).all(axis=-1) for row, place in zip(found, rest, strict=True)])
    wrong, disputed = list[int](), dict[int, tuple[int, ...]]()
    for sender in np.flatnonzero(~fits).tolist():
        words = np.stack([shown[place][sender] for place in places])
        off = _locate_all(words, places, threshold, field)
        if off is None or 2 * len(off) > len(places) - threshold:
            wrong.append(sender)
        else:
            disputed[sender] = tuple(sorted(off))
    return SharingVerdict(tuple(wrong), disputed)


def commit_share(share: bytes | Array, salt: bytes, context: str) -> bytes:
    """A sender's commitment to one holder's share: SHA-256, which hides the share and binds the sender to it.

    Args:
        share: one sender's shares of all values and masks for the holder, or the seed from which they follow.
        salt: 32 secret bytes of the sender, for this commitment only; they travel with the share.
        context: what it is for: the sum, the sender and the holder. A commitment is of no use elsewhere.

    Raises:
        ConfigError: the salt does not have 32 bytes.
    """
    if len(salt) != 32:
        raise ConfigError(f"a salt of {len(salt)} bytes", where="commit_share", remedy="use 32 bytes of island.secret")
    said = share if isinstance(share, bytes) else np.ravel(share).astype("<u8")
    return hashlib.sha256(M.encode(["atoll share", context, salt, said])).digest()


def opens_commitment(commitment: bytes, share: bytes | Array, salt: bytes, context: str) -> bool:
    """Whether a share is the one that a sender committed to."""
    return len(salt) == 32 and commit_share(share, salt, context) == commitment


def judge_opening(
    commitment: bytes, share: bytes | Array, salt: bytes, context: str, *, factors: Array, shown: Array, field: Field
) -> Literal["sender", "holder"]:
    """Who cheated, if what a holder showed is off the sender's polynomial: anybody can check it.

    A share that opens the commitment is the sender's. If the shown number follows from it, the sender's shares lie on no polynomial; if not, the holder showed another number. A holder that cannot
    open the commitment at all did not complain when its letter came, so it is to blame.

    Args:
        commitment: the sender's, published before the lot.
        share: what the holder says it got, ``(values + masks,)``, or the seed from which that follows.
        salt: the salt that came with it.
        context: of the commitment.
        factors: of `draw_factors`.
        shown: what the holder showed of this sender, ``(masks,)``.
        field: where the shares live.
    """
    if not opens_commitment(commitment, share, salt, context):
        return "holder"
    row = expand_share(share, sum(factors.shape), field)
    return "sender" if np.array_equal(mix_shares(row, factors, field), shown) else "holder"


# ------------------------------------------------------------------ entries beyond their range


def draw_entries(lot: bytes, values: int, count: int) -> NDArray[np.int64]:
    """Which entries are checked, in order: ``count`` of ``values``, each choice equally likely.

    Args:
        lot: 32 bytes, such as ``Lot.value``, drawn after all commitments are fixed.
        values: entries of a sender.
        count: how many to draw.

    Raises:
        ConfigError: there are fewer.
    """
    if not 0 <= count <= values:
        raise ConfigError(f"{count} of {values} entries", where="draw_entries", remedy=f"draw 0 to {values}")
    order = np.argsort(SeededWords(lot, "entries of shares").uint64(values), kind="stable")
    return np.sort(order[:count])


def escape_odds(values: int, drawn: int, wrong: int) -> float:
    """How likely a sender with ``wrong`` entries beyond the range is not noticed: none of them is drawn, ``C(values - wrong, drawn) / C(values, drawn)``.

    Args:
        values: entries of a sender.
        drawn: entries that are checked.
        wrong: entries beyond the range.

    Raises:
        ConfigError: there are fewer entries than are drawn or wrong.
    """
    if not (0 <= drawn <= values and 0 <= wrong <= values):
        raise ConfigError(f"{drawn} drawn and {wrong} wrong of {values} entries", where="escape_odds", remedy=f"use 0 to {values} for both")  # fmt: skip
    return math.comb(values - wrong, drawn) / math.comb(values, drawn)


async def find_outside(x: SharedArray, bound: int) -> NDArray[np.bool_]:
    """Which numbers are beyond ``-bound`` to ``bound``: shown to every party, and nothing else of them.

    The bits of the masked differences say it, see `atoll.secure.shares.less`. Holders make ``x`` of the shares that they hold: ``SharedArray(computation, (shares,))``.

    Args:
        x: shared numbers of a field, of any shape.
        bound: largest size, below a quarter of the field's order.

    Raises:
        ConfigError: the bound is too large for the field.
    """
    if not 0 <= bound < x.by.domain.order // 4:
        raise ConfigError(f"bound={bound} in {x.by.domain.title}", where="find_outside", remedy="use a bound below a quarter of the field's order")  # fmt: skip
    low, high = await negative(x + bound), await negative(bound - x)
    shown = await x.by.reveal(low + high - await x.by.mul(low, high))
    return np.asarray(shown != 0)
