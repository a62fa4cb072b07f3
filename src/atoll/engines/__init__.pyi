from .batched import Batched as Batched
from .inline import Inline as Inline
from .processes import LoopbackSocket as LoopbackSocket
from .processes import Processes as Processes
from .ray import Ray as Ray
from .registry import ENGINES as ENGINES
