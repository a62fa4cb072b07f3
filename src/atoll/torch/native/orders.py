"""Mini-batches drawn where they are used: the orders of `atoll.core.algebra.rng.shuffles` in native code, one client at a time.

A sorted list of random numbers costs a library call its memory and a pass over it for each of half a dozen operations; a client's whole
order fits into the first-level cache, and threads share the work.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.learn.local.update import count_many

from ..tracing.keyed import step_seeds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.learn.local.update import Counted

    from ..blocks.pool import PoolPlace

__all__ = ["ORDERS", "Draws", "address", "readable"]


@dataclass
class Draws:
    """What native code needs to draw the mini-batches of some clients.

    Attributes:
        keys: one for each client.
        first: number of each client's first row.
        sizes: rows of each client.
        batches: rows of each client's full mini-batch.
        steps: steps of each client.
        cyclic: whether rows are taken in stored order.
        order: where each row is, int32 or int64; ``None`` if rows are in order.
    """

    keys: NDArray[np.uint64]
    first: NDArray[np.int64]
    sizes: NDArray[np.int64]
    batches: NDArray[np.int64]
    steps: NDArray[np.int64]
    cyclic: bool
    order: NDArray[Any] | None

    @classmethod
    def of(cls, work: Counted, place: PoolPlace, sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> Draws:
        """Return the draws of clients with ``sizes`` rows, at a place."""
        batches = np.ascontiguousarray(work.batch_of(sizes), np.int64)
        steps = np.ascontiguousarray(count_many(work, sizes, keys), np.int64)
        return cls(
            np.ascontiguousarray(keys, np.uint64), place.first, sizes, batches, steps, bool(work.cyclic), place.order
        )

    def part(self, which: NDArray[np.int64]) -> Draws:
        """Return the draws of some of the clients; the same object for all of them."""
        if len(which) == len(self.steps):
            return self
        first, sizes, batches, steps = (c[which] for c in (self.first, self.sizes, self.batches, self.steps))
        return Draws(self.keys[which], first, sizes, batches, steps, self.cyclic, self.order)

    @cached_property
    def longest(self) -> int:
        """Return the most steps of a client."""
        return int(self.steps.max(initial=0))

    @cached_property
    def largest(self) -> int:
        """Return the most rows of a client."""
        return int(self.sizes.max(initial=0))

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """Return where steps begin: client ``c`` takes the steps ``begins[c]:begins[c + 1]``, ``(clients + 1,)``."""
        made = np.zeros(len(self.steps) + 1, np.int64)
        np.cumsum(self.steps, out=made[1:])
        return made

    def partial(self, width: int) -> bool:
        """Tell whether any mini-batch has fewer examples than a width."""
        if self.largest == self.sizes.min(initial=self.largest) and self.longest == self.steps.min(
            initial=self.longest
        ):
            n, batch = self.largest, int(self.batches.max(initial=1))
            return self.longest > 0 and (batch < width or (n % batch > 0 and self.longest >= -(-n // batch)))
        full = np.maximum(self.batches, 1)
        short = (self.sizes % full > 0) & (self.steps >= -(-self.sizes // full))
        return bool(((self.steps > 0) & (short | (self.batches < width))).any())

    def seeds(self) -> NDArray[np.int64]:
        """Return the seeds for the draws at each step, ``(steps of all clients, 2)``."""
        begins = self.begins
        at = np.arange(begins[-1]) - np.repeat(begins[:-1], self.steps)
        return step_seeds(np.repeat(self.keys, self.steps), at, paired=True)

    def structure(self) -> Any:
        """Return the C++ structure ``Draws``; it points to the arrays of this object."""
        narrow = self.order is not None and self.order.dtype == np.int32
        found = [address(column) for column in (self.keys, self.first, self.sizes, self.batches, self.order)]
        order = [found[-1], None] if narrow else [None, found[-1]]
        return (ctypes.c_void_p * 7)(*found[:-1], *order, int(self.cyclic))


def address(held: Any) -> int | None:
    """Return the address of a contiguous tensor's or array's data; an address stays as it is, and ``None`` stays ``None``."""
    if isinstance(held, np.ndarray):
        return int(held.ctypes.data)
    return held if held is None or isinstance(held, int) else int(held.data_ptr())


def readable(leaf: Any) -> bool:
    """Tell whether an array is contiguous and of a type that native code computes with."""
    return isinstance(leaf, np.ndarray) and leaf.dtype in _TYPES and leaf.flags.c_contiguous


_TYPES = (np.dtype(np.float32), np.dtype(np.int64))


ORDERS = r"""
// Sorts of a few 64-bit numbers by counting, for each, how many are smaller: no branch to foretell, and vectors do it.
typedef uint64_t u64;
typedef u64 W __attribute__((vector_size(L * 4), aligned(8), may_alias));
constexpr int LW = L / 2, ALIKE = 32;

INLINE u64 mix(u64 z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
template <int S> INLINE void rank_some(const u64* from, i64 begin, i64 i, i64 end, u64 number, i64* to) {
  W mine[S], smaller[S];
#pragma GCC unroll 8
  for (int s = 0; s < S; ++s) mine[s] = *(const W*)(from + i + s * LW), smaller[s] = W{};
  for (i64 j = begin; j < end; ++j) {
    const W other = from[j] - W{};
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) smaller[s] = other < mine[s] ? smaller[s] + 1 : smaller[s];
  }
#pragma GCC unroll 8
  for (int s = 0; s < S; ++s)
    for (int k = 0; k < LW && i + s * LW + k < end; ++k) to[begin + (i64)smaller[s][k]] = (i64)(mine[s][k] & number);
}
static void rank(const u64* from, i64 begin, i64 end, u64 number, i64* to) {
  i64 i = begin;
  for (; i + 3 * LW < end; i += 4 * LW) rank_some<4>(from, begin, i, end, number, to);
  if (i + LW < end) rank_some<2>(from, begin, i, end, number, to), i += 2 * LW;
  if (i < end) rank_some<1>(from, begin, i, end, number, to);
}

// The clients' rows: who has which, how they are taken, and where they are (null: in the order of their numbers).
struct Draws {
  const u64* keys;
  const i64 *first, *sizes, *batches;
  const int32_t* narrow;
  const i64* wide;
  i64 cyclic;
};

// The order of one pass over a client's rows: every row gets random bits, of which the lowest give way to its number, and they are sorted. Many
// are dealt out by their highest bits first.
static const i64* shuffle(u64 key, i64 pass, i64 n, char* room) {
  u64 *noise = (u64*)room, *dealt = noise + n + LW, number = 1;
  i64* begins = (i64*)(dealt + n + LW);
  while (number < (u64)n) number <<= 1;
  number -= 1;
  for (i64 i = 0; i < n; ++i) noise[i] = (mix(key ^ mix((u64)(pass * n + i))) & ~number) | (u64)i;
  if (n <= 2 * ALIKE) {
    rank(noise, 0, n, number, (i64*)dealt);
    return (i64*)dealt;
  }
  int bits = 1;
  while ((n >> bits) > ALIKE) ++bits;
  const i64 places = (i64)1 << bits;
  memset(begins, 0, (places + 2) * sizeof(i64));
  for (i64 i = 0; i < n; ++i) ++begins[(noise[i] >> (64 - bits)) + 2];
  for (i64 b = 2; b < places + 2; ++b) begins[b] += begins[b - 1];
  for (i64 i = 0; i < n; ++i) dealt[begins[(noise[i] >> (64 - bits)) + 1]++] = noise[i];
  for (i64 b = 0; b < places; ++b) rank(dealt, begins[b], begins[b + 1], number, (i64*)noise);
  return (i64*)noise;
}

// All mini-batches of a client: numbers of rows, and which of them are real. A place behind a partial mini-batch repeats the first row.
static void draw(const Draws& draws, i64 c, i64 steps, i64* rows, float* weights, char* room) {
  const i64 n = draws.sizes[c], size = draws.batches[c], first = draws.first[c];
  const bool lie = draws.cyclic || size == n;
  const u64 key = mix(draws.keys[c]);
  const i64* order = nullptr;
  i64 begin = 0, pass = 0;
  for (i64 at = 0; at < steps; ++at, rows += BATCH, weights += BATCH) {
    if (begin == 0 && !lie) order = shuffle(key, pass, n, room);
    const i64 rest = size < n - begin ? size : n - begin, real = rest < BATCH ? rest : BATCH;
    for (i64 b = 0; b < real; ++b) rows[b] = first + (lie ? begin + b : order[begin + b]);
    for (i64 b = real; b < BATCH; ++b) rows[b] = first;
    for (i64 b = 0; b < BATCH; ++b) weights[b] = b < real ? 1.0f : 0.0f;
    if (draws.narrow) for (i64 b = 0; b < BATCH; ++b) rows[b] = draws.narrow[rows[b]];
    if (draws.wide) for (i64 b = 0; b < BATCH; ++b) rows[b] = draws.wide[rows[b]];
    begin += size;
    if (begin >= n) begin = 0, ++pass;
  }
}
// Bytes of a client's mini-batches, and of an order in the making.
static i64 drawn_room(i64 steps) { return (steps * BATCH * (i64)(sizeof(i64) + sizeof(float)) + 63) / 64 * 64; }
static i64 order_room(i64 rows) { return (((2 * (rows + LW) + rows / (ALIKE / 2) + 8) * (i64)sizeof(u64)) + 63) / 64 * 64; }
"""
