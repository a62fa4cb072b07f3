"""The server's half: Flower's FedAvg, and a record of when each average was complete."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    """FedAvg over all clients, without evaluation; a failed client fails the run."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.clients = clients
        self.stamps: list[float] = []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Compute Flower's own average."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != self.clients:
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, failed: {failed[:1]}")
        result = super().aggregate_train(server_round, replies)
        self.stamps.append(time.perf_counter())
        return result


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, check the last model, write the record."""
    config = context.run_config
    values = np.random.default_rng(0).standard_normal(int(config["numbers"]), dtype=np.float32)
    first = [part.copy() for part in np.split(values, int(config["layers"]))]
    rounds = int(config["rounds"])
    strategy = Timed(int(config["clients"]))
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(first), num_rounds=rounds)
    last = result.arrays.to_numpy_ndarrays()
    worst = max(float(np.abs(a - (b + rounds)).max()) for a, b in zip(last, first, strict=True))
    record = Path(str(config["record"]))
    part = record.with_suffix(".part")
    part.write_text(json.dumps({"averaged_at": strategy.stamps, "worst_error": worst}))
    part.replace(record)
