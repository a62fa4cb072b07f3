"""Which rows the parties share, and their common order: u of the keys, so that no file's order shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from atoll.core.errors import DataError
from atoll.core.message import ScalarSpec, Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret
    from atoll.secure.psi import RowKeys

__all__ = ["SameKeys", "RowAlignment"]


class RowAlignment:
    """How parties find the rows that they share.

    Attributes:
        name: how settings call it.
    """

    name: ClassVar[str] = ""

    async def find_shared(
        self, keys: RowKeys, channel: PeerChannel, parties: Sequence[str], me: str, secret: Secret
    ) -> NDArray[np.int64]:
        """Return which of a party's keys all parties have: places in ``keys.names``, ascending.

        Args:
            keys: the party's own keys, in the order of u.
            channel: messages to and from the other parties.
            parties: all parties, the guest first.
            me: this party.
            secret: its entropy.

        Raises:
            DataError: the parties' keys cannot be matched.
        """
        raise NotImplementedError

    def learns(self) -> str:
        """What each party learns of the others' keys."""
        raise NotImplementedError


_CLAIM = Schema({"keys": ScalarSpec(int), "salt": ScalarSpec(bytes), "digest": ScalarSpec(bytes)})


@dataclass(frozen=True)
class SameKeys(RowAlignment):
    """The parties' tables have the same keys already, in any order of the rows.

    The guest sends a digest of its keys, and each host compares it with that of its own, so that tables that differ are refused. A host that guesses the whole set can
    test its guess, as it could with any protocol that tells who is shared.
    """

    name: ClassVar[str] = "same-keys"

    async def find_shared(
        self, keys: RowKeys, channel: PeerChannel, parties: Sequence[str], me: str, secret: Secret
    ) -> NDArray[np.int64]:
        """All keys, after checking that they are the guest's."""
        guest = parties[0]
        if me == guest:
            salt = secret.bytes(16)
            await channel.broadcast({"keys": len(keys), "salt": salt, "digest": _digest(keys, salt)}, parties[1:])
        else:
            claim = await channel.recv(guest)
            _CLAIM.check(claim)
            if claim["digest"] != _digest(keys, claim["salt"]):
                raise DataError(
                    f"{len(keys)} keys at {me!r} are not the {claim['keys']} keys of {guest!r}",
                    where="SameKeys",
                    remedy="give all parties the same keys, or leave out the rows of the others",
                )
        return np.arange(len(keys))

    def learns(self) -> str:
        """Nothing beyond the promise that all have the same keys."""
        return "all parties have the same keys, as they said before"


def _digest(keys: RowKeys, salt: bytes) -> bytes:
    made = hashlib.blake2b(key=salt, digest_size=32)
    for name in keys.names:
        raw = name.encode()
        made.update(len(raw).to_bytes(8, "little") + raw)
    return made.digest()
