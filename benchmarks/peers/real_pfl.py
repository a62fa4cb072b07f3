"""pfl-research on one work of `benchmarks/real.py`, run by the interpreter of its own environment: prints the line that `real_peer.py` prints.

    PYTHON -m peers.real_pfl processes 2 lstm --rounds 6

Users are weighed by their number of rows, as in FedAvg. With several processes, one worker each is joined by pfl's torch.distributed backend.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import cycle, pairwise

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from peers.pfl_bench import RANK, _address
from peers.real_works import SEED, WORKS, model_of, plan_of


def train(name: str, rounds: int):
    """Run pfl; return the moments at which rounds ended, and the model."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    work, plan = WORKS[name], plan_of(WORKS[name], rounds)
    x, y = torch.from_numpy(plan.x), torch.from_numpy(plan.y)
    # Workers may draw a user more than they train.
    turns = cycle([(number, client) for number, cohort in enumerate(plan.cohorts) for client in cohort])

    class Planned(Dataset):
        """A user's rows, in a new order in every epoch."""

        def __init__(self, turn: tuple[int, int]) -> None:
            number, client = turn
            first, last = plan.offsets[client : client + 2].tolist()
            self._order = np.random.default_rng([SEED, number, client])
            super().__init__((x[first:last], y[first:last]))

        def iter(self, batch_size: int):
            if batch_size is None or batch_size >= len(self):
                yield self._raw_data
                return
            rows = torch.from_numpy(self._order.permutation(len(self)))
            yield from zip(*(part[rows].split(batch_size) for part in self._raw_data), strict=True)

    clock = [time.perf_counter()]

    class Lap(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.append(time.perf_counter())
            return False, Metrics()

    module = model_of(work)
    module.loss = lambda inputs, labels: cross_entropy(module(inputs), labels)
    module.metrics = lambda inputs, labels: {}
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    users = FederatedDataset(make_dataset_fn=Planned, user_sampler=lambda: next(turns))
    clock[0] = time.perf_counter()
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=work.cohort,
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.lr, local_num_epochs=work.epochs, local_batch_size=work.batch
        ),
        callbacks=[Lap()],
        send_metrics_to_platform=False,
    )
    return [b - a for a, b in pairwise(clock)], module, plan


def launch(processes: int) -> int:
    """Start the workers; the first one reports."""
    addresses = ",".join(_address() for _ in range(processes))
    command, workers = [sys.executable, "-m", "peers.real_pfl", *sys.argv[1:]], []
    for rank in range(processes):
        env = {**os.environ, RANK: str(rank), "PFL_WORKER_ADDRESSES": addresses, "OMP_NUM_THREADS": "1"}
        workers.append(subprocess.Popen(command, env=env))
    return max(abs(worker.wait()) for worker in workers)


def main() -> None:
    """Run the peer, as launcher or as one of its workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("processes",))
    parser.add_argument("how", type=int)
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--rounds", type=int, default=0)
    args = parser.parse_args()
    if args.how > 1 and RANK not in os.environ:
        raise SystemExit(launch(args.how))
    work = WORKS[args.work]
    laps, model, plan = train(args.work, args.rounds or work.rounds)
    if os.environ.get(RANK, "0") != "0":
        return
    with torch.no_grad():
        loss = cross_entropy(model(torch.from_numpy(plan.x[:512])), torch.from_numpy(plan.y[:512]))
    steady = float(np.mean(laps[1:]))
    print(
        json.dumps(
            {"work": args.work, "peer": "pfl-research", "how": str(args.how), "rounds": len(laps), "first": laps[0], "steady": steady,
             "clients_per_second": work.cohort / steady, "loss": float(loss), "notes": None}
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
