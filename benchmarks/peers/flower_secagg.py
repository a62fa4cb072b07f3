"""Flower's SecAgg+ on the same numbers: its simulation with two actors, or its bare functions in one process.

Run by ``benchmarks/secure_sums.py`` in Flower's own environment: ``flower_secagg.py bare|simulation CLIENTS SIZE NEIGHBOURS LOST``.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np

MODE, CLIENTS, SIZE, NEIGHBOURS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
LOST = float(sys.argv[5])
EVERY = max(1, round(1 / LOST)) if LOST else 0


def is_lost(i: int) -> bool:
    return bool(EVERY) and i % EVERY == 0


def bare() -> tuple[float, float]:
    """Time quantisation, masks, their removal and their sums with Flower's own functions; a few clients stand for all, since all do the same."""
    from flwr.common.secure_aggregation.ndarrays_arithmetic import (
        factor_combine,
        get_parameters_shape,
        parameters_addition,
        parameters_mod,
        parameters_multiply,
        parameters_subtraction,
    )  # fmt: skip
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    modulus, few = 1 << 32, 2
    base = [np.random.default_rng(0).uniform(-0.5, 0.5, SIZE).astype(np.float32)]

    def client(i: int) -> list:
        ratio = 10 / 16
        weights = quantize(base, 1.0, 1 << 22)
        weights = factor_combine(round(ratio * (1 << 9)), parameters_multiply(weights, round(ratio * (1 << 9))))
        shape = get_parameters_shape(weights)
        weights = parameters_addition(weights, pseudo_rand_gen(os.urandom(32), modulus, shape))
        for other in range(NEIGHBOURS):
            mask = pseudo_rand_gen(os.urandom(32), modulus, shape)
            weights = parameters_addition(weights, mask) if other % 2 else parameters_subtraction(weights, mask)
        return parameters_mod(weights, modulus)

    def now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])

    began = now()
    made = [client(i) for i in range(few)]
    each = (now() - began) / few
    began = now()
    shape = get_parameters_shape(made[0])
    for _ in range(few):
        made[0] = parameters_subtraction(made[0], pseudo_rand_gen(os.urandom(32), modulus, shape))
        made[0] = parameters_addition(made[0], made[1])
    removal = (now() - began) / few
    gone = sum(is_lost(i) for i in range(CLIENTS))
    kept = CLIENTS - gone
    wall, cpu = each * kept + removal * (kept + gone * min(NEIGHBOURS, kept))
    return float(wall), float(cpu)


def tree_cpu() -> float:
    """Processor seconds so far of this process and of all that it has started: Ray's actors and its services."""
    import psutil  # of Ray

    me = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (me, *me.children(recursive=True)))


def simulation() -> tuple[float, float]:
    from flwr.client import ClientApp, NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Context, ndarrays_to_parameters
    from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
    from flwr.simulation import run_simulation

    base = np.random.default_rng(0).uniform(-0.5, 0.5, SIZE).astype(np.float32)
    factors = np.linspace(0.5, 1.0, CLIENTS)

    class Client(NumPyClient):
        def __init__(self, i: int) -> None:
            self.i = i

        def fit(self, parameters, config):
            if is_lost(self.i):
                raise RuntimeError("lost")
            return [parameters[0] * np.float32(factors[self.i])], 10, {}

    def client_fn(context: Context):
        return Client(int(context.node_config["partition-id"])).to_client()

    spent: list[tuple[float, float]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=CLIENTS, min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters([base]),
        )  # fmt: skip
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
        shares = min(NEIGHBOURS + 1, CLIENTS)
        secure = SecAggPlusWorkflow(
            num_shares=shares if shares % 2 or shares == CLIENTS else shares + 1, reconstruction_threshold=0.5, max_weight=16, clipping_range=1.0,
            quantization_range=1 << 22, modulus_range=1 << 32,
        )  # fmt: skip
        began, work = time.perf_counter(), tree_cpu()
        DefaultWorkflow(fit_workflow=secure)(grid, legacy)
        spent.append((time.perf_counter() - began, tree_cpu() - work))
        got = legacy.strategy is not None
        assert got

    run_simulation(
        server_app=server,
        client_app=ClientApp(client_fn=client_fn, mods=[secaggplus_mod]),
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
    return spent[0]


if __name__ == "__main__":
    seconds, cpu = bare() if MODE == "bare" else simulation()
    print(json.dumps({"seconds": seconds, "cpu": cpu}))
