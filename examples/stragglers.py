"""A round that waits for everybody, and one that closes with the first replies: seconds on slow and failing devices.

Run it: python examples/stragglers.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt

import atoll
from atoll.devices.presets import mec
from atoll.pacing import FedBuff


def main() -> None:
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=50, alpha=0.5, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.FedAvg(lr=0.1, epochs=2),
        selection=atoll.Uniform(10),
        rounds=25,
    )
    paces = {
        "wait for all": atoll.Synchronous(),
        "ask 15, take 10": atoll.Synchronous(over_select=1.5),
        "FedBuff, 5 replies": FedBuff(buffer=5),
    }
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, pacing in paces.items():
        devices = mec("gas-turbine", drop_out=0.1, regions=5, seed=0)
        metrics = atoll.simulate(job.replace(pacing=pacing), islands, devices=devices).metrics
        axes.plot(metrics.column("t_end"), metrics.column("test/accuracy"), label=name)
        print(f"{name:22} {metrics[-1]['t_end']:8.0f} simulated seconds, accuracy {metrics.last('test/accuracy'):.3f}")
    axes.set(xlabel="simulated seconds", ylabel="test accuracy")
    axes.legend()
    figure.savefig("stragglers.svg")


if __name__ == "__main__":
    main()
