"""Sealed letters: messages from party to party through a relay that cannot read them.

`hpke` has the cryptography, `letter` the format, `sealings` the keys, `receipts` the record that makes a letter valid for one request only,
`letterbox` a task's view, and `conversation` the messages between roles of a session. See "Who sees what" in the documentation.
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
