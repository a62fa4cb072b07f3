"""A NumPyClient."""

from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from .task import load_data, train


class LinearClient(NumPyClient):
    def __init__(self, rows, lr):
        self.x, self.y = rows
        self.lr = lr

    def fit(self, parameters, config):
        trained, loss = train(parameters, self.x, self.y, self.lr)
        return trained, len(self.x), {"train_loss": loss}

    def evaluate(self, parameters, config):
        weight, bias = parameters
        return float(((self.x @ weight + bias - self.y) ** 2).mean()), len(self.x), {}


def client_fn(context: Context):
    rows = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return LinearClient(rows, context.run_config["learning-rate"]).to_client()


app = ClientApp(client_fn)
