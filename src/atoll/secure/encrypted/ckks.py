"""CKKS: numbers with an error, rounded to the whole numbers that went in."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from .bfv import RingScheme
from .digits import Form, parties_of
from .seal import seal

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CKKS"]


@dataclass(frozen=True)
class CKKS(RingScheme):
    """Cheon-Kim-Kim-Song encryption (2017) of numbers with an error, by SEAL.

    The error of a sum of n ciphertexts has a standard deviation of ``sqrt(n N (2 N / 3 + 1) / 24) / 2^scale_bits``. ``check`` refuses a cohort for which ten
    of them reach 1/2, so that rounding gives the exact sum. Rounding also keeps the error at the key holder: it could reveal the private key (Li and
    Micciancio 2021).

    Attributes:
        ring: the ring's degree N.
        primes: bits of the primes of the modulus; the last is the special one, which ciphertexts do not have.
        scale_bits: bits behind the point.
        paired: two numbers a slot, as real and imaginary part. TenSEAL and NVFlare use the real part only.
    """

    ring: int = 4096
    primes: tuple[int, ...] = (58, 51)
    scale_bits: int = 20
    paired: bool = True
    name: ClassVar[str] = "ckks"
    kind: ClassVar[str] = "CKKS"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "primes", tuple(self.primes))
        if len(self.primes) < 2 or sum(self.primes[:-1]) - 2 - self.scale_bits < 8:
            raise ConfigError(
                f"scale_bits={self.scale_bits} with primes={self.primes}",
                where="CKKS",
                remedy="leave at least 10 bits of the modulus before the point",
            )

    @property
    def modulus(self) -> tuple[int, tuple[int, ...], int]:
        """The ring and its primes."""
        return self.ring, self.primes, 0

    @property
    def capacity(self) -> int:
        """Bits before the point; at most 40, since encoding is in double precision."""
        return min(40, sum(self.primes[:-1]) - 2 - self.scale_bits)

    @property
    def slots(self) -> int:
        """N numbers as complex pairs, N/2 as reals."""
        return self.ring if self.paired else self.ring // 2

    def error(self, parties: int) -> float:
        """Return the standard deviation of the error of a sum before rounding."""
        return sqrt(parties * self.ring * (2 * self.ring / 3 + 1) / 24) / 2.0**self.scale_bits

    def check(self, form: Form) -> None:
        """Refuse more parties than rounding can bear."""
        parties = parties_of(form, self.capacity)
        if 10 * self.error(parties) >= 0.5:
            raise ConfigError(
                f"{parties} parties with scale_bits={self.scale_bits}",
                where="CKKS",
                remedy=f"use at most {int((0.05 / self.error(1)) ** 2)} parties, or more scale_bits",
            )

    def _encode(self, encoder: Any, slots: NDArray[np.uint64]) -> Any:
        plain, row = seal().Plaintext(), np.zeros(self.slots)
        row[: len(slots)] = slots
        half = self.slots // 2
        values = (row[:half] + 1j * row[half:]).tolist() if self.paired else row.tolist()
        encoder.encode(values, 2.0**self.scale_bits, plain)
        return plain

    def _decode(self, encoder: Any, plain: Any) -> NDArray[np.uint64]:
        if self.paired:
            pairs = np.array(encoder.decode_complex(plain))
            row = np.concatenate([pairs.real, pairs.imag])
        else:
            row = np.array(encoder.decode_double(plain))
        return np.asarray(np.maximum(np.rint(row), 0.0), dtype=np.uint64)

    def _fits(self, sealed: Any) -> bool:
        return bool(sealed.scale == 2.0**self.scale_bits)
