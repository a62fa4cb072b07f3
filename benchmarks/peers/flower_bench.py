"""Flower's simulation (Ray): one supernode per client, one CPU per ClientApp, one actor per process.

Flower samples supernodes itself and knows them by random numbers only, so the strategy picks any
`cohort` of them and its message says which of the plan's slots to train: the work is the same, the
order of clients is the plan's. Ray's dashboard and Flower's and Ray's telemetry are off, and each
actor keeps its data and model between calls.
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import logging
import time
import warnings
from collections.abc import Iterable
from importlib.metadata import version

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peers.contract import Stopwatch, arguments, report
from peers.flower_client import WORKLOAD, app
from workloads import load


class Planned(FedAvg):
    """FedAvg over the plan's cohorts, without evaluation rounds."""

    def __init__(self, clients: int, cohort: int, watch: Stopwatch) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.clients = clients
        self.cohort = cohort
        self.watch = watch

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per slot of the cohort."""
        while len(nodes := list(grid.get_node_ids())) < self.clients:
            time.sleep(0.05)
        messages = []
        for slot in range(self.cohort):
            settings = ConfigRecord({"number": server_round - 1, "slot": slot})
            content = RecordDict({"arrays": arrays, "config": settings})
            node = nodes[(server_round * self.cohort + slot) % len(nodes)]
            messages.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        """Compute Flower's own average; a failed client fails the benchmark."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != self.cohort:
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, failed: {failed[:1]}")
        result = super().aggregate_train(server_round, replies)
        self.watch.lap()
        return result


def main() -> None:
    """Run the peer."""
    args = arguments(__doc__ or "")
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ[WORKLOAD] = args.workload
    plan = load(args.workload)
    watch = Stopwatch()
    server_app = ServerApp()
    final: list[ArrayRecord] = []

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Planned(plan.workload.clients, plan.workload.cohort, watch)
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(plan.initial), num_rounds=args.rounds)
        final.append(result.arrays)

    run_simulation(
        server_app=server_app,
        client_app=app,
        num_supernodes=plan.workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": args.processes, "include_dashboard": False},
        },
    )
    report(
        peer="Flower",
        version=f"flwr {version('flwr')}, ray {version('ray')}",
        workload=plan.workload,
        processes=args.processes,
        laps=watch.laps,
        weights=final[0].to_numpy_ndarrays(),
        out=args.out,
    )


if __name__ == "__main__":
    main()
