"""What a party demands of every release: the part of its policy that knows privacy."""

from __future__ import annotations

from collections.abc import Sequence

from ..event import Event

__all__ = ["ReplyDemand"]


class ReplyDemand:
    """Base class of demands; it demands nothing. The room of privacy has the one that people use (`atoll.privacy.Demand`)."""

    def settle(self, task: str, events: Sequence[Event]) -> None:
        """Raise ``PolicyError`` to keep a reply from leaving.

        Args:
            task: the task's name.
            events: what was recorded for this reply before it leaves.
        """
