"""Rounds of FixMatch and SimCLR in Flower's simulation: one supernode per client, one CPU per ClientApp, one actor per process.

Run by ``benchmarks/labels.py --flower PYTHON`` in Flower's own environment. An actor keeps its rows and model between calls, and trains a client with the loop of the
bare peer. Only this module is imported by Ray's workers, so that they find the app by name.
"""

from __future__ import annotations

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import json
import logging
import sys
import time
import warnings
from collections.abc import Iterable
from functools import cache
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

import labels

app = ClientApp()


@cache
def resident() -> labels.Loop:
    """Return what an actor keeps."""
    torch.set_num_threads(1)
    return labels.Loop(os.environ["ATOLL_BENCH_WORK"])


def _load(model: nn.Module, arrays: ArrayRecord) -> None:
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), arrays.to_numpy_ndarrays(), strict=True):
            parameter.copy_(torch.from_numpy(array))


def _record(model: nn.Module) -> ArrayRecord:
    return ArrayRecord([parameter.detach().numpy() for parameter in model.parameters()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the client that the message names and send its parameters back."""
    loop, config = resident(), message.content["config"]
    _load(loop.model, message.content["arrays"])
    loop.train(config["number"], config["client"])
    content = {"arrays": _record(loop.model), "metrics": MetricRecord({"num-examples": labels.ROWS})}
    return Message(content=RecordDict(content), reply_to=message)


class Planned(FedAvg):
    """FedAvg over the given cohorts, without evaluation."""

    def __init__(self, cohorts: list[list[int]]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.cohorts = cohorts
        self.clock: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message per client of the cohort."""
        while len(nodes := list(grid.get_node_ids())) < labels.CLIENTS:
            time.sleep(0.05)
        self.clock = self.clock or [time.perf_counter()]
        made = []
        for client in self.cohorts[server_round - 1]:
            settings = ConfigRecord({"number": server_round - 1, "client": client})
            content = RecordDict({"arrays": arrays, "config": settings})
            made.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[client]))
        return made

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Compute Flower's own average; a failed client fails the benchmark."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != labels.COHORT:
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, failed: {failed[:1]}")
        result = super().aggregate_train(server_round, replies)
        self.clock.append(time.perf_counter())
        return result


def main(work: str, rounds: int, processes: int = 2) -> None:
    """Run the peer and print its line."""
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ["ATOLL_BENCH_WORK"] = work
    model, strategy, server = labels.model_of(work), Planned(labels.cohorts(rounds)), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        result = strategy.start(grid=grid, initial_arrays=_record(model), num_rounds=rounds)
        _load(model, result.arrays)

    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=labels.CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": processes, "include_dashboard": False},
        },
    )
    laps = [b - a for a, b in zip(strategy.clock, strategy.clock[1:], strict=False)]
    line = {"steady": median(laps[1:]), "first": laps[0], "loss": labels.measured(work, model)}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    from peers import flower_labels  # by its name, as Ray's workers import it

    flower_labels.main(sys.argv[1], int(sys.argv[2]))
