"""Schemes of additive encryption: keys, encrypt, add, decrypt. All are interchangeable, and all count in whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import Checked

from .digits import Digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = ["Scheme", "scheme_named"]


@dataclass(frozen=True)
class Scheme(Checked):
    """Base class: encryption under which the sum of numbers is computed from their ciphertexts.

    Every ``decrypt(private, add(public, [encrypt(public, x_k) for k]))`` equals ``sum_k x_k`` in whole numbers. A ciphertext is an array of
    bytes, and keys are trees of bytes and numbers, so that both travel as messages.

    Attributes:
        name: how settings and keys call the scheme.
    """

    name: ClassVar[str] = ""

    def require(self) -> None:
        """Import the library.

        Raises:
            MissingExtraError: it is not installed.
        """
        raise NotImplementedError

    def make_keys(self, secret: Secret) -> tuple[Tree, Tree]:
        """Return a new public key and its private key."""
        raise NotImplementedError

    def check(self, form: Digits) -> None:
        """Refuse numbers that the scheme cannot add up.

        Raises:
            ConfigError: they are too wide, or the parties too many.
        """
        raise NotImplementedError

    def encrypt(self, public: Tree, numbers: NDArray[np.uint64], form: Digits, secret: Secret) -> NDArray[np.uint8]:
        """Return the ciphertext of ``(size,)`` numbers below ``2^bits``.

        Raises:
            DataError: the numbers are not what the form says, or the key is no public key of this scheme.
        """
        raise NotImplementedError

    def add(self, public: Tree, sealed: Iterable[NDArray[np.uint8]], form: Digits) -> NDArray[np.uint8]:
        """Return the ciphertext of the sum.

        Raises:
            DataError: a ciphertext is malformed, or none was given.
        """
        raise NotImplementedError

    def decrypt(self, private: Tree, sealed: NDArray[np.uint8], form: Digits) -> NDArray[np.uint64]:
        """Return the sums, ``(size,)``.

        Raises:
            DataError: the ciphertext is malformed, or the key is no private key of this scheme.
        """
        raise NotImplementedError

    def own(self, key: Tree, *parts: str) -> dict[str, Any]:
        """Return the key, after checking that it is one of this scheme with these parts.

        Raises:
            DataError: it is not.
        """
        if not isinstance(key, dict) or key.get("scheme") != self.name or any(part not in key for part in parts):
            kind = key.get("scheme", "no scheme") if isinstance(key, dict) else type(key).__name__
            raise DataError(
                f"a key of {kind!r} without {', '.join(parts)}" if kind == self.name else f"a key of {kind!r}",
                where=self.name,
                remedy=f"use a key that {type(self).__name__}().make_keys made",
            )
        return key

    def malformed(self, why: str) -> DataError:
        """Return the error for a ciphertext that is none."""
        return DataError(
            f"a ciphertext that is {why}", where=self.name, remedy="send what encrypt returned, under the same key"
        )


def scheme_named(scheme: str | Scheme) -> Scheme:
    """Return the scheme of a name: ``bfv``, ``ckks``, ``paillier`` or ``batchcrypt``.

    Raises:
        ConfigError: no scheme has this name.
    """
    from .batchcrypt import BatchCrypt
    from .bfv import BFV
    from .ckks import CKKS
    from .paillier import Paillier

    if isinstance(scheme, Scheme):
        return scheme
    known = {made.name: made for made in (BFV, CKKS, Paillier, BatchCrypt)}
    if scheme not in known:
        raise ConfigError(f"scheme={scheme!r}", where="encrypted sum", remedy=f"use one of {', '.join(known)}")
    return known[scheme]()
