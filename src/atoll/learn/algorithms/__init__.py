"""Algorithms, one idea per file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accelerated import Accelerated
    from .anderson_admm import AndersonADMM
    from .ceadmm import CEADMM
    from .compact_estimate import CompactEstimate
    from .dane import DANE
    from .deep_gradient import DeepGradientCompression
    from .diana import ADIANA, DIANA
    from .dingo import DINGO
    from .ditto import Ditto
    from .dp_sgd import DPSGD
    from .fast_admm import FastADMM
    from .fedac import FedAC
    from .fedadmm import FedADMM
    from .fedaq import FedAQ
    from .fedavg import FedAvg
    from .fedcomgate import FedCOMGATE
    from .feddyn import FedDyn
    from .fedmirror import FedDualAvg, FedMirror
    from .fednl import FedNL
    from .fednova import FedNova
    from .fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
    from .fedpaq import FedPAQ, MemSGD, SparseTernary
    from .fedprox import FedProx
    from .fedsgd import FedSGD
    from .fedsso import FedSSO
    from .first_order_residual import FirstOrderResidual
    from .flecs import FLECS
    from .flecs_pp import FLECSPP
    from .full_gradient import FullGradient
    from .giant import GIANT
    from .ifca import IFCA
    from .lfedadmm import LFedADMM
    from .local_adaptive import LocalAdaGrad, LocalAdam, LocalRMSProp
    from .local_saga import LocalSAGA
    from .local_svrg import LocalSVRG
    from .mfl import MFL, LocalMomentum
    from .mime import Mime, MimeLite, MimeSVRG
    from .objective_perturbation import ObjectivePerturbation
    from .one_gradient import QuantisedSGD
    from .output_perturbation import OutputPerturbation
    from .pfedme import PFedMe
    from .qsvrg import QSVRG
    from .scaffold import Scaffold
    from .server_optimised import ServerOptimised
    from .signum import SignSGD, Signum
    from .sketched import SketchedSGD
    from .statistics import SufficientStatistics
    from .two_way import TwoWaySGDM
    from .upcycled import Upcycled
    from .vrlsgd import VRLSGD
    from .walkman import Walkman
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "accelerated": ("Accelerated",),
            "anderson_admm": ("AndersonADMM",),
            "ceadmm": ("CEADMM",),
            "compact_estimate": ("CompactEstimate",),
            "dane": ("DANE",),
            "deep_gradient": ("DeepGradientCompression",),
            "diana": (
                "ADIANA",
                "DIANA",
            ),
            "dingo": ("DINGO",),
            "ditto": ("Ditto",),
            "dp_sgd": ("DPSGD",),
            "fast_admm": ("FastADMM",),
            "fedac": ("FedAC",),
            "fedadmm": ("FedADMM",),
            "fedaq": ("FedAQ",),
            "fedavg": ("FedAvg",),
            "fedcomgate": ("FedCOMGATE",),
            "feddyn": ("FedDyn",),
            "fedmirror": (
                "FedDualAvg",
                "FedMirror",
            ),
            "fednl": ("FedNL",),
            "fednova": ("FedNova",),
            "fedopt": (
                "FedAdagrad",
                "FedAdam",
                "FedAvgM",
                "FedYogi",
            ),
            "fedpaq": (
                "FedPAQ",
                "MemSGD",
                "SparseTernary",
            ),
            "fedprox": ("FedProx",),
            "fedsgd": ("FedSGD",),
            "fedsso": ("FedSSO",),
            "first_order_residual": ("FirstOrderResidual",),
            "flecs": ("FLECS",),
            "flecs_pp": ("FLECSPP",),
            "full_gradient": ("FullGradient",),
            "giant": ("GIANT",),
            "ifca": ("IFCA",),
            "lfedadmm": ("LFedADMM",),
            "local_adaptive": (
                "LocalAdaGrad",
                "LocalAdam",
                "LocalRMSProp",
            ),
            "local_saga": ("LocalSAGA",),
            "local_svrg": ("LocalSVRG",),
            "mfl": (
                "LocalMomentum",
                "MFL",
            ),
            "mime": (
                "Mime",
                "MimeLite",
                "MimeSVRG",
            ),
            "objective_perturbation": ("ObjectivePerturbation",),
            "one_gradient": ("QuantisedSGD",),
            "output_perturbation": ("OutputPerturbation",),
            "pfedme": ("PFedMe",),
            "qsvrg": ("QSVRG",),
            "scaffold": ("Scaffold",),
            "server_optimised": ("ServerOptimised",),
            "signum": (
                "SignSGD",
                "Signum",
            ),
            "sketched": ("SketchedSGD",),
            "statistics": ("SufficientStatistics",),
            "two_way": ("TwoWaySGDM",),
            "upcycled": ("Upcycled",),
            "vrlsgd": ("VRLSGD",),
            "walkman": ("Walkman",),
        },
    )

__all__ = [
    "ADIANA",
    "CEADMM",
    "DANE",
    "DIANA",
    "DINGO",
    "DPSGD",
    "FLECS",
    "FLECSPP",
    "GIANT",
    "IFCA",
    "MFL",
    "QSVRG",
    "VRLSGD",
    "Accelerated",
    "AndersonADMM",
    "CompactEstimate",
    "DeepGradientCompression",
    "Ditto",
    "FastADMM",
    "FedAC",
    "FedADMM",
    "FedAQ",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCOMGATE",
    "FedDualAvg",
    "FedDyn",
    "FedMirror",
    "FedNL",
    "FedNova",
    "FedPAQ",
    "FedProx",
    "FedSGD",
    "FedSSO",
    "FedYogi",
    "FirstOrderResidual",
    "FullGradient",
    "LFedADMM",
    "LocalAdaGrad",
    "LocalAdam",
    "LocalMomentum",
    "LocalRMSProp",
    "LocalSAGA",
    "LocalSVRG",
    "MemSGD",
    "Mime",
    "MimeLite",
    "MimeSVRG",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PFedMe",
    "QuantisedSGD",
    "Scaffold",
    "ServerOptimised",
    "SignSGD",
    "Signum",
    "SketchedSGD",
    "SparseTernary",
    "SufficientStatistics",
    "TwoWaySGDM",
    "Upcycled",
    "Walkman",
]
