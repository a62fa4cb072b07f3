"""Private keys: ECDSA on P-256, in PKCS #8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.core.errors import IdentityError
from atoll.core.extras import need

from .passphrase import VARIABLE
from .sealing import encrypted_pem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = ["decrypt_key", "fits", "load_key", "make_key", "public_pem", "seal_key"]


def make_key() -> EllipticCurvePrivateKey:
    """Make a new key from the operating system's randomness: no seed can make a key twice."""
    need("cryptography", "net", "making keys")
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def seal_key(key: EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    """Return a key as PEM, encrypted if there is a passphrase."""
    from cryptography.hazmat.primitives import serialization as form

    if passphrase is not None:
        return encrypted_pem(
            key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption()), passphrase
        )
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def load_key(pem: bytes, passphrase: bytes | None, where: str, variable: str = VARIABLE) -> EllipticCurvePrivateKey:
    """Read a key.

    Args:
        pem: the file's content.
        passphrase: what it was encrypted with.
        where: the file's name, which errors name.
        variable: the variable of the passphrase, which errors name.

    Raises:
        IdentityError: it is not a P-256 key, or its passphrase is missing or wrong.
    """
    need("cryptography", "net", "reading keys")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    encrypted = b"ENCRYPTED" in pem.partition(b"\n")[0]
    if encrypted and passphrase is None:
        raise IdentityError(
            "the private key is encrypted and there is no passphrase",
            where=where,
            remedy=f"set {variable}, or {variable}_FILE to the name of a file that holds it",
        )
    try:
        key = load_pem_private_key(pem, passphrase if encrypted else None)
    except (ValueError, TypeError) as error:
        what = "the passphrase does not open the private key" if encrypted else f"not a private key: {error}"
        remedy = "give the passphrase that it was made with" if encrypted else "copy the kit again"
        raise IdentityError(what, where=where, remedy=remedy) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise IdentityError(
            "the private key is not an ECDSA key on P-256", where=where, remedy="use a kit that `atoll provision` made"
        )
    return key


def decrypt_key(pem: bytes, passphrase: bytes | None, where: str) -> bytes:
    """Return a key's PEM without encryption, for memory only.

    Raises:
        IdentityError: it cannot be read.
    """
    return seal_key(load_key(pem, passphrase, where))


def public_pem(key: EllipticCurvePublicKey) -> bytes:
    """Return the public half."""
    from cryptography.hazmat.primitives import serialization as form

    return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


def fits(certificate: bytes, key: bytes) -> bool:
    """Tell whether a certificate (PEM) belongs to this key (PEM, not encrypted)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization as form

    about = x509.load_pem_x509_certificate(certificate).public_key()
    return about.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo) == public_pem(
        load_key(key, None, "key").public_key()
    )
