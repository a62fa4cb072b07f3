"""Learning without full labels: rows at clients, labels few, elsewhere or wrong.

Four nouns. A *view* is what an augmentation makes of a row and a key (`atoll.labels.views`). An *objective* is a loss of one example, from outputs on its
views (`atoll.labels.objectives`). A *stream* is a named part of the model with a rule for how it learns and travels (`atoll.labels.streams`). A *method* is
objectives, streams and a fold around any algorithm: ``Training(model=net, algorithm=FixMatch(tau=0.95))``, or ``FixMatch(base=FedProx(mu=0.1))``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .committee import Committee, committee_weights
    from .domain_network import DomainNetwork
    from .heads import MaskedAutoencoder, Siamese
    from .methods.adafedsemi import AdaFedSemi
    from .methods.adaptive_rounds import AdaptiveRounds
    from .methods.base import Method
    from .methods.dsfl import DSFL
    from .methods.dualadapt import DualAdapt
    from .methods.efficientfda import EfficientFDA
    from .methods.fada import FADA
    from .methods.fade import FADE
    from .methods.fedbyol import FedBYOL
    from .methods.fedca import FedCA
    from .methods.fedema import FedEMA
    from .methods.fedmae import FedMAE
    from .methods.fedmatch import FedMatch
    from .methods.fedmoco import FedMoCo
    from .methods.fedpu import FedPU
    from .methods.fedsimclr import FedSimCLR
    from .methods.fedsimsiam import FedSimSiam
    from .methods.fedsr import FedSR, GaussianNetwork
    from .methods.fedssl import FedSSL
    from .methods.fedu import FedU
    from .methods.fedx import FedX
    from .methods.fixmatch import FixMatch
    from .methods.forward_correction import ForwardCorrection
    from .methods.freematch import FreeMatch
    from .methods.fruda import FRuDA
    from .methods.generator import Generator, RowDecoder
    from .methods.guard import Guard
    from .methods.orchestra import Orchestra
    from .methods.pate import PATE
    from .methods.relabel import Relabel
    from .methods.robust_self_training import RobustSelfTraining
    from .methods.rscfed import RSCFed
    from .methods.self_training import SelfTraining
    from .methods.semifl import SemiFL
    from .methods.ssfl import SSFL
    from .methods.supervised import Supervised
    from .pretrained import Pretrained
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "committee": (
                "Committee",
                "committee_weights",
            ),
            "domain_network": ("DomainNetwork",),
            "heads": (
                "MaskedAutoencoder",
                "Siamese",
            ),
            "methods.adafedsemi": ("AdaFedSemi",),
            "methods.adaptive_rounds": ("AdaptiveRounds",),
            "methods.base": ("Method",),
            "methods.dsfl": ("DSFL",),
            "methods.dualadapt": ("DualAdapt",),
            "methods.efficientfda": ("EfficientFDA",),
            "methods.fada": ("FADA",),
            "methods.fade": ("FADE",),
            "methods.fedbyol": ("FedBYOL",),
            "methods.fedca": ("FedCA",),
            "methods.fedema": ("FedEMA",),
            "methods.fedmae": ("FedMAE",),
            "methods.fedmatch": ("FedMatch",),
            "methods.fedmoco": ("FedMoCo",),
            "methods.fedpu": ("FedPU",),
            "methods.fedsimclr": ("FedSimCLR",),
            "methods.fedsimsiam": ("FedSimSiam",),
            "methods.fedsr": (
                "FedSR",
                "GaussianNetwork",
            ),
            "methods.fedssl": ("FedSSL",),
            "methods.fedu": ("FedU",),
            "methods.fedx": ("FedX",),
            "methods.fixmatch": ("FixMatch",),
            "methods.forward_correction": ("ForwardCorrection",),
            "methods.freematch": ("FreeMatch",),
            "methods.fruda": ("FRuDA",),
            "methods.generator": (
                "Generator",
                "RowDecoder",
            ),
            "methods.guard": ("Guard",),
            "methods.orchestra": ("Orchestra",),
            "methods.pate": ("PATE",),
            "methods.relabel": ("Relabel",),
            "methods.robust_self_training": ("RobustSelfTraining",),
            "methods.rscfed": ("RSCFed",),
            "methods.self_training": ("SelfTraining",),
            "methods.semifl": ("SemiFL",),
            "methods.ssfl": ("SSFL",),
            "methods.supervised": ("Supervised",),
            "pretrained": ("Pretrained",),
        },
        needs={"torch": "torch"},
    )

__all__ = [
    "DSFL",
    "FADA",
    "FADE",
    "PATE",
    "SSFL",
    "AdaFedSemi",
    "AdaptiveRounds",
    "Committee",
    "DomainNetwork",
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
    "MaskedAutoencoder",
    "Method",
    "Orchestra",
    "Pretrained",
    "RSCFed",
    "Relabel",
    "RobustSelfTraining",
    "RowDecoder",
    "SelfTraining",
    "SemiFL",
    "Siamese",
    "Supervised",
    "committee_weights",
]
