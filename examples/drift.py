"""FedAvg against two methods that correct drift, over three seeds: the band is one standard deviation.

Run it: python examples/drift.py
"""

from __future__ import annotations

import atoll
from atoll.algorithms import FedAvg, FedDyn, Scaffold


def main() -> None:
    rows = atoll.data.digits()
    methods = {
        "FedAvg": FedAvg(lr=0.05, epochs=5),
        "Scaffold": Scaffold(lr=0.05, epochs=5),
        "FedDyn": FedDyn(lr=0.05, epochs=5, alpha=0.1),
    }
    job = atoll.Training(model=atoll.models.linear(64, 10), selection=atoll.Uniform(10), rounds=30)
    found = atoll.sweep(
        {name: job.replace(algorithm=method) for name, method in methods.items()},
        lambda seed: atoll.data.dirichlet(rows, parties=50, alpha=0.05, balanced=True, seed=seed),
        seeds=3,
        folder="drift",
    )
    print(found)
    found.plot().figure.savefig("drift.svg")


if __name__ == "__main__":
    main()
