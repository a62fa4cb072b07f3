"""Methods for data without full labels, one a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adafedsemi import AdaFedSemi
    from .adaptive_rounds import AdaptiveRounds
    from .base import Method, local_sgd
    from .dsfl import DSFL
    from .dualadapt import DualAdapt
    from .efficientfda import EfficientFDA
    from .fada import FADA
    from .fade import FADE
    from .fedbyol import FedBYOL
    from .fedca import FedCA
    from .fedema import FedEMA
    from .fedmae import FedMAE
    from .fedmatch import FedMatch
    from .fedmoco import FedMoCo
    from .fedpu import FedPU
    from .fedsimclr import FedSimCLR
    from .fedsimsiam import FedSimSiam
    from .fedsr import FedSR, GaussianNetwork
    from .fedssl import FedSSL
    from .fedu import FedU
    from .fedx import FedX
    from .fixmatch import FixMatch
    from .forward_correction import ForwardCorrection
    from .freematch import FreeMatch
    from .fruda import FRuDA
    from .generator import Generator, RowDecoder
    from .guard import Guard
    from .labelled_party import LabelledParty
    from .orchestra import Orchestra
    from .pate import PATE
    from .relabel import Relabel
    from .robust_self_training import RobustSelfTraining
    from .rscfed import RSCFed
    from .self_training import SelfTraining
    from .selfsupervised import SelfSupervised
    from .semifl import SemiFL
    from .ssfl import SSFL
    from .supervised import Supervised
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "selfsupervised": ("SelfSupervised",),
            "ssfl": ("SSFL",),
            "orchestra": ("Orchestra",),
            "fedx": ("FedX",),
            "fedu": ("FedU",),
            "fedsimsiam": ("FedSimSiam",),
            "fedsimclr": ("FedSimCLR",),
            "fedmoco": ("FedMoCo",),
            "fedmae": ("FedMAE",),
            "fedema": ("FedEMA",),
            "fedca": ("FedCA",),
            "fedbyol": ("FedBYOL",),
            "adafedsemi": ("AdaFedSemi",),
            "adaptive_rounds": ("AdaptiveRounds",),
            "base": (
                "Method",
                "local_sgd",
            ),
            "dsfl": ("DSFL",),
            "dualadapt": ("DualAdapt",),
            "efficientfda": ("EfficientFDA",),
            "fada": ("FADA",),
            "fade": ("FADE",),
            "fedmatch": ("FedMatch",),
            "fedpu": ("FedPU",),
            "fedsr": (
                "FedSR",
                "GaussianNetwork",
            ),
            "fedssl": ("FedSSL",),
            "fixmatch": ("FixMatch",),
            "forward_correction": ("ForwardCorrection",),
            "freematch": ("FreeMatch",),
            "fruda": ("FRuDA",),
            "generator": (
                "Generator",
                "RowDecoder",
            ),
            "guard": ("Guard",),
            "labelled_party": ("LabelledParty",),
            "pate": ("PATE",),
            "relabel": ("Relabel",),
            "robust_self_training": ("RobustSelfTraining",),
            "rscfed": ("RSCFed",),
            "self_training": ("SelfTraining",),
            "semifl": ("SemiFL",),
            "supervised": ("Supervised",),
        },
    )

__all__ = [
    "DSFL",
    "FADA",
    "FADE",
    "PATE",
    "SSFL",
    "AdaFedSemi",
    "AdaptiveRounds",
    "DualAdapt",
    "EfficientFDA",
    "FRuDA",
    "FedBYOL",
    "FedCA",
    "FedEMA",
    "FedMAE",
    "FedMatch",
    "FedMoCo",
    "FedPU",
    "FedSR",
    "FedSSL",
    "FedSimCLR",
    "FedSimSiam",
    "FedU",
    "FedX",
    "FixMatch",
    "ForwardCorrection",
    "FreeMatch",
    "GaussianNetwork",
    "Generator",
    "Guard",
    "LabelledParty",
    "Method",
    "Orchestra",
    "RSCFed",
    "Relabel",
    "RobustSelfTraining",
    "RowDecoder",
    "SelfSupervised",
    "SelfTraining",
    "SemiFL",
    "Supervised",
    "local_sgd",
]
