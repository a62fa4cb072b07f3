"""What the room of stages adds."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["PARTS"]

PARTS = (
    PartKind(
        "uplink stage", ("atoll.core.requests.stage", "atoll.stages", "atoll.secure"), is_class("atoll.core.requests.stage:Stage"),
        "What happens to an update on its way to the server.", "Stage",
    ),
    PartKind(
        "reducer", ("atoll.core.federation.reducer", "atoll.reducers"), is_class("atoll.core.federation.reducer:Reducer"),
        "How replies are combined.", "Reducer",
    ),
)  # fmt: skip
