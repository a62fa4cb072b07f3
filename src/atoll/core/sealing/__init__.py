"""Sealed letters: messages from party to party through a relay that cannot read them.

`hpke` has the cryptography, `letter` the format, `sealings` the keys, `record` what the parties have promised,
`letterbox` a task's view, and `session` the messages between roles of a session. See "Who sees what" in the documentation.
"""

from .letter import Letter
from .letterbox import Letterbox
from .record import HASH, Record, Row, hash_letters, hash_parts, hash_tree, rows_in
from .sealings import DerivedKeys, Keys, RealSealing, Sealing, VirtualSealing
from .session import RoleSealing, Speaker, sealed_nbytes

__all__ = [
    "HASH",
    "DerivedKeys",
    "Keys",
    "Letter",
    "Letterbox",
    "RealSealing",
    "Record",
    "RoleSealing",
    "Row",
    "Sealing",
    "Speaker",
    "VirtualSealing",
    "hash_letters",
    "hash_parts",
    "hash_tree",
    "rows_in",
    "sealed_nbytes",
]
