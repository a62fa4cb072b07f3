"""Hybrid public key encryption in its authenticated mode (RFC 9180, mode_auth): only the recipient can read, and only the sender can have written it.

The suite is DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305. The names below are those of the RFC: ``enc`` is the sender's ephemeral public
key, ``info`` binds the context, ``aad`` binds each message. Keys are raw: 32 bytes.

Each message has its own ephemeral key, so a stolen key of a *sender* opens nothing that it has sent. The *recipient's* key opens
what was sent to it; see `atoll.core.sealing` for the lifetime of such a key. The mode does not bind ``aad`` of different messages to each other: to get
an order, use one context for all messages; its sequence numbers are the nonces.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from typing import TYPE_CHECKING, Any

from ..errors import LetterError, MissingExtraError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

__all__ = ["KEY", "TAG", "HpkeContext", "OwnKey", "public_of", "receive", "send"]

KEY = 32
"""Bytes of a private key, of a public key and of ``enc``."""
TAG = 16
"""Difference in bytes between the lengths of ciphertext and plaintext."""
_NONCE = 12
_KEM = b"KEM" + (0x0020).to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(n.to_bytes(2, "big") for n in (0x0020, 0x0001, 0x0003))
_MODE_AUTH = b"\x02"


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError as error:
        raise MissingExtraError("sealing letters needs cryptography", remedy='pip install "atoll[net]"') from error
    return x25519


class HpkeContext:
    """The keys that one ``enc`` agrees on: seals or opens messages in order.

    Args:
        cipher: the cipher, with its key.
        nonce: the base nonce.
    """

    def __init__(self, cipher: ChaCha20Poly1305, nonce: bytes) -> None:
        self._cipher = cipher
        self._nonce = int.from_bytes(nonce, "big")
        self._sequence = 0

    def _next(self) -> bytes:
        nonce = (self._nonce ^ self._sequence).to_bytes(_NONCE, "big")
        self._sequence += 1
        return nonce

    def seal(self, plaintext: bytes | memoryview, aad: bytes) -> bytes:
        """Encrypt the next message."""
        return self._cipher.encrypt(self._next(), plaintext, aad)

    def open(self, ciphertext: bytes | memoryview, aad: bytes) -> bytes:
        """Decrypt the next message.

        Raises:
            LetterError: the message was altered, is from another sender, context or place in the order, or is for another recipient.
        """
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(self._next(), ciphertext, aad)
        except InvalidTag as error:
            raise LetterError("it does not open: it was altered, or does not match its envelope") from error


def public_of(private: bytes) -> bytes:
    """The public key of a private key."""
    return _raw_public(_load(private))


def _load(private: bytes) -> Any:
    """The library's key. It works out the public key, which takes as long as an agreement: load a key once."""
    return _library().X25519PrivateKey.from_private_bytes(private)


def _raw_public(key: Any) -> bytes:
    raw: bytes = key.public_key().public_bytes_raw()
    return raw


class OwnKey:
    """A private key that is used for many messages: what it agrees on with another party's lasting key is worked out once. Whoever holds the object holds the key.

    Args:
        private: the key, 32 bytes.

    Attributes:
        private: the same.
        public: its public key.
    """

    __slots__ = ("_agreed", "_key", "private", "public")

    def __init__(self, private: bytes) -> None:
        self.private, self._key = private, _load(private)
        self.public = _raw_public(self._key)
        self._agreed: dict[bytes, bytes] = {}

    def agree_once(self, public: bytes) -> bytes:
        """The secret that a message's own key agrees on with this one."""
        return _agree_secret(self._key, public)

    def agree(self, public: bytes) -> bytes:
        """The secret that this key and a lasting one agree on."""
        found = self._agreed.get(public)
        if found is None:
            if len(self._agreed) >= _MOST_AGREED:
                self._agreed.clear()
            found = self._agreed[public] = _agree_secret(self._key, public)
        return found


_MOST_AGREED = 1 << 14
"""Secrets that a key remembers."""


def send(recipient: bytes, sender: bytes | OwnKey, ephemeral: bytes, info: bytes) -> tuple[bytes, HpkeContext]:
    """``SetupAuthS``.

    Args:
        recipient: the recipient's public key.
        sender: the sender's private key; of many messages, an `OwnKey`.
        ephemeral: a new private key: 32 secret bytes that are used once.
        info: the context that both ends must agree on.

    Returns:
        ``enc``, and the context that seals.

    Raises:
        LetterError: the recipient's key is not a usable point.
    """
    new, own = _load(ephemeral), sender if isinstance(sender, OwnKey) else OwnKey(sender)
    enc = _raw_public(new)
    shared = _agree_secret(new, recipient) + own.agree(recipient)
    return enc, _context(shared, enc + recipient + own.public, info)


def receive(enc: bytes, sender: bytes, recipient: bytes | OwnKey, info: bytes) -> HpkeContext:
    """``SetupAuthR``: the context that opens.

    Args:
        enc: the sender's ephemeral public key.
        sender: the sender's public key.
        recipient: the recipient's private key; of many messages, an `OwnKey`.
        info: the context that both ends must agree on.

    Raises:
        LetterError: ``enc`` or the sender's key is not a usable point.
    """
    own = recipient if isinstance(recipient, OwnKey) else OwnKey(recipient)
    shared = own.agree_once(enc) + own.agree(sender)
    return _context(shared, enc + own.public + sender, info)


def _agree_secret(private: Any, public: bytes) -> bytes:
    try:
        shared: bytes = private.exchange(_library().X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise LetterError(f"a public key is not usable: {error}") from error
    return shared


def _context(dh: bytes, kem_context: bytes, info: bytes) -> HpkeContext:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    shared = _expand(_extract(b"", b"eae_prk", dh, _KEM), b"shared_secret", kem_context, KEY, _KEM)
    schedule = _key_schedule(info)
    secret = _extract(shared, b"secret", b"", _SUITE)
    key = _expand(secret, b"key", schedule, 32, _SUITE)
    return HpkeContext(ChaCha20Poly1305(key), _expand(secret, b"base_nonce", schedule, _NONCE, _SUITE))


@functools.lru_cache(maxsize=256)
def _key_schedule(info: bytes) -> bytes:
    """What the keys of a context are bound to; there is no pre-shared key."""
    return _MODE_AUTH + _extract(b"", b"psk_id_hash", b"", _SUITE) + _extract(b"", b"info_hash", info, _SUITE)


def _extract(salt: bytes, label: bytes, keys: bytes, suite: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + keys, hashlib.sha256)


def _expand(key: bytes, label: bytes, info: bytes, length: int, suite: bytes) -> bytes:
    """HKDF-Expand of one block, since no output here is longer than a SHA-256."""
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, labelled + b"\x01", hashlib.sha256)[:length]
