"""Sums behind a party that holds the seeds of all masks: an enclave, or a second server."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attestation import Attestation, SimulatedAttestation
    from .reducers import Enclave, TwoServers
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {"attestation": ("Attestation", "SimulatedAttestation"), "reducers": ("Enclave", "TwoServers")},
    )

__all__ = ["Attestation", "Enclave", "SimulatedAttestation", "TwoServers"]
