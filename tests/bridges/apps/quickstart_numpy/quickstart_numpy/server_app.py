"""quickstart-numpy: a Flower / NumPy app."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from .task import start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(start()), num_rounds=context.run_config["num-server-rounds"]
    )
    weight, bias = result.arrays.to_numpy_ndarrays()
    losses = [result.evaluate_metrics_clientapp[r]["eval_loss"] for r in sorted(result.evaluate_metrics_clientapp)]
    seen = [result.train_metrics_clientapp[r]["seen"] for r in sorted(result.train_metrics_clientapp)]
    if context.run_config["out"]:
        np.savez(str(context.run_config["out"]), weight, bias, np.array(losses), np.array(seen))
