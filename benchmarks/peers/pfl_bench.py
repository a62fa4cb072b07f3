"""pfl-research in its best configuration on this machine.

FederatedAveraging on the SimulatedBackend with in-memory torch tensors, a stock `torch.optim.SGD`,
no metrics and no evaluation rounds. The switches `--set optimiser=foreach|fused` and
`--set compile=1` (the module compiled in place) show that they do not help here. With several processes this launcher
starts one worker for each, joined by pfl's own torch.distributed (gloo) backend through `PFL_WORKER_RANK` and
`PFL_WORKER_ADDRESSES`, which is what `torchrun` does without a third process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import count
from pathlib import Path

from peers.contract import Stopwatch, arguments, report
from workloads import Plan, load

RANK = "PFL_WORKER_RANK"


def train(plan: Plan, rounds: int, options: dict[str, str]):
    """Run pfl for `rounds` rounds; return the stopwatch and the trained module."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from torch.nn.functional import cross_entropy

    from peers import torch_model

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    w = plan.workload
    watch = Stopwatch()
    x, y = torch.from_numpy(plan.x), torch.from_numpy(plan.y)
    order = torch.from_numpy(plan.order.astype("int64"))

    class Planned(Dataset):
        """A user's data, whose epochs follow the plan's order instead of a fixed one."""

        def __init__(self, slot: int) -> None:
            self._epochs = iter(order[divmod(slot, w.cohort)])
            client = int(plan.schedule[divmod(slot, w.cohort)])
            super().__init__((x[client], y[client]))

        def iter(self, batch_size: int):
            if batch_size == len(self):  # pfl evaluates in the first round in any case
                yield self._raw_data
                return
            index = next(self._epochs)
            yield from zip(*(part[index].split(batch_size) for part in self._raw_data), strict=True)

    class Lap(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            watch.lap()
            return False, Metrics()

    module = torch_model.build(w)
    torch_model.load(module, plan.initial)
    if options.get("compile") == "1":
        module.compile()
    module.loss = lambda inputs, labels: cross_entropy(module(inputs), labels)
    module.metrics = lambda inputs, labels: {}

    def optimiser(parameters, lr):
        kind = options.get("optimiser", "plain")
        return torch.optim.SGD(parameters, lr=lr, foreach=kind == "foreach", fused=kind == "fused")

    model = PyTorchModel(
        model=module,
        local_optimizer_create=optimiser,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    data = FederatedDataset(make_dataset_fn=Planned, user_sampler=count().__next__)
    # The smallest frequency that never evaluates after the first round (0 raises in pfl).
    algorithm_params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=w.cohort,
        val_cohort_size=None,
    )
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        algorithm_params=algorithm_params,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=w.lr, local_num_epochs=w.epochs, local_batch_size=w.batch
        ),
        callbacks=[Lap()],
        send_metrics_to_platform=False,
    )
    return watch, module


def _address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _launch(processes: int) -> int:
    """Start the workers; the first one reports. Return the worst exit status."""
    addresses = ",".join(_address() for _ in range(processes))
    command = [sys.executable, "-m", "peers.pfl_bench", *sys.argv[1:]]
    workers = []
    for rank in range(processes):
        env = {**os.environ, RANK: str(rank), "PFL_WORKER_ADDRESSES": addresses}
        workers.append(subprocess.Popen(command, env=env))
    return max(abs(worker.wait()) for worker in workers)


def main() -> None:
    """Run the peer, as launcher or as one of its workers."""
    args = arguments(__doc__ or "")
    if args.processes > 1 and RANK not in os.environ:
        raise SystemExit(_launch(args.processes))
    plan = load(args.workload)
    watch, module = train(plan, args.rounds, args.options)
    if os.environ.get(RANK, "0") != "0":
        return
    from importlib.metadata import version

    from peers import torch_model

    report(
        peer="pfl-research",
        version=version("pfl"),
        workload=plan.workload,
        processes=args.processes,
        laps=watch.laps,
        weights=torch_model.dump(module),
        out=Path(args.out),
        notes=" ".join(f"{k}={v}" for k, v in args.options.items()),
    )


if __name__ == "__main__":
    main()
