"""A tuning under masks, with codes of few bits, and with differential privacy: what is trained is an update like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import Bottleneck, Tuning
from atoll.mechanisms import CentralDP, ExampleDP
from atoll.reducers import SecureAggregation, SecureIndexing
from atoll.stages import ProductQuantizer, ScalarQuantizer
from tests.support.encoders import make_encoder, make_reviews

PRIVATE = {"noise": 1.0, "delta": 1e-5, "clip": 1.0}
PARTS: dict[str, dict[str, Any]] = {
    "masked": {"reducer": SecureAggregation()},
    "scalar codes": {"uplink": [ScalarQuantizer(8, refresh=1)], "rounds": 3},
    "scalar codes, masked": {"uplink": [ScalarQuantizer(8, limit=0.5)], "reducer": SecureAggregation()},
    "product codes, masked": {"uplink": [ProductQuantizer(4, 16, refresh=1)], "reducer": SecureIndexing("enclave"), "rounds": 3},
    "central": {"privacy": CentralDP(**PRIVATE), "selection": atoll.selection.PoissonSample(3)},
    "examples": {"privacy": ExampleDP(**PRIVATE, batch=8)},
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("composition")
    make_encoder(folder / "tiny")
    make_reviews(folder / "data", sites=4, rows=12)
    return folder


@pytest.mark.quick("masked", "product*", "central")
@pytest.mark.parametrize("name", PARTS)
def test_parts_act_on_a_tuning_as_on_a_training(
    name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    rows = atoll.data.from_csv_folder(place / "data", target="label", keep=["text"], features=[])

    def train(**parts: Any) -> Any:
        given = {"rounds": 1, "algorithm": atoll.FedAvg(lr=0.05, batch_size=8), **parts}
        job = Tuning(encoder=str(place / "tiny"), method=Bottleneck(hidden=4), length=8, **given)
        return atoll.simulate(job, rows, engine="inline")

    found = train(**PARTS[name])
    plain = train(rounds=PARTS[name].get("rounds", 1))
    far = max(float(np.abs(found.params[one] - value).max()) for one, value in plain.params.items())
    if "privacy" in PARTS[name]:
        assert far > 0
        assert found.metrics.last("epsilon") > 0
    else:
        assert far < (1e-5 if name == "masked" else 0.05)
    if "codes" in name:
        assert found.metrics[-1]["bytes_up"] != plain.metrics[-1]["bytes_up"]
