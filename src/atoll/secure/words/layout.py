"""Layouts: where each total of a request stands among a party's words."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import ROLES, STAGED, Total, Totals
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, DataError, MessageError
from atoll.core.message import Words
from atoll.core.message.words import word_dtype

from .fixed import MOST, FixedPoint
from .slots import Slot

__all__ = ["Decoded", "Encoded", "WordLayout", "form_of"]

Array = np.ndarray[Any, np.dtype[Any]]
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
