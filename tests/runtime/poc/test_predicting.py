"""``atoll predict JOB --kit KIT``: the model of a job between sites predicts the rows of whoever may see its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from atoll.fitting import FittedModel
from atoll.runs import read_model, yaml
from tests.support.front_toys import World, played, typed

pytestmark = pytest.mark.network

COLUMNS = ["age", "dose"]
JOBS: dict[str, dict[str, Any]] = {
    "training": {
        "model": {"name": "linear", "features": 2, "outputs": 2}, "algorithm": {"name": "FedAvg", "lr": 0.01},
        "selection": "Everyone", "rounds": 2,
    },
    "fit": {"job": "fit", "model": {"name": "GLM", "alpha": 1.0}, "label": "died", "columns": COLUMNS},
}  # fmt: skip


def ward(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"age": rng.normal(0, 1, rows).round(2), "dose": rng.normal(0, 1, rows).round(3)})
    return made.assign(died=np.where(made.age + rng.normal(0, 1, rows) > 0, "yes", "no"))


@pytest.mark.quick("training")
@pytest.mark.parametrize("kind", JOBS)
def test_a_jobs_model_predicts_new_rows_by_name(tmp_path: Path, kind: str) -> None:
    data = {}
    for seed, (name, columns) in enumerate(
        {"north": ["age", "dose", "died"], "south": ["died", "dose", "age"]}.items()
    ):
        ward(60, seed)[columns].to_csv(tmp_path / f"{name}.csv", index=False)
        data[name] = [str(tmp_path / f"{name}.csv"), "--target", "died"]
    new = ward(20, 9)
    new.drop(columns="died").assign(note="x")[["note", "dose", "age"]].to_csv(tmp_path / "new.csv", index=False)

    async def body(world: World) -> None:
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "job.yaml").write_text(yaml.dump({**JOBS[kind], "sites": list(data), "patience": 60.0}))
        ended = await world.end((await world.admin.submit(folder))["job"])
        assert ended["state"] == "finished", ended
        out, result = tmp_path / f"{kind}.csv", tmp_path / f"{kind}-result"
        number = str(int(ended["job"].split("-")[0], 16))
        told = await typed(world, "predict", number, "--rows", str(tmp_path / "new.csv"), "--out", str(out))
        assert (told["rows"], sorted(told["columns"]), told["classes"]) == (20, COLUMNS, ["no", "yes"])
        await world.admin.result(ended["job"], result)
        found = pd.read_csv(out)
        if kind == "fit":
            expected = FittedModel.load(result / "fit.json").estimator().predict_proba(new[COLUMNS].to_numpy())[:, 1]
        else:
            params = read_model(result / "model.safetensors")
            scores = new[told["columns"]].to_numpy() @ params["weight"] + params["bias"]
            expected = 1 / (1 + np.exp(scores[:, 0] - scores[:, 1]))
        np.testing.assert_allclose(found.probability_yes, expected, rtol=0, atol=1e-9 if kind == "fit" else 1e-6)
        assert found.prediction.tolist() == np.where(expected > 0.5, "yes", "no").tolist()
        refused = await typed(world, "predict", "99", "--rows", str(tmp_path / "new.csv"), code=12)
        assert "99" in refused["error"]["what"]

    played(tmp_path / "project", body, data=data)
