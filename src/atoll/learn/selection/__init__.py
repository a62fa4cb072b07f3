"""Selection: who is invited to a round, and whose replies are taken."""

from .base import Candidates, Seen, Selection
from .proportional import SizeProportional
from .uniform import Everyone, Schedule, Uniform

__all__ = ["Candidates", "Everyone", "Schedule", "Seen", "Selection", "SizeProportional", "Uniform"]
