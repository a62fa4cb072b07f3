"""What owners compute together of numbers of their own: sums, thresholds of sums, whether one of them says yes, and the union of their rows.

After Hu-Fu (Tong et al. 2022), for 2 to some tens of owners in one session, none of whom departs from the protocol. Every two owners share a seed that nobody else knows. An owner
adds the streams of its seeds to its numbers, one of each two with a minus, so that they cancel in the sum over all owners and in no other sum: whatever fewer owners know, the rest is uniform. Hu-Fu shares
by polynomials instead, which costs as many messages in each sum as there are pairs; here the pairs are needed once.

| step | what the lead and others see | bytes an owner sends |
| --- | --- | --- |
| `add` | the sum, modulo ``2^61 - 1`` | 8 a number |
| `any` | whether one says yes: a random number of the field, or 0 | 8 a place |
| `reach`, exact | whether the sum is at least k | 2 to 8 a sum; the third owner ``n k / 8`` more |
| `reach`, masked | the lead also the difference times a random number | 8 a sum |
| `reserve`, then `scatter` | which places of a table are taken; the rows, in places that nobody can tell the owners of | 2 a place; 8 for 7 bytes of all rows |

**exact**. Counts are at most k, so their sum is one of ``n k + 1`` numbers, and a threshold is a table of bits. With three owners or more the first two hold the sum plus ``r``, whose summands the third has given to
one of them each; it also gives each a share of the table, moved by ``r``. Both open the one bit at the place that they hold (Ishai et al. 2013, one-time truth tables). Two owners have no third: the
second looks its count up in the first one's table, by oblivious transfers (Naor and Pinkas 1999). The bit is all that anybody learns, unless the third tells one of the first two what it gave to the other.

**masked** (Hu-Fu's). All owners but the first know a random factor ``X`` in ``[1, 2^b]``, and the first learns ``X (sum - k)``: the sign, 0 for equality, and the size of the difference up to a
factor. It splits its own number between the second and the third. It needs three owners.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.privacy.discrete import DiscreteLaplaceLaw, sampler_of

from .keystream import Keystream, derived
from .oblivious import receive_seeds, send_seeds
from .shares.domain import Field

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

    from .shares.domain import Array

__all__ = ["COMPARISONS", "WORD_BYTES", "OwnerCircle", "find_first_above", "join_scattered", "margin_of", "slots_of"]

COMPARISONS = ("exact", "masked")
FIELD = Field()
WORD_BYTES = 7
"""Bytes of rows in one element of the field."""
_MOST_TABLE = 1 << 22
_ROUNDS = 60
"""Rounds of reservations: each row is alone in its place with a chance of 3/4 and more."""
_SEED = 32


def _field_words(stream: Keystream, count: int) -> Array:
    """Elements of the field, uniform up to ``2^-61``."""
    return FIELD._cut(stream(count) >> np.uint64(3))


def slots_of(rows: int) -> int:
    """Places of a table in which rows look for one each: fewer rows get more room each, so that they need fewer rounds."""
    return max(64, (16 if rows <= 64 else 4) * (1 << max(0, rows - 1).bit_length()))


def margin_of(places: int, epsilon: float) -> int:
    """How far above a level counts must be so that `find_first_above` names a place below the level once in a hundred times at most.

    Both noises together are at most ``2 (ln(100 places) + ln 100) / epsilon`` but for a chance of 1 %.
    """
    return math.ceil(2 * (math.log(100 * places) + math.log(100)) / epsilon)


def find_first_above(secret: Secret, counts: Sequence[int], level: int, epsilon: float) -> int | None:
    """The first place at which a count is at least a level, both with noise: ``epsilon``-private if a row changes every count by at most 1, all in one direction.

    This is the sparse vector technique with one answer (Dwork and Roth 2014, algorithm 1), for counts that only grow with a row (Lyu, Su, Li 2017): the level has discrete Laplace noise of scale
    ``2 / epsilon``, and so has each count, however many there are.

    Args:
        secret: this owner's entropy.
        counts: the counts, in order.
        level: the level.
        epsilon: above 0.
    """
    sampler = sampler_of(DiscreteLaplaceLaw(2 / epsilon))
    noise = sampler.draw(lambda count: secret.uint64((count,)), 1 + len(counts))
    above = np.flatnonzero(np.asarray(counts, np.int64) + noise[1:] >= level + noise[0])
    return int(above[0]) if above.size else None


class OwnerCircle:
    """One owner's side; all call the same methods in the same order.

    Args:
        secret: this owner's entropy.
        peers: the session; its roles are the owners.
        names: all owners, in an order that all have.
        me: this one.

    Attributes:
        rounds: messages that followed one another so far, over all owners.
        slots: places of each table in which rows looked for one.
    """

    def __init__(self, secret: Secret, peers: Peers, names: Sequence[str], me: str) -> None:
        if len(names) < 2 or len(set(names)) < len(names) or sorted(names) != sorted([me, *peers.names]):
            raise ConfigError(f"owners {', '.join(names)} in a session of {', '.join(sorted([me, *peers.names]))}", where="owners", remedy="let each owner have one role, and ask two or more")  # fmt: skip
        self.secret, self.peers, self.names, self.me = secret, peers, list(names), me
        self.place, self.lead = self.names.index(me), self.names[0]
        self.rounds, self.slots = 0, list[int]()
        self._streams: dict[tuple[str, str], Keystream] = {}

    @classmethod
    async def begin(cls, secret: Secret, peers: Peers, names: Sequence[str], me: str, about: bytes) -> OwnerCircle:
        """Agree on seeds.

        Args:
            secret: this owner's entropy.
            peers: the session.
            names: all owners.
            me: this one.
            about: 16 bytes that follow from what is computed.

        Raises:
            LetterError: another owner was asked for something else.
        """
        made = cls(secret, peers, names, me)
        hello = np.frombuffer(about, np.uint8)
        seeds: dict[str, bytes] = {}
        for other in made.names[made.place + 1 :]:
            seeds[other] = secret.bytes(_SEED)
            await peers.send(other, {"seed": np.frombuffer(seeds[other], np.uint8), "about": hello})
        for other in made.names[: made.place]:
            told = await peers.recv(other)
            if bytes(made._bytes_of(told["about"], 16, other)) != about:
                raise LetterError(f"{other} was asked for something else than {me}", where="owners", remedy="ask all sites the same: the coordinator may be lying")  # fmt: skip
            seeds[other] = bytes(made._bytes_of(told["seed"], _SEED, other))
        factor = secret.bytes(_SEED) if made.place == 1 else b""
        for other in made.names[2:] if made.place == 1 else ():
            await peers.send(other, np.frombuffer(factor, np.uint8))
        if made.place > 1:
            factor = bytes(made._bytes_of(await peers.recv(made.names[1]), _SEED, made.names[1]))
        for other, seed in seeds.items():
            made._streams |= {(other, use): Keystream(derived(seed, f"owners {use}")) for use in ("sum", "few", "table")}  # fmt: skip
        if factor:
            made._streams[made.names[1], "factor"] = Keystream(derived(factor, "owners factor"))
        made.rounds += 1
        return made

    def _bytes_of(self, told: Any, count: int, other: str) -> NDArray[np.uint8]:
        found = np.asarray(told)
        if found.dtype != np.uint8 or found.shape != (count,):
            raise LetterError(f"{other} sent {found.dtype} of shape {found.shape} where {count} bytes are due", where="owners")  # fmt: skip
        return found

    def _read(self, told: Any, shape: tuple[int, ...], dtype: Any, other: str) -> Any:
        found = np.asarray(told)
        if found.dtype != np.dtype(dtype) or found.shape != shape:
            raise LetterError(f"{other} sent {found.dtype} of shape {found.shape}, and {np.dtype(dtype)} of {shape} is due", where="owners")  # fmt: skip
        return found

    def _stream(self, other: str, use: str) -> Keystream:
        return self._streams[other, use]

    # ------------------------------------------------------------------ sums

    def mask(self, numbers: Array, among: Sequence[str] | None = None) -> Array:
        """Elements of the field with this owner's masks: over all owners (or those ``among``) the masks cancel."""
        made = numbers.reshape(-1)
        for other in among or self.names:
            if other != self.me:
                words = _field_words(self._stream(other, "sum"), made.size)
                made = FIELD.add(made, words) if self.names.index(other) > self.place else FIELD.sub(made, words)
        return made.reshape(numbers.shape)

    def _mask_words(self, words: Any) -> Any:
        """The same for unsigned words, which wrap."""
        made = words.copy()
        for other in self.names:
            if other != self.me:
                stream = self._stream(other, "few")(made.size).astype(made.dtype)  # the lowest bits
                made = made + stream if self.names.index(other) > self.place else made - stream
        return made

    async def _total(self, masked: Any, dtype: Any) -> Any:
        """The sum of arrays of all owners, at the lead; ``None`` at others."""
        self.rounds += 1
        if self.me != self.lead:
            await self.peers.send(self.lead, masked)
            return None
        found = masked
        for other in self.names[1:]:
            told = self._read(await self.peers.recv(other), masked.shape, dtype, other)
            found = FIELD.add(found, told) if dtype is np.uint64 else found + told
        return found

    async def _tell(self, found: Any, shape: tuple[int, ...], dtype: Any, source: str | None = None) -> Any:
        """What one owner (the lead) has found, at all."""
        source = source or self.lead
        self.rounds += 1
        if self.me == source:
            await self.peers.broadcast(found)
            return found
        return self._read(await self.peers.recv(source), shape, dtype, source)

    async def add(self, numbers: Any) -> NDArray[np.int64]:
        """The sums of whole numbers of all owners, modulo ``2^61 - 1``; all owners learn them.

        Args:
            numbers: below ``2^60`` in size.

        Raises:
            DataError: one is larger.
        """
        mine = FIELD.of(np.asarray(numbers, np.int64))
        found = await self._total(self.mask(mine), np.uint64)
        return FIELD.signed(await self._tell(found, mine.shape, np.uint64))

    async def any(self, said: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where one owner or more says yes; nobody learns who, or how many.

        Args:
            said: this owner's word on each place.
        """
        random = FIELD.add(FIELD.random(self.secret, said.shape), np.ones(said.shape, np.uint64))
        mine = np.where(said, random, np.uint64(0))  # 0 for p - 1, with chance 2^-61
        found = await self._total(self.mask(mine), np.uint64)
        return np.asarray(await self._tell(None if found is None else found != 0, said.shape, np.bool_))

    # ------------------------------------------------------------------ thresholds

    async def reach(self, counts: Any, k: int, comparison: str = "exact") -> NDArray[np.bool_]:
        """Whether sums of counts are at least k; all owners learn these bits.

        Args:
            counts: this owner's, shape ``(E,)``; each is taken as k if it is larger, which changes no answer.
            k: at least 1.
            comparison: ``"exact"`` or ``"masked"``; see the module.

        Raises:
            ConfigError: two owners cannot compare masked, or the table is too large.
        """
        mine = np.minimum(np.asarray(counts, np.int64), k)
        if comparison == "masked":
            return await self._reach_masked(mine, k)
        if len(self.names) == 2:
            return await self._look_up(mine, k)
        return await self._reach_exactly(mine, k)

    async def _reach_exactly(self, counts: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
        first, second, third = self.names[:3]
        size = 1 << (len(self.names) * k).bit_length()
        if size * len(counts) > 8 * _MOST_TABLE:
            raise ConfigError(f"thresholds of {len(counts):,} sums of {size:,}", where="owners", remedy="ask for fewer neighbours, or for fewer points at once")  # fmt: skip
        dtype: Any = np.uint16 if size <= 1 << 16 else np.uint32
        low, shape = dtype(size - 1), (len(counts), -(-size // 8))
        shift = np.zeros(len(counts), dtype)
        share = np.zeros(shape, np.uint8)
        if self.me in (first, second):
            shift = self._stream(third, "table")(len(counts)).astype(dtype) & low
        if self.me == first:
            share = self._share_of(third, shape)
        if self.me == third:
            moved = sum((self._stream(one, "table")(len(counts)).astype(dtype) for one in (first, second)), shift) & low
            places = (np.arange(size, dtype=np.uint32)[None] - moved[:, None].astype(np.uint32)) & np.uint32(size - 1)
            table = np.packbits(places >= k, axis=1, bitorder="little")
            await self.peers.send(second, table ^ self._share_of(first, shape))
        at = await self._total(self._mask_words(counts.astype(dtype) + shift), dtype)
        self.rounds += 1
        rows = np.arange(len(counts))
        if self.me == first:
            at = at & low
            await self.peers.send(second, {"at": at, "bits": share[rows, at >> 3] >> (at & dtype(7)).astype(np.uint8) & np.uint8(1)})  # fmt: skip
        bits: Any = None
        if self.me == second:
            share = self._read(await self.peers.recv(third), shape, np.uint8, third)
            told = await self.peers.recv(first)
            at = self._read(told["at"], (len(counts),), dtype, first) & low
            own = share[rows, at >> 3] >> (at & dtype(7)).astype(np.uint8) & np.uint8(1)
            bits = (own ^ self._read(told["bits"], (len(counts),), np.uint8, first)).astype(bool)
        return np.asarray(await self._tell(bits, (len(counts),), np.bool_, second))

    def _share_of(self, other: str, shape: tuple[int, int]) -> NDArray[np.uint8]:
        count = shape[0] * shape[1]
        return self._stream(other, "table")(-(-count // 8)).view(np.uint8)[:count].reshape(shape)

    async def _look_up(self, counts: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
        """Two owners: the second looks its counts up in tables of the first."""
        first, second = self.names
        bits = k.bit_length()
        size, n = 1 << bits, len(counts)
        if size * n > _MOST_TABLE:
            raise ConfigError(f"thresholds of {n:,} sums of {size:,}", where="owners", remedy="ask for fewer neighbours, or for fewer points at once")  # fmt: skip
        shape = (n, -(-size // 8))
        self.rounds += 3
        found: Any = None
        if self.me == first:
            seeds = await send_seeds(self.secret, self.peers, second, n * bits)
            table = np.packbits(np.arange(size)[None] + counts[:, None] >= k, axis=1, bitorder="little")
            entries = np.arange(size)
            for row in range(n):
                for bit in range(bits):
                    pads = [_bits_of_seed(seeds[row * bits + bit, side], size) for side in (0, 1)]
                    table[row] ^= np.packbits(np.where(entries >> bit & 1, pads[1], pads[0]), bitorder="little")
            await self.peers.send(second, table)
        else:
            wanted = (counts[:, None] >> np.arange(bits)[None] & 1).astype(bool).reshape(-1)
            seeds = await receive_seeds(self.secret, self.peers, first, wanted)
            table = self._read(await self.peers.recv(first), shape, np.uint8, first)
            plain = np.unpackbits(table, axis=1, bitorder="little")[np.arange(n), counts]
            for row in range(n):
                for bit in range(bits):
                    plain[row] ^= _bits_of_seed(seeds[row * bits + bit], size)[counts[row]]
            found = plain.astype(bool)
        return np.asarray(await self._tell(found, (n,), np.bool_, second))

    async def _reach_masked(self, counts: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
        if len(self.names) < 3:
            raise ConfigError("two owners compare masked", where="owners", remedy="use comparison='exact'")
        first, second, third = self.names[:3]
        span = 60 - (len(self.names) * k).bit_length()
        self.rounds += 1
        if self.me == first:
            mine = FIELD.of(counts)
            rest = FIELD.sub(mine, _field_words(self._stream(second, "table"), len(counts)))
            await self.peers.send(third, rest)
            found = np.zeros(len(counts), np.uint64)
            for other in self.names[1:]:
                found = FIELD.add(found, self._read(await self.peers.recv(other), found.shape, np.uint64, other))
            self.rounds += 1
            return np.asarray(await self._tell(FIELD.signed(found) >= 0, found.shape, np.bool_))
        mine = FIELD.of(counts - (k if self.me == third else 0))
        if self.me == second:
            mine = FIELD.add(mine, _field_words(self._stream(first, "table"), len(counts)))
        if self.me == third:
            mine = FIELD.add(mine, self._read(await self.peers.recv(first), mine.shape, np.uint64, first))
        factor = (self._stream(second, "factor")(len(counts)) & np.uint64((1 << span) - 1)) + np.uint64(1)
        await self.peers.send(first, self.mask(FIELD.mul(mine, factor), self.names[1:]))
        self.rounds += 1
        return np.asarray(await self._tell(None, mine.shape, np.bool_))

    # ------------------------------------------------------------------ the union of rows

    async def reserve(self, rows: int) -> tuple[NDArray[np.int64], int]:
        """A place for each row, in a random order of the rows of all owners.

        Every owner throws its rows into places of a table at random; the table of all shows which places have one row, and those are taken. Rows that met others are thrown again.

        Args:
            rows: how many this owner has.

        Returns:
            The places of its rows, and how many rows all owners have.
        """
        (left,) = (int(one) for one in await self.add([rows]))
        mine, taken, total = np.full(rows, -1, np.int64), 0, left
        for _ in range(_ROUNDS):
            if not left:
                return mine, total
            slots = slots_of(left)
            self.slots.append(slots)
            open_rows = np.flatnonzero(mine < 0)
            thrown = (self.secret.uint64((len(open_rows),)) & np.uint64(slots - 1)).astype(np.int64)
            table = np.bincount(thrown, minlength=slots).astype(np.uint16)
            found = await self._total(self._mask_words(table), np.uint16)
            met = await self._tell(None if found is None else np.minimum(found, 2).astype(np.uint8), (slots,), np.uint8)
            alone = np.cumsum(met == 1) - 1
            good = met[thrown] == 1
            mine[open_rows[good]] = taken + alone[thrown[good]]
            count = int((met == 1).sum())
            taken, left = taken + count, left - count
        raise DataError(f"{left} rows found no place in {_ROUNDS} rounds", where="owners", remedy="an owner departs from the protocol: ask again without it")  # fmt: skip

    async def scatter(self, rows: Sequence[bytes]) -> tuple[Array, int]:
        """This owner's part of a table of the rows of all, in a random order; whoever adds the parts of all up has the rows (`join_scattered`).

        Args:
            rows: as bytes. All learn how many there are, and the power of two above the longest.

        Returns:
            Elements of the field, shape ``(rows of all, words)``, and the number of rows that all have.
        """
        places, total = await self.reserve(len(rows))
        if not total:
            return np.zeros((0, 1), np.uint64), 0
        need = max((-(-len(one) // WORD_BYTES) for one in rows), default=0)
        classes = np.arange(1, 25)
        said = await self.any(classes == max(1, (need - 1).bit_length()) if rows else np.zeros(len(classes), bool))
        width = 1 << int(classes[said].max()) if said.any() else 1
        if total * width > 1 << 23:
            raise DataError(f"{total:,} rows of {width * WORD_BYTES:,} bytes", where="owners", remedy="ask for fewer rows or columns")  # fmt: skip
        table = np.zeros((total, 1 + width), np.uint64)
        for place, one in zip(places, rows, strict=True):
            padded = one + bytes(-len(one) % WORD_BYTES)
            words = np.frombuffer(padded, np.uint8).reshape(-1, WORD_BYTES).astype(np.uint64)
            table[place, 0] = len(one) + 1
            table[place, 1 : 1 + len(words)] = (words << (np.uint64(8) * np.arange(WORD_BYTES, dtype=np.uint64))).sum(1, dtype=np.uint64)  # fmt: skip
        return self.mask(table), total


def _bits_of_seed(seed: Any, count: int) -> NDArray[np.uint8]:
    words = Keystream(derived(bytes(np.asarray(seed, np.uint8)), "owners table"))(-(-count // 64))
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:count]


def join_scattered(parts: Sequence[Any]) -> list[bytes]:
    """The rows of all owners, of the parts that `OwnerCircle.scatter` gave to each.

    Raises:
        LetterError: the parts do not fit together.
    """
    found = np.asarray(parts[0], np.uint64)
    for one in parts[1:]:
        other = np.asarray(one, np.uint64)
        if other.shape != found.shape:
            raise LetterError(f"parts of shapes {found.shape} and {other.shape}", where="owners")
        found = FIELD.add(found, other)
    rows = []
    most = (found.shape[1] - 1) * WORD_BYTES
    for row in found:
        length = int(row[0]) - 1
        if not 0 <= length <= most:
            raise LetterError(f"a row of {length} bytes among rows of {most}", where="owners", remedy="an owner departs from the protocol: ask again without it")  # fmt: skip
        data = row[1:, None] >> (np.uint64(8) * np.arange(WORD_BYTES, dtype=np.uint64)) & np.uint64(255)
        rows.append(data.astype(np.uint8).tobytes()[:length])
    return rows
