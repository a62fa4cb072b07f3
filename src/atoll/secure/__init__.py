"""Computing on what nobody may see: totals as words that add up exactly, masks, and sums over encrypted numbers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bounded import BoundedSum
    from .encrypted import Encrypted
    from .encrypted.squares import (
        encrypt,
        encryption_key,
        make_keys,
        masked_squares,
        open_sum,
        require_library,
        require_public,
    )
    from .holders import Attestation, Enclave, SimulatedAttestation, TwoServers
    from .indexing import CountNoise, SecureIndexing
    from .lot import Lot, accept_lot, draw_lot
    from .masking import OneShot, SecureAggregation
    from .noise import DiscreteGaussianNoise, LatticeNoise, SkellamMixtureNoise, SkellamNoise
    from .standing import MultiRound
    from .tree import SecureTree
    from .words import FixedPoint, WordLayout
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "bounded": ("BoundedSum",),
            "encrypted.squares": (
                "encrypt",
                "encryption_key",
                "make_keys",
                "masked_squares",
                "open_sum",
                "require_library",
                "require_public",
            ),
            "encrypted": ("Encrypted",),
            "holders": ("Attestation", "Enclave", "SimulatedAttestation", "TwoServers"),
            "indexing": ("CountNoise", "SecureIndexing"),
            "lot": ("Lot", "accept_lot", "draw_lot"),
            "masking": ("OneShot", "SecureAggregation"),
            "noise": ("DiscreteGaussianNoise", "LatticeNoise", "SkellamMixtureNoise", "SkellamNoise"),
            "standing": ("MultiRound",),
            "tree": ("SecureTree",),
            "words": ("FixedPoint", "WordLayout"),
        },
    )

__all__ = [
    "Attestation",
    "BoundedSum",
    "CountNoise",
    "DiscreteGaussianNoise",
    "Enclave",
    "Encrypted",
    "FixedPoint",
    "LatticeNoise",
    "Lot",
    "MultiRound",
    "OneShot",
    "SecureAggregation",
    "SecureIndexing",
    "SecureTree",
    "SimulatedAttestation",
    "SkellamMixtureNoise",
    "SkellamNoise",
    "TwoServers",
    "WordLayout",
    "accept_lot",
    "draw_lot",
    "encrypt",
    "encryption_key",
    "make_keys",
    "masked_squares",
    "open_sum",
    "require_library",
    "require_public",
]
