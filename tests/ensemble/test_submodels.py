"""Sub-models: a narrow client is the narrow model, entries are averaged over those who have them, under masks too, and devices decide the width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.core.errors import CompositionError, ConfigError
from atoll.devices import BatchRate, Fleet, Throughput
from atoll.ensemble import DeviceWidths, FederatedDropout, FjORD, HeteroFL, SubModels
from tests.ensemble.test_federated import population

BASE = atoll.FedAvg(lr=0.3, batch_size=4)
NARROW = {f"u{i}": 0.25 for i in range(3)}


def training(algorithm: Any, model: Any = None, **settings: Any) -> atoll.Training:
    """Two rounds with everybody."""
    given = {"rounds": 2, "selection": atoll.selection.Everyone(), "evaluation": atoll.Evaluation(server=False), **settings}  # fmt: skip
    return atoll.Training(model=model or atoll.models.mlp(4, 2, (8, 4)), algorithm=algorithm, **given)


def trained(algorithm: Any, islands: Any = None, **settings: Any) -> dict[str, Any]:
    """The parameters afterwards."""
    more = {name: settings.pop(name) for name in ("engine", "devices") if name in settings}
    data = population(users=6, rows=8) if islands is None else islands
    return dict(atoll.simulate(training(algorithm, **settings), data, seed=2, **more).params)


@pytest.mark.parametrize("kind", [HeteroFL, FederatedDropout])
def test_width_one_is_the_base(kind: type[SubModels]) -> None:
    whole, part = trained(BASE), trained(kind(BASE, widths=(0.5, 1.0)))
    for name, value in whole.items():
        assert np.allclose(part[name], value, atol=1e-7)


@pytest.mark.parametrize("kind", [HeteroFL, FjORD, FederatedDropout])
def test_a_block_is_its_clients_one_by_one(kind: type[SubModels]) -> None:
    settings = {"topology": DeviceWidths(NARROW)}
    each, block = (trained(kind(BASE), engine=engine, **settings) for engine in ("inline", "batched"))
    for name, value in each.items():
        assert np.allclose(block[name], value, atol=1e-6)


class Narrow(nn.Module):
    """The first units of a wide network."""

    def __init__(self, wide: dict[str, Any], units: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(4, units), nn.ReLU(), nn.Linear(units, 2))
        cut = {"1.weight": wide["1.weight"][:units], "1.bias": wide["1.bias"][:units], "3.weight": wide["3.weight"][:, :units], "3.bias": wide["3.bias"]}  # fmt: skip
        self.net.load_state_dict({name: torch.tensor(value) for name, value in cut.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.net(x)
        return made


def test_narrow_clients_train_the_narrow_model_and_the_rest_stays() -> None:
    """Everybody has a quarter of eight units: the model of two units, trained alone, and six units that nobody has touched."""
    wide = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone().numpy() for name, value in wide.state_dict().items()}
    found = trained(HeteroFL(BASE, widths=(0.25,)), model=wide)
    alone = trained(BASE, model=Narrow(before, 2))
    assert np.allclose(found["1.weight"][:2], alone["net.1.weight"], atol=1e-6)
    assert np.allclose(found["3.weight"][:, :2], alone["net.3.weight"], atol=1e-6)
    assert np.allclose(found["3.bias"], alone["net.3.bias"], atol=1e-6)
    assert np.array_equal(found["1.weight"][2:], before["1.weight"][2:])
    assert np.array_equal(found["3.weight"][:, 2:], before["3.weight"][:, 2:])


def test_each_entry_is_the_mean_of_those_who_have_it() -> None:
    """The units that only strong clients have follow these alone: they are what these give among themselves."""
    islands = population(users=4, rows=8)
    table = {"u0": 0.5, "u2": 0.5}
    widths = {"topology": DeviceWidths(table), "rounds": 1}
    found = trained(HeteroFL(BASE, widths=(0.5, 1.0)), islands, **widths)
    strong = trained(HeteroFL(BASE, widths=(0.5, 1.0)), islands.subset([1, 3]), rounds=1)
    assert np.allclose(found["1.weight"][4:], strong["1.weight"][4:], atol=1e-6)
    assert not np.allclose(found["1.weight"][:4], strong["1.weight"][:4], atol=1e-3)


def test_counts_add_up_under_masks() -> None:
    settings = {"topology": DeviceWidths(NARROW), "rounds": 1}
    plain = trained(HeteroFL(BASE), **settings)
    masked = trained(HeteroFL(BASE), reducer=atoll.reducers.SecureAggregation(), **settings)
    for name, value in plain.items():
        assert np.allclose(masked[name], value, atol=1e-3)


def test_convolutions_are_cut_by_channels() -> None:
    draw = np.random.default_rng(0)
    parts = {f"u{i}": atoll.data.Dataset({"x": draw.normal(size=(4, 1, 4, 4)).astype(np.float32), "y": np.arange(4) % 2}) for i in range(2)}  # fmt: skip
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    before = {name: value.clone().numpy() for name, value in model.state_dict().items()}
    found = trained(HeteroFL(BASE, widths=(0.5,)), atoll.data.Islands.from_datasets(parts), model=model)
    moved = np.abs(found["3.weight"] - before["3.weight"]).sum(0) > 0
    assert not moved[32:].any()
    assert moved[:32].any()
    assert np.array_equal(found["0.weight"][2:], before["0.weight"][2:])


def test_devices_decide_the_widths() -> None:
    """Two devices are four times as slow as the others: they have a quarter of the units."""
    fleet = Fleet(BatchRate(np.array([1.0, 1.0, 0.25, 1.0, 0.25, 1.0]) / 60), Throughput(1e9))
    told = trained(HeteroFL(BASE), topology=DeviceWidths(), devices=fleet)
    named = trained(HeteroFL(BASE), topology=DeviceWidths({"u2": 0.25, "u4": 0.25}))
    for name, value in named.items():
        assert np.allclose(told[name], value, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HeteroFL(BASE, widths=(1.0, 0.5)), "ascending"),
        (lambda: HeteroFL(BASE, widths=(0.0, 0.5)), "ascending"),
        (lambda: HeteroFL(BASE, untold=0.3), "untold"),
        (lambda: HeteroFL(atoll.algorithms.Scaffold()), "of the whole model"),
        (lambda: HeteroFL(atoll.algorithms.Ditto()), "of the whole model"),
        (lambda: DeviceWidths({"u0": 2.0}), "the width 2.0 of 'u0'"),
        (lambda: trained(BASE, topology=DeviceWidths(NARROW)), "trains the whole model everywhere"),
        (lambda: trained(HeteroFL(BASE), topology=DeviceWidths({"u9": 0.5})), "no client 'u9'"),
        (lambda: trained(HeteroFL(BASE), model=atoll.models.linear(4, 2)), "no hidden layer"),
        (lambda: trained(HeteroFL(BASE), model=nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.LayerNorm(3), nn.Flatten(), nn.Linear(6, 2))), "no chain"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(make: Any, said: str) -> None:
    with pytest.raises((CompositionError, ConfigError), match=said):
        make()


def test_without_a_reach_sharpness_aware_steps_are_plain() -> None:
    plain, aware = trained(BASE), trained(atoll.algorithms.FedSAM(lr=0.3, batch_size=4, rho=0.0))
    assert all(np.array_equal(plain[name], aware[name]) for name in plain)


def test_a_sharpness_aware_step_follows_its_formula() -> None:
    """One full-batch step of one client, by hand."""
    islands = population(users=1, rows=8)
    rows, model = islands.shard(0), nn.Sequential(nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.named_parameters()}
    aware = atoll.algorithms.FedSAM(lr=0.3, batch_size=None, rho=0.5)
    found = trained(aware, islands, model=model, rounds=1)
    x, y = torch.tensor(rows["x"]), torch.tensor(rows["y"])

    def gradient(at: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        own = {name: value.detach().clone().requires_grad_() for name, value in at.items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(model, own, (x,)), y)
        return dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))

    first = gradient(before)
    length = torch.sqrt(sum((value**2).sum() for value in first.values()))  # type: ignore[arg-type]
    second = gradient({name: before[name] + 0.5 * first[name] / length for name in before})
    for name, value in before.items():
        assert np.allclose(found[name], (value - 0.3 * second[name]).detach().numpy(), atol=1e-6)
    with pytest.raises(ConfigError, match="rho=-1"):
        atoll.algorithms.FedSAM(rho=-1.0)
