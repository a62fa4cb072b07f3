"""Lines: named channels of messages between two processes, which outlive their connections.

``dial_line`` and ``Switchboard`` are the two ends between organisations, ``local_line`` joins a daemon and its job
processes.
"""

from .channel import Channel, ChannelBlock
from .endpoints import Switchboard, dial_line, local_line
from .line import Line
from .outgoing import PackedMessage
from .settings import Backoff, LineLost, LineRefused, Settings, Stats

__all__ = [
    "Backoff",
    "Channel",
    "ChannelBlock",
    "Line",
    "LineLost",
    "LineRefused",
    "PackedMessage",
    "Settings",
    "Stats",
    "Switchboard",
    "dial_line",
    "local_line",
]
