"""Methods for data without full labels, one idea a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adaptation.dualadapt import DualAdapt
    from .adaptation.efficientfda import EfficientFDA
    from .adaptation.fada import FADA
    from .adaptation.fade import FADE
    from .adaptation.fruda import FRuDA
    from .adaptation.self_training import SelfTraining
    from .base import Method, local_sgd
    from .dsfl import DSFL
    from .fedmatch import FedMatch
    from .fedpu import FedPU
    from .fedssl import FedSSL
    from .fixmatch import FixMatch
    from .forward_correction import ForwardCorrection
    from .freematch import FreeMatch
    from .generator import Generator, RowDecoder
    from .hidden.guard import Guard
    from .hidden.relabel import Relabel
    from .labelled_party import LabelledParty
    from .pool.adafedsemi import AdaFedSemi
    from .pool.rounds import AdaptiveRounds
    from .robust_self_training import RobustSelfTraining
    from .rscfed import RSCFed
    from .semifl import SemiFL
    from .supervised import Supervised
    from .unseen.fedsr import FedSR, GaussianNetwork
    from .voting.pate import PATE
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": (
                "Method",
                "local_sgd",
            ),
            "dsfl": ("DSFL",),
            "adaptation.dualadapt": ("DualAdapt",),
            "adaptation.efficientfda": ("EfficientFDA",),
            "adaptation.fada": ("FADA",),
            "adaptation.fade": ("FADE",),
            "fedmatch": ("FedMatch",),
            "fedpu": ("FedPU",),
            "fedssl": ("FedSSL",),
            "fixmatch": ("FixMatch",),
            "forward_correction": ("ForwardCorrection",),
            "freematch": ("FreeMatch",),
            "adaptation.fruda": ("FRuDA",),
            "generator": (
                "Generator",
                "RowDecoder",
            ),
            "hidden.guard": ("Guard",),
            "labelled_party": ("LabelledParty",),
            "hidden.relabel": ("Relabel",),
            "pool.adafedsemi": ("AdaFedSemi",),
            "pool.rounds": ("AdaptiveRounds",),
            "robust_self_training": ("RobustSelfTraining",),
            "rscfed": ("RSCFed",),
            "adaptation.self_training": ("SelfTraining",),
            "semifl": ("SemiFL",),
            "supervised": ("Supervised",),
            "unseen.fedsr": (
                "FedSR",
                "GaussianNetwork",
            ),
            "voting.pate": ("PATE",),
        },
    )

__all__ = [
    "AdaFedSemi",
    "AdaptiveRounds",
    "DSFL",
    "DualAdapt",
    "EfficientFDA",
    "FADA",
    "FADE",
    "FRuDA",
    "FedMatch",
    "FedPU",
    "FedSR",
    "FedSSL",
    "FixMatch",
    "ForwardCorrection",
    "FreeMatch",
    "GaussianNetwork",
    "Generator",
    "Guard",
    "LabelledParty",
    "Method",
    "PATE",
    "RSCFed",
    "Relabel",
    "RobustSelfTraining",
    "RowDecoder",
    "SelfTraining",
    "SemiFL",
    "Supervised",
    "local_sgd",
]
