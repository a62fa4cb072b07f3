"""Sealed letters: messages from party to party through a relay that cannot read them.

`hpke` has the cryptography, `letter` the format and the keys, `record` what the parties have promised,
`letterbox` a task's view and the messages between roles of a session. See "Who sees what" in the documentation.
"""

from .letter import DerivedKeys, Keys, Letter, RealSealing, Sealing, VirtualSealing
from .letterbox import Letterbox, RoleSealing, Speaker, sealed_nbytes
from .record import HASH, Record, Row, hash_letters, hash_parts, hash_tree, rows_in

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
