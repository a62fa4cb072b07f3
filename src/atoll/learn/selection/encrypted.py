"""Divergences of profiles whose means nobody but their owners sees.

W. Wu, "Towards Efficient Horizontal Federated Learning", 2021, appendix B, variant 2: variances travel in the clear, means encrypted. With the client's
``mu, v`` and the server's ``mu*, v*``,

    ``div = (1/q) sum_i [ln(v*_i / v_i) + v_i / v*_i - 1] / 2  +  (1/q) sum_i (mu_i - mu*_i)^2 / (2 v*_i)``   (Eqs. B.2, B.3).

The first sum is plain; the second is worked out on ciphertexts. The source does not say who holds the key. Here:

==============  ======================================  =====================================================================
party           holds                                   sees
==============  ======================================  =====================================================================
client          the public key                          nothing
server          the public key, its own profile         ciphertexts of means, variances, and in the end each divergence
key holder      the secret key                          the terms of the second sum, each behind a mask, and their sum
==============  ======================================  =====================================================================

The masks of a client's terms are uniform in ``+-2^mask_bits`` and add up to 0, so that the sum is untouched. They hide a term ``t`` up to a statistical distance of
about ``|t| / 2^(mask_bits + 1)``. The key holder rounds the sum before it tells the server: the noise of CKKS decryptions could give the key away
(Li and Micciancio 2021). All of this is against parties that follow the protocol and do not collude: a server with the key holder's
help sees everything, and one that lies about its own profile can ask for other weighted sums.

The scheme is CKKS (Cheon et al. 2017) of TenSEAL at 128 bits of security: a ring of 8192, primes of 60, 40, 40 and 60 bits, a scale of ``2^40``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, PolicyError
from atoll.core.extras import need
from atoll.core.requests.island import Secret

from ..profiles import FLOOR

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from atoll.core.algebra.tree import Tree

__all__ = [
    "encrypt_means",
    "for_clients",
    "make_keys",
    "masked_terms",
    "open_sum",
    "plain_part",
    "require_library",
    "require_public",
]

_RING, _PRIMES, _SCALE = 8192, (60, 40, 40, 60), 2.0**40
_SLOTS = _RING // 2
_LARGEST = 2.0**8
_WEIGHT = 2.0**10


def make_keys() -> tuple[Any, Any]:
    """A new pair of keys, from the operating system's entropy.

    Returns:
        The secret key, for the key holder alone, and the public one, as bytes.

    Raises:
        MissingExtraError: TenSEAL is not installed.
    """
    ts = _tenseal()
    made = ts.context(ts.SCHEME_TYPE.CKKS, _RING, coeff_mod_bit_sizes=list(_PRIMES))
    made.global_scale = _SCALE
    secret = made.serialize(save_secret_key=True, save_galois_keys=False)
    public = made.serialize(save_secret_key=False, save_galois_keys=False)
    return _array(secret), _array(public)


def for_clients(key: Any) -> Any:
    """As much of the public key as it takes to encrypt: without what only the server multiplies with, a quarter of the bytes."""
    found = require_public(key, "the server")
    return _array(found.serialize(save_secret_key=False, save_galois_keys=False, save_relin_keys=False))


def require_library() -> None:
    """Refuse to begin where the library is missing.

    Raises:
        MissingExtraError: TenSEAL is not installed.
    """
    _tenseal()


def require_public(key: Any, whose: str) -> Any:
    """A context to compute with, once it is known to hold no secret key.

    Args:
        key: bytes.
        whose: who was given it.

    Raises:
        PolicyError: it holds the secret key.
    """
    found = _tenseal().context_from(key.tobytes())
    if found.is_private():
        raise PolicyError(
            f"{whose} was given a secret key",
            where="encrypted matching",
            remedy="give it the public one; only the key holder decrypts",
        )
    return found


def encrypt_means(key: Any, mean: ArrayLike) -> Any:
    """A client's means as a ciphertext, bytes.

    Args:
        key: the public key.
        mean: ``(q,)``, each below 256 in size.

    Raises:
        DataError: too many or too large means for the scheme.
        PolicyError: the key is the secret one.
    """
    values = np.asarray(mean, dtype=np.float64)
    if not 0 < values.size <= _SLOTS or np.abs(values).max() >= _LARGEST:
        raise DataError(
            f"{values.size} means up to {np.abs(values).max(initial=0.0):.3g}",
            where="encrypted matching",
            remedy=f"profile a layer of at most {_SLOTS} elements with means below {_LARGEST:g}",
        )
    return _array(_tenseal().ckks_vector(require_public(key, "a client"), values.tolist()).serialize())


def plain_part(var: ArrayLike, own_var: ArrayLike, floor: float = FLOOR) -> float:
    """``(1/q) sum_i [ln(v*_i / v_i) + v_i / v*_i - 1] / 2``, with variances of at least the floor."""
    v, other = (np.maximum(np.asarray(a, dtype=np.float64), floor) for a in (var, own_var))
    return float((np.log(other / v) + v / other - 1.0).mean() / 2)


def masked_terms(key: Any, sealed: Any, own: Tree, *, mask_bits: int = 16, floor: float = FLOOR) -> tuple[Any, float]:
    """At the server: ``(mu_i - mu*_i)^2 / (2 q v*_i) / scale + mask_i`` on the ciphertext.

    Args:
        key: the public key.
        sealed: from `encrypt_means`.
        own: the server's profile, ``{"mean": (q,), "var": (q,)}``.
        mask_bits: size of the masks; more hide more and cost precision.
        floor: least variance.

    Returns:
        The ciphertext for the key holder, and the scale by which the sum is to be multiplied.

    Raises:
        PolicyError: the key is the secret one.
        ConfigError: masks that the scheme cannot carry.
        DataError: the profiles are not of one length.
    """
    if not 1 <= mask_bits <= 18:
        raise ConfigError(f"mask_bits={mask_bits}", where="encrypted matching", remedy="use 1 to 18 bits")
    mean = np.asarray(own["mean"], dtype=np.float64)
    weight = 1.0 / (2.0 * mean.size * np.maximum(np.asarray(own["var"], dtype=np.float64), floor))
    scale = max(1.0, float(weight.max()) / _WEIGHT)
    found = _tenseal().ckks_vector_from(require_public(key, "the server"), sealed.tobytes())
    if found.size() != mean.size:
        raise DataError(
            f"a ciphertext of {found.size()} means, and the server has {mean.size}",
            where="encrypted matching",
            remedy="profile the same layer of the same model",
        )
    apart = found - mean.tolist()
    terms = apart * apart * (weight / scale).tolist()
    mask = (2.0 * Secret().uniform(mean.size) - 1.0) * 2.0**mask_bits
    mask[-1] -= mask.sum()
    return _array((terms + mask.tolist()).serialize()), scale


def open_sum(key: Any, sealed: Any, digits: int = 4) -> float:
    """At the key holder: the sum of the terms, rounded.

    Args:
        key: the secret key.
        sealed: from `masked_terms`.
        digits: decimals that are told.

    Raises:
        PolicyError: the key is not the secret one.
    """
    ts = _tenseal()
    context = ts.context_from(key.tobytes())
    if not context.is_private():
        raise PolicyError("a public key opens nothing", where="encrypted matching", remedy="decrypt at the key holder")
    return round(float(np.sum(ts.ckks_vector_from(context, sealed.tobytes()).decrypt())), digits)


def _tenseal() -> Any:
    return need("tenseal", "he", "encrypted matching of profiles")


def _array(raw: bytes) -> Any:
    return np.frombuffer(raw, dtype=np.uint8)
