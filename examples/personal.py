"""One model for all, or one for each: every client's accuracy on its own rows, with FedAvg and with Ditto.

Run it: python examples/personal.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt

import atoll
from atoll.algorithms import Ditto


def main() -> None:
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=30, alpha=0.05, balanced=True, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=Ditto(lr=0.2, lam=0.1, epochs=3),
        selection=atoll.Everyone(),
        rounds=15,
        evaluation=atoll.Evaluation(clients=-1, personal=True),
    )
    last = atoll.simulate(job, islands).metrics[-1]
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name in ("clients", "personal"):
        values = sorted(last[f"{name}/accuracy/values"])
        axes.plot(values, label={"clients": "the common model", "personal": "the client's own model"}[name])
        print(f"{name:9} mean {last[f'{name}/accuracy']:.3f}, worst tenth {last[f'{name}/accuracy/worst_decile']:.3f}")
    axes.set(xlabel="clients, worst first", ylabel="accuracy on own rows")
    axes.legend()
    figure.savefig("personal.svg")


if __name__ == "__main__":
    main()
