"""A site whose columns are in other units is named before the first round, from one whole number a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import DataError, MessageError
from atoll.data import Dataset, Islands
from atoll.data.units import EMPTY, other_units, scales_of
from atoll.runs import yaml
from atoll.runtime.worker.frames import scales_in
from atoll.runtime.worker.sitedata import load_site_data
from atoll.runtime.worker.words import site_spec
from atoll.testing.hostile import play
from tests.support.front_toys import World, played
from tests.support.work_toys import site_of

JOB = {
    "model": {"name": "linear", "features": 3, "outputs": 2}, "algorithm": {"name": "FedAvg", "lr": 0.01},
    "selection": "Everyone", "rounds": 1, "patience": 20.0,
}  # fmt: skip


def rows(seed: int, factor: float = 1.0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)) * [1.0, 100.0, 0.01] * [1.0, factor, 1.0]
    return Dataset({"x": x.astype(np.float32), "y": np.arange(40) % 2}, features=("age", "dose", "rate"))


def test_a_scale_is_a_power_of_ten_and_says_nothing_else() -> None:
    assert scales_of(rows(0)) == scales_of(Islands.from_datasets({"a": rows(0)})) == (0, 2, -2)
    assert scales_of(rows(0, 2501.0)) == (0, 5, -2)
    assert scales_of(Dataset({"x": np.zeros((4, 2))})) == (EMPTY, EMPTY)
    assert scales_of(Dataset({"x": np.array([["a"], ["b"]])})) == ()
    assert scales_of(Dataset({"x": np.ones((4, 2, 2))})) == ()
    assert {scales_of(rows(seed)) for seed in range(50)} == {(0, 2, -2)}


def test_a_site_far_off_the_median_is_named_with_its_column() -> None:
    many = {
        "a": (
            0,
            2,
        ),
        "b": (
            0,
            2,
        ),
        "c": (
            0,
            5,
        ),
    }
    assert other_units(many) == ["feature 2 of site 'c' is about 10^3 times larger than the median of the sites'"]
    assert (
        other_units(
            {
                **many,
                "c": (
                    0,
                    4,
                ),
            }
        )
        == []
    )
    assert other_units(
        {
            "a": (
                0,
                2,
            ),
            "c": (
                0,
                6,
            ),
        }
    ) == ["feature 2 is about 10^4 times larger at site 'c' than at site 'a'"]
    assert (
        other_units(
            {
                "a": (
                    0,
                    2,
                ),
                "b": (
                    0,
                    EMPTY,
                ),
                "c": (0,),
            }
        )
        == []
    )
    assert other_units({"a": (), "b": ()}) == []


@pytest.mark.parametrize("told", ["x", [1.5], [True], [10**9], {"a": 1}, [None]])
def test_scales_that_are_none_are_refused(told: Any) -> None:
    with pytest.raises(MessageError, match="no scales of columns"):
        scales_in(told, "site 'a'")


def test_a_factor_of_2501_is_named_before_the_first_round_and_by_one_setting_ends_the_job(tmp_path: Path) -> None:
    sites = {"a": rows(1), "b": rows(2), "c": rows(3, 2501.0)}
    words = r"column 'dose' of site 'c' is about 10\^3 times larger than the median of the sites'"
    warned = play(JOB, sites, None, tmp_path / "warn")
    assert warned.error is None
    assert any("column 'dose' of site 'c'" in line and "another unit" in line for line in warned.warnings)
    ended = play({**JOB, "on_outlier": "reject"}, sites, None, tmp_path / "reject")
    assert isinstance(ended.error, DataError)
    with pytest.raises(DataError, match=words):
        raise ended.error
    assert ended.rows == []


def test_a_site_may_keep_it_to_itself_and_a_private_job_learns_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=rows(1).x, y=rows(1)["y"])
    (tmp_path / "site.yaml").write_text(yaml.dump({"path": "rows.npz", "scales": False}))
    assert load_site_data(site_spec(str(tmp_path / "site.yaml")), "a").scales is False
    from dataclasses import replace

    sites: dict[str, Any] = {"a": rows(1), "b": rows(2), "c": replace(site_of("c", rows(3, 2501.0)), scales=False)}
    quiet = play(JOB, sites, None, tmp_path / "quiet")
    assert not any("unit" in line for line in quiet.warnings)
    private = {**JOB, "uplink": [{"name": "Clip", "bound": 1.0}, {"name": "GaussianNoise", "multiplier": 1.0}]}
    kept = play(private, {"a": rows(1), "b": rows(2), "c": rows(3, 2501.0)}, None, tmp_path / "private")
    assert not any("unit" in line for line in kept.warnings)


@pytest.mark.slow  # its quick siblings are above
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_between_real_processes_the_site_is_named_too(transport: str, tmp_path: Path) -> None:
    data = {}
    for name, part in {"a": rows(1), "b": rows(2), "c": rows(3, 2501.0)}.items():
        data[name] = [str(tmp_path / f"{name}.npz")]
        np.savez(data[name][0], x=part.x, y=part["y"])
    words = "feature 2 of site 'c' is about 10^3 times larger than the median of the sites'"

    async def body(world: World) -> None:
        for how in ("warn", "reject"):
            job = tmp_path / "jobs" / how
            job.mkdir(parents=True)
            (job / "job.yaml").write_text(yaml.dump({**JOB, "sites": list(data), "on_outlier": how}))
            ended = await world.end((await world.admin.submit(job))["job"])
            said = [line async for _, node, line in world.admin.logs(ended["job"]) if node == "server"]
            if how == "warn":
                assert ended["state"] == "finished"
                assert any(words in line for line in said), said
            else:
                assert ended["state"] == "failed"
                assert words in str(ended["error"])

    played(tmp_path / "project", body, transport=transport, data=data)
