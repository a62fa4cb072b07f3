"""Native code: the local work of small models as generated, compiled and cached C++.

The rest of the room uses four names: ``Natives`` (whole cohorts), ``make_native`` (the steps of one client), ``make_function`` (a part of a
step) and ``enabled``. One switch turns all of it off: ``ATOLL_NATIVE=0`` in the environment. PyTorch's own programs run then,
with the same results to rounding.
"""

from .cohorts import Natives
from .steps import NativeFunction, NativeSteps, make_function, make_native
from .switch import enabled

__all__ = ["NativeFunction", "NativeSteps", "Natives", "enabled", "make_function", "make_native"]
