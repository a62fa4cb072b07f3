"""Memory of an enclave's host, in which tables lie as sealed blocks while nothing is computed with them (Zheng et al. 2017, "Opaque", section 4: blocks with a code, an address and a version).

Processors keep little memory of their own. So an array that an enclave is done with goes out, in blocks of 64 KiB, each sealed by AES-GCM under a key that only this run of the enclave has. The code covers where the
block belongs: the number of its array, its place among the array's blocks, how many these are, and its version, which grows with each time that the array is written. The enclave remembers the versions. A host that
gives back an old block, another one, an altered one or none ends the computation with an error that says which, before anything follows from it.

`OwnMemory` is the same without a host: arrays stay as they are, where a site computes with rows of its own.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import LetterError
from atoll.core.extras import need

__all__ = ["HostMemory", "KeptArray", "KeptColumns", "OwnMemory", "SealedMemory"]

Array = NDArray[Any]
_PLACE = struct.Struct(">QQQQ")
_NONCE = 12


class KeptArray:
    """An array that was put away.

    Attributes:
        number: of the array; no two have the same.
        shape: of the array.
        dtype: of the array.
        blocks: how many it has.
        version: how often it was written.
        content: the array, where no host has it.
    """

    def __init__(self, number: int, array: Array, blocks: int) -> None:
        self.number, self.shape, self.dtype, self.blocks, self.version = number, array.shape, array.dtype, blocks, 0
        self.content: Array | None = None


class HostMemory(Protocol):
    """Where arrays lie."""

    def write(self, array: Array, over: KeptArray | None = None) -> KeptArray:
        """Put an array away, in the place of another one of the same form if there is one."""
        ...

    def read(self, kept: KeptArray) -> Array:
        """The array, as a copy or to be read only."""
        ...


class OwnMemory:
    """Memory of who computes."""

    def write(self, array: Array, over: KeptArray | None = None) -> KeptArray:
        """Keep an array."""
        kept = KeptArray(0, array, 1) if over is None else over
        kept.content = array
        return kept

    def read(self, kept: KeptArray) -> Array:
        """The array."""
        return np.asarray(kept.content)


class SealedMemory:
    """Memory of a host, who sees sealed blocks come and go.

    Args:
        key: 32 bytes that nobody has outside, of this run alone.
        host: what has the blocks, by array and place; by default a dictionary.
        block: bytes of a block.
    """

    def __init__(self, key: bytes, host: MutableMapping[tuple[int, int], bytes] | None = None, block: int = 1 << 16) -> None:  # fmt: skip
        aead = need("cryptography.hazmat.primitives.ciphers.aead", "secure", "sealed blocks")
        self._cipher, self._block = aead.AESGCM(key), block
        self.host: MutableMapping[tuple[int, int], bytes] = {} if host is None else host
        self._arrays = self._seals = 0

    def write(self, array: Array, over: KeptArray | None = None) -> KeptArray:
        """Seal an array, and give its blocks to the host."""
        content = np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")
        if over is None or (over.shape, over.dtype) != (array.shape, array.dtype):
            self._arrays += 1
            over = KeptArray(self._arrays, array, max(1, -(-len(content) // self._block)))
            weakref.finalize(over, _forget, self.host, over.number, over.blocks)
        over.version += 1
        for k in range(over.blocks):
            place = _PLACE.pack(over.number, k, over.blocks, over.version)
            self._seals += 1
            nonce = self._seals.to_bytes(_NONCE, "big")
            self.host[over.number, k] = place + nonce + self._cipher.encrypt(nonce, content[k * self._block : (k + 1) * self._block], place)  # fmt: skip
        return over

    def read(self, kept: KeptArray) -> Array:
        """The array that was written last.

        Raises:
            LetterError: the host gives another block than that, or none; says which.
        """
        content = bytearray()
        for k in range(kept.blocks):
            content += self._open(kept, k)
        return np.frombuffer(content, dtype=kept.dtype).reshape(kept.shape)

    def _open(self, kept: KeptArray, k: int) -> bytes:
        found = self.host.get((kept.number, k))
        if not isinstance(found, bytes) or len(found) < _PLACE.size + _NONCE:
            raise _refuse(kept, k, "was dropped")
        head, nonce = found[: _PLACE.size], found[_PLACE.size : _PLACE.size + _NONCE]
        try:
            opened = self._cipher.decrypt(nonce, found[_PLACE.size + _NONCE :], head)
        except Exception as error:  # the library's own kinds
            raise _refuse(kept, k, "was altered, or is of another run") from error
        number, place, _, version = _PLACE.unpack(head)
        if (number, place) != (kept.number, k):
            raise _refuse(kept, k, f"was swapped with block {place} of array {number}")
        if version != kept.version:
            raise _refuse(kept, k, f"is an old one: version {version} was replayed, and version {kept.version} was written")  # fmt: skip
        return bytes(opened)


def _forget(host: MutableMapping[tuple[int, int], bytes], number: int, blocks: int) -> None:
    """Nobody asks for an array any more."""
    for k in range(blocks):
        host.pop((number, k), None)


def _refuse(kept: KeptArray, k: int, what: str) -> LetterError:
    return LetterError(f"block {k} of array {kept.number} in the enclave's memory {what}", where="opaque", remedy="do not use any result of this computation; look at the enclave's host")  # fmt: skip


class KeptColumns(Mapping[str, Array]):
    """Columns of a table in some memory: each access reads one.

    Args:
        memory: where they lie.
        columns: name -> values; those that lie there already are not written anew.
    """

    def __init__(self, memory: HostMemory, columns: Mapping[str, Array]) -> None:
        self._memory = memory
        self._kept: dict[str, KeptArray] = dict(columns._kept) if isinstance(columns, KeptColumns) else {name: memory.write(np.asarray(x)) for name, x in columns.items()}  # fmt: skip

    def __getitem__(self, name: str) -> Array:
        return self._memory.read(self._kept[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def update_with(self, columns: Mapping[str, Array]) -> KeptColumns:
        """These columns, and others or some in their place."""
        made = KeptColumns(self._memory, self)
        made._kept |= KeptColumns(self._memory, columns)._kept
        return made

    def pick(self, names: Any) -> KeptColumns:
        """Some of the columns, in an order."""
        made = KeptColumns(self._memory, {})
        made._kept = {name: self._kept[name] for name in names}
        return made
