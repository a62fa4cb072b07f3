"""A small network and a loop of PyTorch."""

import sys

import numpy as np
import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def train(model, x, y, epochs=2, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(32):
            if len(rows) > 1:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
    return loss.item()


if __name__ == "__main__":
    rows = np.load(sys.argv[1])
    x, y = torch.tensor(rows["x"], dtype=torch.float32), torch.tensor(rows["y"])
    model = net()
    loss = train(model, x, y)
    print(f"loss {loss:.3f}")
