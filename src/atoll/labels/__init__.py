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
    from .methods.adaptation.dualadapt import DualAdapt
    from .methods.adaptation.efficientfda import EfficientFDA
    from .methods.adaptation.fada import FADA
    from .methods.adaptation.fade import FADE
    from .methods.adaptation.fruda import FRuDA
    from .methods.adaptation.self_training import SelfTraining
    from .methods.base import Method
    from .methods.dsfl import DSFL
    from .methods.fedmatch import FedMatch
    from .methods.fedpu import FedPU
    from .methods.fedssl import FedSSL
    from .methods.fixmatch import FixMatch
    from .methods.forward_correction import ForwardCorrection
    from .methods.freematch import FreeMatch
    from .methods.generator import Generator, RowDecoder
    from .methods.hidden.guard import Guard
    from .methods.hidden.relabel import Relabel
    from .methods.pool.adafedsemi import AdaFedSemi
    from .methods.pool.rounds import AdaptiveRounds
    from .methods.robust_self_training import RobustSelfTraining
    from .methods.rscfed import RSCFed
    from .methods.selfsupervised.fedbyol import FedBYOL
    from .methods.selfsupervised.fedca import FedCA
    from .methods.selfsupervised.fedema import FedEMA
    from .methods.selfsupervised.fedmae import FedMAE
    from .methods.selfsupervised.fedmoco import FedMoCo
    from .methods.selfsupervised.fedsimclr import FedSimCLR
    from .methods.selfsupervised.fedsimsiam import FedSimSiam
    from .methods.selfsupervised.fedu import FedU
    from .methods.selfsupervised.fedx import FedX
    from .methods.selfsupervised.orchestra import Orchestra
    from .methods.selfsupervised.ssfl import SSFL
    from .methods.semifl import SemiFL
    from .methods.supervised import Supervised
    from .methods.unseen.fedsr import FedSR, GaussianNetwork
    from .methods.voting.pate import PATE
    from .pretrained import Pretrained
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "committee": ("Committee", "committee_weights"),
            "domain_network": ("DomainNetwork",),
            "heads": (
                "MaskedAutoencoder",
                "Siamese",
            ),
            "methods.base": ("Method",),
            "methods.dsfl": ("DSFL",),
            "methods.adaptation.dualadapt": ("DualAdapt",),
            "methods.adaptation.efficientfda": ("EfficientFDA",),
            "methods.adaptation.fada": ("FADA",),
            "methods.adaptation.fade": ("FADE",),
            "methods.fedmatch": ("FedMatch",),
            "methods.fedpu": ("FedPU",),
            "methods.fedssl": ("FedSSL",),
            "methods.fixmatch": ("FixMatch",),
            "methods.forward_correction": ("ForwardCorrection",),
            "methods.freematch": ("FreeMatch",),
            "methods.adaptation.fruda": ("FRuDA",),
            "methods.generator": (
                "Generator",
                "RowDecoder",
            ),
            "methods.hidden.guard": ("Guard",),
            "methods.hidden.relabel": ("Relabel",),
            "methods.pool.adafedsemi": ("AdaFedSemi",),
            "methods.pool.rounds": ("AdaptiveRounds",),
            "methods.robust_self_training": ("RobustSelfTraining",),
            "methods.rscfed": ("RSCFed",),
            "methods.adaptation.self_training": ("SelfTraining",),
            "methods.selfsupervised.fedbyol": ("FedBYOL",),
            "methods.selfsupervised.fedca": ("FedCA",),
            "methods.selfsupervised.fedema": ("FedEMA",),
            "methods.selfsupervised.fedmae": ("FedMAE",),
            "methods.selfsupervised.fedmoco": ("FedMoCo",),
            "methods.selfsupervised.fedsimclr": ("FedSimCLR",),
            "methods.selfsupervised.fedsimsiam": ("FedSimSiam",),
            "methods.selfsupervised.fedu": ("FedU",),
            "methods.selfsupervised.fedx": ("FedX",),
            "methods.selfsupervised.orchestra": ("Orchestra",),
            "methods.selfsupervised.ssfl": ("SSFL",),
            "methods.semifl": ("SemiFL",),
            "methods.supervised": ("Supervised",),
            "methods.unseen.fedsr": (
                "FedSR",
                "GaussianNetwork",
            ),
            "methods.voting.pate": ("PATE",),
            "pretrained": ("Pretrained",),
        },
        needs={"torch": "torch"},
    )

__all__ = [
    "AdaFedSemi",
    "AdaptiveRounds",
    "Committee",
    "DSFL",
    "DomainNetwork",
    "DualAdapt",
    "EfficientFDA",
    "FADA",
    "FADE",
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
    "PATE",
    "Pretrained",
    "RSCFed",
    "Relabel",
    "RobustSelfTraining",
    "RowDecoder",
    "SSFL",
    "SelfTraining",
    "SemiFL",
    "Siamese",
    "Supervised",
    "committee_weights",
]
