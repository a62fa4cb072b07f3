"""Stages on the way up: one idea a file."""

from .affine import MinMaxAffine
from .clip import Clip
from .dgc import DGC
from .feedback import ErrorFeedback
from .lowrank import LowRank
from .onebit import OneBit, Sign
from .qsgd import QSGD
from .randomk import RandomK
from .shift import Shift
from .sketch import CountSketch
from .ternary import Ternary
from .topk import STC, Threshold, TopK
from .wangni import OptimalSparse

__all__ = [
    "DGC",
    "QSGD",
    "STC",
    "Clip",
    "CountSketch",
    "ErrorFeedback",
    "LowRank",
    "MinMaxAffine",
    "OneBit",
    "OptimalSparse",
    "RandomK",
    "Shift",
    "Sign",
    "Ternary",
    "Threshold",
    "TopK",
]
