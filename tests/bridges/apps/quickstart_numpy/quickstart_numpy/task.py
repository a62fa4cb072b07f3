"""A linear model and rows that follow from the partition's number."""

import numpy as np


def start():
    return [np.zeros((5, 1)), np.zeros(1)]


def load_data(partition_id, num_partitions):
    random = np.random.default_rng(partition_id)
    x = random.normal(size=(20 + 5 * partition_id, 5))
    goal = np.arange(5.0)[:, None] + partition_id / num_partitions
    return x, x @ goal + 0.1 * random.normal(size=(len(x), 1))


def train(weights, x, y, lr, steps=10):
    weight, bias = (np.array(w) for w in weights)
    for _ in range(steps):
        error = x @ weight + bias - y
        weight -= lr * 2 * x.T @ error / len(x)
        bias -= lr * 2 * error.mean(axis=0)
    return [weight, bias], float((error**2).mean())
