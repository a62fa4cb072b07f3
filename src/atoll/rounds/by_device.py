"""What each device was asked, did and spent in a training: columns over the devices that received a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, nearest
from atoll.core.requests.party import Parties, among
from atoll.core.time.meter import Meter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

__all__ = ["COLUMNS", "ByDevice", "by_device"]

COLUMNS = ("asked", "answered", "crashed", "called_off", "refused", "bytes_down", "bytes_up", "energy")
"""What is counted of each device; ``energy`` in joules."""


@dataclass(frozen=True)
class ByDevice:
    """What devices were asked and did, ``(devices,)`` each. A device that is missing here received no request.

    A request is a message that wants a reply: an algorithm of two phases, a survey or a protocol makes several a round. Each request that was
    ``asked`` ends in one of these ways, or is still under way when the training ends: ``answered``, ``crashed`` (the device or its connection was
    lost; a simulation knows this when it asks), ``called_off`` (the reply is no longer needed) or ``refused`` (the reply was kept out of a sum).
    Like the bytes of the rows, the counts leave out what an observer asks to measure clients.

    Attributes:
        population: number of registered devices.
        positions: positions of the devices, ascending.
        names: names of the devices.
        asked: requests.
        answered: requests whose reply arrived and was used.
        crashed: requests during which the device was lost.
        called_off: requests whose reply was no longer needed.
        refused: requests whose reply could not be used.
        bytes_down: bytes sent to the device.
        bytes_up: bytes sent by the device.
        energy: joules; all 0 where ``powered`` is false.
        powered: whether the model of devices counts energy.
        regions: region of each device, if the model of devices has regions.
        elsewhere: ``bytes_down`` and ``bytes_up`` on links to parties other than clients, such as edge servers: the rest of the rows' sums.
    """

    population: int
    positions: NDArray[np.int64]
    names: Sequence[str]
    asked: NDArray[np.int64]
    answered: NDArray[np.int64]
    crashed: NDArray[np.int64]
    called_off: NDArray[np.int64]
    refused: NDArray[np.int64]
    bytes_down: NDArray[np.int64]
    bytes_up: NDArray[np.int64]
    energy: NDArray[np.float64]
    powered: bool = False
    regions: list[str] | None = None
    elsewhere: dict[str, int] = field(default_factory=lambda: {"bytes_down": 0, "bytes_up": 0})

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """One column, ``(devices,)``.

        Raises:
            ConfigError: there is no such column.
        """
        if column not in COLUMNS:
            raise ConfigError(
                f"{column!r} is not counted of devices.{nearest(column, COLUMNS)}",
                where="devices",
                remedy=f"use one of {', '.join(COLUMNS)}",
            )
        found: NDArray[Any] = getattr(self, column)
        return found

    def everyone(self, column: str) -> NDArray[Any]:
        """One column over all registered devices, ``(population,)``; 0 for a device without requests."""
        whole = np.zeros(self.population, dtype=self[column].dtype)
        whole[self.positions] = self[column]
        return whole

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row a device: ``client``, ``region`` (if there are regions) and the columns; ``energy`` if it is counted."""
        shown = [name for name in COLUMNS if name != "energy" or self.powered]
        columns = [self[name].tolist() for name in shown]
        for i, name in enumerate(self.names):
            where = {} if self.regions is None else {"region": self.regions[i]}
            yield {"client": name, **where, **{k: column[i] for k, column in zip(shown, columns, strict=True)}}

    def histogram(self, column: str = "answered") -> dict[int, int]:
        """Map each value of a column of whole numbers to the number of devices that have it, 0 included."""
        values, clients = np.unique(self[column], return_counts=True)
        found = {int(v): int(c) for v, c in zip(values, clients, strict=True)}
        none = self.population - len(self) + found.get(0, 0)
        return dict(sorted({**found, **({0: none} if none else {})}.items()))

    def share(self, column: str = "energy", top: float = 0.1) -> float:
        """The share of a column's sum that the ``top`` part of the population with the largest values has (at least one client); 0 if the sum is 0.

        Raises:
            ConfigError: ``top`` is not in (0, 1].
        """
        if not 0 < top <= 1:
            raise ConfigError(f"top={top}", where="devices.share", remedy="use a share above 0, up to 1")
        values = np.sort(self[column])[::-1]
        total, first = float(values.sum()), max(1, round(top * self.population))
        return float(values[:first].sum()) / total if total > 0 else 0.0

    def fairness(self, column: str = "answered") -> float:
        """Jain's index over the population, ``(sum x)^2 / (n sum x^2)``; see `atoll.rounds.history.jain`."""
        x = self[column].astype(np.float64)
        most = float(x.max(initial=0.0))
        return 1.0 if most <= 0 else float((x / most).sum() ** 2 / (self.population * ((x / most) ** 2).sum()))

    def by_region(self) -> dict[str, dict[str, float]]:
        """Map each region to ``clients`` (those that received a request) and the sums of their columns; empty without regions."""
        labels = np.array(self.regions or [], dtype=str)
        return {
            str(name): {
                "clients": int((labels == name).sum()),
                **{column: self[column][labels == name].sum().item() for column in COLUMNS},
            }
            for name in np.unique(labels)
        }

    def summary(self) -> dict[str, Any]:
        """A few plain numbers, for a record or a line."""
        values = {name: self[name].sum().item() for name in COLUMNS[:5]}
        spent = {"energy_wh": float(self.energy.sum()) / 3600, "energy_share_of_busiest_tenth": self.share("energy")}
        return {
            "population": self.population,
            "took_part": int((self.answered > 0).sum()),
            **values,
            "fairness": self.fairness(),
            "replies": {str(k): v for k, v in self.histogram().items()},
            **(spent if self.powered else {}),
        }

    def packed(self) -> dict[str, Any]:
        """Return plain values to write to a file."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "names": list(self.names)}

    @classmethod
    def unpacked(cls, values: dict[str, Any]) -> ByDevice:
        """Rebuild the columns from plain values.

        Raises:
            ConfigError: a column is missing, or the columns differ in length.
        """
        try:
            whole = {name: np.array(values[name], dtype=np.int64) for name in ("positions", *COLUMNS[:-1])}
            made = cls(**{**values, **whole, "energy": np.array(values["energy"], dtype=np.float64)})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"these values are not columns of devices: {error}", remedy="restore the values of packed()"
            ) from error
        if len({len(made.names), len(made.positions), *(len(made[name]) for name in COLUMNS)}) > 1:
            raise ConfigError("the columns of devices differ in length", remedy="restore the values of packed()")
        return made


class _Names(Sequence[str]):
    """Names of some parties, made when they are read, so that a training of many devices does not make names in vain."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties

    def __len__(self) -> int:
        return len(self._parties)

    def __getitem__(self, i: Any) -> Any:
        return self._parties.names[i] if isinstance(i, slice) else self._parties[int(i)].name

    def __iter__(self) -> Iterator[str]:
        return iter(self._parties.names)


def by_device(fed: Federation) -> ByDevice:
    """Count what this federation's program and its child scopes, except observers, have asked of each client."""
    meter, watched = Meter(), f"{fed.slot}/observer"
    for member in (fed, *fed.below()):
        if member.slot != watched and not member.slot.startswith(f"{watched}/"):
            meter.absorb(member.meter)
    met, columns = meter.parties()
    roster, members = fed.world.roster, np.sort(fed.parties.positions)
    population = len(members)
    clients = among(met, members)
    parties = Parties(roster, met[clients])
    elsewhere = {way: int(columns[way][~clients].sum()) for way in ("bytes_down", "bytes_up")}
    cost = fed.world.cost
    regions = cost.region(parties) if hasattr(cost, "region") and getattr(cost, "regions", None) != 1 else None
    values = {name: columns[name][clients] for name in COLUMNS}
    return ByDevice(
        population=population, positions=np.searchsorted(members, met[clients]), names=_Names(parties), **values, powered=meter.joules is not None,
        regions=regions, elsewhere=elsewhere,
    )  # fmt: skip
