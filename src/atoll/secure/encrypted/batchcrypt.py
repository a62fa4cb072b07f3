"""BatchCrypt (Zhang et al. 2020): signed numbers in two's complement with two sign bits, batched under Paillier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError

from .digits import Digits
from .paillier import Paillier

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BatchCrypt"]


@dataclass(frozen=True)
class BatchCrypt(Paillier):
    """Batches of signed numbers, as section 4.2 of the paper codes them, under Paillier.

    A number x of ``[0, 2^bits)`` stands for ``v = x - 2^(bits - 1)``. Its field has, from the top: padding bits for the carries of the additions, two sign bits,
    and the bits of a sum. In a sum whose two sign bits differ, a number overflowed: decryption fails rather than return a wrong number.
    The first field counts the parties. A field is ``ceil(log2 parties) + 1`` bits wider than that of ``Paillier``, which codes the same numbers without signs.
    """

    name: ClassVar[str] = "batchcrypt"

    def most(self, parties: int) -> int:
        """Return how many bits a number may have: a field has at most 64, with the padding and the second sign bit."""
        return 63 - 2 * (parties - 1).bit_length()

    def layout(self, form: Digits) -> tuple[int, int]:
        """Return one field more than numbers, and the bits of a field with its padding."""
        width = _signed(form) + form.guard
        if width > 64:
            raise ConfigError(
                f"fields of {width} bits for numbers of {form.bits} bits",
                where="BatchCrypt",
                remedy="use fewer bits a number, or scheme='paillier'",
            )
        return form.size + 1, width

    def coded(self, numbers: NDArray[np.uint64], form: Digits) -> NDArray[np.uint64]:
        """Return a one, and the numbers in two's complement; the padding is 0."""
        signed = numbers - np.uint64(1 << (form.bits - 1))
        return np.concatenate([np.ones(1, dtype=np.uint64), signed & np.uint64((1 << _signed(form)) - 1)])

    def decoded(self, fields: NDArray[np.uint64], form: Digits) -> NDArray[np.uint64]:
        """Return the sums, after looking at the sign bits."""
        bits = _signed(form)
        parties, sums = fields[0], fields[1:] & np.uint64((1 << bits) - 1)
        first, second = sums >> np.uint64(bits - 1), sums >> np.uint64(bits - 2) & np.uint64(1)
        wrong = int((first != second).sum())
        if wrong or int(parties) > form.parties:
            raise DataError(
                f"{wrong} of {form.size} sums overflowed, of {int(parties)} parties",
                where="BatchCrypt",
                remedy=f"add up at most {form.parties} ciphertexts of one form, each once",
            )
        lifted = sums | np.where(first == 1, ~np.uint64((1 << bits) - 1), np.uint64(0))
        return np.asarray(lifted + parties * np.uint64(1 << (form.bits - 1)))


def _signed(form: Digits) -> int:
    """Bits of a sum with two sign bits: ``bits - 1`` of a value, the guard bits, and two."""
    return form.bits - 1 + form.guard + 2
