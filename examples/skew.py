"""How skewed labels slow FedAvg down: the same digits over 50 clients, from alike to one digit each.

Run it: python examples/skew.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt

import atoll


def main() -> None:
    rows = atoll.data.digits()
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.FedAvg(lr=0.1, epochs=5),
        selection=atoll.Uniform(10),
        rounds=40,
    )
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for alpha in (100.0, 0.3, 0.03):
        islands = atoll.data.dirichlet(rows, parties=50, alpha=alpha, balanced=True, seed=0)
        metrics = atoll.simulate(job, islands).metrics
        axes.plot(metrics.column("round"), metrics.column("test/accuracy"), label=f"alpha = {alpha:g}")
        print(f"alpha {alpha:6g}: accuracy {metrics.last('test/accuracy'):.3f}")
    axes.set(xlabel="round", ylabel="test accuracy")
    axes.legend()
    figure.savefig("skew.svg")


if __name__ == "__main__":
    main()
