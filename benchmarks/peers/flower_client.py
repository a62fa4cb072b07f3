"""The code that runs in Flower's actors, in its own module so that Ray finds it by name."""

from __future__ import annotations

import os
from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from peers import torch_model
from workloads import load

app = ClientApp()
WORKLOAD = "ATOLL_BENCH_WORKLOAD"


@cache
def resident():
    """Return what an actor keeps: the plan, its arrays as tensors, and the model."""
    torch.set_num_threads(1)
    plan = load(os.environ[WORKLOAD])
    arrays = (torch.from_numpy(plan.x), torch.from_numpy(plan.y))
    order = torch.from_numpy(plan.order.astype("int64"))
    return plan, *arrays, order, torch_model.build(plan.workload)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the client that the message names and send its parameters back."""
    plan, x, y, order, model = resident()
    w = plan.workload
    number, slot = message.content["config"]["number"], message.content["config"]["slot"]
    torch_model.load(model, message.content["arrays"].to_numpy_ndarrays())
    parameters = list(model.parameters())
    client = int(plan.schedule[number, slot])
    for index in order[number, slot]:
        batches = (x[client][index].split(w.batch), y[client][index].split(w.batch))
        for xb, yb in zip(*batches, strict=True):
            cross_entropy(model(xb), yb).backward()
            with torch.no_grad():
                torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-w.lr)
            for parameter in parameters:
                parameter.grad = None
    content = {
        "arrays": ArrayRecord([p.detach().numpy() for p in parameters]),
        "metrics": MetricRecord({"num-examples": w.examples}),
    }
    return Message(content=RecordDict(content), reply_to=message)
