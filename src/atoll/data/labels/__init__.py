"""Labels as data: removing them, and who has which."""

from .domains import Domains, adaptation
from .hiding import LABELS, PROBE, unlabel
from .holders import LabelMap, LabelPool, label_map, require_labels, require_public

__all__ = [
    "LABELS",
    "PROBE",
    "Domains",
    "LabelMap",
    "LabelPool",
    "adaptation",
    "label_map",
    "require_labels",
    "require_public",
    "unlabel",
]
