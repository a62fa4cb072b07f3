"""quickstart-pytorch: a Flower / PyTorch app."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import Net, load_data, train

app = ClientApp()


@app.train()
def fit(msg: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(context.node_config["partition-id"])
    loss = train(model, loader, epochs=1, lr=context.run_config["learning-rate"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset), "seen": 1})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    model.eval()
    _, (x, y) = load_data(context.node_config["partition-id"])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(x), y).item()
    return Message(RecordDict({"metrics": MetricRecord({"eval_loss": loss, "num-examples": len(y)})}), reply_to=msg)
