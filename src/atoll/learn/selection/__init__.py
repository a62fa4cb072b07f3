"""Selection: which clients a round invites, and whose replies it takes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .afl import AFL
    from .base import Selection
    from .cfcfm import CFCFM
    from .divfl import DivFL
    from .fedcs import FedCS
    from .fedprof import FedProf, unbiased_alphas
    from .oort import Oort
    from .power_of_choice import PowerOfChoice
    from .proportional import SizeProportional
    from .samples.labelled import WithLabels
    from .samples.secret import FixedSample, PoissonSample
    from .seen import Candidates, Seen
    from .submodular import Submodular
    from .tifl import TiFL
    from .uniform import CyclicGroups, Everyone, Once, Schedule, Uniform
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "afl": ("AFL",),
            "base": ("Selection",),
            "cfcfm": ("CFCFM",),
            "divfl": ("DivFL",),
            "fedcs": ("FedCS",),
            "fedprof": ("FedProf", "unbiased_alphas"),
            "oort": ("Oort",),
            "power_of_choice": ("PowerOfChoice",),
            "proportional": ("SizeProportional",),
            "samples.labelled": ("WithLabels",),
            "samples.secret": ("FixedSample", "PoissonSample"),
            "seen": ("Candidates", "Seen"),
            "submodular": ("Submodular",),
            "tifl": ("TiFL",),
            "uniform": ("CyclicGroups", "Everyone", "Once", "Schedule", "Uniform"),
        },
    )

__all__ = [
    "AFL",
    "CFCFM",
    "Candidates",
    "DivFL",
    "CyclicGroups",
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
