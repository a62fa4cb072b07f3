"""Schemes of additive encryption: keys, encrypt, add, decrypt. All are interchangeable, and all count in whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import Checked

from .digits import Form, Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = ["Adder", "Scheme", "scheme_named", "scheme_of"]


class Adder(Protocol):
    """A sum of ciphertexts."""

    def add(self, sealed: NDArray[np.uint8]) -> None:
        """Add a ciphertext.

        Raises:
            DataError: it is malformed; the sum is as before.
        """
        ...

    def sealed(self) -> NDArray[np.uint8]:
        """Return the ciphertext of the sum.

        Raises:
            DataError: nothing was added.
        """
        ...


@dataclass(frozen=True)
class Scheme(Checked):
    """Base class: encryption under which the sum of numbers is computed from their ciphertexts.

    Every ``decrypt(private, add(public, [encrypt(public, x_k) for k]))`` equals ``sum_k x_k`` in whole numbers. One ciphertext holds several arrays, each
    with a form of its own. It is an array of bytes, and keys are trees of bytes and numbers, so that both travel as messages.

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

    def check(self, form: Form) -> None:
        """Refuse numbers that the scheme cannot add up.

        Raises:
            ConfigError: they are too wide, or the parties too many.
        """
        raise NotImplementedError

    def encrypt(self, public: Tree, numbers: Numbers, form: Form, secret: Secret) -> NDArray[np.uint8]:
        """Return the ciphertext of arrays of ``(size,)`` numbers below ``2^bits``.

        Raises:
            DataError: the numbers are not what the form says, or the key is no public key of this scheme.
        """
        raise NotImplementedError

    def most(self, parties: int) -> int:
        """Return how many bits a number may have that so many parties add up."""
        return 64 - (parties - 1).bit_length()

    def sealed_bytes(self, form: Form) -> int:
        """Return the bytes of a ciphertext of this form."""
        raise NotImplementedError

    def adder(self, public: Tree, form: Form) -> Adder:
        """Return what adds up ciphertexts of a form, one after another."""
        raise NotImplementedError

    def add(self, public: Tree, sealed: Iterable[NDArray[np.uint8]], form: Form) -> NDArray[np.uint8]:
        """Return the ciphertext of the sum.

        Raises:
            DataError: a ciphertext is malformed, or none was given.
        """
        total = self.adder(public, form)
        for each in sealed:
            total.add(each)
        return total.sealed()

    def decrypt(self, private: Tree, sealed: NDArray[np.uint8], form: Form) -> list[NDArray[np.uint64]]:
        """Return the sums, ``(size,)`` each.

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

    def spec(self) -> dict[str, Any]:
        """Return the scheme as a message; see ``scheme_of``."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"scheme": self.name, **{name: list(v) if isinstance(v, tuple) else v for name, v in own.items()}}

    def nothing(self) -> DataError:
        """Return the error for a sum of nothing."""
        return DataError("no ciphertext", where=self.name, remedy="add up at least one")

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
    if isinstance(scheme, Scheme):
        return scheme
    known = _schemes()
    if scheme not in known:
        raise ConfigError(f"scheme={scheme!r}", where="encrypted sum", remedy=f"use one of {', '.join(known)}")
    return known[scheme]()


def scheme_of(spec: Tree) -> Scheme:
    """Return the scheme of a message; the inverse of ``Scheme.spec``.

    Raises:
        DataError: the message is no scheme.
    """
    settings = dict(spec) if isinstance(spec, dict) else {}
    try:
        return _schemes()[settings.pop("scheme", "")](**settings)
    except (KeyError, TypeError, ConfigError) as error:
        raise DataError(
            f"no scheme of encryption: {error}", remedy="use the same version of Atoll everywhere"
        ) from error


def _schemes() -> dict[str, type[Scheme]]:
    from .batchcrypt import BatchCrypt
    from .bfv import BFV
    from .ckks import CKKS
    from .paillier import Paillier

    return {made.name: made for made in (BFV, CKKS, Paillier, BatchCrypt)}
