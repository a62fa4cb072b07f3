"""Domains with roles: parties that have labels, and parties that want to do without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from ..dataset import Dataset
from ..islands import Islands
from ..join import concatenate

__all__ = ["Domains", "adaptation"]


@dataclass(frozen=True)
class Domains:
    """Which parties are sources, with labels, and which are targets, without, and how much each source counts for each target.

    The objective of homogeneous transfer, ``sum_i f_cls(L_i) + sum_ij lambda_ij f_dom(L_i, U_j)`` (Jin et al. 2023, eq. 98), has a weight for each pair; it is large for
    domains that are alike.

    Attributes:
        sources: parties with labels.
        targets: parties without.
        weights: ``lambda_ij`` by (source, target); pairs that are not named share what is left of 1 for their target equally.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    weights: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twice = set(self.sources) & set(self.targets)
        if not self.sources or not self.targets or twice:
            what = (
                f"{', '.join(sorted(twice))} is a source and a target"
                if twice
                else "no source"
                if not self.sources
                else "no target"
            )
            raise DataError(what, where="Domains", remedy="name at least one source and one other party as target")
        for (source, target), weight in self.weights.items():
            if source not in self.sources or target not in self.targets or not 0 <= weight < np.inf:
                raise DataError(
                    f"weight {weight} from {source!r} to {target!r}",
                    where="Domains",
                    remedy="give 0 or more from a source to a target",
                )

    def role(self, party: str) -> str:
        """Return "source", "target" or "" (neither)."""
        return "source" if party in self.sources else "target" if party in self.targets else ""

    @property
    def matrix(self) -> NDArray[np.float64]:
        """``lambda_ij``, ``(sources, targets)``."""
        made = np.full((len(self.sources), len(self.targets)), np.nan)
        for (source, target), weight in self.weights.items():
            made[self.sources.index(source), self.targets.index(target)] = weight
        open_ = np.isnan(made)
        left = np.maximum(1.0 - np.nansum(made, axis=0), 0.0) / np.maximum(open_.sum(axis=0), 1)
        return np.where(open_, left, made)

    def weighted(self, matrix: NDArray[np.float64]) -> Domains:
        """Return the same roles with the weights of a matrix, ``(sources, targets)``."""
        pairs = {(s, t): float(matrix[i, j]) for i, s in enumerate(self.sources) for j, t in enumerate(self.targets)}
        return Domains(self.sources, self.targets, pairs)


@checked_call
def adaptation(
    dataset: Dataset,
    target: str | Sequence[str],
    *,
    by: str = "domain",
    sources: Sequence[str] | None = None,
    unseen: bool = False,
) -> tuple[Islands, Domains]:
    """Make one party of each domain, without labels in the targets; the server tests on the targets' test rows.

    The targets' true labels are nowhere in the parties' data.

    Args:
        dataset: the rows, with test rows and a column that names the domain.
        target: the domain or domains to do without labels in.
        by: the column that names the domain.
        sources: the domains with labels; by default all others.
        unseen: leave the targets out: no party has a row of them, and only the server's test knows them.

    Returns:
        The parties, named by their domains, and their roles.

    Raises:
        DataError: an unknown domain, a target that is a source, or no test rows of a target.
    """
    targets = (target,) if isinstance(target, str) else tuple(target)
    names = [str(name) for name in np.unique(dataset[by])]
    chosen = tuple(name for name in names if name not in targets) if sources is None else tuple(sources)
    for name in (*targets, *chosen):
        if name not in names:
            raise DataError(
                f"no domain {name!r}.{nearest(name, names)}",
                where=f"column {by!r}",
                remedy=f"use one of {', '.join(names)}",
            )
    roles = Domains(chosen, targets)
    parties = chosen if unseen else (*chosen, *targets)
    parts = {name: dataset.take(np.flatnonzero(dataset[by] == name)) for name in parties}
    for name in () if unseen else targets:
        rows = parts[name]
        parts[name] = rows.with_columns({"y": np.zeros_like(rows.y), "labelled": np.zeros(len(rows), np.bool_)})
    test = None
    if dataset.test is not None:
        held = np.flatnonzero(np.isin(dataset.test[by], targets))
        test = dataset.test.take(held) if len(held) else None
    if test is None:
        raise DataError(
            f"no test rows of {', '.join(targets)}",
            where=f"data set {dataset.name!r}",
            remedy="give the data set test rows with the same column",
        )
    whole = concatenate(list(parts.values()))
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts.values()])
    made = Islands.from_owner(whole, owner, len(parts), keys=np.array(list(parts)), scheme=f"domains ({by!r})")
    return made.with_test(test), roles
