"""Exposures: who sees what of a job, under which assumption. A reducer states its own, a job puts them together, ``atoll explain`` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Explanation", "Exposure"]


@dataclass(frozen=True)
class Exposure:
    """What one kind of party sees.

    Attributes:
        who: the party, such as ``server``, ``client``, or a helper's role.
        sees: what it learns of the clients' data.
        assuming: what must hold so that it is no more; empty if nothing must.
    """

    who: str
    sees: str
    assuming: str = ""


@dataclass(frozen=True)
class Explanation:
    """What is known of a job before anyone is contacted.

    Attributes:
        title: the job.
        clients: number of clients in a round.
        exposures: who sees what.
        costs: what a client sends and receives in a round, as far as it is known: plain facts by name.
        notes: what else to know, such as what has no privacy guarantee.
    """

    title: str
    clients: int
    exposures: tuple[Exposure, ...] = ()
    costs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The explanation as plain values."""
        return {
            "job": self.title,
            "clients": self.clients,
            "exposures": [asdict(exposure) for exposure in self.exposures],
            "costs": dict(self.costs),
            "notes": list(self.notes),
        }
