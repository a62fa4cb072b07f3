"""Table 5.2: the simulated setting."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IMAGES", "TURBINE", "FedProfSetting"]


@dataclass(frozen=True)
class FedProfSetting:
    """A column of Table 5.2. Normal laws are pairs (mean, standard deviation).

    Attributes:
        name: of the task.
        clients: ``N``.
        samples: examples of a client.
        speed: of a client's processor, GHz.
        bandwidth: of a client's radio, MHz.
        bits: of one sample (BPS).
        cycles: processor cycles per bit (CPB).
        epochs: local epochs per round.
        rounds: ``t_max``, by group.
        shares: ``C``.
        target: accuracy of the second kind of run.
        model_bits: assumed size of the model; 1 MB is 8e6 bits. Chapter 5 gives none; these are chapter 4's, and agree
            with the tables' times.
        width: elements of a profile, ``q``; chapter 5 gives none.
        quality: share of the clients with each kind of bad data.
        lr: learning rate.
        decay: of the learning rate, per round.
        snr: signal-to-noise ratio of the radio, linear.
        alpha: FedProf's factor on the divergence of a profile.
    """

    name: str
    clients: int
    samples: tuple[float, float]
    speed: tuple[float, float]
    bandwidth: tuple[float, float]
    bits: int
    cycles: int
    epochs: int
    rounds: dict[str, int]
    shares: tuple[float, float]
    target: float
    model_bits: float
    width: int
    quality: dict[str, float]
    lr: float = 1e-2
    decay: float = 0.99
    snr: float = 100.0
    alpha: float = 10.0


TURBINE = FedProfSetting(
    name="gasturbine",
    clients=50,
    samples=(514.0, 154.0),
    speed=(0.5, 0.1),
    bandwidth=(0.5, 0.1),
    bits=11 * 8 * 8,
    cycles=300,
    epochs=2,
    rounds={"full": 100, "partial": 100},
    shares=(0.2, 0.3),
    target=0.8,
    model_bits=5 * 8e6,
    width=64,
    quality={"fake": 0.10, "noise": 0.40},
)
"""S-Task: UCI gas turbine, CO and NOx."""

IMAGES = FedProfSetting(
    name="images",
    clients=1000,
    samples=(240.0, 0.0),
    speed=(1.0, 0.1),
    bandwidth=(1.0, 0.1),
    bits=28 * 28 * 8,
    cycles=400,
    epochs=5,
    rounds={"full": 300, "partial": 50},
    shares=(0.05, 0.1),
    target=0.9,
    model_bits=10 * 8e6,
    width=128,
    quality={"irrelevant": 0.15, "blur": 0.20, "salt_and_pepper": 0.25},
)
"""L-Task: EMNIST digits."""
