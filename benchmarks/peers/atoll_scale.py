"""One point of the scaling benchmark: LR on clients that are made on demand; prints a line of JSON.

python -m peers.atoll_scale '{"population": 1000000, "cohort": 1000, ...}'
"""

from __future__ import annotations

import json
import sys
from statistics import median

import atoll
import numpy as np
import torch
from atoll.data import About, Islands
from torch import nn

from peers.contract import Stopwatch

CLASSES = 10


def main() -> None:
    """Measure the setting given on the command line."""
    asked = json.loads(sys.argv[1])
    if asked["import_only"]:
        print(json.dumps({"rounds_per_second": 0.0, "version": atoll.__version__}))
        return
    features, examples = asked["features"], asked["examples"]
    truth = np.random.default_rng(0).standard_normal((features, CLASSES), dtype=np.float32)

    def make(client: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        x = rng.standard_normal((examples, features), dtype=np.float32)
        return {"x": x, "y": (x @ truth).argmax(axis=1)}

    about = About(name="scale", task="classification", classes=CLASSES)
    data = Islands.generate(asked["population"], make, sizes=examples, about=about)
    watch = Stopwatch()
    torch.manual_seed(0)
    job = atoll.Training(
        model=nn.Sequential(nn.Linear(features, CLASSES)),
        algorithm=atoll.FedAvg(lr=0.1, epochs=1, batch_size=10),
        selection=atoll.Uniform(asked["cohort"]),
        rounds=asked["rounds"],
        evaluation=atoll.Evaluation(server=False),
        callbacks=[lambda row: watch.lap()],
    )
    watch.start()
    atoll.simulate(job, data, engine="batched", seed=0)
    line = {
        "rounds_per_second": 1.0 / median(watch.laps[1:]),
        "seconds_first_round": watch.laps[0],
        "version": atoll.__version__,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
