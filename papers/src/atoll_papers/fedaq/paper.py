"""The paper's printed values, and what follows from its own rules for sizes and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.learn.metrics import HumanTime

__all__ = ["BITS", "COLUMNS", "PaperColumn", "Printed"]

BITS: Mapping[str, int] = {
    "FedAvg": 32,
    "FedPAQ 8b": 8,
    "FedCOMGATE 8b": 8,
    "FedAC-I": 64,
    "FedAQ-I 8b": 16,
    "FedAQ-II 8b": 16,
    "FedAQ-I 4b": 8,
}
"""Bits that a client sends per entry of the model; the paper's times count as many on the downlink."""


@dataclass(frozen=True)
class Printed:
    """A cell of the paper's table.

    Attributes:
        rounds: until the target.
        bits: bits that one client has sent by then, to two digits.
        seconds: human time.
    """

    rounds: int
    bits: float
    seconds: float


@dataclass(frozen=True)
class PaperColumn:
    """A column of the paper's table.

    Attributes:
        parameters: of the model, as the bits count them.
        devices: the number of devices in the text.
        fits: the number of devices for which the printed times agree.
        cells: by method.
    """

    parameters: int
    devices: int
    fits: int
    cells: Mapping[str, Printed]

    def bits(self, method: str, rounds: int | None = None) -> int:
        """Return the bits that one client sends: rounds times bits per entry times entries.

        Args:
            method: a row.
            rounds: the paper's if ``None``.
        """
        return (self.cells[method].rounds if rounds is None else rounds) * BITS[method] * self.parameters

    def residual(self, method: str, devices: int | None = None) -> float:
        """Return the seconds of a printed round that neither the links nor the constant explain: ``R_comp T_sim``.

        Args:
            method: a row.
            devices: devices that share the links; the text's number if ``None``.
        """
        cell, model, size = self.cells[method], HumanTime(), self._bytes(method, devices)
        return model.ratio * model.simulated_in(cell.seconds / cell.rounds, size, size)

    def computing(self, devices: int | None = None) -> float:
        """Return the mean residual of all rows: one constant for the column."""
        return sum(self.residual(name, devices) for name in self.cells) / len(self.cells)

    def seconds(
        self, method: str, rounds: int | None = None, devices: int | None = None, computing: float | None = None
    ) -> float:
        """Return the human time from sizes.

        Args:
            method: a row.
            rounds: the paper's if ``None``.
            devices: devices that share the links; the text's number if ``None``.
            computing: ``R_comp T_sim`` of a round; the column's constant if ``None``.
        """
        size, model = self._bytes(method, devices), HumanTime()
        each = self.computing(devices) if computing is None else computing
        return (self.cells[method].rounds if rounds is None else rounds) * model.seconds(size, size, each / model.ratio)

    def _bytes(self, method: str, devices: int | None) -> float:
        return (self.devices if devices is None else devices) * self.parameters * BITS[method] / 8


COLUMNS: Mapping[str, PaperColumn] = {
    "convex": PaperColumn(
        7_840,
        16,
        16,
        {
            "FedAvg": Printed(217, 5.4e7, 3220),
            "FedPAQ 8b": Printed(216, 1.4e7, 2760),
            "FedCOMGATE 8b": Printed(260, 1.6e7, 3336),
            "FedAC-I": Printed(28, 1.4e7, 484),
            "FedAQ-I 8b": Printed(26, 3.3e6, 344),
            "FedAQ-II 8b": Printed(99, 1.2e7, 1323),
        },
    ),
    "mlp": PaperColumn(
        199_210,
        18,
        18,
        {
            "FedAvg": Printed(23, 1.5e8, 2424),
            "FedPAQ 8b": Printed(48, 7.6e7, 2311),
            "FedCOMGATE 8b": Printed(38, 6.1e7, 1834),
            "FedAC-I": Printed(18, 2.3e8, 3327),
            "FedAQ-I 8b": Printed(18, 5.7e7, 1248),
            "FedAQ-I 4b": Printed(16, 2.5e7, 805),
        },
    ),
    "cifar": PaperColumn(
        672_212,
        8,
        18,
        {
            "FedAvg": Printed(98, 2.1e9, 31798),
            "FedPAQ 8b": Printed(89, 4.8e8, 11526),
            "FedCOMGATE 8b": Printed(95, 5.1e8, 12240),
            "FedAC-I": Printed(49, 2.1e9, 28720),
            "FedAQ-I 8b": Printed(50, 5.4e8, 9902),
            "FedAQ-I 4b": Printed(48, 2.6e8, 6464),
        },
    ),
}
"""The table's columns: rounds, uplink bits of one client and human time to the target."""
