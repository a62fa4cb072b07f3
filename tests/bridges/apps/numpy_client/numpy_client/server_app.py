"""A server_fn, and a strategy of its own that keeps the last weights."""

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from .task import start


class Kept(FedAvg):
    def __init__(self, out, **settings):
        super().__init__(**settings)
        self.out, self.losses = out, []

    def aggregate_fit(self, server_round, results, failures):
        assert not failures, failures
        results = sorted(results, key=lambda found: found[1].num_examples)
        made = super().aggregate_fit(server_round, results, failures)
        self.weights = parameters_to_ndarrays(made[0])
        return made

    def aggregate_evaluate(self, server_round, results, failures):
        loss, metrics = super().aggregate_evaluate(server_round, results, failures)
        self.losses.append(loss)
        if self.out:
            np.savez(self.out, *self.weights, np.array(self.losses))
        return loss, metrics


def server_fn(context: Context):
    everyone = {"min_fit_clients": 4, "min_evaluate_clients": 4, "min_available_clients": 4}
    strategy = Kept(str(context.run_config["out"]), initial_parameters=ndarrays_to_parameters(start()), **everyone)
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    )


app = ServerApp(server_fn=server_fn)
