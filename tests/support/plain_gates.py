"""Gates in the clear: what circuits compute, and how many ANDs they take, without any protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from atoll.secure.garbled import Gates, Wires, number_bits, read_numbers


class PlainGates(Gates):
    """A bit is a word 0 or 1; ``ands`` and ``layers`` are counted."""

    def __init__(self, block: int = 64) -> None:
        self.block, self.ands, self.layers = block, 0, 0

    def flip(self, x: Wires, bits: Any) -> Wires:
        return Wires(self, x.data ^ bits.astype(np.uint64))

    async def conjoin(self, x: Wires, y: Wires) -> Wires:
        assert x.shape == y.shape
        self.ands += x.data.size
        self.layers += 1
        return Wires(self, x.data & y.data)

    async def share(self, values: Any = None, *, owner: str = "", bits: int, rows: int = 0) -> Wires:
        return self.constant(number_bits(values, bits))

    async def reveal(self, x: Wires, to: str | None = None) -> Any:
        assert set(np.unique(x.data)) <= {0, 1}
        return read_numbers(x.data[0])

    async def hand_out(self, x: Wires) -> Any:
        return x.data.reshape(-1)

    @staticmethod
    def read_parts(parts: Any, count: int) -> Any:
        assert len(parts[0]) == count
        return parts[0].astype(bool)


def compute(program: Any, block: int = 64) -> tuple[Any, PlainGates]:
    """Run ``await program(gates)`` in the clear."""
    gates = PlainGates(block)
    return asyncio.run(program(gates)), gates
