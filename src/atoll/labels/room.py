"""What the room of labels adds: views. Its methods are algorithms and topologies."""

from __future__ import annotations

import dataclasses
from typing import Any

from atoll.core.rooms import PartKind, any_of, gives, is_class

__all__ = ["PARTS"]


def _complete(found: Any) -> bool:
    """Return whether something is a view, not a base class of views."""
    return is_class("atoll.views:View")(found) and dataclasses.is_dataclass(found)


PARTS = (
    PartKind(
        "view", ("atoll.views",), any_of(_complete, gives("View")), "How a row is shown to a loss.", "View",
        pure=True, extra="torch",
    ),
)  # fmt: skip
