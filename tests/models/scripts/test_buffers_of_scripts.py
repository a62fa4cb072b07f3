"""With one client, a script of PyTorch ends with the buffers of an ordinary loop: statistics, counters and flags, whichever words it speaks."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import atoll
from atoll.core.errors import CompositionError
from atoll.models import Script
from atoll.torch.learner import seeded

pytestmark = pytest.mark.network

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("begun", torch.tensor(False))

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.begun.fill_(True)
        return self.last(self.norm(x)) * torch.clamp(self.steps / 10, max=1.0)

def epoch(net, x, y):
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.3)
    optimiser.zero_grad()
    nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y)).backward()
    optimiser.step()
"""
OURS = (
    NET
    + """
import atoll.client
net = Net()
with atoll.client.connect() as fed:
    for task in fed.rounds():
        net.load_state_dict(task.model)
        epoch(net, fed.data.x, fed.data.y)
        task.reply(net.state_dict(), examples=len(fed.data))
"""
)
FLARE = (
    NET
    + """
import numpy as np
import nvflare.client as flare
rng = np.random.default_rng(0)
x = (rng.normal(size=(12, 3)) + 1).astype(np.float32)
y = (x[:, 0] > 1).astype(np.int64)
net = Net()
flare.init()
while flare.is_running():
    net.load_state_dict({name: torch.as_tensor(value) for name, value in flare.receive().params.items()})
    epoch(net, x, y)
    flare.send(flare.FLModel(params={name: value.numpy() for name, value in net.state_dict().items()}))
"""
)
ROUNDS = 4


def _net() -> Any:
    space: dict[str, Any] = {}
    exec(NET, space)  # the script's own text
    return space


def _rows() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(12, 3)) + 1).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 1).astype(np.int64)}


def _trained(folder: Path, speaks: str, model: nn.Module, **settings: Any) -> Any:
    (folder / "train.py").write_text(OURS if speaks == "atoll" else FLARE, encoding="utf-8")
    script = Script(script=str(folder / "train.py"), model=model, speaks=speaks)  # type: ignore[arg-type]
    job = atoll.Training(model=script, selection=atoll.Everyone(), rounds=ROUNDS, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return atoll.simulate(job, {"only": atoll.data.Dataset(_rows(), classes=2)}, engine="inline", progress=False)


@pytest.mark.parametrize(
    "speaks",
    [
        "atoll",
        pytest.param(
            "nvflare",
            marks=pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="needs the extra nvflare"),
        ),
    ],
)
def test_one_script_is_an_ordinary_loop(speaks: str, tmp_path: Path) -> None:
    space = _net()
    model = seeded(space["Net"], 0)
    made = _trained(tmp_path, speaks, model)
    for _ in range(ROUNDS):
        space["epoch"](model, *_rows().values())
    for name, value in model.state_dict().items():
        got = made.model.state_dict()[name]
        assert got.dtype == value.dtype
        np.testing.assert_allclose(got.numpy(), value.numpy(), atol=1e-5, err_msg=name)
    assert int(made.params["steps"]) == ROUNDS
    assert "counted by the server: steps, begun, norm.num_batches_tracked" in " ".join(made.notices)


def test_buffers_of_a_script_do_not_stay_at_its_client(tmp_path: Path) -> None:
    with pytest.raises(
        CompositionError, match=r"norm\.running_mean.*a script is sent whole models.*leave out buffers='local'"
    ):
        _trained(tmp_path, "atoll", seeded(_net()["Net"], 0), buffers="local")
