"""Low-quality clients: noise, blur, salt and pepper, irrelevant or fake data, wrong labels, rotations."""

from .assign import corrupt
from .base import Corruption, CorruptionScope
from .images import Blur, Rotate, SaltAndPepper
from .labels import Mislabel
from .values import Fake, GradedNoise, Irrelevant, Noise

__all__ = [
    "Blur",
    "Corruption",
    "CorruptionScope",
    "Fake",
    "GradedNoise",
    "Irrelevant",
    "Mislabel",
    "Noise",
    "Rotate",
    "SaltAndPepper",
    "corrupt",
]
