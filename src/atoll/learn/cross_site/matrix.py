"""The result of a cross-site evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CrossSite"]


@dataclass(frozen=True)
class CrossSite:
    """Every model on every site's data.

    A site's own model is its personal model, if the algorithm keeps one. Otherwise it is what one more round of the algorithm makes of the global
    model with that site's rows alone.

    Attributes:
        models: the global model, the best global model with ``keep_best``, and a model for each site that sent one, by the site's name.
        sites: the sites, in their order.
        examples: rows of each site; 0 if it told nothing.
        values: metric -> ``(models, sites)``, NaN where a site told nothing.
        withheld: site -> why it sent no model or told nothing.
    """

    models: tuple[str, ...]
    sites: tuple[str, ...]
    examples: tuple[int, ...]
    values: Mapping[str, NDArray[np.float64]] = field(repr=False)
    withheld: Mapping[str, str] = field(default_factory=dict)

    def matrix(self, metric: str) -> NDArray[np.float64]:
        """Return one metric, ``(models, sites)``.

        Raises:
            ConfigError: it was not measured.
        """
        if metric not in self.values:
            raise ConfigError(
                f"no {metric!r} in the cross-site evaluation.{nearest(metric, self.values)}",
                where="CrossSite",
                remedy=f"use one of {', '.join(self.values)}",
            )
        return self.values[metric]

    def to_pandas(self, metric: str) -> Any:
        """Return one metric as a ``pandas.DataFrame``: a row a model, a column a site."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.matrix(metric), index=list(self.models), columns=list(self.sites))

    def plain(self) -> dict[str, Any]:
        """Return plain data, for a file: ``None`` where a site told nothing."""
        rows = {name: [[_number(v) for v in row] for row in values.tolist()] for name, values in self.values.items()}
        told = {"models": list(self.models), "sites": list(self.sites), "examples": list(self.examples)}
        return {**told, "values": rows, "withheld": dict(self.withheld)}

    def sections(self) -> list[dict[str, Any]]:
        """Return a table a metric, for the report."""
        tables = [
            {
                "head": [name, *self.sites],
                "rows": [[model, *row] for model, row in zip(self.models, self._shown(name), strict=True)],
            }
            for name in self.values
        ]
        why = "".join(f" {site} is left out: {reason}." for site, reason in self.withheld.items())
        text = f"Each model (rows) on the data of each site (columns).{why}"
        return [{"title": "Cross-site evaluation", "text": text, "tables": tables}]

    def _shown(self, name: str) -> list[list[str]]:
        return [["–" if np.isnan(v) else f"{v:.4g}" for v in row] for row in self.values[name].tolist()]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value
