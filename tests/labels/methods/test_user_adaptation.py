"""FedHealth's last stage: each user's model is that of plain gradient descent, and stays with the user."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import AtollError
from atoll.core.persistence.named_results import NamedResults
from atoll.data import Dataset
from atoll.labels import DomainNetwork, UserAdaptation
from atoll.labels.methods.user_adaptation import PERSONAL
from atoll.labels.objectives import coral


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DomainNetwork(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), nn.Linear(3, 2))


def rows(seed, n, known=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)).astype(np.float32) * (1 + seed)
    return Dataset({"x": x, "y": rng.integers(0, 2, n), "labelled": np.arange(n) < known * n}, classes=2)


PARAMS = {name: value.detach().numpy() for name, value in network().named_parameters()}


@pytest.mark.parametrize(("weight", "frozen"), [(0.0, ()), (3.0, ("features.0",))])
def test_it_is_gradient_descent_of_the_labels_and_the_covariances(tmp_path, weight, frozen):
    users = {"ann": rows(1, 12), "bob": rows(2, 9, known=0.7)}
    public = rows(0, 20)
    rule = UserAdaptation(model=network, params=PARAMS, public=public, weight=weight, frozen=frozen, steps=4, lr=0.1)
    told = atoll.simulate(rule.program(), users, engine="inline", progress=False, results=tmp_path)
    for name, data in users.items():
        net, has = copy.deepcopy(network()), np.asarray(data["labelled"])
        x, y = torch.tensor(np.array(data.x)[has]), torch.from_numpy(data.y[has].astype(np.int64))
        moving = [value for key, value in net.named_parameters() if not key.startswith(tuple(frozen) or "none")]
        sgd = torch.optim.SGD(moving, lr=0.1)
        for _ in range(4):
            sgd.zero_grad()
            z = net.features(x)
            gap = coral(net.features(torch.tensor(np.array(public.x))), z)
            (nn.functional.cross_entropy(net.classifier(z), y) + weight * gap).backward()
            sgd.step()
        kept = NamedResults(tmp_path).get(name, PERSONAL)
        for key, value in net.named_parameters():
            np.testing.assert_allclose(kept[key], value.detach().numpy(), atol=1e-6)
            if frozen and key.startswith(frozen):
                np.testing.assert_array_equal(kept[key], PARAMS[key])
        assert set(told[name]) == {"loss", "distance"}
        (z,) = (net.features(x),)
        after = float(coral(net.features(torch.tensor(np.array(public.x))), z).detach())
        assert told[name]["distance"][1] == pytest.approx(after, rel=1e-4)


def test_what_cannot_adapt_is_refused():
    given = {"model": network, "params": PARAMS, "public": rows(0, 9)}
    for more, match in (
        ({"weight": -1.0}, "weight=-1"), ({"steps": 0}, "steps=0"), ({"lr": 0.0}, "lr=0"),
        ({"frozen": ("feature.0",)}, "frozen='feature.0', the beginning of no parameter"), ({"frozen": ("features", "classifier")}, "frozen parameters alone"),
    ):  # fmt: skip
        with pytest.raises(AtollError, match=match):
            UserAdaptation(**given, **more)
    with pytest.raises(AtollError, match="1 rows with a label at ann"):
        atoll.simulate(
            UserAdaptation(**given).program(), {"ann": rows(1, 10, known=0.1)}, engine="inline", progress=False
        )
