"""quickstart-numpy: a Flower / NumPy app."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import load_data, train

app = ClientApp()


@app.train()
def fit(msg: Message, context: Context) -> Message:
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    weights = msg.content["arrays"].to_numpy_ndarrays()
    trained, loss = train(weights, x, y, context.run_config["learning-rate"])
    before = context.state.config_records.get("log", ConfigRecord({"rounds": 0}))
    context.state["log"] = ConfigRecord({"rounds": int(before["rounds"]) + 1})
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x), "seen": int(context.state["log"]["rounds"])})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    weight, bias = msg.content["arrays"].to_numpy_ndarrays()
    loss = float(((x @ weight + bias - y) ** 2).mean())
    return Message(RecordDict({"metrics": MetricRecord({"eval_loss": loss, "num-examples": len(x)})}), reply_to=msg)
