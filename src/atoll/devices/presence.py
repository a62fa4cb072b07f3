"""What every rule of availability answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from .draws import DrawnPopulation

if TYPE_CHECKING:
    from .windows import Windows

__all__ = ["Availability"]


@dataclass(frozen=True)
class Availability(Checked):
    """Who is there at a moment, and until when."""

    def there(self, population: DrawnPopulation, positions: NDArray[np.int64], now: float) -> NDArray[np.bool_]:
        """Whether each device can be asked."""
        raise NotImplementedError

    def leaves(
        self, population: DrawnPopulation, positions: NDArray[np.int64], now: float, until: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """When each device that is there goes away; any time from its ``until`` on, or ``inf``, if not before."""
        raise NotImplementedError

    def recorded(self, population: DrawnPopulation, until: float) -> Windows:
        """The same as data: for every moment before ``until`` the windows say what this rule says, to the bit.

        Raises:
            ConfigError: it cannot say.
        """
        del population, until
        raise ConfigError(
            f"{type(self).__name__} cannot be recorded: it does not say when devices come and go",
            where="Fleet.recorded",
            remedy="give it a method recorded(population, until) that returns Windows",
        )
