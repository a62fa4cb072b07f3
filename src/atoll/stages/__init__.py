"""Stages, which transform an update on the uplink: one stage a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .affine import MinMaxAffine
    from .clip import Clip
    from .coded.product import ProductQuantizer
    from .coded.rotation import Rotation
    from .coded.scalar import ScalarQuantizer
    from .dgc import DGC
    from .feedback import ErrorFeedback
    from .filters.exclude import ExcludeVariables
    from .filters.percentile import Percentile
    from .local.anonymous import Anonymous
    from .local.fedsel import FedSel
    from .local.noise import LocalGaussian, LocalLaplace
    from .local.response import RandomisedSigns
    from .local.sparse_vector import SparseVector
    from .lowrank import LowRank
    from .nearest import Nearest
    from .noise import GaussianNoise
    from .onebit import OneBit, Sign
    from .qsgd import QSGD
    from .randomk import RandomK
    from .shift import Shift
    from .sketch import CountSketch
    from .ternary import Ternary
    from .topk import STC, Threshold, TopK
    from .wangni import OptimalSparse
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "affine": ("MinMaxAffine",),
            "clip": ("Clip",),
            "dgc": ("DGC",),
            "feedback": ("ErrorFeedback",),
            "filters.exclude": ("ExcludeVariables",),
            "filters.percentile": ("Percentile",),
            "local.anonymous": ("Anonymous",),
            "local.fedsel": ("FedSel",),
            "local.noise": ("LocalGaussian", "LocalLaplace"),
            "local.response": ("RandomisedSigns",),
            "local.sparse_vector": ("SparseVector",),
            "lowrank": ("LowRank",),
            "nearest": ("Nearest",),
            "noise": ("GaussianNoise",),
            "onebit": ("OneBit", "Sign"),
            "qsgd": ("QSGD",),
            "randomk": ("RandomK",),
            "coded.product": ("ProductQuantizer",),
            "coded.scalar": ("ScalarQuantizer",),
            "coded.rotation": ("Rotation",),
            "shift": ("Shift",),
            "sketch": ("CountSketch",),
            "ternary": ("Ternary",),
            "topk": ("STC", "Threshold", "TopK"),
            "wangni": ("OptimalSparse",),
        },
    )

__all__ = [
    "DGC",
    "QSGD",
    "STC",
    "Anonymous",
    "Clip",
    "CountSketch",
    "ErrorFeedback",
    "ExcludeVariables",
    "FedSel",
    "GaussianNoise",
    "LocalGaussian",
    "LocalLaplace",
    "LowRank",
    "MinMaxAffine",
    "Nearest",
    "OneBit",
    "OptimalSparse",
    "Percentile",
    "ProductQuantizer",
    "RandomK",
    "RandomisedSigns",
    "Rotation",
    "ScalarQuantizer",
    "Shift",
    "Sign",
    "SparseVector",
    "Ternary",
    "Threshold",
    "TopK",
]
