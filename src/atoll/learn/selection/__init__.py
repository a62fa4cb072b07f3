"""Selection: which clients a round invites, and whose replies it takes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .afl import AFL
    from .base import Candidates, Seen, Selection
    from .cfcfm import CFCFM
    from .fedcs import FedCS
    from .fedprof import FedProf, unbiased_alphas
    from .labelled import WithLabels
    from .oort import Oort
    from .power_of_choice import PowerOfChoice
    from .proportional import SizeProportional
    from .secret_sample import FixedSample, PoissonSample
    from .submodular import DivFL, Submodular
    from .tifl import TiFL
    from .uniform import CyclicGroups, Everyone, Once, Schedule, Uniform
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "afl": ("AFL",),
            "base": (
                "Candidates",
                "Seen",
                "Selection",
            ),
            "cfcfm": ("CFCFM",),
            "fedcs": ("FedCS",),
            "fedprof": (
                "FedProf",
                "unbiased_alphas",
            ),
            "labelled": ("WithLabels",),
            "oort": ("Oort",),
            "power_of_choice": ("PowerOfChoice",),
            "proportional": ("SizeProportional",),
            "secret_sample": (
                "FixedSample",
                "PoissonSample",
            ),
            "submodular": (
                "DivFL",
                "Submodular",
            ),
            "tifl": ("TiFL",),
            "uniform": (
                "CyclicGroups",
                "Everyone",
                "Once",
                "Schedule",
                "Uniform",
            ),
        },
    )

__all__ = [
    "AFL",
    "CFCFM",
    "Candidates",
    "CyclicGroups",
    "DivFL",
    "Everyone",
    "FedCS",
    "FedProf",
    "FixedSample",
    "Once",
    "Oort",
    "PoissonSample",
    "PowerOfChoice",
    "Schedule",
    "Seen",
    "Selection",
    "SizeProportional",
    "Submodular",
    "TiFL",
    "Uniform",
    "WithLabels",
    "unbiased_alphas",
]
