"""Quotes that a root signs, and blocks sealed to the key that a quote vouches for: what a party needs to trust an enclave with rows.

A real enclave's processor measures the code that it starts, and signs a *quote*: the measurement, what the code asked to have signed, and a signature that leads to the maker's root. A party pins the root, computes the
measurement that it expects, and sends nothing before the quote is right. Here all of this is done, but by software: `SignedAttestation` signs for whoever has the root's private key, so it is **simulated**, as is said
wherever it is used. One with hardware behind it is a class of the same contract (`register_attestation`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.errors import LetterError, PolicyError
from atoll.core.extras import need
from atoll.core.sealing import hpke

from .seed_holders import Attestation, register_attestation

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["SIMULATED_ROOT", "SignedAttestation", "open_blocks", "root_of", "seal_blocks"]

_SIMULATED_KEY = hashlib.sha256(b"atoll simulated root of enclaves").digest()
"""The private key of the root that everybody knows."""
SIMULATED_ROOT = "1e648cbaa963559d6d122e178e707193e5b5f0e6aadfb79f22f9d306c9a79620"
"""The root's public key, in hex."""
_PART, _SIGNATURE = 32, 64
_BLOCK = 1 << 16
"""Bytes of rows in a block."""


def _library() -> Any:
    return need("cryptography.hazmat.primitives.asymmetric.ed25519", "net", "quotes of an enclave")


def root_of(key: bytes) -> str:
    """The public key of a root's private key of 32 bytes, in hex, as policies pin it."""
    raw: bytes = _library().Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
    return raw.hex()


@register_attestation
@dataclass(frozen=True)
class SignedAttestation(Attestation):
    """Quotes with an Ed25519 signature of a root that parties pin. The root's key is known to the program that the quotes are about: they prove which program it is only to those who trust its host.

    A quote is the measurement (32 bytes), the challenge (32 bytes) and the signature of both (64 bytes).

    Attributes:
        measurement: SHA-256 of the code and of what it computes, in hex.
        root: the root's public key that a party pins, in hex.
        key: the root's private key, at the enclave alone; by default that of `SIMULATED_ROOT`.
    """

    measurement: str
    root: str = SIMULATED_ROOT
    key: bytes = field(default=_SIMULATED_KEY, repr=False)

    @property
    def simulated(self) -> bool:
        """True: no hardware keeps the root's key from the enclave's host."""
        return True

    def quote(self, challenge: bytes) -> bytes:
        """The measurement and a challenge of 32 bytes, signed."""
        body = bytes.fromhex(self.measurement) + challenge
        signature: bytes = _library().Ed25519PrivateKey.from_private_bytes(self.key).sign(b"atoll quote" + body)
        return body + signature

    def verify(self, quote: bytes, challenge: bytes) -> None:
        """Accept a quote of the pinned root, for the measurement that is expected and for this challenge."""
        from cryptography.exceptions import InvalidSignature

        body, signature = quote[: 2 * _PART], quote[2 * _PART :]
        try:
            _library().Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.root)).verify(signature, b"atoll quote" + body)  # fmt: skip
        except InvalidSignature as error:
            raise PolicyError(f"the quote is not signed by the root {self.root[:16]}… that the policy pins", where="attestation", remedy="look at the enclave: another root vouches for it; or correct root in the policy") from error  # fmt: skip
        if body[:_PART] != bytes.fromhex(self.measurement):
            raise PolicyError(f"the enclave measures {body[:_PART].hex()[:16]}…, and {self.measurement[:16]}… is expected: it runs other code, or computes something else than this site is asked for", where="attestation", remedy="let all parties have the same version of Atoll, and look at the coordinator")  # fmt: skip
        if body[_PART:] != challenge:
            raise PolicyError("the quote answers another challenge: it is an old one, or of another key", where="attestation", remedy="look at the enclave's host: it replays a quote")  # fmt: skip


# ------------------------------------------------------------------ sealed blocks


def seal_blocks(secret: Secret, recipient: bytes, about: bytes, owner: str, tables: Sequence[bytes]) -> dict[str, Any]:
    """Tables as blocks that the enclave of a public key alone can open, each bound to what is computed, its owner, table and number (HPKE, RFC 9180).

    Args:
        secret: the owner's.
        recipient: the enclave's public key, which a quote vouches for.
        about: what is computed: a digest of the statement and the plan.
        owner: the party whose rows they are.
        tables: bytes of each table.
    """
    sender, ephemeral = secret.bytes(hpke.KEY), secret.bytes(hpke.KEY)
    enc, context = hpke.send(recipient, sender, ephemeral, _info(about, owner))
    made = []
    for place, table in enumerate(tables):
        count = max(1, -(-len(table) // _BLOCK))
        made.append([context.seal(table[k * _BLOCK : (k + 1) * _BLOCK], _number(place, k, count)) for k in range(count)])  # fmt: skip
    return {"enc": enc, "sender": hpke.public_of(sender), "tables": made}


def open_blocks(key: bytes, about: bytes, owner: str, letter: Any) -> list[bytes]:
    """The bytes of each table that `seal_blocks` has sealed.

    Args:
        key: the enclave's private key.
        about: what is computed.
        owner: the party whose rows they are.
        letter: what came.

    Raises:
        LetterError: a block was altered, replayed from another statement or plan, is of another owner, or stands at the place of another one; names it.
    """
    made = []
    try:
        context = hpke.receive(letter["enc"], letter["sender"], key, _info(about, owner))
        tables = [[bytes(block) for block in table] for table in letter["tables"]]
    except (LetterError, KeyError, TypeError, ValueError) as error:
        raise LetterError(f"what {owner} sent are no sealed blocks", where="opaque", remedy="look at the enclave's host: it altered them") from error  # fmt: skip
    for place, blocks in enumerate(tables):
        found = []
        for k, block in enumerate(blocks):
            try:
                found.append(context.open(block, _number(place, k, len(blocks))))
            except LetterError as error:
                raise LetterError(f"block {k} of table {place} of {owner} does not open: it was altered, replayed, or swapped with another", where="opaque", remedy="look at the enclave's host, and at the coordinator") from error  # fmt: skip
        made.append(b"".join(found))
    return made


def _info(about: bytes, owner: str) -> bytes:
    return hashlib.sha256(b"atoll enclave blocks" + about + owner.encode()).digest()


def _number(place: int, k: int, count: int) -> bytes:
    return b"".join(one.to_bytes(8, "big") for one in (place, k, count))
