"""Split learning beside a plain script: one network, whichever way it is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.reproduce import Lab
from atoll_papers.flare.split import ENTRY, _images, _parties, _Timed, fit_by_pytorch, train_split

torch = pytest.importorskip("torch")


def test_the_script_trains_the_network_that_is_split() -> None:
    x, y, _ = _images(True)
    x, y = x[:300], y[:300]
    net = _Timed(image=(1, 8, 8), channels=(4, 8), epochs=2, top=(32,))
    result, spent = train_split(net, _parties(x, y))
    told = result.predictions
    at = told["id"].astype(int)
    train = at[~told["test"]]
    flat = x.reshape(len(x), -1).astype(np.float64)
    mean, spread = flat[train].mean(axis=0), flat[train].std(axis=0)
    scaled = ((flat - mean) / np.where(spread > 0, spread, 1)).astype(np.float32).reshape(x.shape)
    run, plain = fit_by_pytorch(net, scaled[train], y[train], 10)
    with torch.no_grad():
        expected = torch.softmax(run(at, scaled), 1).numpy()
    np.testing.assert_allclose(told["federated"], expected, rtol=0, atol=1e-4)
    assert min(spent, plain) > 0


@pytest.mark.slow
@pytest.mark.network
def test_processes_make_the_model_of_a_simulation(tmp_path: Path) -> None:
    claims = {claim.claim: claim for claim in ENTRY.run(Lab(tmp_path), True)}
    assert claims["processes make the model of a simulation"].verdict == "holds"
    assert claims["the parties find the rows that they share"].verdict == "holds"
