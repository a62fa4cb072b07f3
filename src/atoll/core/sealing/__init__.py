"""Sealed letters: what one party tells another through a relay that cannot read it.

`hpke` holds the cryptography, `letter` what travels, `sealings` who can seal and open, `receipts` the memory that makes a letter good for one request,
`letterbox` what a task holds, and `conversation` what roles of a session say to each other. See "Who sees what" in the documentation.
"""

from .conversation import RoleSealing, Speaker, sealed_nbytes
from .letter import Letter
from .letterbox import Letterbox
from .receipts import Receipts
from .sealings import DerivedKeys, Keys, RealSealing, Sealing, VirtualSealing

__all__ = [
    "DerivedKeys",
    "Keys",
    "Letter",
    "Letterbox",
    "RealSealing",
    "Receipts",
    "RoleSealing",
    "Sealing",
    "Speaker",
    "VirtualSealing",
    "sealed_nbytes",
]
