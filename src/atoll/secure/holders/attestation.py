"""Attestation: how a party knows which code an enclave runs, before it trusts it with a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from atoll.core.errors import PolicyError

__all__ = ["Attestation", "SimulatedAttestation"]


@runtime_checkable
class Attestation(Protocol):
    """What an enclave's hardware vouches for. A real one wraps a vendor's quotes (SGX, SEV-SNP, Nitro).

    The party calls `verify` on what the enclave answered to a fresh challenge, and seals its seed to that enclave only if it passes.
    """

    @property
    def simulated(self) -> bool:
        """Whether it proves nothing; the ledger records that."""
        ...

    def quote(self, challenge: bytes) -> bytes:
        """At the enclave: a statement about its code, bound to a challenge."""
        ...

    def verify(self, quote: bytes, challenge: bytes) -> None:
        """At a party: accept the statement.

        Raises:
            PolicyError: the enclave runs other code, or the statement answers another challenge.
        """
        ...


@dataclass(frozen=True)
class SimulatedAttestation(Attestation):
    """A stand-in without hardware: it has the steps and the sizes of an attestation and **proves nothing**, since anyone can compute its quotes.

    Attributes:
        measurement: what the parties expect of the enclave's code.
    """

    measurement: str = "atoll.secure.holders"

    @property
    def simulated(self) -> bool:
        """True."""
        return True

    def quote(self, challenge: bytes) -> bytes:
        """A hash of the measurement and the challenge, 32 bytes."""
        return hashlib.sha256(b"atoll simulated quote" + self.measurement.encode() + b"\0" + challenge).digest()

    def verify(self, quote: bytes, challenge: bytes) -> None:
        """Compare the quote with the expected one."""
        if quote != self.quote(challenge):
            raise PolicyError(
                f"the enclave's quote does not vouch for {self.measurement!r}",
                where="attestation",
                remedy="look at the enclave: it runs other code, or answers another challenge",
            )
