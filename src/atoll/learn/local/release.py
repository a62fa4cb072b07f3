"""Releases under privacy: the ledger first, then noise from the island's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.rng import Rng
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError
from atoll.core.facets import changes, facet

from ..algorithm import STEP_HOOKS, Private
from ..wrapped import Wrapped, overrides
from .secret import SecretStream

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

    from ..algorithm import Algorithm

__all__ = ["is_private", "refuse_reports", "released", "require_mechanism_outside"]


def is_private(algorithm: Algorithm) -> bool:
    """Return whether an algorithm promises privacy: whether it, or an algorithm inside it, has events."""
    return overrides(algorithm, "events")


def released(algorithm: Algorithm, island: Island) -> Rng | None:
    """Prepare a local update: admit the data, record the release, and return the secret stream; ``None`` without privacy.

    Raises:
        DataError: the client's data break an assumption of the privacy guarantee.
    """
    if not is_private(algorithm):
        return None
    data = island.data
    facet(algorithm, Private).admit(data)
    for event in facet(algorithm, Private).events(len(data)):
        island.spend(event)
    return SecretStream(island.secret)


def refuse_reports(algorithm: Algorithm, reports: Mapping[str, Any]) -> None:
    """Refuse reports with a mechanism: they come from the raw data.

    Raises:
        CompositionError: the algorithm is private and there are reports.
    """
    if reports and is_private(algorithm):
        raise CompositionError(
            f"reports ({', '.join(map(repr, reports))}) would leave the clients without noise",
            where=type(algorithm).__name__,
            remedy="use a selection rule without reports, or the same algorithm without privacy",
        )


def require_mechanism_outside(algorithm: Algorithm) -> None:
    """Refuse a wrapper around a privacy mechanism with its own replies or steps.

    Raises:
        CompositionError: names the wrapper.
    """
    outer = algorithm
    while isinstance(outer, Wrapped) and not changes(type(outer), Wrapped, "events"):
        if PROTECTION in outer.base.offers and changes(type(outer), Wrapped, *STEP_HOOKS, "start", "finish"):
            raise CompositionError(
                f"{type(outer).__name__} changes what clients do around a privacy mechanism",
                where="Training.algorithm",
                remedy=f"put the mechanism outside: OutputPerturbation(base={type(outer).__name__}(...))",
            )
        outer = outer.base
