"""Human time: the seconds that rounds would take on real devices and links, computed from their bytes and computing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

__all__ = ["HumanTime"]


@dataclass(frozen=True, kw_only=True)
class HumanTime(Checked):
    """A round takes ``S_down / down + S_up / up + ratio * T_sim + constant + server`` seconds.

    ``S`` is the bytes of all clients together, which share the server's link. ``T_sim`` is how long the slowest client's local work takes on the
    machine that simulates it. A round that contacts no client takes ``server``.

    Source: Wang et al. 2021, "A Field Guide to Federated Optimization" (the model and its constants); Youn, Kumar, Abernethy 2022, section 6. The latter
    prints 0.25 B/s for the way up; its times follow from 0.25 MB/s, with 1 MB = 10^6 bytes.

    Attributes:
        down: downlink bytes per second, ``B_down``.
        up: uplink bytes per second, ``B_up``.
        ratio: how much slower a device is than the simulating machine, ``R_comp``.
        constant: further seconds of a client per round, ``C_comp``.
        server: seconds of the server per round.
        devices: clients that share the link, each with the mean bytes of the clients that took part; ``None``: those that took part.
        simulated: declared ``T_sim`` of a round, in seconds. Declare it to make the history the same in every run.
    """

    down: float = 0.75e6
    up: float = 0.25e6
    ratio: float = 7.0
    constant: float = 10.0
    server: float = 0.0
    devices: int | None = None
    simulated: float = 0.0

    def __post_init__(self) -> None:
        for name in ("down", "up"):
            self._require(name, getattr(self, name) > 0, "a positive number of bytes per second")
        for name in ("ratio", "constant", "server", "simulated"):
            self._require(name, getattr(self, name) >= 0, "0 or more")
        if self.devices is not None:
            self._require("devices", self.devices >= 1, "at least 1, or None for those that took part")

    def _require(self, name: str, good: bool, remedy: str) -> None:
        value = getattr(self, name)
        if not good or not math.isfinite(value):
            raise ConfigError(f"{name}={value}", where="HumanTime", remedy=f"use {remedy}")

    def communication(self, bytes_down: float, bytes_up: float) -> float:
        """Return ``S_down / down + S_up / up``."""
        return bytes_down / self.down + bytes_up / self.up

    def computation(self, simulated: float | None = None) -> float:
        """Return ``ratio * T_sim + constant + server``.

        Args:
            simulated: measured ``T_sim``; the declared one if ``None``.
        """
        return self.ratio * (self.simulated if simulated is None else simulated) + self.constant + self.server

    def seconds(self, bytes_down: float, bytes_up: float, simulated: float | None = None) -> float:
        """Return the seconds of a round.

        Args:
            bytes_down: bytes to all clients together.
            bytes_up: bytes from all clients together.
            simulated: measured ``T_sim``; the declared one if ``None``.
        """
        return self.communication(bytes_down, bytes_up) + self.computation(simulated)

    def simulated_in(self, seconds: float, bytes_down: float, bytes_up: float) -> float:
        """Return ``T_sim`` of a round of known length: the inverse of ``seconds``."""
        rest = seconds - self.communication(bytes_down, bytes_up) - self.constant - self.server
        return rest / self.ratio if self.ratio else 0.0

    def of(self, row: Mapping[str, Any], simulated: float | None = None) -> float:
        """Return the seconds of a round in a history.

        Args:
            row: a row with ``bytes_down``, ``bytes_up`` and, if ``devices`` is set, ``selected`` and ``replied``.
            simulated: measured ``T_sim``; the declared one if ``None``.
        """
        down, up = float(row["bytes_down"]), float(row["bytes_up"])
        if not row.get("selected", 1) and not down and not up:
            return self.server
        if self.devices is not None:
            down *= self.devices / max(1, int(row["selected"]))
            up *= self.devices / max(1, int(row["replied"]))
        return self.seconds(down, up, simulated)

    def column(
        self, rows: Sequence[Mapping[str, Any]], simulated: Sequence[float] | float | None = None
    ) -> list[float]:
        """Return the seconds since the training began, at the end of each round.

        Args:
            rows: a history.
            simulated: measured ``T_sim``, one for all rounds or one per round; the declared one if ``None``.

        Raises:
            ConfigError: the number of values differs from the number of rounds.
        """
        each = list(simulated) if isinstance(simulated, Sequence) else [simulated] * len(rows)
        if len(each) != len(rows):
            raise ConfigError(
                f"{len(each)} simulated times for {len(rows)} rounds", where="HumanTime", remedy="give one per round"
            )
        passed, found = 0.0, []
        for row, one in zip(rows, each, strict=True):
            passed += self.of(row, one)
            found.append(passed)
        return found
