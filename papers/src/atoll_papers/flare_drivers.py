"""NVIDIA FLARE, Fig. 2: rounds of 18 MB messages between a server and ten clients, over gRPC and over TCP.

Source: "NVIDIA FLARE: Federated Learning from Simulation to Real-World" (2022), section on communication drivers: 100 rounds of FedAvg, messages of about 18 MB, a server and 8 clients on
Azure, 2 clients on AWS; means with 95 % intervals, in a figure whose values cannot be read. The text says that downloads are slower than uploads, since all clients pull at once while their uploads
are staggered. Ours has 20 rounds on one machine, over loopback with mutual TLS: seconds are not the paper's, and the clients on AWS have no counterpart.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from atoll.reproduce import Claim, Entry, keeping_nothing

from .flare.drivers import Timings, timed

__all__ = ["ENTRY"]

_CLIENTS, _PAPER, _OURS = 10, "", "Between the drivers: the paper gives no values"


@keeping_nothing("flare-drivers")
def _run(quick: bool) -> list[Claim]:
    size, rounds = (1_800_000, 8) if quick else (18_000_000, 20)
    found = {kind: timed(kind, clients=_CLIENTS, size=size, rounds=rounds) for kind in ("grpc", "tcp")}
    claims = [claim for kind, one in found.items() for claim in _judged(kind, one, size, rounds)]
    claims.append(_compared(found["grpc"], found["tcp"]))
    return claims


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval, by the normal law."""
    return float(values.mean()), 1.96 * float(values.std(ddof=1)) / sqrt(len(values))


def _shown(values: np.ndarray) -> str:
    mean, half = _interval(values)
    return f"{mean:.3f} ± {half:.3f}"


def _judged(kind: str, found: Timings, size: int, rounds: int) -> list[Claim]:
    down, up = found.down.mean(axis=1), found.up.mean(axis=1)
    gap, half = _interval(down - up)
    where = f"{size / 1e6:g} MB to {_CLIENTS} clients and back, {rounds} rounds, loopback, mutual TLS; seconds a client, mean with 95 % interval"
    return [
        Claim(f"every message arrives as it was sent: {kind}", None, "all" if found.whole else "some differ", found.whole, f"{2 * rounds * _CLIENTS:,} messages; {where}", _PAPER),
        Claim(f"a download takes longer than an upload: {kind}", "longer", f"{_shown(down)} s and {_shown(up)} s", gap > half,
              f"the interval of the difference is above 0; all download at once, and upload one after the other, as after trainings of different lengths; {where}", _PAPER),
    ]  # fmt: skip


def _compared(grpc: Timings, tcp: Timings) -> Claim:
    a, b = grpc.round, tcp.round
    return Claim(
        "a round over TCP takes no longer than over gRPC", f"at most {_shown(a)} s", f"{_shown(b)} s",
        _interval(b)[0] <= _interval(a)[0] + _interval(a)[1], "seconds a round, mean with 95 % interval; our own expectation", _OURS,
    )  # fmt: skip


ENTRY = Entry(
    name="flare-drivers",
    title="NVIDIA FLARE, Fig. 2: rounds of 18 MB with ten clients over gRPC and over TCP",
    source="NVIDIA FLARE: Federated Learning from Simulation to Real-World (2022), Fig. 2",
    run=_run,
)
