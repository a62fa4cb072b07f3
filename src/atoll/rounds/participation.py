"""Who took part in a training, and how evenly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from atoll.core.requests.party import Parties

__all__ = ["Participation", "jain", "named", "participation"]

_SELECTED, _REPLIED = "selected_clients", "replied_clients"


def named(asked: Parties, replied: Parties) -> dict[str, list[int]]:
    """A round's record of who took part: positions of the parties asked, and of those whose replies were taken."""
    return {_SELECTED: asked.positions.tolist(), _REPLIED: replied.positions.tolist()}


@dataclass(frozen=True)
class Participation:
    """How often each client took part, ``(clients,)``.

    Attributes:
        selected: rounds in which it was asked; twice in a round counts twice.
        replied: rounds in which its reply was taken.
    """

    selected: NDArray[np.int64]
    replied: NDArray[np.int64]

    @property
    def fairness(self) -> float:
        """Jain's index of ``replied``; see `jain`."""
        return jain(self.replied)

    def histogram(self) -> dict[int, int]:
        """Map a number of replies to the number of clients that sent that many."""
        often, clients = np.unique(self.replied, return_counts=True)
        return dict(zip(often.tolist(), clients.tolist(), strict=True))

    def by_group(self, groups: Sequence[str]) -> dict[str, dict[str, float]]:
        """Map each group to its ``clients`` and the means of ``selected`` and ``replied`` over them.

        Args:
            groups: one group a client, such as ``islands.tags``, which name how each client's data were corrupted.

        Raises:
            ConfigError: there is not one group a client.
        """
        if len(groups) != len(self.selected):
            raise ConfigError(
                f"{len(groups)} groups for {len(self.selected)} clients",
                where="by_group",
                remedy="give one group a client",
            )
        labels = np.array([str(group) for group in groups])
        return {
            str(name): {
                "clients": float((labels == name).sum()),
                "selected": float(self.selected[labels == name].mean()),
                "replied": float(self.replied[labels == name].mean()),
            }
            for name in np.unique(labels)
        }


def jain(amounts: ArrayLike) -> float:
    """``(sum x)^2 / (n sum x^2)``: 1 if all have the same amount or all have 0, ``1/n`` if one client has everything.

    R. Jain, D. Chiu and W. Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer Systems", 1984.

    Args:
        amounts: at least 0, ``(n,)``.

    Raises:
        ConfigError: there are no amounts, or one is negative or not finite.
    """
    x = np.asarray(amounts, dtype=np.float64)
    if not x.size or not ((x >= 0) & np.isfinite(x)).all():
        raise ConfigError(f"amounts of {x.size} clients", where="jain", remedy="give finite numbers of at least 0")
    most = float(x.max())
    if most == 0.0:
        return 1.0
    x = x / most  # squares of tiny amounts would underflow
    return float(x.sum() ** 2 / (x.size * (x**2).sum()))


def participation(rows: Iterable[Mapping[str, Any]], clients: int) -> Participation:
    """Count how often each client took part.

    Args:
        rows: rows of a training with ``Evaluation(participants=True)``.
        clients: number of clients.

    Raises:
        ConfigError: no row says who took part, or a row names a client that does not exist.
    """
    recorded = [row for row in rows if _SELECTED in row]
    if not recorded:
        raise ConfigError(
            "no round recorded who took part", where="participation", remedy="train with Evaluation(participants=True)"
        )
    counts = []
    for name in (_SELECTED, _REPLIED):
        found = np.array([k for row in recorded for k in row[name]], dtype=np.int64)
        if len(found) and found.max() >= clients:
            raise ConfigError(
                f"a round names client {found.max()} of {clients}",
                where="participation",
                remedy="give the number of clients",
            )
        counts.append(np.bincount(found, minlength=clients))
    return Participation(*counts)
