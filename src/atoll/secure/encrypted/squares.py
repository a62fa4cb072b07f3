"""Sums of weighted squares over encrypted numbers: a client encrypts, a server computes, and a key holder opens only the sum.

==============  ======================================  =====================================================================
party           holds                                   sees
==============  ======================================  =====================================================================
client          the public key                          nothing
server          the public key, a centre and weights    ciphertexts of the clients' numbers, and at the end each sum
key holder      the secret key                          the terms of a sum, each behind a mask, and their sum
==============  ======================================  =====================================================================

The masks of a client's terms are uniform in ``+-2^mask_bits`` and add up to 0, so that the sum is unchanged. They hide a term ``t`` up to a statistical distance of
about ``|t| / 2^(mask_bits + 1)``. The key holder rounds the sum before it answers the server: the noise of CKKS decryptions could reveal the key
(Li and Micciancio 2021). All of this protects against parties that follow the protocol and do not collude. A server that colludes with the key
holder sees everything, and a server that lies about its centre can request other weighted sums.

The scheme is CKKS (Cheon et al. 2017) of TenSEAL at 128 bits of security: a ring of 8192, primes of 60, 40, 40 and 60 bits, a scale of ``2^40``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.extras import need
from atoll.core.requests.island import Secret

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "encrypt",
    "encryption_key",
    "make_keys",
    "masked_squares",
    "open_sum",
    "require_library",
    "require_public",
]

_RING, _PRIMES, _SCALE = 8192, (60, 40, 40, 60), 2.0**40
_SLOTS = _RING // 2
_LARGEST = 2.0**8
_WEIGHT = 2.0**10


def make_keys() -> tuple[Any, Any]:
    """Return a new pair of keys, from the operating system's entropy.

    Returns:
        The secret key, for the key holder only, and the public key, as bytes.

    Raises:
        MissingExtraError: TenSEAL is not installed.
    """
    ts = _tenseal()
    made = ts.context(ts.SCHEME_TYPE.CKKS, _RING, coeff_mod_bit_sizes=list(_PRIMES))
    made.global_scale = _SCALE
    secret = made.serialize(save_secret_key=True, save_galois_keys=False)
    public = made.serialize(save_secret_key=False, save_galois_keys=False)
    return _array(secret), _array(public)


def encryption_key(key: Any) -> Any:
    """Return the part of the public key that encryption needs: a quarter of the bytes, without what only the server multiplies with."""
    found = require_public(key, "the server")
    return _array(found.serialize(save_secret_key=False, save_galois_keys=False, save_relin_keys=False))


def require_library() -> None:
    """Raise an error if the library is missing.

    Raises:
        MissingExtraError: TenSEAL is not installed.
    """
    _tenseal()


def require_public(key: Any, whose: str) -> Any:
    """Return a context to compute with, after checking that it has no secret key.

    Args:
        key: the key, as bytes.
        whose: the receiver's name in the error.

    Raises:
        PolicyError: the bytes contain the secret key.
    """
    found = _tenseal().context_from(key.tobytes())
    if found.is_private():
        raise PolicyError(
            f"{whose} received a secret key",
            where="CKKS",
            remedy="pass the public key; only the key holder decrypts",
        )
    return found


def encrypt(key: Any, numbers: ArrayLike) -> Any:
    """Return a client's numbers as a ciphertext, in bytes.

    Args:
        key: the public key.
        numbers: ``(q,)``, each below 256 in magnitude.

    Raises:
        DataError: the numbers are too many or too large for the scheme.
        PolicyError: the key is the secret one.
    """
    values = np.asarray(numbers, dtype=np.float64)
    if not 0 < values.size <= _SLOTS or np.abs(values).max() >= _LARGEST:
        raise DataError(
            f"{values.size} numbers up to {np.abs(values).max(initial=0.0):.3g}",
            where="CKKS",
            remedy=f"encrypt at most {_SLOTS} numbers below {_LARGEST:g}",
        )
    return _array(_tenseal().ckks_vector(require_public(key, "a client"), values.tolist()).serialize())


def masked_squares(
    key: Any, sealed: Any, centre: ArrayLike, weight: ArrayLike, *, mask_bits: int = 16
) -> tuple[Any, float]:
    """At the server: compute ``weight_i (x_i - centre_i)^2 / scale + mask_i`` on the ciphertext of ``x``.

    Args:
        key: the public key.
        sealed: ciphertext from `encrypt`.
        centre: the server's numbers, ``(q,)``.
        weight: weight of each square, ``(q,)``.
        mask_bits: size of the masks; larger masks hide more and cost precision.

    Returns:
        The ciphertext for the key holder, and the scale by which to multiply the sum.

    Raises:
        PolicyError: the key is the secret one.
        ConfigError: the masks are too large for the scheme.
        DataError: the server and the ciphertext have different numbers of values.
    """
    if not 1 <= mask_bits <= 18:
        raise ConfigError(f"mask_bits={mask_bits}", where="CKKS", remedy="use 1 to 18 bits")
    own, each = np.asarray(centre, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    scale = max(1.0, float(each.max()) / _WEIGHT)
    found = _tenseal().ckks_vector_from(require_public(key, "the server"), sealed.tobytes())
    if found.size() != own.size:
        raise DataError(
            f"the ciphertext has {found.size()} numbers, but the server has {own.size}",
            where="CKKS",
            remedy="encrypt as many numbers at each party",
        )
    apart = found - own.tolist()
    terms = apart * apart * (each / scale).tolist()
    mask = (2.0 * Secret().uniform(own.size) - 1.0) * 2.0**mask_bits
    mask[-1] -= mask.sum()
    return _array((terms + mask.tolist()).serialize()), scale


def open_sum(key: Any, sealed: Any, digits: int = 4) -> float:
    """At the key holder: return the rounded sum of the terms.

    Args:
        key: the secret key.
        sealed: ciphertext from `masked_squares`.
        digits: decimals to reveal.

    Raises:
        PolicyError: the key is not the secret one.
    """
    ts = _tenseal()
    context = ts.context_from(key.tobytes())
    if not context.is_private():
        raise PolicyError("a public key cannot decrypt", where="CKKS", remedy="decrypt at the key holder")
    return round(float(np.sum(ts.ckks_vector_from(context, sealed.tobytes()).decrypt())), digits)


def _tenseal() -> Any:
    return need("tenseal", "secure", "computing on encrypted numbers")


def _array(raw: bytes) -> Any:
    return np.frombuffer(raw, dtype=np.uint8)
