"""Selection: who is invited to a round, and whose replies are taken."""

from .base import Candidates, Selection
from .proportional import SizeProportional
from .uniform import Everyone, Schedule, Uniform

__all__ = ["Candidates", "Everyone", "Schedule", "Selection", "SizeProportional", "Uniform"]
