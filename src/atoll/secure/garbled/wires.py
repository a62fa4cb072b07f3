"""Wires and gates: circuits of XOR and AND over whole arrays, whoever computes them.

`Wires` are bits that nobody need see, of any shape. ``^`` and ``~`` act where the wires are; an AND of two arrays is one *layer*, ``await gates.conjoin(x, y)``. A number of ``k`` bits in
``n`` rows is ``(k, n)``, lowest bit first. The same circuit (`atoll.secure.garbled.circuits`) runs on garbled labels and on authenticated bits, and on no data at all: `GateCounter` says what a
program will cost before anyone is contacted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["GateCounter", "Gates", "Wires", "join_wires", "number_bits", "read_numbers", "require_shape"]

Array = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, eq=False)
class Wires:
    """What a party holds of an array of bits.

    Attributes:
        by: the gates that the wires belong to.
        data: words ``(planes, *shape)``; a bit is as many words as the gates have planes.
    """

    by: Gates
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of bits."""
        shape: tuple[int, ...] = self.data.shape[1:]
        return shape

    def __len__(self) -> int:
        return self.shape[0]

    def __xor__(self, other: Wires | ArrayLike) -> Wires:
        """XOR with wires of the same gates, or with public bits."""
        if isinstance(other, Wires):
            if other.by is not self.by:
                raise ConfigError("wires of two computations", where="Wires", remedy="share both in one computation")
            return Wires(self.by, self.data ^ other.data)
        return self.by.flip(self, np.broadcast_to(np.asarray(other, dtype=bool), self.shape))

    def __invert__(self) -> Wires:
        return self ^ True

    def keep(self, bits: ArrayLike) -> Wires:
        """AND with public bits: no gate."""
        return Wires(self.by, self.data * np.asarray(bits, dtype=bool))

    def __getitem__(self, index: Any) -> Wires:
        places = index if isinstance(index, tuple) else (index,)
        return Wires(self.by, self.data[(slice(None), *places)])

    def take(self, places: ArrayLike, axis: int = -1) -> Wires:
        """The wires at some places of an axis, by default the rows."""
        return Wires(self.by, np.take(self.data, np.asarray(places), axis=axis + 1 if axis >= 0 else axis))

    def reshape(self, *shape: int) -> Wires:
        """The wires in another shape; one length may be -1."""
        if -1 in shape:  # NumPy cannot tell where there are no planes
            rest = math.prod(self.shape) // max(1, math.prod(n for n in shape if n >= 0))
            shape = tuple(rest if n < 0 else n for n in shape)
        return Wires(self.by, self.data.reshape(len(self.data), *shape))

    def spread(self, *shape: int) -> Wires:
        """The wires repeated along new or single axes, without a copy."""
        ahead = (1,) * (len(shape) - len(self.shape))
        return Wires(self.by, np.broadcast_to(self.reshape(*ahead, *self.shape).data, (len(self.data), *shape)))


def join_wires(wires: Sequence[Wires], axis: int = 0) -> Wires:
    """Join wires along an axis."""
    place = axis + 1 if axis >= 0 else axis
    filled = [one for one in wires if one.data.shape[place]] or wires[:1]
    if len(filled) == 1:
        return filled[0]
    return Wires(wires[0].by, np.concatenate([one.data for one in filled], axis=place))


def number_bits(values: Any, bits: int) -> NDArray[np.bool_]:
    """Whole numbers as bits ``(bits, n)``, lowest first; negative ones in two's complement.

    Raises:
        DataError: the values are no row of whole numbers of so many bits.
    """
    made = np.asarray(values)
    if made.ndim != 1 or made.dtype.kind not in "iub":
        raise DataError(f"values of type {made.dtype} and shape {made.shape}", where="share", remedy="share one row of whole numbers; encode others in fixed point")  # fmt: skip
    if made.size and not -(1 << bits) <= 2 * int(made.min()) <= 2 * int(made.max()) < 2 << bits:
        raise DataError(f"a number that does not fit {bits} bits", where="share", remedy="use more bits, or correct the value")  # fmt: skip
    words = made.astype(np.int64).view(np.uint64) if made.dtype.kind == "i" else made.astype(np.uint64)
    return np.asarray((words >> np.arange(bits, dtype=np.uint64)[:, None]) & np.uint64(1), dtype=bool)


def read_numbers(bits: ArrayLike, *, signed: bool = False) -> NDArray[Any]:
    """The inverse of `number_bits`: uint64, or int64 of two's complement."""
    rows = np.asarray(bits, dtype=np.uint64)
    words = (rows << np.arange(len(rows), dtype=np.uint64)[:, None]).sum(axis=0, dtype=np.uint64)
    if not signed:
        return np.asarray(words)
    shift = np.uint64(64 - len(rows))
    return np.asarray((words << shift).view(np.int64) >> np.int64(shift))


class Gates:
    """One party's side of a computation on wires.

    Attributes:
        planes: words that a bit takes at this party.
        block: bits that a comparison carries one after the other. Where only ANDs cost, all; where each layer costs a message, few.
    """

    planes: ClassVar[int] = 1
    block: int = 64

    def zeros(self, shape: tuple[int, ...]) -> Wires:
        """Wires of the public value 0."""
        return Wires(self, np.zeros((self.planes, *shape), dtype=np.uint64))

    def constant(self, bits: ArrayLike) -> Wires:
        """Wires of public bits."""
        made = np.asarray(bits, dtype=bool)
        return self.zeros(made.shape) ^ made

    def flip(self, x: Wires, bits: NDArray[np.bool_]) -> Wires:
        """XOR with public bits of the same shape."""
        raise NotImplementedError

    async def conjoin(self, x: Wires, y: Wires) -> Wires:
        """AND of wires of one shape: a layer of as many gates."""
        raise NotImplementedError

    async def share(self, values: Any = None, *, owner: str, bits: int, rows: int) -> Wires:
        """Make wires ``(bits, rows)`` of an owner's numbers.

        Args:
            values: the numbers; needed at the owner only.
            owner: the role whose numbers they are.
            bits: of a number, 1 to 64.
            rows: how many there are, which everyone knows.

        Raises:
            DataError: the owner's values are not ``rows`` whole numbers of ``bits`` bits.
        """
        raise NotImplementedError

    async def reveal(self, x: Wires, to: str | None = None) -> NDArray[np.uint64] | None:
        """The numbers of wires ``(bits, rows)``, shown to a role or by default to all; ``None`` at the others.

        Raises:
            LetterError: what was computed does not fit together: a message was altered.
        """
        raise NotImplementedError

    async def hand_out(self, x: Wires) -> NDArray[np.uint64]:
        """This party's part of bits of any shape that are for somebody outside; who has the parts of all parties reads them by `read_parts`. No party learns them."""
        raise NotImplementedError

    @staticmethod
    def read_parts(parts: Sequence[Any], count: int) -> NDArray[np.bool_]:
        """The bits, of the parts of all parties in their order.

        Args:
            parts: what `hand_out` gave at each party.
            count: how many bits there are.

        Raises:
            LetterError: the parts do not fit together: one was altered.
        """
        raise NotImplementedError


class GateCounter(Gates):
    """Gates without data: a program runs on shapes alone, and what it uses is counted.

    Args:
        roles: those that compute, in order.
        block: as the gates that are meant have it.

    Attributes:
        ands: number of ANDs.
        sizes: ANDs of a layer -> number of layers, each of which is an array of ANDs.
        pieces: number of ANDs between inputs and results.
        shared: role -> number of bits that it shares.
        shares: number of arrays that are shared.
        shown: the role and the number of bits of each result.
        handed: the number of bits of each result that is for somebody outside.
    """

    planes: ClassVar[int] = 0

    def __init__(self, roles: Sequence[str], block: int = 64) -> None:
        self.roles, self.block = tuple(roles), block
        self.sizes: Counter[int] = Counter()
        self.pieces = [0]
        self.shared: Counter[str] = Counter()
        self.shares = 0
        self.shown: list[tuple[str, int]] = []
        self.handed: list[int] = []

    @property
    def ands(self) -> int:
        """Number of ANDs."""
        return sum(self.pieces)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.sizes.total()

    @classmethod
    async def measure(cls, program: Callable[[Any], Awaitable[Any]], roles: Sequence[str], block: int = 64) -> GateCounter:  # fmt: skip
        """Run ``await program(gates)`` on shapes; its values may be missing."""
        made = cls(roles, block)
        await program(made)
        return made

    def flip(self, x: Wires, bits: NDArray[np.bool_]) -> Wires:
        """Nothing to count: XOR is free."""
        del bits
        return x

    async def conjoin(self, x: Wires, y: Wires) -> Wires:
        """Count a layer."""
        require_shape(x, y)
        self.pieces[-1] += math.prod(x.shape)
        self.sizes[math.prod(x.shape)] += 1
        return self.zeros(x.shape)

    async def share(self, values: Any = None, *, owner: str, bits: int, rows: int) -> Wires:
        """Count an owner's bits."""
        del values
        self.pieces.append(0)
        self.shared[owner] += bits * rows
        self.shares += 1
        return self.zeros((bits, rows))

    async def reveal(self, x: Wires, to: str | None = None) -> None:
        """Count bits that are shown."""
        self.pieces.append(0)
        self.shown += [(role, math.prod(x.shape)) for role in (self.roles if to is None else (to,))]

    async def hand_out(self, x: Wires) -> NDArray[np.uint64]:
        """Count bits that are handed out."""
        self.pieces.append(0)
        self.handed.append(math.prod(x.shape))
        return np.zeros(0, dtype=np.uint64)


def require_shape(x: Wires, y: Wires) -> None:
    """Refuse an AND of two shapes.

    Raises:
        ConfigError: the shapes differ.
    """
    if x.shape != y.shape:
        raise ConfigError(f"wires of shapes {x.shape} and {y.shape}", where="conjoin", remedy="bring both to one shape: x.spread(...)")  # fmt: skip
