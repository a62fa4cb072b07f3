"""One secure sum of arrays in files, to see what a protocol and an encoding cost: what ``atoll secure sum`` runs.

A protocol is a row of `protocols.PROTOCOLS`, an encoding one of `encodings.ENCODINGS`: add yours there.
"""

from .encodings import ENCODINGS, Encoding
from .protocols import PROTOCOLS, Protocol
from .settings import SumSettings
from .trial import run_trial

__all__ = ["ENCODINGS", "PROTOCOLS", "Encoding", "Protocol", "SumSettings", "run_trial"]
