"""Bytes until a target: the same training with floats, with 4-bit entries, and with a tenth of the entries.

Run it: python examples/compression.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt

import atoll
from atoll.stages import QSGD, ErrorFeedback, TopK


def main() -> None:
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=50, alpha=0.5, seed=0)
    job = atoll.Training(
        model=atoll.models.mlp(64, 10, hidden=(128,)),
        algorithm=atoll.FedAvg(lr=0.1, epochs=2),
        selection=atoll.Uniform(10),
        rounds=30,
    )
    uplinks = {"floats": (), "QSGD, 4 bits": (QSGD(7),), "a tenth of the entries": (ErrorFeedback(TopK(0.1)),)}
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, uplink in uplinks.items():
        metrics = atoll.simulate(job.replace(uplink=uplink), islands).metrics
        sent = [sum(metrics.column("bytes_up")[: n + 1]) / 1e6 for n in range(len(metrics))]
        axes.plot(sent, metrics.column("test/accuracy"), label=name)
        print(f"{name:24} {sent[-1]:6.2f} MB up, accuracy {metrics.last('test/accuracy'):.3f}")
    axes.set(xlabel="MB sent to the server", ylabel="test accuracy", xscale="log")
    axes.legend()
    figure.savefig("compression.svg")


if __name__ == "__main__":
    main()
