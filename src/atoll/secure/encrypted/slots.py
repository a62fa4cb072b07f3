"""Products of plain numbers with columns under CKKS encryption: ``x' v`` for another party's columns x, which only that party can open.

A column of up to 4,096 rows takes a segment of the slots of a ciphertext, a longer one several ciphertexts. The other party multiplies the slots by its own numbers v, adds the ciphertexts of a column
up, and folds each segment to its sum by rotations, with keys that the owner made for them. Before it sends them, it hides all slots but the sums behind numbers below ``2^34``, and the noise
of the sums, which depends on v, behind a normal one of ``2^-16``: so sums have that error. See Cheon, Kim, Kim, Song 2017; Li and Micciancio 2021 for why noise must not be shown.

The ring is 8192 with a modulus of 218 bits: 128 bits of security (HomomorphicEncryption.org, 2018). Numbers have 40 bits behind the point, products 80, and nothing is rescaled: three
primes hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError

from .bfv import context, context_for, join, load, save, seal, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

__all__ = ["SlotForm", "SlotOwner", "SlotVector"]

_PARAMETERS: tuple[str, int, tuple[int, ...], int] = ("CKKS", 8192, (60, 49, 49, 60), 0)
SLOTS = 4096
"""Numbers of a ciphertext."""
_SCALE = 2.0**40
_HIDING, _ERROR = 2.0**34, 2.0**-16
_LARGEST = 2.0**20


@dataclass(frozen=True)
class SlotForm:
    """How columns lie in slots.

    Attributes:
        rows: number of rows.
        columns: number of columns.
    """

    rows: int
    columns: int

    @property
    def segment(self) -> int:
        """Slots of a column in a ciphertext: a power of two."""
        return int(min(SLOTS, 1 << max(int(self.rows - 1).bit_length(), 0)))

    @property
    def blocks(self) -> int:
        """Ciphertexts that a long column takes."""
        return -(-self.rows // SLOTS)

    @property
    def groups(self) -> int:
        """Groups of columns that lie side by side."""
        return -(-self.columns // (SLOTS // self.segment))

    def lay(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Columns as slots, ``(groups, blocks, slots)``."""
        side, padded = SLOTS // self.segment, self.blocks * self.segment
        made = np.zeros((self.groups * side, padded))
        made[: x.shape[1], : self.rows] = x.T
        return made.reshape(self.groups, side, self.blocks, self.segment).swapaxes(1, 2).reshape(self.groups, self.blocks, SLOTS)  # fmt: skip

    def lay_same(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """One vector for all columns, ``(blocks, slots)``."""
        padded = np.zeros(self.blocks * self.segment)
        padded[: self.rows] = v
        return np.tile(padded.reshape(self.blocks, self.segment), (1, SLOTS // self.segment))

    @property
    def heads(self) -> NDArray[np.int64]:
        """The slots with the sums."""
        return np.arange(0, SLOTS, self.segment)


class SlotOwner:
    """The owner of columns: encrypts them, and opens products.

    Args:
        secret: the owner's entropy.
    """

    def __init__(self, secret: Secret) -> None:
        s, made = seal(), context_for(*_PARAMETERS, secret)
        generator = s.KeyGenerator(made)
        self._secret, self._private, self._public = secret, generator.secret_key(), s.PublicKey()
        generator.create_public_key(self._public)
        self._rotations = s.GaloisKeys()
        # The element of a rotation by k slots: 3^k modulo twice the ring (SEAL's).
        turns = [pow(3, 1 << i, 2 * _PARAMETERS[1]) for i in range(SLOTS.bit_length() - 1)]
        generator.create_galois_keys(turns, self._rotations)
        # The keys belong to the parameters, not to the context that drew them.
        self._private = load(s.SecretKey(), context(*_PARAMETERS), save(self._private))

    def seal_columns(self, x: NDArray[np.float64]) -> dict[str, Any]:
        """The columns ``(rows, columns)`` and the keys for rotations as a message to those who multiply them."""
        form = SlotForm(x.shape[0], x.shape[1])
        pieces = [self._encrypt(block) for group in form.lay(x) for block in group]
        rotations = np.frombuffer(save(self._rotations), np.uint8)
        return {"columns": x.shape[1], "rotations": rotations, "sealed": join(pieces)}

    def _encrypt(self, slots: NDArray[np.float64]) -> bytes:
        s, made = seal(), context_for(*_PARAMETERS, self._secret)
        plain, sealed = s.Plaintext(), s.Ciphertext(made)
        s.CKKSEncoder(made).encode(slots.tolist(), _SCALE, plain)
        s.Encryptor(made, self._public).encrypt(plain, sealed)
        return save(sealed)

    def open(self, sealed: NDArray[np.uint8], form: SlotForm, outputs: int) -> NDArray[np.float64]:
        """The products, ``(columns, outputs)``, of what `SlotVector.multiply` made.

        Raises:
            DataError: they are none.
        """
        s, made = seal(), context(*_PARAMETERS)
        decryptor, encoder, plain, rows = s.Decryptor(made, self._private), s.CKKSEncoder(made), s.Plaintext(), []
        for each in _load_all(sealed, outputs * form.groups, _SCALE**2):
            decryptor.decrypt(each, plain)
            rows.append(np.array(encoder.decode_double(plain))[form.heads])
        return np.asarray(np.reshape(rows, (outputs, -1))[:, : form.columns].T)


class SlotVector:
    """Another party's columns.

    Args:
        message: what `SlotOwner.seal_columns` made.
        rows: number of rows.

    Raises:
        DataError: it is none, for so many rows.
    """

    def __init__(self, message: Any, rows: int) -> None:
        found = message if isinstance(message, Mapping) else {}
        columns, rotations = found.get("columns"), found.get("rotations")
        if type(columns) is not int or not 0 <= columns <= 1 << 20 or not isinstance(rotations, np.ndarray):
            raise _malformed(f"{columns!r} columns, and keys of type {type(rotations).__name__}")
        self.form = SlotForm(rows, columns)
        s = seal()
        try:
            self._rotations = load(s.GaloisKeys(), context(*_PARAMETERS), rotations.astype(np.uint8).tobytes())
        except (RuntimeError, ValueError) as error:
            raise _malformed(f"keys for rotations that are none of SEAL under these parameters ({error})") from error
        self._sealed = _load_all(found.get("sealed"), self.form.groups * self.form.blocks, _SCALE)

    def multiply(self, v: NDArray[np.float64], secret: Secret) -> NDArray[np.uint8]:
        """Ciphertexts of ``x' v`` for each column of v, ``(rows, outputs)``, in which nothing else can be read.

        Raises:
            DataError: a number of v is beyond ``2^20``.
        """
        largest = float(np.abs(v).max(initial=0.0))
        if not largest < _LARGEST:
            raise DataError(
                f"a row's number of {largest:.3g}: sums may overflow",
                where="CKKS",
                remedy="use numbers below a million: scale them, or penalise weights more",
            )
        s, made, form, pieces = seal(), context(*_PARAMETERS), self.form, []
        evaluator, encoder, plain = s.Evaluator(made), s.CKKSEncoder(made), s.Plaintext()
        for output in v.T:
            factors = []
            for block in form.lay_same(output):
                factor = s.Plaintext()
                # SEAL refuses a product with 0; this one is below the error of an encoding.
                shown = block if np.abs(block).max() > 2.0**-30 else np.full(SLOTS, 2.0**-39)
                encoder.encode(shown.tolist(), _SCALE, factor)
                factors.append(factor)
            for group in range(form.groups):
                total = None
                for k, factor in enumerate(factors):
                    each = s.Ciphertext()
                    evaluator.multiply_plain(self._sealed[group * form.blocks + k], factor, each)
                    if total is None:
                        total = each
                    else:
                        evaluator.add_inplace(total, each)
                step = 1
                while step < form.segment:
                    turned = s.Ciphertext()
                    evaluator.rotate_vector(total, step, self._rotations, turned)
                    evaluator.add_inplace(total, turned)
                    step *= 2
                encoder.encode(self._hide(secret).tolist(), _SCALE**2, plain)
                evaluator.add_plain_inplace(total, plain)
                pieces.append(save(total))
        return join(pieces)

    def _hide(self, secret: Secret) -> NDArray[np.float64]:
        words = secret.uint64((2, SLOTS)).astype(np.float64) / 2.0**64
        made: NDArray[np.float64] = (2 * words[0] - 1) * _HIDING
        radius = np.sqrt(-2 * np.log(np.maximum(words[0], 2.0**-64)))
        heads = self.form.heads
        made[heads] = _ERROR * (radius * np.cos(2 * np.pi * words[1]))[heads]
        return made


def _load_all(sealed: Any, count: int, scale: float) -> list[Any]:
    """SEAL's ciphertexts of these parameters and this scale."""
    s, made = seal(), context(*_PARAMETERS)
    if not isinstance(sealed, np.ndarray) or sealed.dtype != np.uint8 or sealed.ndim != 1:
        raise _malformed(f"a {type(sealed).__name__} in place of {count} ciphertexts")
    try:
        found = [load(s.Ciphertext(made), made, piece) for piece in split(sealed)]
    except (RuntimeError, ValueError, IndexError) as error:
        raise _malformed(f"not one of SEAL under these parameters ({error})") from error
    fresh = made.first_parms_id()
    good = all(each.size() == 2 and each.parms_id() == fresh and each.scale == scale for each in found)
    if len(found) != count or not good:
        raise _malformed(f"{len(found)} ciphertexts, expected {count} of scale {scale:g}")
    return found


def _malformed(what: str) -> DataError:
    return DataError(f"malformed: {what}", where="CKKS", remedy="let all parties run the same version of Atoll")
