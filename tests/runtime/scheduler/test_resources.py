"""A site's resources: exact sums, never handed out twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atoll.core.errors import ConfigError, JobError
from atoll.runtime.resources import Answer, ResourceManager, Resources, bytes_of, detected, gpus_of


@pytest.mark.parametrize(
    ("said", "size"),
    [(0, 0), (7, 7), ("7", 7), ("7B", 7), ("2kB", 2000), ("2 KiB", 2048), ("1.5GiB", 1610612736), ("4gb", 4 * 10**9)],
)
def test_sizes(said: int | str, size: int) -> None:
    assert bytes_of(said) == size


@pytest.mark.parametrize("said", [-1, True, 1.5, "", "x", "-3", "4 XB", "1e9", "4GiB4", None])
def test_what_is_no_size(said: object) -> None:
    with pytest.raises(ConfigError, match=r"is not a size.*4GiB"):
        bytes_of(said)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["cpus", "memory", "gpus"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "2", 2**54])
def test_what_is_no_amount(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{field}="):
        Resources(**{field: value})  # type: ignore[arg-type]


def test_halves_of_devices_and_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gpus=0.5.*whole number"):
        Resources(gpus=0.5)  # type: ignore[arg-type]


def test_amounts_travel() -> None:
    there = Resources(0.5, 2**30, 2)
    assert Resources.of(there.tree()) == there
    for wrong in ({"cpu": 1}, [], None):
        with pytest.raises(ConfigError, match=r"are not resources"):
            Resources.of(wrong)


def test_ten_tenths_of_a_core_fit_into_one_and_no_more() -> None:
    site = ResourceManager(Resources(1.0))
    assert all(site.offer(str(i), Resources(0.1)).ok for i in range(10))  # as floats these are 0.9999999999999999
    assert not site.offer("more", Resources(0.001)).ok
    assert site.free == Resources(0.0)


def test_the_answer_says_what_is_missing_and_whether_it_will_ever_be() -> None:
    site = ResourceManager(Resources(2, 2**30, 1), site="north")
    assert site.offer("a", Resources(1.5, 0, 1)) == Answer(True)
    busy = site.offer("b", Resources(1, 0, 1))
    assert (busy.ok, busy.never) == (False, False)
    assert "'north' has 0.5 CPUs and 0 GPUs free" in busy.why
    never = site.offer("b", Resources(0, 2**31, 0))
    assert (never.ok, never.never) == (False, True)
    assert "'north' has 1 GiB of memory" in never.why
    assert list(site.held) == ["a"]
    with pytest.raises(JobError, match=r"job b.*ask for less"):
        site.reserve("b", Resources(3))
    with pytest.raises(JobError, match=r"wait until another job has ended"):
        site.reserve("b", Resources(1))


def test_the_same_offer_again_changes_nothing_and_release_frees() -> None:
    site = ResourceManager(Resources(gpus=2), gpus=("GPU-x", "GPU-y"))
    first = site.reserve("a", Resources(gpus=2))
    assert site.reserve("a", Resources(gpus=2)) == first
    assert first.gpus == ("GPU-x", "GPU-y")
    assert first.environment()["CUDA_VISIBLE_DEVICES"] == "GPU-x,GPU-y"
    assert site.release("a") is True
    assert site.release("a") is False
    assert site.reserve("b", Resources(gpus=1)).gpus == ("GPU-x",)


def test_a_job_without_gpus_sees_none_and_has_the_threads_of_its_cores() -> None:
    environment = ResourceManager(Resources(8)).reserve("a", Resources(2.5)).environment()
    assert environment == {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
    }


def test_a_site_may_bound_its_jobs() -> None:
    site = ResourceManager(Resources(8), jobs=1)
    assert site.offer("a", Resources(1)).ok
    assert "its most at once" in site.offer("b", Resources(1)).why
    with pytest.raises(ConfigError, match=r"jobs=0"):
        ResourceManager(Resources(8), jobs=0)
    with pytest.raises(ConfigError, match=r"2 GPUs, but the names"):
        ResourceManager(Resources(gpus=2), gpus=("0", "0"))


needs = st.builds(
    Resources,
    cpus=st.integers(0, 60).map(lambda n: n / 10),
    memory=st.integers(0, 6),
    gpus=st.integers(0, 4),
)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), needs), max_size=12), needs)
def test_an_answer_is_what_free_says(offers: list[tuple[str, Resources]], need: Resources) -> None:
    site = ResourceManager(Resources(4.0, 5, 3))
    for job, asked in offers:
        site.offer(job, asked)
    fits = all(asked <= free for asked, free in zip(need.units, site.free.units, strict=True))
    assert site.check("new", need).ok is fits


class Site(RuleBasedStateMachine):
    """Any order of offers and releases, beside a plain list of what was granted."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Resources(4.0, 5, 3)
        self.site = ResourceManager(self.total)
        self.granted: dict[str, Resources] = {}

    @rule(job=st.sampled_from("abcdef"), need=needs)
    def offer(self, job: str, need: Resources) -> None:
        if self.site.offer(job, need).ok:
            self.granted[job] = need

    @rule(job=st.sampled_from("abcdef"))
    def release(self, job: str) -> None:
        assert self.site.release(job) is (self.granted.pop(job, None) is not None)

    @invariant()
    def never_more_than_there_is(self) -> None:
        held = self.site.held
        assert {job: grant.need for job, grant in held.items()} == self.granted
        assert sum(round(grant.need.cpus * 10) for grant in held.values()) <= 40
        assert sum(grant.need.memory for grant in held.values()) <= 5
        gpus = [gpu for grant in held.values() for gpu in grant.gpus]
        assert len(gpus) == len(set(gpus)) <= 3
        assert all(len(grant.gpus) == grant.need.gpus for grant in held.values())


Site.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestSite = Site.TestCase


def test_this_machine_has_something() -> None:
    there, gpus = detected()
    assert there.cpus >= 1
    assert there.memory > 2**26
    assert len(gpus) == there.gpus
    ResourceManager(there, gpus=gpus)


def test_limits_of_a_control_group_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text(f"{2**20}\n")
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert detected(tmp_path, tmp_path / "gpus") == (Resources(0.5, 2**20, 2), ("0", "1"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert detected(tmp_path, tmp_path / "gpus")[1] == ("1",)
    assert detected(tmp_path, tmp_path / "none")[1] == ()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert detected(tmp_path, tmp_path / "none")[0].memory > 2**20


def test_gpus_are_counted_or_named_and_none_is_made_up():
    there = ("2", "GPU-8932f937")
    told = {"": (), "0": (), "1": ("2",), "2": there, "0,1": ("0", "1"), "0,": ("0",), " MIG-1/2 ": ("MIG-1/2",)}
    assert {text: gpus_of(text, there, "--gpus") for text in told} == told
    for text in ("-1", "1.5", "0,-1", "+2", "²"):
        with pytest.raises(ConfigError, match=r"neither a number of GPUs nor the name of one \(in --gpus\)"):
            gpus_of(text, there, "--gpus")
    for text, found in (("3", there), ("1", ())):
        with pytest.raises(ConfigError, match=rf"{text} GPUs, but only {len(found)} .* name devices"):
            gpus_of(text, found, "--gpus")
