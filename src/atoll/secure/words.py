"""What travels in a secure sum: the layout of a request's totals, its lanes of words, and the fixed-point codec.

`FixedPoint` says how numbers become whole numbers, `WordLayout` where each total stands among a party's words. Every reducer of this room shares both.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import ROLES, STAGED, Total, Totals
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError, DataError, MessageError, QuorumError
from atoll.core.federation.reducer import Reducer
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.core.requests.request import Reduced
from atoll.core.validation import Checked

from .keystream import require_library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from atoll.core.requests.chain import Chain
    from atoll.core.requests.cohort import TotalsBlock
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Terms
    from atoll.core.requests.task import Task

__all__ = [
    "CodedBlock",
    "Decoded",
    "Encoded",
    "FixedPoint",
    "Slot",
    "WordLayout",
    "WordSums",
    "common_form",
    "decode_sum",
    "form_of",
    "require_enough",
    "require_threshold",
]


# ------------------------------------------------------------------ fixed point: numbers as whole numbers, which add up exactly


LEAST, MOST = 8, 64
"""Bits of a word."""
_UNIT = -24
_FINEST = -1000
"""Exponent of the smallest unit: its inverse is still a number in double precision."""
_HEAVIEST = 2.0**16


@dataclass(frozen=True)
class FixedPoint(Checked):
    """How numbers become words of ``p`` bits: ``word = round(x / unit) mod 2^p``, and back from a sum by the centred lift.

    ================================================  =========================================  ===============================================
    what                                              ``p`` for ``n`` parties                    a number that does not fit
    ================================================  =========================================  ===============================================
    floats of an update whose range is known          value bits (+ weight bits) + log2 n        is clamped, and counted
    floats of an update whose range is not known      64, unit ``2^-24``                         is refused at the party, by name
    weights, counts, metrics, reports, side values    64, unit ``2^-24``                         is refused at the party, by name
    whole numbers                                     64, unit 1                                 is refused at the party, by name
    votes                                             2 + log2 n, at least 8                     cannot happen
    words that an uplink stage makes                  as the stage says                          the stage's own rule
    ================================================  =========================================  ===============================================

    The range of an update is ``value_range``, or else the bound that the uplink promises, such as that of ``Clip(1.0)``. It is rounded up to a power of two,
    so that units are powers of two and products with them are exact. ``log2 n`` is rounded up. For a ``Mean`` the word holds ``weight * value``, so it needs
    weight bits too; for a ``Sum`` it does not. The mean of ``n`` parties then errs by at most ``n unit / (2 sum of weights)``, a sum by ``n unit / 2``.

    Attributes:
        value_bits: bits of one value, with its sign.
        weight_bits: bits by which a weight multiplies it; weights are counted in steps of ``max_weight / 2^weight_bits`` at this precision, never rounded alone.
        max_weight: largest weight of a party, public; a party above it refuses to reply. By default ``2^16`` where the range is known, no limit elsewhere.
        value_range: largest magnitude of a value.

    Raises:
        ConfigError: a number makes no sense.
    """

    value_bits: int = 24
    weight_bits: int = 8
    max_weight: float | None = None
    value_range: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.value_bits <= 62 or not 0 <= self.weight_bits <= 40:
            raise ConfigError(
                f"value_bits={self.value_bits}, weight_bits={self.weight_bits}",
                where="FixedPoint",
                remedy="use 2 to 62 value bits and 0 to 40 weight bits",
            )
        for name in ("max_weight", "value_range"):
            given = getattr(self, name)
            if given is not None and not (math.isfinite(given) and given > 0):
                raise ConfigError(f"{name}={given}", where="FixedPoint", remedy="use a positive number")

    def range_of(self, bound: float | None) -> float | None:
        """The range of an update's values, given the bound that the uplink promises."""
        return self.value_range if self.value_range is not None else bound

    def heaviest(self, bound: float | None) -> float | None:
        """The largest weight of a party; ``None`` sets no limit."""
        return self.max_weight or (None if self.range_of(bound) is None else _HEAVIEST)

    def narrow(self, kind: str, parties: int, bound: float) -> tuple[int, int, int]:
        """Word length, exponent of the unit and largest whole number of an update's floats.

        Args:
            kind: of the aggregate, ``mean`` or ``sum``.
            parties: the largest number of parties in the sum.
            bound: the range.

        Raises:
            CompositionError: the numbers need words of more than 64 bits.
        """
        weighted = kind == "mean"
        bits = self.value_bits + (self.weight_bits if weighted else 0)
        unit = _exponent(bound) + 1 - self.value_bits
        unit += _exponent(self.max_weight or _HEAVIEST) - self.weight_bits if weighted else 0
        length = bits + spare(parties)
        if length > MOST:
            raise CompositionError(
                f"{self.value_bits} value bits, {self.weight_bits if weighted else 0} weight bits and a sum of {parties} parties need words of {length} bits",
                where="FixedPoint",
                remedy=f"use value_bits={max(2, self.value_bits - (length - MOST))} or fewer weight bits: a word has at most {MOST}",
            )
        return max(LEAST, length), max(_FINEST, unit), 2 ** (bits - 1) - 1

    def length(self, bound: float | None, parties: int) -> int:
        """Bits of a word of an update's value; see `narrow` and `wide`.

        Args:
            bound: largest magnitude of the values, as the uplink promises it.
            parties: largest number of parties in the sum.
        """
        known = self.range_of(bound)
        return self.wide(parties, whole=False)[0] if known is None else self.narrow("mean", parties, known)[0]

    @staticmethod
    def wide(parties: int, *, whole: bool) -> tuple[int, int, int]:
        """The same for numbers of any size."""
        return MOST, 0 if whole else _UNIT, 2 ** (MOST - 1 - spare(parties)) - 1

    @staticmethod
    def votes(parties: int) -> tuple[int, int, int]:
        """The same for signs."""
        return max(LEAST, 2 + spare(parties)), 0, 1


def spare(parties: int) -> int:
    """Bits by which a sum of so many numbers is longer than one of them: ``ceil(log2 parties)``."""
    return max(0, parties - 1).bit_length()


def _exponent(x: float) -> int:
    """The least ``e`` with ``x <= 2^e``."""
    fraction, exponent = math.frexp(x)
    return exponent - 1 if fraction == 0.5 else exponent


# ------------------------------------------------------------------ slots: one array of a reply as a run of words in its lane


Array = np.ndarray[Any, np.dtype[Any]]
_PIECE = 1 << 16


@dataclass(frozen=True)
class Slot:
    """One array of a party's totals, and its place among the words.

    Attributes:
        path: name of the total and path of the leaf, for errors.
        dtype: the array's dtype.
        shape: the array's shape.
        bits: word length, and so the lane.
        start: place of its first word in the lane.
        unit: the exponent of its unit: a whole number ``q`` stands for ``q 2^unit``; ``None`` for words that a stage has made.
        limit: the largest magnitude of a whole number.
        clamps: whether a larger one is clamped and counted; otherwise it is refused.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    bits: int
    start: int
    unit: int | None = 0
    limit: int = 0
    clamps: bool = False

    @property
    def size(self) -> int:
        """Number of words."""
        return math.prod(self.shape)

    @property
    def where(self) -> slice:
        """Its words in the lane."""
        return slice(self.start, self.start + self.size)

    @property
    def whole(self) -> bool:
        """Whether the array holds whole numbers."""
        return np.dtype(self.dtype).kind in "iub"

    def put(self, block: Array, into: Array) -> tuple[Array | None, Array | None]:
        """Write the words of a block of clients.

        Args:
            block: the arrays, with a leading client axis.
            into: the lane, ``(clients, words)``; changed in place.

        Returns:
            How many numbers of each client were clamped, ``(clients,)``, and whether a client has a number that does not fit; ``None`` for none.
        """
        rows = block.reshape(len(block), -1)
        if self.unit is None:
            into[:, self.where] = Words.reduced(rows) if isinstance(rows, Words) else rows
            return None, None
        if self.whole:
            return None, self._put_whole(rows, into)
        return self._put_numbers(rows, into[:, self.where])

    def _put_numbers(self, rows: Array, into: Array) -> tuple[Array | None, Array | None]:
        """Round, some columns at a time, so that they stay in the processor's cache."""
        # Whole numbers below 2^24 are exact in single precision too, and products with a power of two always are.
        short = rows.dtype == np.float32 and self.limit < 1 << 24 and into.dtype.itemsize == 4
        dtype, whole = (np.float32, np.int32) if short else (np.float64, np.int64)
        scale, over = dtype(2.0**-self.unit), np.zeros(len(rows), dtype=np.int64)  # type: ignore[operator]
        step = max(1, _PIECE // max(1, len(rows)))
        largest = dtype(self.limit)
        if (
            int(largest) > self.limit
        ):  # above 2^53 a float rounds the limit up, to one whole number more than a sum can hold
            largest = np.nextafter(largest, dtype(0))
        for start in range(0, rows.shape[1], step):
            with np.errstate(over="ignore"):  # infinity is above the limit too
                numbers = np.multiply(rows[:, start : start + step], scale, dtype=dtype)
            np.rint(numbers, out=numbers)
            if max(float(numbers.max()), -float(numbers.min())) > largest:
                over += (np.abs(numbers) > largest).sum(axis=1)
                np.clip(numbers, -largest, largest, out=numbers)
            if into.dtype.itemsize == np.dtype(whole).itemsize:
                np.copyto(into[:, start : start + step].view(whole), numbers, casting="unsafe")
            else:
                into[:, start : start + step] = numbers.astype(whole)
        if not over.any():
            return None, None
        return (over, None) if self.clamps else (None, over > 0)

    def _put_whole(self, rows: Array, into: Array) -> Array | None:
        over = (rows > self.limit) | (rows < -self.limit) if rows.dtype.kind != "b" else np.zeros(rows.shape, bool)
        into[:, self.where] = rows.astype(np.int64).astype(into.dtype)
        return np.asarray(over.any(axis=1)) if over.any() else None

    def take(self, lane: Words) -> Any:
        """The array of a sum's words; a scalar if it has no axes. Words that a stage has made stay whole numbers modulo ``2^bits``."""
        mine = Words.of(lane[self.where], self.bits)
        if self.unit is None:
            return Words.of(mine.reduced(), self.bits).reshape(self.shape)
        numbers: Array = mine.lifted()
        if not self.whole:
            numbers = numbers * 2.0**self.unit
        return numbers.astype(self.dtype).reshape(self.shape)[()]

    def unfit(self, party: str, n: int) -> DataError:
        """The error of a party whose number does not fit."""
        most = self.limit if self.unit is None else self.limit * 2.0**self.unit
        return DataError(
            f"a number of {self.path!r} is above {most:g} in magnitude, the most that a word of {self.bits} bits holds in a sum of {n}",
            where=party or None,
            remedy="scale it down, clip it, or send it as another role",
        )


# ------------------------------------------------------------------ layouts: where each total of a request stands among a party's words


Lanes = dict[str, Words]
"""Words by lane: a lane is named by its word length."""
_KINDS = ("mean", "sum", "vote")


@dataclass(frozen=True)
class Encoded:
    """The words of a block of clients.

    Attributes:
        lanes: lane -> words, ``(clients, words)``.
        clamped: how many numbers of each client were clamped, ``(clients,)``.
        errors: index of a client -> why its words must not be sent.
    """

    lanes: Lanes
    clamped: Array
    errors: dict[int, Exception] = field(default_factory=dict)


@dataclass(frozen=True)
class Decoded:
    """The totals of a sum of words.

    Attributes:
        totals: named totals, still encoded by the uplink's stages.
        clamped: how many numbers the parties have clamped.
    """

    totals: Totals
    clamped: int


def form_of(totals: Totals, *, block: bool = False) -> Tree:
    """What totals are, the same at every party: names, kinds, roles, and dtype and shape of each leaf, as a message.

    Args:
        totals: totals of one party.
        block: whether they have a leading client axis.

    Raises:
        CompositionError: a total cannot be added up.
    """

    def leaf(value: Any) -> str:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype.kind not in "iufb":
            raise CompositionError(f"{array.dtype} numbers in a secure sum", remedy="send real numbers")
        shape = ",".join(map(str, array.shape[1:] if block else array.shape))
        made = f"w{array.bits}" if isinstance(array, Words) and array.is_words else ""
        return f"{array.dtype.newbyteorder('<').str}({shape}){made}"

    for name, total in totals.items():
        if total.kind not in _KINDS:
            raise CompositionError(
                f"{name!r} is a total of kind {total.kind!r}", remedy="use Mean, Sum or Vote: a secure sum has no parts"
            )
    return [[name, t.kind, t.role, T.map(leaf, t.value)] for name, t in sorted(totals.items())]


class WordLayout:
    """The places of a request's totals in lanes of words; a function of public values, so the same at every party and at the server.

    A lane is a run of words of one length, ``p`` bits. Lane ``"64"`` ends with the weights of means and, where numbers may be
    clamped, with how many a party has clamped. A party's words of a lane add up modulo ``2^p`` with those of the others, and `decode` makes totals of the sum.

    Args:
        form: from `form_of`.
        codec: how numbers become words.
        parties: the largest number of parties in the sum.
        bound: largest magnitude of an update's values, as the uplink promises it; see ``Chain.bound``.
        signs: whether votes are -1, 0 and 1; stages that act on summands make numbers of them.

    Attributes:
        slots: the arrays in order.
        lengths: lane -> number of words.

    Raises:
        CompositionError: the numbers need words of more than 64 bits.
        MessageError: the form is not one.
    """

    def __init__(
        self, form: Tree, codec: FixedPoint, parties: int, bound: float | None = None, *, signs: bool = True
    ) -> None:
        self.form, self.codec, self.parties, self.bound, self.signs = form, codec, parties, bound, signs
        self.slots: list[Slot] = []
        self.lengths: dict[str, int] = {}
        self._weights: dict[str, Slot] = {}
        self._values: dict[str, tuple[Tree, list[Slot]]] = {}
        try:
            for name, kind, role, tree in form:
                if kind not in _KINDS or role not in ROLES:
                    raise ValueError(f"kind {kind!r}, role {role!r}")
                made = [
                    self._value(f"{name}/{path}" if path else name, kind, role, leaf) for path, leaf in T.items(tree)
                ]
                self._values[name] = (tree, made)
        except (ValueError, TypeError) as error:
            if isinstance(error, CompositionError):
                raise
            raise MessageError(f"a form of totals that cannot be read: {error}", where="WordLayout") from error
        for name, kind, *_ in form:
            if kind == "mean":
                self._weights[name] = self._slot(f"{name} (weight)", "<f8", (), *codec.wide(parties, whole=False))
        self._clamped = self._slot("clamped", "<i8", (), *codec.wide(parties, whole=True)) if self.clamping else None

    @classmethod
    def of(cls, totals: Totals, codec: FixedPoint, parties: int, bound: float | None = None, **how: bool) -> WordLayout:
        """The layout of a party's totals; with ``block=True``, of those of a block of clients. Takes ``signs`` too."""
        block = how.pop("block", False)
        return cls(form_of(totals, block=block), codec, parties, bound, **how)

    def _slot(
        self,
        path: str,
        dtype: str,
        shape: tuple[int, ...],
        bits: int,
        unit: int | None,
        limit: int,
        *,
        clamps: bool = False,
    ) -> Slot:
        lane = str(bits)
        slot = Slot(path, dtype, shape, bits, self.lengths.get(lane, 0), unit, limit, clamps)
        self.lengths[lane] = slot.start + slot.size
        self.slots.append(slot)
        return slot

    def _value(self, path: str, kind: str, role: str, leaf: str) -> Slot:
        head, _, rest = leaf.partition("(")
        inside, _, made = rest.partition(")")
        dtype, shape = np.dtype(head), tuple(int(size) for size in inside.split(",") if size)
        if made:
            return self._slot(path, dtype.str, shape, int(made[1:]), None, 0)
        known = self.codec.range_of(self.bound)
        if kind == "vote" and (self.signs or role not in STAGED):
            return self._slot(path, dtype.str, shape, *self.codec.votes(self.parties))
        if role in STAGED and dtype.kind == "f" and known is not None:
            return self._slot(path, dtype.str, shape, *self.codec.narrow(kind, self.parties, known), clamps=True)
        return self._slot(path, dtype.str, shape, *self.codec.wide(self.parties, whole=dtype.kind != "f"))

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """A hash of all that decides the layout, 32 bytes."""
        c = self.codec
        settings = [c.value_bits, c.weight_bits, c.max_weight, c.value_range, self.parties, self.bound, self.signs]
        return bytes.fromhex(M.fingerprint([self.form, settings]))

    def slots_of(self, name: str) -> tuple[list[Slot], Slot | None]:
        """The slots of a total's arrays, and that of its weight if it is a mean."""
        return self._values[name][1], self._weights.get(name)

    @property
    def bits(self) -> int:
        """Bits of a party's words."""
        return sum(int(lane) * length for lane, length in self.lengths.items())

    @property
    def numbers(self) -> int:
        """How many numbers the totals have, without weights."""
        return sum(slot.size for _, slots in self._values.values() for slot in slots)

    @property
    def clamping(self) -> int:
        """How many of them are clamped where they do not fit."""
        return sum(slot.size for slot in self.slots if slot.clamps)

    # ------------------------------------------------------------------ a party's words

    def encode(self, totals: Totals, party: str = "") -> Lanes:
        """A party's words, by lane.

        Raises:
            DataError: a number does not fit, or the weight is above the largest.
        """
        apart = {
            name: _replace_value(t, T.map(lambda leaf: np.asanyarray(leaf)[None], t.value), np.array([t.weight], dtype=np.float64))
            for name, t in totals.items()
        }  # fmt: skip
        made = self.encode_block(apart, [party])
        if made.errors:
            raise made.errors[0]
        return {lane: words[0] for lane, words in made.lanes.items()}

    def encode_block(self, totals: Totals, names: Any = ()) -> Encoded:
        """The words of a block of clients, whose totals have a leading client axis.

        Args:
            totals: as ``Cohort.totals`` yields them.
            names: the clients' names, for errors.
        """
        count = len(np.asarray(next(iter(totals.values())).weight))
        lanes = {lane: np.empty((count, length), dtype=word_dtype(int(lane))) for lane, length in self.lengths.items()}
        clamped, errors = np.zeros(count, dtype=np.int64), dict[int, Exception]()

        def put(slot: Slot, block: Array) -> None:
            over, bad = slot.put(block, lanes[str(slot.bits)])
            if over is not None:
                clamped[:] += over
            for i in np.flatnonzero(bad).tolist() if bad is not None else ():
                errors.setdefault(i, slot.unfit(names[i] if i < len(names) else "", self.parties))

        heaviest = self.codec.heaviest(self.bound)
        for name, (_, slots) in self._values.items():
            for slot, leaf in zip(slots, T.leaves(totals[name].value), strict=True):
                put(slot, leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf))
        for name, slot in self._weights.items():
            weights = np.asarray(totals[name].weight, dtype=np.float64)
            put(slot, weights)
            if heaviest is not None:
                for i in np.flatnonzero(weights > heaviest).tolist():
                    errors.setdefault(
                        i, _too_heavy(name, float(weights[i]), heaviest, names[i] if i < len(names) else "")
                    )
        if self._clamped is not None:
            put(self._clamped, clamped)
        return Encoded({lane: Words.of(words, int(lane)) for lane, words in lanes.items()}, clamped, errors)

    # ------------------------------------------------------------------ the sum

    def decode(self, lanes: dict[str, Any], n: int) -> Decoded:
        """The totals of ``n`` parties from the sums of their words.

        Args:
            lanes: lane -> sum of the parties' words, modulo ``2^p``.
            n: number of parties in it.

        Raises:
            MessageError: the lanes are not those of the layout.
        """
        if {lane: len(words) for lane, words in lanes.items()} != self.lengths:
            raise MessageError(
                f"lanes of { ({lane: len(words) for lane, words in lanes.items()}) } words, expected {self.lengths}",
                where="the sum of words",
                remedy="let every party reply with totals of the same form",
            )
        sums = {lane: Words.of(np.asarray(words), int(lane)) for lane, words in lanes.items()}
        totals: Totals = {}
        for name, kind, role, tree in self.form:
            made = iter([slot.take(sums[str(slot.bits)]) for slot in self._values[name][1]])
            value = T.map(lambda _, made=made: next(made), tree)
            slot = self._weights.get(name)
            weight = float(n) if slot is None else float(slot.take(sums[str(slot.bits)]))
            totals[name] = Total(kind, value, weight, n, role)
        clamped = self._clamped
        return Decoded(totals, 0 if clamped is None else int(clamped.take(sums[str(MOST)])))


def _replace_value(total: Total, value: Tree, weight: Array) -> Total:
    return Total(total.kind, value, weight, total.n, total.role)


def _too_heavy(name: str, weight: float, heaviest: float, party: str) -> DataError:
    return DataError(
        f"the weight {weight:g} of {name!r} is above max_weight={heaviest:g}",
        where=party or None,
        remedy=f"let the job set max_weight={2 ** math.ceil(math.log2(weight)):g}",
    )


# ------------------------------------------------------------------ the words of a block of parties that run together


class CodedBlock(NamedTuple):
    """Words of a block, without those parties whose totals have none.

    Attributes:
        positions: places of the parties in the cohort.
        good: their places in the block.
        lanes: their words.
        layout: of the words.
        errors: place in the cohort -> why a party has no words.
    """

    positions: Any
    good: list[int]
    lanes: dict[str, Any]
    layout: WordLayout
    errors: dict[int, Exception]

    @classmethod
    def of(cls, block: TotalsBlock, layout_of: Callable[[Tree], WordLayout], names: Sequence[str] = ()) -> CodedBlock:
        """Encode the totals of a block.

        Args:
            block: the totals.
            layout_of: form of totals -> the layout of their words.
            names: of the parties, for errors.
        """
        return cls.under(layout_of(form_of(block.totals, block=True)), block, names)

    @classmethod
    def under(cls, layout: WordLayout, block: TotalsBlock, names: Sequence[str] = ()) -> CodedBlock:
        """Encode the totals of a block by a layout."""
        made = layout.encode_block(block.totals, list(names))
        good = [i for i in range(len(block.positions)) if i not in made.errors]
        lanes = made.lanes if not made.errors else {lane: words[good] for lane, words in made.lanes.items()}
        errors = {int(block.positions[i]): error for i, error in made.errors.items()}
        return cls(block.positions[good], good, lanes, layout, errors)


# ------------------------------------------------------------------ what all secure sums of words share: who may be in them, and how a sum of words becomes totals again


class WordSums(Reducer):
    """Base of reducers whose parties turn totals into words that hide in a sum.

    Attributes:
        least: smallest number of parties in a sum; never below 2.
        codec: how numbers become words.
    """

    least: int
    codec: FixedPoint
    secure: ClassVar[bool] = True

    def require_least(self, what: str = "a sum of one is its reply") -> None:
        """Refuse a least number of parties that hides nothing.

        Raises:
            ConfigError: it is below 2.
        """
        if self.least < 2:
            where = type(self).__name__
            raise ConfigError(f"least={self.least}", where=where, remedy=f"use 2 or more: {what}")

    def fewest(self, parties: int) -> tuple[int, str]:
        """The smallest number of parties whose sum may be opened in a cohort, and what asks for it, for an error."""
        del parties
        return self.least, f"the least sum of {self.least}"

    def require_libraries(self) -> None:
        """Refuse to begin without the libraries that the sum needs; by default that of the keystream.

        Raises:
            MissingExtraError: one is not installed.
        """
        require_library()

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts, terms and numbers that cannot be summed; see ``Reducer.check``.

        Raises:
            CompositionError: the parts do not go together.
            MissingExtraError: a library is not installed.
            QuorumError: the cohort is too small.
        """
        super().check(uplink, parties, terms, task)
        self.require_libraries()
        where = type(self).__name__
        count, why = self.fewest(len(parties))
        if len(parties) < count:
            raise QuorumError(
                f"{len(parties)} parties, fewer than {count}",
                where=where,
                remedy="invite more parties, or lower the threshold or least",
            )
        if isinstance(terms.accept, int) and terms.accept < count:
            raise CompositionError(
                f"accept={terms.accept}, below {why}", where=where, remedy=f"use accept={count} or more"
            )
        for name in self.others:
            if name in parties.names:
                raise CompositionError(
                    f"{name!r} is in the cohort, and plays the {self.others[name]}",
                    where=where,
                    remedy="give that role to another party",
                )
        bound = self.codec.range_of(uplink.bound)
        if bound is not None:
            self.codec.narrow("mean", len(parties), bound)

    def word_length(self, uplink: Chain, parties: int) -> int:
        """Bits of a word of an update's value."""
        return self.codec.length(uplink.bound, parties)


def require_threshold(given: float | int | None, where: str) -> None:
    """Refuse a threshold that is neither a number of parties nor a share of them.

    Raises:
        ConfigError: it is 1, so that one share is the seed; has a fraction above 1; or is not above 0.
    """
    if given is None or (isinstance(given, float) and 0 < given <= 1) or (given >= 2 and given == int(given)):
        return
    raise ConfigError(
        f"threshold={given}", where=where, remedy="use a number of parties from 2, or a share such as 0.6 (1.0 for all)"
    )


def require_enough(
    kept: Parties, quorum: int, where: str = "SecureAggregation", rejected: Mapping[int, str] | None = None
) -> None:
    """Refuse to open a sum of too few.

    Raises:
        QuorumError: fewer parties than the threshold or the least number have sent their words.
    """
    if len(kept) < quorum:
        why = next(iter((rejected or {}).values()), "")
        raise QuorumError(
            f"{len(kept)} parties sent masked words, fewer than {quorum}{f'; {len(rejected or {})} were rejected: {why}' if why else ''}",
            where=where,
            remedy="do what the rejected parties ask for"
            if why
            else "lengthen the deadline, invite more parties (over_select) or lower the threshold",
        )


def common_form(forms: list[Any]) -> Any:
    """The form that all parties have; one that differs would have made noise of the sum.

    Raises:
        QuorumError: parties replied with different totals.
    """
    if not forms or any(form != forms[0] for form in forms):
        raise QuorumError(
            f"parties replied with totals of different forms, which have no sum{_differing(forms)}",
            where="SecureAggregation",
            remedy="let every party reply with the same aggregates, of the same shapes and dtypes: a metric that a party cannot compute is NaN, and counts for nothing",
        )
    return forms[0]


def _differing(forms: list[Any]) -> str:
    """Which aggregates some parties lack, or have in another form, as far as their words can be read."""
    try:
        known = [{str(one[0]): one[1:] for one in form} for form in forms]
    except (TypeError, IndexError, KeyError):
        return ""
    names = sorted({name for form in known for name in form})
    lacking = [name for name in names if any(name not in form for form in known)]
    other = [name for name in names if name not in lacking and any(form[name] != known[0][name] for form in known)]
    told = [f"some lack {', '.join(map(repr, lacking[:5]))}"] if lacking else []
    told += [f"{', '.join(map(repr, other[:5]))} differs in shape, dtype or kind"] if other else []
    return f": {'; '.join(told)}" if told else ""


def decode_sum(
    layout: WordLayout,
    lanes: dict[str, Any],
    senders: NDArray[Any],
    wrong: int = 0,
    counts: Mapping[str, int] | None = None,
) -> Reduced:
    """The result of a sum of words, with how many numbers were clamped, how many parties dealt or revealed wrong shares, and other counts.

    Raises:
        QuorumError: the count of clamped numbers shows that masks did not cancel.
    """
    made = layout.decode(lanes, len(senders))
    if not 0 <= made.clamped <= layout.clamping * len(senders):
        raise QuorumError(
            f"{made.clamped} of {layout.clamping * len(senders)} numbers clamped: the masks of the sum did not cancel, and it is noise",
            where="masked sum",
            remedy="look for a party that was asked something else, or masked with other seeds",
        )
    coded, counts = layout.clamping * len(senders), {"wrong_shares": wrong, **(counts or {})}
    if coded:
        counts |= {"words": layout.clamping, "coded": coded, "clamped": made.clamped}
    return Reduced(made.totals, senders, counts=counts)
