"""Table 4.2: the simulated setting."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AEROFOIL", "DIGITS", "DROPS", "SHARES", "HybridSetting"]

DROPS = (0.1, 0.3, 0.6)
"""``E[dr]``, the mean probability that a client drops out of a round."""
SHARES = (0.1, 0.3, 0.5)
"""``C``, wanted submissions over clients."""


@dataclass(frozen=True)
class HybridSetting:
    """A column of Table 4.2. Normal laws are pairs (mean, standard deviation).

    Attributes:
        name: of the task.
        clients: ``N``.
        regions: ``M``, the number of edge nodes.
        population: clients of a region.
        samples: examples of a client.
        speed: of a client's processor, GHz.
        bandwidth: of a client's radio, MHz.
        model_bits: assumed size of the model; 1 MB is 8e6 bits.
        bits: of one sample (BPS).
        cycles: processor cycles per bit (CPB).
        rounds: ``t_max``.
        lr: learning rate.
        target: accuracy at which the second kind of run stops.
        epochs: local epochs per round.
        drop_spread: standard deviation of the clients' drop-out probabilities.
        snr: signal-to-noise ratio of the radio, linear.
        backhaul: between cloud and edges, Mbit/s.
        kappa: HierFAVG's edge rounds per cloud round.
    """

    name: str
    clients: int
    regions: int
    population: tuple[float, float]
    samples: tuple[float, float]
    speed: tuple[float, float]
    bandwidth: tuple[float, float]
    model_bits: float
    bits: int
    cycles: int
    rounds: int
    lr: float
    target: float
    epochs: int = 5
    drop_spread: float = 0.05
    snr: float = 100.0
    backhaul: float = 1000.0
    kappa: int = 10


AEROFOIL = HybridSetting(
    name="aerofoil",
    clients=15,
    regions=3,
    population=(5.0, 1.5),
    samples=(100.0, 30.0),
    speed=(0.5, 0.1),
    bandwidth=(0.5, 0.1),
    model_bits=5 * 8e6,
    bits=6 * 8 * 8,
    cycles=300,
    rounds=600,
    lr=1e-4,
    target=0.70,
)
"""Task 1: UCI airfoil self-noise, 1,503 rows."""

DIGITS = HybridSetting(
    name="mnist",
    clients=500,
    regions=10,
    population=(50.0, 15.0),
    samples=(140.0, 0.0),  # 70,000 / 500; the partition by class gives equal sizes
    speed=(1.0, 0.3),
    bandwidth=(1.0, 0.3),
    model_bits=10 * 8e6,
    bits=28 * 28 * 8,
    cycles=400,
    rounds=400,
    lr=1e-3,
    target=0.90,
)
"""Task 2: MNIST."""
