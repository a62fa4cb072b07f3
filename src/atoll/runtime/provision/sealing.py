"""Encrypted PKCS #8 that resists guessing.

The library writes PBES2 (RFC 8018, section 6.2) with 2,048 rounds of PBKDF2, too few to protect a stolen kit from a
quick search. This module writes the same standard format with ``ROUNDS``; every reader of PKCS #8, OpenSSL's too, opens
it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import textwrap

__all__ = ["ROUNDS", "encrypted_pem"]

ROUNDS = 600_000
"""Rounds of PBKDF2-HMAC-SHA-256, as OWASP's password storage cheat sheet asks for since 2023."""

# Object identifiers in DER, from RFC 8018, appendix C, and NIST's list of AES modes.
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_PBKDF2 = bytes.fromhex("06092a864886f70d01050c")
_HMAC_SHA256 = bytes.fromhex("06082a864886f70d0209")
_AES256_CBC = bytes.fromhex("060960864801650304012a")
_NULL = b"\x05\x00"


def encrypted_pem(pkcs8: bytes, passphrase: bytes) -> bytes:
    """Return ``EncryptedPrivateKeyInfo`` (RFC 5958, section 3) of a key in PKCS #8 DER, as PEM."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    salt, start = os.urandom(16), os.urandom(16)
    key = hashlib.pbkdf2_hmac("sha256", passphrase, salt, ROUNDS, dklen=32)
    pad, cipher = PKCS7(128).padder(), Cipher(algorithms.AES256(key), modes.CBC(start)).encryptor()
    text = cipher.update(pad.update(pkcs8) + pad.finalize()) + cipher.finalize()
    stretched = _sequence(_PBKDF2, _sequence(_octets(salt), _integer(ROUNDS), _sequence(_HMAC_SHA256, _NULL)))
    how = _sequence(_PBES2, _sequence(stretched, _sequence(_AES256_CBC, _octets(start))))
    lines = "\n".join(textwrap.wrap(base64.b64encode(_sequence(how, _octets(text))).decode(), 64))
    return f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{lines}\n-----END ENCRYPTED PRIVATE KEY-----\n".encode()


def _tag_content(tag: int, content: bytes) -> bytes:
    length = len(content)
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag]) + (bytes([length]) if length < 128 else bytes([0x80 | len(size)]) + size) + content


def _sequence(*parts: bytes) -> bytes:
    return _tag_content(0x30, b"".join(parts))


def _octets(content: bytes) -> bytes:
    return _tag_content(0x04, content)


def _integer(value: int) -> bytes:
    return _tag_content(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))
