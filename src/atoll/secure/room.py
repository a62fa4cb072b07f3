"""What the room of secure sums adds: the parts that its reducers hold, and alignment. The reducers themselves are a kind of the room of stages."""

from __future__ import annotations

from typing import Any

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {"linkage": "atoll.secure.psi.linkage:Linkage", "psi": "atoll.secure.psi.job:Alignment"}
"""Maps ``job:`` of a configuration to its class."""


def _attests(found: Any) -> bool:
    """Return whether something is a class of attestations; a protocol with a property has no subclasses to ask for."""
    return (
        isinstance(found, type)
        and all(hasattr(found, name) for name in ("simulated", "quote", "verify"))
        and found.__name__ != "Attestation"
    )


PARTS = (
    PartKind(
        "encryption scheme", ("atoll.secure.encrypted",), is_class("atoll.secure.encrypted.scheme:Scheme"),
        "What a server adds up ciphertexts of.", "Scheme",
    ),
    PartKind(
        "attestation", ("atoll.secure.seed_holders", "atoll.secure.attestation"), _attests, "How parties know which code an enclave runs.", "Attestation"
    ),
    PartKind("alignment protocol", ("atoll.secure.psi",), is_class("atoll.secure.psi.protocol:PsiProtocol"), "How parties find the keys that they share.", "PsiProtocol"),
)  # fmt: skip
