"""Products of plain numbers with columns under CKKS encryption: ``x' v`` for another party's columns x, which only that party can open.

Columns of up to 4,096 rows lie side by side in the slots of a ciphertext, row by row; a longer one takes several ciphertexts. The other party multiplies the slots by its own numbers v, adds the
ciphertexts of a column up, and turns and adds them, with keys that the owner made for rotations, until every slot of a column holds its sum: so no slot has a part of one. What else an answer holds depends on
v, too, and is hidden before it is sent: its noise behind a normal one in both parts of each slot, and its halves, of which one is a function of v and of what the owner knows, by encrypting that noise with the owner's
public key and adding it (the way of Gentry 2009, section 8.1.2). A sum then has an error of ``2^-24``. See Cheon, Kim, Kim, Song 2017; Li and Micciancio 2021 for why noise must not be shown.

That holds for an owner that makes its ciphertexts and keys as it should. Nobody can tell whether it does: with others an answer may tell it more, which under Paillier encryption it cannot.

The ring is 8192 with a modulus of 218 bits: 128 bits of security (HomomorphicEncryption.org, 2018). Columns have 56 bits behind the point, so that their noise is far below what hides it, the other's
numbers 40, and nothing is rescaled: three primes hold the products.
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
_COLUMNS, _NUMBERS = 2.0**56, 2.0**40
_ERROR = 2.0**-24
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

    @property
    def side(self) -> int:
        """Columns of a ciphertext."""
        return SLOTS // self.segment

    def lay(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Columns as slots, those of a row side by side, ``(groups, blocks, slots)``."""
        made = np.zeros((self.blocks * self.segment, self.groups * self.side))
        made[: self.rows, : x.shape[1]] = x
        return made.reshape(self.blocks, self.segment, self.groups, self.side).transpose(2, 0, 1, 3).reshape(self.groups, self.blocks, SLOTS)  # fmt: skip

    def lay_same(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """One vector for all columns, ``(blocks, slots)``."""
        padded = np.zeros(self.blocks * self.segment)
        padded[: self.rows] = v
        return np.repeat(padded, self.side).reshape(self.blocks, SLOTS)


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
        """The columns ``(rows, columns)``, the public key and those for rotations as a message to those who multiply them."""
        form = SlotForm(x.shape[0], x.shape[1])
        pieces = [
            save(_encrypt(block, _COLUMNS, self._public, self._secret)) for group in form.lay(x) for block in group
        ]
        public, rotations = (np.frombuffer(save(each), np.uint8) for each in (self._public, self._rotations))
        return {"columns": x.shape[1], "public": public, "rotations": rotations, "sealed": join(pieces)}

    def open(self, sealed: NDArray[np.uint8], form: SlotForm, outputs: int) -> NDArray[np.float64]:
        """The products, ``(columns, outputs)``, of what `SlotVector.multiply` made.

        Raises:
            DataError: they are none.
        """
        s, made = seal(), context(*_PARAMETERS)
        decryptor, encoder, plain, rows = s.Decryptor(made, self._private), s.CKKSEncoder(made), s.Plaintext(), []
        for each in _load_all(sealed, outputs * form.groups, _COLUMNS * _NUMBERS):
            decryptor.decrypt(each, plain)
            rows.append(np.array(encoder.decode_double(plain)).reshape(form.segment, form.side).mean(axis=0))
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
        columns = found.get("columns")
        if type(columns) is not int or not 0 <= columns <= 1 << 20:
            raise _malformed(f"{columns!r} columns")
        self.form = SlotForm(rows, columns)
        s = seal()
        self._rotations = _load_key(s.GaloisKeys(), found.get("rotations"), "keys for rotations")
        self._public = _load_key(s.PublicKey(), found.get("public"), "a public key")
        self._sealed = _load_all(found.get("sealed"), self.form.groups * self.form.blocks, _COLUMNS)

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
        evaluator, encoder = s.Evaluator(made), s.CKKSEncoder(made)
        for output in v.T:
            factors = []
            for block in form.lay_same(output):
                factor = s.Plaintext()
                # SEAL refuses a product with 0; this one is below the error of an encoding.
                shown = block if np.abs(block).max() > 2.0**-30 else np.full(SLOTS, 2.0**-39)
                encoder.encode(shown.tolist(), _NUMBERS, factor)
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
                step = form.side
                while step < SLOTS:
                    turned = s.Ciphertext()
                    evaluator.rotate_vector(total, step, self._rotations, turned)
                    evaluator.add_inplace(total, turned)
                    step *= 2
                hiding = self._draw_hiding(secret)
                evaluator.add_inplace(total, _encrypt(hiding, _COLUMNS * _NUMBERS, self._public, secret))
                pieces.append(save(total))
        return join(pieces)

    def _draw_hiding(self, secret: Secret) -> NDArray[np.complex128]:
        """Normal numbers for both parts of all slots, whose mean over a column's slots has a deviation of ``2^-24`` in each."""
        words = secret.uint64((2, SLOTS)).astype(np.float64) / 2.0**64
        radius = np.sqrt(-2 * np.log(np.maximum(words[0], 2.0**-64)))
        made: NDArray[np.complex128] = _ERROR * np.sqrt(self.form.segment) * radius * np.exp(2j * np.pi * words[1])
        return made


def _encrypt(slots: NDArray[Any], scale: float, public: Any, secret: Secret) -> Any:
    """Slots under a public key."""
    s, made = seal(), context_for(*_PARAMETERS, secret)
    plain, sealed = s.Plaintext(), s.Ciphertext(made)
    s.CKKSEncoder(made).encode(slots.tolist(), scale, plain)
    s.Encryptor(made, public).encrypt(plain, sealed)
    return sealed


def _load_key(empty: Any, raw: Any, what: str) -> Any:
    if not isinstance(raw, np.ndarray):
        raise _malformed(f"{what} of type {type(raw).__name__}")
    try:
        return load(empty, context(*_PARAMETERS), raw.astype(np.uint8).tobytes())
    except (RuntimeError, ValueError) as error:
        raise _malformed(f"{what}, none of SEAL under these parameters ({error})") from error


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
