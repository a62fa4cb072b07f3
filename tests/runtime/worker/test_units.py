"""A site whose columns are in other units is named before the first round, from four whole numbers a column."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import DataError, MessageError
from atoll.data import Dataset, Islands
from atoll.data.units import EMPTY, ColumnExtent, extents_in, extents_of, other_units
from atoll.runs import yaml
from atoll.runtime.worker.sitedata import load_site_data
from atoll.runtime.worker.words import site_spec
from atoll.testing.hostile import play
from tests.support.front_toys import World, played
from tests.support.work_toys import site_of

JOB = {
    "model": {"name": "linear", "features": 3, "outputs": 2}, "algorithm": {"name": "FedAvg", "lr": 0.01},
    "selection": "Everyone", "rounds": 1, "patience": 20.0,
}  # fmt: skip
NAMES = ("age", "dose", "rate")


def rows(seed: int, factor: float = 1.0, names: tuple[str, ...] = NAMES) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, 3)) * [1.0, 100.0, 0.01] * [1.0, factor, 1.0]
    return Dataset({"x": x.astype(np.float32), "y": np.arange(40) % 2}, features=names)


def patients(seed: int, factor: float = 1.0) -> Dataset:
    rng = np.random.default_rng(seed)
    x = np.stack([rng.normal(60, 9, 60), rng.normal(110, 25, 60) * factor, rng.integers(0, 2, 60)], axis=1)
    return Dataset({"x": x.astype(np.float32), "y": np.arange(60) % 2}, features=("age", "glucose", "sex"))


def test_a_scale_is_a_power_of_ten() -> None:
    def scales(data: Any) -> tuple[int, ...]:
        return tuple(one.scale for one in extents_of(data).values())

    assert scales(rows(0)) == scales(Islands.from_datasets({"a": rows(0)})) == (0, 2, -2)
    assert scales(rows(0, 2501.0)) == (0, 5, -2)
    assert {scales(rows(seed)) for seed in range(50)} == {(0, 2, -2)}
    bare = extents_of(Dataset({"x": np.zeros((4, 2))}))
    assert bare == {"x0": ColumnExtent(EMPTY), "x1": ColumnExtent(EMPTY)}
    assert extents_of(Dataset({"x": np.array([["a"], ["b"]])})) == {}
    assert extents_of(Dataset({"x": np.ones((4, 2, 2))})) == {}


def test_what_a_site_tells_of_a_column_has_its_rows_beyond_it_and_is_rough() -> None:
    data = patients(1)
    age = np.sort(np.asarray(data.x[:, 0], np.float64))
    for least in (1, 5, 20):
        told = extents_of(data, least)
        assert (told["age"].low, told["age"].high) == (age[least], age[-1 - least])
        assert not told["sex"].many  # two values are codes
        assert told["age"].pack() == [2, *ColumnExtent.unpack(told["age"].pack()).pack()[1:]]
    assert extents_of(data, 30)["age"].pack() == [2]
    assert extents_of(rows(0, names=()))["x1"].pack() == [2]


@given(
    st.floats(-1e300, 1e300),
    st.floats(-1e300, 1e300),
    st.floats(-1e300, 1e300),
)
def test_an_extent_is_told_to_half_a_power_of_two_and_never_drawn_in(a: float, b: float, c: float) -> None:
    low, median, high = sorted(0.0 if abs(value) < 1e-300 else value for value in (a, b, c))
    told = ColumnExtent.unpack(ColumnExtent(0, low, high, median, True).pack())
    near = 1 + 1e-9
    assert told.low <= low / near or told.low <= low * near
    assert told.high >= high / near or told.high >= high * near
    for exact, rough, most in ((low, told.low, 0.5), (high, told.high, 0.5), (median, told.median, 0.25)):
        assert np.sign(exact) == np.sign(rough)
        assert exact == 0 or abs(math.log2(abs(rough / exact))) <= most + 1e-9


@given(st.sampled_from([1 / 18.02, 18.02, 38.67, 12.0, 88.4]), st.integers(0, 30), st.booleans())
def test_a_factor_of_units_is_named_from_what_sites_tell(factor: float, seed: int, three: bool) -> None:
    def told(last: float) -> list[str]:
        sites = {"a": patients(seed), **({"b": patients(seed + 1)} if three else {}), "c": patients(seed + 2, last)}
        said = {
            name: {column: one.pack() for column, one in extents_of(site, 5).items()} for name, site in sites.items()
        }
        return other_units({name: extents_in(each, name) for name, each in said.items()})

    assert told(1.0) == []
    (line,) = told(factor)
    assert "column 'glucose'" in line
    assert "site 'c'" in line or not three


def test_a_site_far_off_the_median_is_named_with_its_column() -> None:
    def told(**sites: tuple[int, ...]) -> list[str]:
        return other_units(
            {site: {f"x{k}": ColumnExtent(n) for k, n in enumerate(each)} for site, each in sites.items()}
        )

    words = "column 'x1' of site 'c' is about 10^3 times larger than the median of the sites'"
    assert told(a=(0, 2), b=(0, 2), c=(0, 5)) == [words]
    assert told(a=(0, 2), b=(0, 2), c=(0, 4)) == []
    assert told(a=(0, 2), c=(0, 6)) == ["column 'x1' is about 10^4 times larger at site 'c' than at site 'a'"]
    assert told(a=(0, 2), b=(0, EMPTY), c=(0,)) == []
    assert told(a=(), b=()) == []


@pytest.mark.parametrize(
    "told", ["x", [1], {"a": 1}, {"a": [1.5]}, {"a": [True]}, {"a": [10**9]}, {"a": [1, 2, 3]}, {"a": [0, 1, 2, 10**5]}, {1: [0]}]
)  # fmt: skip
def test_extents_that_are_none_are_refused(told: Any) -> None:
    with pytest.raises(MessageError, match="no extents of columns"):
        extents_in(told, "site 'a'")


def test_millimoles_are_named_before_the_first_round_whatever_the_order_of_the_columns(tmp_path: Path) -> None:
    turned = patients(3, 1 / 18.02)
    turned = Dataset({"x": turned.x[:, ::-1], "y": turned["y"]}, features=("sex", "glucose", "age"))
    for how in ("warn", "reject"):  # another population may lie apart by such a factor too, so no job ends of it
        ended = play(
            {**JOB, "on_outlier": how}, {"a": patients(1), "b": patients(2), "c": turned}, None, tmp_path / how
        )
        assert ended.error is None
        (line,) = [line for line in ended.warnings if "another unit" in line]
        assert "column 'glucose' of site 'c' lies around 5.657, and nearly all at the other sites between" in line
        manifest = json.loads((tmp_path / how / "server" / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["notices"][-1] == line  # so that the report, and the command that waits, say it too


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
    words = "column 'x1' of site 'c' is about 10^3 times larger than the median of the sites'"

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
