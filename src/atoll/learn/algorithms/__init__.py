"""Algorithms, one idea a file."""

from .accelerated import Accelerated
from .anderson_admm import AndersonADMM
from .ceadmm import CEADMM
from .compact_estimate import CompactEstimate
from .dane import DANE
from .deep_gradient import DeepGradientCompression
from .diana import ADIANA, DIANA
from .dingo import DINGO
from .ditto import Ditto
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

__all__ = [
    "AndersonADMM",
    "CEADMM",
    "FastADMM",
    "FedADMM",
    "GIANT",
    "FedSSO",
    "FLECS",
    "FedNL",
    "DINGO",
    "DANE",
    "LFedADMM",
    "DeepGradientCompression",
    "ADIANA",
    "DIANA",
    "FedAQ",
    "FedCOMGATE",
    "FedPAQ",
    "MemSGD",
    "SparseTernary",
    "QuantisedSGD",
    "QSVRG",
    "SketchedSGD",
    "TwoWaySGDM",
    "Upcycled",
    "OutputPerturbation",
    "ObjectivePerturbation",
    "FirstOrderResidual",
    "FedMirror",
    "FedDualAvg",
    "Signum",
    "SignSGD",
    "ServerOptimised",
    "LocalMomentum",
    "MFL",
    "LocalRMSProp",
    "LocalAdam",
    "LocalAdaGrad",
    "FedProx",
    "FedYogi",
    "FedAvgM",
    "FedAdam",
    "FedAdagrad",
    "FedAC",
    "Accelerated",
    "CompactEstimate",
    "Ditto",
    "FedAvg",
    "FedDyn",
    "FedNova",
    "FedSGD",
    "FullGradient",
    "LocalSAGA",
    "IFCA",
    "LocalSVRG",
    "Mime",
    "MimeLite",
    "MimeSVRG",
    "PFedMe",
    "Scaffold",
    "SufficientStatistics",
    "VRLSGD",
    "Walkman",
]
