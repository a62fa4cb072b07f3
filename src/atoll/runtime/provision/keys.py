"""Private keys of a project: their files, their encryption, and where a passphrase comes from."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.errors import CheckpointError, ConfigError, IdentityError
from atoll.core.extras import need
from atoll.core.persistence.files import write_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

__all__ = [
    "CA_VARIABLE",
    "FILE_VARIABLE",
    "ROUNDS",
    "SHORTEST",
    "VARIABLE",
    "close_memory",
    "decrypt_key",
    "encrypted_pem",
    "find_passphrase",
    "fits",
    "forget_variable",
    "load_key",
    "make_folder",
    "make_key",
    "new_passphrase",
    "public_pem",
    "seal_key",
    "write_kit_file",
]


# ------------------------------------------------------------------ what a process that holds a key keeps to itself: its memory, and the passphrase that opened the key


_PR_SET_DUMPABLE = 4  # linux/prctl.h


def close_memory() -> bool:
    """Let no process of the same user read this process's memory or first environment, and let it leave no core file.

    On Linux the process is then not *dumpable* (PR_SET_DUMPABLE of prctl(2)): below ``/proc/PID``, ``mem``, ``environ``
    and ``fd`` belong to root, and no debugger attaches. Programs that it starts are not affected. Root can read its
    memory still, and so can whoever reads the machine's swap.

    Returns:
        Whether the system does this.
    """
    with contextlib.suppress(ImportError):  # not on POSIX
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def forget_variable(name: str) -> None:
    """Remove a variable from the environment, and overwrite it in the environment that the process was started with."""
    if name not in os.environ:
        return
    if sys.platform == "linux":
        import ctypes

        find = ctypes.CDLL(None).getenv
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        if (place := find(os.fsencode(name))) is not None:
            ctypes.memset(place, 0, len(ctypes.string_at(place)))
    del os.environ[name]


# ------------------------------------------------------------------ files of a kit: complete or absent, and private from their first byte if they must be


def write_kit_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file atomically, as `atoll.core.persistence.files.write_bytes` does.

    Args:
        path: the file.
        content: its new content.
        private: only the owner may read it, even while it is written.

    Raises:
        ConfigError: it cannot be written; the old file is unchanged.
    """
    try:
        write_bytes(
            path, content, private=private, mode=0o644
        )  # whatever the umask: others may read, and change nothing
    except CheckpointError as error:
        cause = error.__cause__
        raise ConfigError(
            f"cannot be written: {getattr(cause, 'strerror', None) or cause}",
            where=str(path),
            remedy="free space or choose another --out",
        ) from error


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make a folder that only its owner may enter, if it does not exist.

    Args:
        path: the folder.
        option: the command-line option that sets it.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise ConfigError(
            f"the folder cannot be made: {error.strerror or error}", where=str(path), remedy=f"choose another {option}"
        ) from error
    return path


# ------------------------------------------------------------------ where a passphrase comes from: a file, the environment, or a person


VARIABLE = "ATOLL_PASSPHRASE"
"""Environment variable that holds the passphrase of a key."""
FILE_VARIABLE = f"{VARIABLE}_FILE"
"""Environment variable that names a file with the passphrase in its first line."""
CA_VARIABLE = "ATOLL_CA_PASSPHRASE"
"""The same for the authority's key; with ``_FILE`` behind it, the file's name."""
SHORTEST = 12
"""Characters of the shortest passphrase that a new key is encrypted with."""


def find_passphrase(
    file: str | Path | None = None,
    ask: Callable[[], str] | None = None,
    variable: str = VARIABLE,
    *,
    forget: bool = False,
) -> bytes | None:
    """Return the passphrase from the first of these that exists: the file, the two environment variables, the person.

    Args:
        file: its first line is the passphrase.
        ask: prompts for it.
        variable: the environment variable; with ``_FILE`` behind it, the one that names a file.
        forget: remove the passphrase from the environment of this process.

    Raises:
        ConfigError: the file cannot be read, or the passphrase is empty.
    """
    if (said := os.environ.get(variable)) is not None and forget:
        forget_variable(variable)
    if file is None and said is not None:
        return _check_passphrase(said, f"environment variable {variable}")
    file = file if file is not None else os.environ.get(f"{variable}_FILE")
    if file is not None:
        return _check_passphrase(_first_line(Path(file)), str(file))
    return None if ask is None else _check_passphrase(ask(), "prompt")


def new_passphrase(
    file: str | Path | None = None, ask: Callable[[], str] | None = None, variable: str = VARIABLE
) -> bytes:
    """Return the passphrase for new keys.

    Raises:
        ConfigError: there is none, or it is shorter than ``SHORTEST`` characters.
    """
    found = find_passphrase(file, ask, variable)
    if found is None:
        raise ConfigError(
            "keys are to be encrypted, but there is no passphrase",
            where=variable,
            remedy=f"set {variable}, or {variable}_FILE to the name of a file that holds it",
        )
    if len(found.decode()) < SHORTEST:
        raise ConfigError(
            f"the passphrase has {len(found.decode())} characters",
            where=variable if file is None else str(file),
            remedy=f"use at least {SHORTEST}: a person with the kit can try any number",
        )
    return found


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the passphrase cannot be read: {said}",
            where=str(path),
            remedy="name a text file with it in the first line",
        ) from error


def _check_passphrase(text: str, where: str) -> bytes:
    if not text:
        raise ConfigError("the passphrase is empty", where=where, remedy="write the passphrase there")
    return text.encode()


# ------------------------------------------------------------------ encrypted PKCS #8 that resists guessing
#
# The library writes PBES2 (RFC 8018, section 6.2) with 2,048 rounds of PBKDF2, too few to protect a stolen kit from a
# quick search. This module writes the same standard format with ``ROUNDS``; every reader of PKCS #8, OpenSSL's too, opens
# it.


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


# ------------------------------------------------------------------ private keys: ECDSA on P-256, in PKCS #8


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
