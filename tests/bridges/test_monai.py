"""MONAI bundles: one client is MONAI's own loop, several sites learn, weights begin where the bundle says, and what is absent is named."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import atoll
from atoll.bridges import monai_bundle
from atoll.core.errors import ConfigError, MissingExtraError
from atoll.data import Dataset, Islands

NETWORK = {
    "_target_": "UNet",
    "spatial_dims": 2,
    "in_channels": 1,
    "out_channels": 1,
    "channels": [4, 8],
    "strides": [2],
}


@pytest.fixture(scope="module")
def monai():
    return pytest.importorskip("monai", reason="pip install monai -c constraints.txt")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "metadata.json").write_text(json.dumps({"version": "0.1.0", "task": "circles"}))
    config = {"network_def": NETWORK, "loss": {"_target_": "DiceLoss", "sigmoid": True}}
    (tmp_path / "configs" / "train.json").write_text(json.dumps(config))
    return tmp_path


def circles(rows, seed):
    """Noisy pictures of a disc, and its mask."""
    rng = np.random.default_rng(seed)
    at = rng.uniform(5, 11, (rows, 2, 1, 1))
    y, x = np.mgrid[:16, :16]
    mask = ((y - at[:, 0]) ** 2 + (x - at[:, 1]) ** 2 < 16).astype(np.float32)[:, None]
    return Dataset({"x": mask + 0.3 * rng.normal(size=mask.shape).astype(np.float32), "y": mask}, task="regression")


def test_one_client_is_monais_own_loop_and_several_sites_learn(monai, folder):
    import torch
    from safetensors.torch import save_file

    bundle = monai_bundle(folder)
    assert bundle.metadata["task"] == "circles"
    torch.manual_seed(0)
    first = bundle.build()
    (folder / "models").mkdir()
    save_file(first.state_dict(), folder / "models" / "model.safetensors")
    data, held = circles(24, 0), circles(20, 1)
    job = atoll.Training(
        model=bundle.build, loss=bundle.loss, algorithm=atoll.FedAvg(lr=0.2, epochs=1, batch_size=None),
        selection=atoll.Everyone(), rounds=4, compile="never",
    )  # fmt: skip
    found = atoll.simulate(job, Islands.from_datasets([data], test=held), engine="inline", progress=False)

    network = monai_bundle(folder).build()
    dice, descent = monai.losses.DiceLoss(sigmoid=True), torch.optim.SGD(network.parameters(), lr=0.2)
    x, y = torch.tensor(np.array(data.x)), torch.tensor(np.array(data.y))
    for _ in range(4):
        descent.zero_grad()
        dice(network(x), y).backward()
        descent.step()
    for name, value in network.state_dict().items():
        np.testing.assert_allclose(np.asarray(found.params[name]), value.numpy(), rtol=1e-4, atol=1e-5)

    sites = Islands.from_datasets([circles(16, 2), circles(16, 3)], test=held)
    together = atoll.simulate(job.replace(rounds=12), sites, engine="inline", progress=False)
    assert together.metrics.last("test/loss") < together.metrics[0]["test/loss"] - 0.01


def test_what_a_bundle_lacks_is_named(monai, folder):
    with pytest.raises(ConfigError, match="no 'net'"):
        monai_bundle(folder, network="net")
    (folder / "models").mkdir()
    (folder / "models" / "model.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match="the weights are a pickle"):
        monai_bundle(folder).build()
    import torch
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(1)}, folder / "models" / "model.safetensors")
    with pytest.raises(ConfigError, match="the weights do not fit the network"):
        monai_bundle(folder).build()
    monai_bundle(folder, weights=False).build()


def test_without_monai_or_a_bundle_the_error_says_what_to_do(folder, monkeypatch):
    with pytest.raises(ConfigError, match="there is no configuration 'inference'"):
        monai_bundle(folder, config="inference")
    monkeypatch.setitem(sys.modules, "monai.bundle", None)
    with pytest.raises(MissingExtraError, match=r'pip install "atoll\[monai\]"'):
        monai_bundle(folder)
