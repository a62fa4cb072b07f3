"""What the room of devices adds."""

from __future__ import annotations

from atoll.core.rooms import PartKind, any_of, gives, is_class

__all__ = ["PARTS"]

_HOME = ("atoll.devices",)
PARTS = (
    PartKind(
        "device model", _HOME, any_of(is_class("atoll.devices:Fleet", itself=True), gives("Fleet")),
        "How fast devices and links are, and when they fail.",
    ),
    PartKind(
        "distribution", _HOME, is_class("atoll.devices:Distribution"), "The distribution of a trait over devices.",
        "Distribution",
    ),
    PartKind("compute rule", _HOME, is_class("atoll.devices:Compute"), "How long a device computes.", "Compute"),
    PartKind("link rule", _HOME, is_class("atoll.devices:Link"), "How long bytes take to a device and back.", "Link"),
    PartKind(
        "availability", _HOME, is_class("atoll.devices:Availability"), "When devices are available.", "Availability"
    ),
    PartKind(
        "trace", _HOME, any_of(is_class("atoll.devices:Trace"), gives("Recorded")),
        "Which devices crash, and when.", "Trace",
    ),
)  # fmt: skip
