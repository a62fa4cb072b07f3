"""Is federating worth it? Digits over 100 clients with few digits each: alone, federated and pooled.

Run it: python examples/train_digits.py
"""

from __future__ import annotations

import atoll


def main() -> None:
    data = atoll.data.digits()
    islands = atoll.data.dirichlet(data, parties=100, alpha=0.3, seed=0)
    print(islands.describe().table())

    federated = atoll.Training(
        model=atoll.models.mlp(64, 10),
        algorithm=atoll.FedAvg(lr=0.1, epochs=2),
        selection=atoll.Uniform(10),
        rounds=30,
        evaluation=atoll.Evaluation(every=10),
    )
    one_place = federated.replace(selection=atoll.Everyone(), rounds=10)
    worlds = {
        "one island alone": (one_place, islands.subset([0])),
        "federated": (federated, islands),
        "pooled": (one_place, atoll.data.iid(data, parties=1, seed=0)),
    }
    for name, (job, where) in worlds.items():
        result = atoll.simulate(job, where)
        print(f"{name:18} accuracy {result.metrics.last('test/accuracy'):.3f}")


if __name__ == "__main__":
    main()
