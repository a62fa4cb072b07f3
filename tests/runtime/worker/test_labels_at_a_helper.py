"""SemiFL between organisations: the labels lie at a helper's site, and the model is the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import atoll
import atoll.data
from atoll.data import Dataset, Islands
from atoll.labels import SemiFL
from atoll.learn import Training
from atoll.runtime.worker.sitedata import SiteData, load_site_data
from tests.support.label_toys import images, net, same
from tests.support.work_toys import held

SETTINGS: dict[str, Any] = {
    "lr": 0.1, "steps": 3, "batch_size": 8, "tau": 0.3, "warm_up": 4, "label_steps": 2, "label_batch": 6,
}  # fmt: skip
JOB = {
    "model": "tests.support.label_toys:net",
    "algorithm": {"name": "atoll.labels:SemiFL", **SETTINGS},
    "selection": "Everyone",
    "rounds": 2,
    "seed": 3,
    "sites": ["north", "south"],
}


def _parts() -> dict[str, Dataset]:
    """Rows without labels at two sites, and rows of every class with labels at a third."""
    whole = images(60, share=2.0)
    hidden = {
        name: Dataset(
            {
                "x": whole["x"][some],
                "y": np.zeros(len(whole["y"][some]), int),
                "labelled": np.zeros(len(whole["y"][some]), bool),
            },
            classes=4,
        )
        for name, some in {"north": slice(12, 32), "south": slice(32, 60)}.items()
    }
    return {**hidden, "labels": Dataset({"x": whole["x"][:12], "y": whole["y"][:12]}, classes=4)}


def _loads(folder: Path) -> dict[str, Callable[[], SiteData]]:
    """Each site reads a file of its own; -1 says that a row has no label."""
    made: dict[str, Callable[[], SiteData]] = {}
    for name, rows in _parts().items():
        there = np.asarray(rows["labelled"]) if "labelled" in rows.columns else np.ones(len(rows), bool)
        file = folder / f"{name}.npz"
        np.savez(file, x=np.asarray(rows["x"]), y=np.where(there, rows["y"], -1))
        spec = {"path": str(file), "missing": -1, "task": "classification"}
        made[name] = lambda spec=spec, name=name: load_site_data(spec, name, "labels" if name == "labels" else "")
    return made


def test_labels_at_a_helpers_site_train_the_model_of_the_simulation(tmp_path: Path) -> None:
    result = held(JOB, _loads(tmp_path), tmp_path, helpers={"labels": "labels"})
    parts = _parts()
    islands = Islands.from_datasets({name: parts[name] for name in ("north", "south")})
    job = Training(model=net, algorithm=SemiFL(**SETTINGS), rounds=2)
    simulated = atoll.simulate(
        job, islands.with_others({"labels": parts["labels"]}), engine="inline", seed=3, progress=False
    )
    trained = load_file(result["model"])
    assert set(trained) == set(simulated.params)
    assert same(simulated.params, {name: trained[name] for name in simulated.params})
