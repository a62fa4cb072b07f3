"""Self-supervised methods: rows without any label, one method a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import SelfSupervised
    from .fedbyol import FedBYOL
    from .fedca import FedCA
    from .fedema import FedEMA
    from .fedmae import FedMAE
    from .fedmoco import FedMoCo
    from .fedsimclr import FedSimCLR
    from .fedsimsiam import FedSimSiam
    from .fedu import FedU
    from .fedx import FedX
    from .orchestra import Orchestra
    from .ssfl import SSFL
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": ("SelfSupervised",),
            "fedbyol": ("FedBYOL",),
            "fedca": ("FedCA",),
            "fedema": ("FedEMA",),
            "fedmae": ("FedMAE",),
            "fedmoco": ("FedMoCo",),
            "fedsimclr": ("FedSimCLR",),
            "fedsimsiam": ("FedSimSiam",),
            "fedu": ("FedU",),
            "fedx": ("FedX",),
            "orchestra": ("Orchestra",),
            "ssfl": ("SSFL",),
        },
    )

__all__ = [
    "FedBYOL",
    "FedCA",
    "FedEMA",
    "FedMAE",
    "FedMoCo",
    "FedSimCLR",
    "FedSimSiam",
    "FedU",
    "FedX",
    "Orchestra",
    "SSFL",
    "SelfSupervised",
]
