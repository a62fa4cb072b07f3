"""FedSR: its loss in closed form, what its network returns, and rounds of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import AtollError
from atoll.data import Dataset, Islands
from atoll.labels import FedSR, GaussianNetwork
from atoll.labels.methods.fedsr import SimpleLoss
from atoll.labels.views.draws import child_keys_of_rows, normals


def network(seed: int = 0, latent: int = 3) -> GaussianNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = GaussianNetwork(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh()), 5, 3, (2, 3), latent)
        with torch.no_grad():
            made.class_mean.normal_()
            made.class_log_variance.normal_()
        return made


def loss(made: GaussianNetwork, x: Any, y: Any, norm: float, conditional: float, known: Any = None) -> Any:
    keys = torch.arange(len(x), dtype=torch.int64)
    there = torch.ones(len(x), dtype=torch.bool) if known is None else known
    params = dict(made.named_parameters())
    return SimpleLoss(None, norm, conditional)(
        model=made.train(),
        x=x,
        target=y,
        labelled=there,
        keys=keys,
        real=torch.ones(len(x)),
        broadcast={"params": params},
    ), normals(child_keys_of_rows(keys, 1), 0, made.latent)


def test_the_loss_is_that_of_distributions_of_pytorch() -> None:
    """The oracle: `torch.distributions` for the divergence, the definition for the rest."""
    made, gen = network(), torch.Generator().manual_seed(1)
    x, y = torch.rand(7, 2, 3, generator=gen), torch.randint(0, 3, (7,), generator=gen)
    found, noise = loss(made, x, y, 0.3, 0.7)
    hidden = made.encoder(x)
    mean, spread = made.mean(hidden), made.log_variance(hidden)
    z = mean + noise * (spread / 2).exp()
    own = torch.distributions.Normal(mean, (spread / 2).exp())
    theirs = torch.distributions.Normal(made.class_mean[y], (made.class_log_variance[y] / 2).exp())
    apart = torch.distributions.kl_divergence(own, theirs).sum(1)
    wanted = nn.functional.cross_entropy(made.classifier(z), y) + 0.3 * (z**2).sum(1).mean() + 0.7 * apart.mean()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_rows_without_a_label_and_weights_of_0_leave_cross_entropy() -> None:
    made, gen = network(), torch.Generator().manual_seed(2)
    x, y = torch.rand(4, 2, 3, generator=gen), torch.tensor([0, 1, 2, 0])
    known = torch.tensor([True, False, True, False])
    one, noise = loss(made, x, y, 0.0, 0.0, known)
    other, _ = loss(made, x, torch.tensor([0, 2, 2, 2]), 0.0, 0.0, known)
    assert torch.equal(one, other)
    hidden = made.encoder(x)
    z = made.mean(hidden) + noise * (made.log_variance(hidden) / 2).exp()
    wanted = nn.functional.cross_entropy(made.classifier(z)[known], y[known])
    assert one.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_in_evaluation_features_are_means() -> None:
    made = network().eval()
    x = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(3))
    assert torch.equal(made(x), made.classifier(made.mean(made.encoder(x))))
    assert made.train()(x).shape == (5, 7), "rows without noise are taken as they are"


def domains(moved: float, seed: int, rows: int = 60) -> Dataset:
    """Three numbers tell the class, three others the domain."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    x = np.concatenate([np.eye(3)[y] + rng.normal(0, 0.3, (rows, 3)), rng.normal(moved, 1.0, (rows, 3))], 1)
    return Dataset({"x": x.reshape(rows, 2, 3).astype(np.float32), "y": y}, classes=3)


def run(algorithm: Any, engine: str = "inline") -> Any:
    data = Islands.from_datasets({"one": domains(0.0, 1), "two": domains(1.0, 2)}).with_test(domains(0.5, 3, 120))
    model = lambda: GaussianNetwork(nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU()), 8, 3, (2, 3), 4)  # noqa: E731 - a factory
    job = atoll.Training(model=model, algorithm=algorithm, selection=atoll.Everyone(), rounds=6, compile="never")
    return atoll.simulate(job, data, engine=engine, seed=0, progress=False)


@pytest.mark.slow
def test_it_trains_alike_one_by_one_and_in_blocks() -> None:
    method = FedSR(view=None, lr=0.1, steps=5, batch_size=20)
    one, two = run(method), run(method, "batched")
    assert all(np.allclose(one.params[name], two.params[name], atol=1e-5) for name in one.params)
    assert one.metrics[-1]["test/accuracy"] > 0.7
    plain = run(FedSR(view=None, norm=0.0, conditional=0.0, lr=0.1, steps=5, batch_size=20))
    assert not np.allclose(one.params["mean.weight"], plain.params["mean.weight"], atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(AtollError, match="norm=-1"):
        FedSR(norm=-1.0)
    with pytest.raises(AtollError, match="latent=0"):
        GaussianNetwork(nn.Flatten(), 6, 3, (2, 3), 0)
    data = Islands.from_datasets({"one": domains(0.0, 1)})
    bare = lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3))  # noqa: E731 - a factory
    job = atoll.Training(model=bare, algorithm=FedSR(view=None), rounds=1, compile="never")
    with pytest.raises(AtollError, match="without Gaussians of classes"):
        atoll.simulate(job, data, engine="inline", progress=False)
