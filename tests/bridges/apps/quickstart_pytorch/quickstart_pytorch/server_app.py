"""quickstart-pytorch: a Flower / PyTorch app."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from .task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=context.run_config["num-server-rounds"]
    )
    arrays = result.arrays.to_numpy_ndarrays()
    losses = [result.evaluate_metrics_clientapp[r]["eval_loss"] for r in sorted(result.evaluate_metrics_clientapp)]
    if context.run_config["out"]:
        np.savez(str(context.run_config["out"]), *arrays, np.array(losses))
