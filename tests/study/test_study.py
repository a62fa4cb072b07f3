"""Studies and sweeps: every variant under every seed, in folders that survive, compared in pairs."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import atoll
from atoll import FedAvg, Training
from atoll.algorithms import FedProx
from atoll.core.errors import ConfigError, DataError
from atoll.data import digits, dirichlet
from atoll.models import linear
from atoll.report.groups import grouped, main_metric
from atoll.runs import RunFolder
from atoll.study import baseline_arms, run_study
from atoll.study.arms import combinations, label_of, seeds_of
from atoll.study.baselines import train_alone, train_pooled
from atoll.study.code import changed_names, digest_code

pytestmark = pytest.mark.network

Typed = Callable[..., tuple[int, dict[str, Any], str]]
ROWS = digits()


def partition(seed: int) -> Any:
    return dirichlet(ROWS, parties=6, alpha=0.5, seed=seed)


def job(**changes: Any) -> Training:
    wanted = {"algorithm": FedAvg(lr=0.1), "selection": atoll.Uniform(2), "rounds": 2, **changes}
    return Training(model=linear(64, 10), **wanted)


def silent(line: str) -> None:
    del line


def test_combinations_labels_and_seeds() -> None:
    assert combinations({}) == [{}]
    assert combinations({"a": [1, 2], "b.c": ["x", "y"]}) == [
        {"a": 1, "b.c": "x"}, {"a": 1, "b.c": "y"}, {"a": 2, "b.c": "x"}, {"a": 2, "b.c": "y"},
    ]  # fmt: skip
    assert label_of({"algorithm.lr": 0.1, "model": "my net/v2"}, "FedAvg") == "FedAvg,algorithm.lr=0.1,model=my-net-v2"
    assert (seeds_of(3), seeds_of([7, 3])) == ([0, 1, 2], [7, 3])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\]"),
        ({"over": {"algorithm.lr": []}}, "has no values to try"),
        ({"over": {"algorithm.lr": "0.1"}}, "has no values to try"),
        ({"over": {"algorithm.rate": [0.1]}}, "FedAvg has no setting 'rate'"),
        ({"over": {"algoritm.lr": [0.1]}}, "'algoritm'.*[Dd]id you mean 'algorithm'"),
        ({"parallel": 0}, "parallel=0"),
        ({"over": {"algorithm.lr": [0.1, 0.1]}}, "two variants have the label 'algorithm.lr=0.1'"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(how: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        atoll.sweep(job(), partition, folder=tmp_path / "sweep", tell=silent, **how)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_two_algorithms_over_three_seeds(tmp_path: Path) -> None:
    jobs = {"FedAvg": job(), "FedProx": job(algorithm=FedProx(lr=0.1, mu=0.5, epochs=3))}
    lines: list[str] = []
    found = atoll.sweep(jobs, partition, seeds=3, folder=tmp_path / "sweep", tell=lines.append)
    assert lines[-1].startswith("6 of 6: ")
    names = [f"{name}_seed-{seed}" for name in jobs for seed in range(3)]
    assert [run.name for run in found.runs] == names
    # Each run is the simulation of its job, partition and seed.
    finals = {}
    for name, one in jobs.items():
        results = [atoll.simulate(one, partition(seed), seed=seed, workers=1) for seed in range(3)]
        finals[name] = [result.metrics.last("test/accuracy") for result in results]
        for seed, result in enumerate(results):
            rows = RunFolder(tmp_path / "sweep" / f"{name}_seed-{seed}").metrics()
            assert [row["test/accuracy"] for row in rows] == result.metrics.column("test/accuracy")
    first, second = found.rows
    assert (first["group"], second["group"], found.metric) == ("FedAvg", "FedProx", "test/accuracy")
    assert [first["mean"], first["sd"]] == pytest.approx(
        [statistics.fmean(finals["FedAvg"]), statistics.stdev(finals["FedAvg"])]
    )
    (one,) = found.differences
    oracle = stats.ttest_rel(finals["FedProx"], finals["FedAvg"])
    assert (one.test, one.n) == ("paired t", 3)
    assert [one.p, one.low, one.high] == pytest.approx([oracle.pvalue, *oracle.confidence_interval(0.95)])
    assert found.to_pandas()["test/accuracy"].tolist() == [*finals["FedAvg"], *finals["FedProx"]]
    assert f"{first['mean']:.4g} ± {first['sd']:.2g}" in str(found)
    axes = found.plot()
    drawn = axes.get_lines()[0].get_ydata()
    assert drawn[-1] == pytest.approx(first["mean"])
    assert len(axes.collections) == 2
    assert "difference from FedAvg" in found.report().read_text()


def test_runs_at_once_or_one_by_one_give_the_same_and_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    over = {"algorithm.lr": [0.01, 0.1]}
    apart = atoll.sweep(job(), partition, over=over, seeds=2, folder=tmp_path / "apart", parallel=1, tell=silent)
    together = atoll.sweep(job(), partition, over=over, seeds=2, folder=tmp_path / "together", parallel=3, tell=silent)
    assert apart.rows == together.rows
    before = {run.name: run.manifest() for run in together.runs}
    lines: list[str] = []
    more = atoll.sweep(job(), partition, over=over, seeds=3, folder=tmp_path / "together", tell=lines.append)
    assert lines[0] == "4 of 6 runs are finished already"
    assert {run.name: run.manifest() for run in more.runs if run.name in before} == before
    assert [row["finished"] for row in more.rows] == [3, 3]


def test_the_data_of_a_seed_are_loaded_once_for_all_runs(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def noted(seed: int) -> Any:
        with calls.open("a") as file:
            file.write(f"{seed} in {os.getpid()}\n")
        return partition(seed)

    over = {"algorithm.lr": [0.01, 0.1]}
    atoll.sweep(job(rounds=1), noted, over=over, seeds=[4, 9], folder=tmp_path / "s", parallel=2, tell=silent)
    assert calls.read_text().splitlines() == [f"{seed} in {os.getpid()}" for seed in (4, 9)]


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    lines: list[str] = []
    bad = {"good": job(), "bad": Training(model=linear(63, 10), rounds=2)}
    made = atoll.sweep(bad, partition, seeds=2, folder=tmp_path / "sweep", tell=lines.append)
    assert [(row["group"], row["finished"], len(row["failed"])) for row in made.rows] == [("good", 2, 0), ("bad", 0, 2)]
    assert sum("failed: the model takes 63 features" in line for line in lines) == 2
    assert made.differences[0].mean is None
    assert "2 failed" in str(made)


@pytest.mark.slow
def test_a_seed_changes_the_partition_unless_it_is_kept(config: Path, settings: dict[str, Any], typed: Typed) -> None:
    code, made, said = typed(
        "sweep", config, "--set", "algorithm.lr=0.01,0.1", "--set", "rounds=2", "--seeds", "4,9", "--folder", "s"
    )
    assert code == 0
    assert [row["group"] for row in made["variants"]] == ["algorithm.lr=0.01", "algorithm.lr=0.1"]
    assert made["variants"][0]["values"].keys() == {"4", "9"}
    assert "4 of 4: " in said
    folder = RunFolder("s/algorithm.lr=0.1_seed-9")
    plain = folder.settings()
    assert (plain["seed"], plain["data"]["partition"]["seed"], plain["rounds"], plain["workers"]) == (9, 9, 2, 1)
    code, _, _ = typed(
        "sweep", config, "--set", "rounds=1", "--seeds", "2", "--folder", "kept", "--keep", "data.partition.seed"
    )
    assert code == 0
    tables = [RunFolder(f"kept/run_seed-{seed}").settings()["data"]["partition"].get("seed", 0) for seed in (0, 1)]
    assert tables == [0, 0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "algorithm.lr"), "--set 'algorithm.lr'"),
        (("--set", "algorithm.rate=1,2"), "rate"),
        (("--seeds", "many"), "--seeds 'many'"),
        (("--keep", "data.source"), "--keep 'data.source'"),
    ],
)
def test_a_wrong_command_line_is_refused(config: Path, typed: Typed, words: tuple[str, ...], told: str) -> None:
    code, made, _ = typed("sweep", config, *words)
    assert code == ConfigError.exit_code
    assert told in made["error"]["what"]
    assert not Path("sweeps").exists()


def test_lists_are_values_and_commas_in_them_are_not(config: Path, typed: Typed) -> None:
    pairs = "selection={name: Uniform, count: 2},{name: Everyone}"
    code, made, _ = typed("sweep", config, "--set", pairs, "--set", "rounds=1", "--seeds", "1", "--folder", "s")
    assert code == 0
    assert len(made["variants"]) == 2


def test_a_folder_with_runs_of_other_settings_is_refused(config: Path, typed: Typed, tmp_path: Path) -> None:
    """Results of old settings never pass for results of new ones."""
    assert typed("sweep", config, "--seeds", "1", "--set", "rounds=1", "--folder", "s")[0] == 0
    assert typed("sweep", config, "--seeds", "2", "--set", "rounds=1", "--folder", "s")[0] == 0
    code, _, said = typed("sweep", config, "--seeds", "3", "--set", "rounds=2", "--folder", "s")
    assert (code, len(list(Path("s").glob("*_seed-*")))) == (2, 2)
    assert "other settings: rounds" in " ".join(said.replace("│", " ").split())
    atoll.sweep(job(), partition, seeds=1, folder=tmp_path / "python", tell=silent)
    with pytest.raises(ConfigError, match=r"other settings: algorithm\.lr"):
        atoll.sweep(job(algorithm=FedAvg(lr=0.2)), partition, seeds=1, folder=tmp_path / "python", tell=silent)


def _command(config: Path, folder: str) -> list[str]:
    words = [
        "sweep",
        str(config),
        "--set",
        "algorithm.lr=0.05,0.1",
        "--set",
        "rounds=60",
        "--seeds",
        "2",
        "--folder",
        folder,
    ]
    return [sys.executable, "-m", "atoll", *words, "--parallel", "2"]


@pytest.mark.parametrize(
    ("number", "alone"),
    [
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow),
        (signal.SIGINT, False),
    ],
)
@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on(config: Path, number: signal.Signals, alone: bool) -> None:
    """The signal reaches the sweep and its runs, as from a terminal, or the sweep's process alone, as from ``kill -9``."""
    with subprocess.Popen(
        _command(config, "stopped"), start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 60
        while not any(len(RunFolder(p).metrics()) > 5 for p in Path("stopped").glob("*")) and time.monotonic() < until:
            assert process.poll() is None
            os.sched_yield()
        (os.kill if alone else os.killpg)(process.pid, number)
        said = process.communicate()[1]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "To continue the sweep, give the same command again." in said
    for folder in ("stopped", "whole"):
        done = subprocess.run(_command(config, folder), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    whole = sorted(Path("whole").glob("*_seed-*"))
    assert len(whole) == 4
    for path in whole:
        again = RunFolder(Path("stopped") / path.name)
        assert again.status() == "finished"
        kept = ("round", "test/accuracy", "test/loss")
        rows = [[{name: row.get(name) for name in kept} for row in run.metrics()] for run in (again, RunFolder(path))]
        assert rows[0] == rows[1]


@pytest.mark.slow
def test_compare_takes_patterns_and_groups_seeds(config: Path, typed: Typed) -> None:
    for lr in (0.01, 0.1):
        for seed in (0, 1, 2):
            place = f"runs/{lr}-{seed}"
            typed(
                "run", config, "--set", f"algorithm.lr={lr}", "--set", f"seed={seed}", "--folder", place, "--no-report"
            )
    code, made, _ = typed("compare", "runs/*")
    assert code == 0
    assert len(made["runs"]) == 6
    assert [(one["group"], one["runs"]) for one in made["groups"]] == [
        ("algorithm.lr=0.01", 3),
        ("algorithm.lr=0.1", 3),
    ]
    assert made["differences"][0]["test"] == "paired t"
    assert "Groups: the same settings under several seeds" in Path(made["report"]).read_text()
    code, alone, _ = typed("compare", "0.01-0", "0.1-0")
    assert code == 0
    assert "groups" not in alone
    code, refused, _ = typed("compare", "none-*")
    assert code != 0
    assert "no run matches 'none-*'" in refused["error"]["what"]


def test_groups_without_common_seeds_are_compared_as_independent(config: Path, typed: Typed) -> None:
    for lr, seeds in ((0.01, (0, 1, 2)), (0.1, (5, 6))):
        for seed in seeds:
            typed(
                "run",
                config,
                "--set",
                f"algorithm.lr={lr}",
                "--set",
                f"seed={seed}",
                "--folder",
                f"runs/{lr}-{seed}",
                "--no-report",
            )
    groups = grouped([RunFolder(path) for path in sorted(Path("runs").glob("*"))])
    metric = main_metric(groups, "test/loss")
    from atoll.report.groups import differences

    (one,) = differences(groups, metric)
    a, b = (list(group.last(metric).values()) for group in groups)
    oracle = stats.ttest_ind(b, a, equal_var=False)
    assert one.test == "Welch's t"
    assert [one.mean, one.p, one.low, one.high] == pytest.approx(
        [np.mean(b) - np.mean(a), oracle.pvalue, *oracle.confidence_interval(0.95)]
    )
    with pytest.raises(ConfigError, match=r"metric 'test/acc' is not in every run.*test/accuracy"):
        main_metric(groups, "test/acc")


# Arms that are functions, and folders that are gone with the result.


def count_rows(islands: Any, seed: int) -> dict[str, float]:
    """The majority's share of all rows, and the seed."""
    y = np.concatenate([np.asarray(one.y) for one in islands])
    return {"test/accuracy": float(np.bincount(y).max() / len(y)), "seed used": seed}


def of_first(islands: Any, seed: int) -> dict[str, float]:
    return {"test/accuracy": 0.7 + 0.1 * seed}


def a_tenth_more(islands: Any, seed: int) -> dict[str, float]:
    return {"test/accuracy": of_first(islands, seed)["test/accuracy"] + 0.1}


@pytest.mark.parametrize(
    ("arm", "seeds", "told"),
    [
        (a_tenth_more, 3, "+0.1 (no interval: the 3 seeds differ in nothing)"),
        (of_first, 2, "+0 (no interval: the 2 seeds differ in nothing)"),
        (a_tenth_more, 1, "+0.1 (no interval: one seed)"),
    ],
    ids=["equal differences", "no difference", "one seed"],
)
def test_seeds_that_show_no_spread_give_no_interval(arm: Any, seeds: int, told: str, tmp_path: Path) -> None:
    """A width of 0 would say that every further seed gives the same: nothing of the kind was seen."""
    found = run_study({"first": of_first, "other": arm}, partition, seeds=seeds, folder=tmp_path, tell=silent)
    (one,) = found.differences
    assert (one.low, one.high, one.p, one.test) == (None, None, None, "")
    assert told in str(found)


def test_a_function_is_an_arm(tmp_path: Path) -> None:
    made = run_study(
        {"FedAvg": job(), "majority": count_rows}, partition, seeds=[2, 5], folder=tmp_path / "s", tell=silent
    )
    y = np.asarray(ROWS["y"])
    assert made.rows[1]["values"] == {"2": np.bincount(y).max() / len(y), "5": np.bincount(y).max() / len(y)}
    (one,) = made.differences
    assert (one.group, one.against, one.test, one.n) == ("majority", "FedAvg", "paired t", 2)
    rows = RunFolder(tmp_path / "s" / "majority_seed-5").metrics()
    assert [row["seed used"] for row in rows] == [5.0]


def test_a_study_without_a_folder_leaves_nothing() -> None:
    made = run_study({"majority": count_rows}, partition, seeds=1, tell=silent)
    place = made.folder
    assert made.rows[0]["finished"] == 1
    assert place.exists()
    del made
    gc.collect()
    assert not place.exists()


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        ({"a": 3}, "3 is neither a job nor a function"),
        ({"a": Training}, "is neither a job nor a function"),
        ({"a b": job(), "a-b": job()}, "two variants have the label 'a-b'"),
    ],
)
def test_what_is_no_arm_is_refused(arms: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        run_study(arms, partition, folder=tmp_path / "s", tell=silent)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("gives", [{}, {"a": "word"}, 3.0])
def test_a_function_without_measures_fails_by_name(gives: Any, tmp_path: Path) -> None:
    def measure(data: Any, seed: int) -> Any:
        del data, seed
        return gives

    lines: list[str] = []
    made = run_study({"job": job(), "bad": measure}, partition, seeds=1, folder=tmp_path / "s", tell=lines.append)
    assert made.rows[1]["finished"] == 0
    assert any("failed: measure returned" in line for line in lines)


def test_a_diverged_arm_is_said_below_the_table(tmp_path: Path) -> None:
    arms = {"usual": job(), "steep": job(algorithm=FedAvg(lr=1e6))}
    made = run_study(arms, partition, seeds=2, folder=tmp_path / "s", parallel=1, tell=silent)
    told = [notice for notice in made.rows[1]["notices"] if "diverged" in notice]
    assert len(told) == 1  # of both seeds, whose numbers differ
    assert not [notice for notice in made.rows[0]["notices"] if "diverged" in notice]
    assert f"notice  steep: {told[0]}" in str(made).splitlines()
    assert "steep: " + told[0][:20] in made.report().read_text(encoding="utf-8")


# A finished run counts as long as its code is the same.


OWN = """
from dataclasses import dataclass
import numpy as np
import atoll
from atoll.core.algebra import tree as T

FACTOR = 1.0
TABLE = np.arange(3)

def scaled(x):
    "Doc."
    return T.scale(x, FACTOR)

@dataclass(frozen=True, kw_only=True)
class Mine(atoll.FedAvg):
    def fold(self, state, sums, info, phase):
        # a comment
        return {**state, "params": T.add(state["params"], scaled(sums["update"]))}
"""


def own(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> Any:
    """A user's module, imported anew."""
    (folder / "own_method.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second would find the old one
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own_method", raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("own_method")


EDITS = {
    "nothing": ("", "", []),
    "a comment": ("# a comment", "# another\n        # comment", []),
    "a docstring": ('"Doc."', '"Another text."', []),
    "a constant": ("FACTOR = 1.0", "FACTOR = 0.1", ["own_method:FACTOR"]),
    "a helper": ("T.scale(x, FACTOR)", "T.scale(T.scale(x, FACTOR), 0.5)", ["own_method:scaled"]),
    "a method": ('T.add(state["params"], scaled', 'T.sub(state["params"], scaled', ["own_method:Mine.fold"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_digest_tells_an_edit_from_a_comment(edit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, after, names = EDITS[edit]
    digests = []
    for text in (OWN, OWN.replace(before, after) if before else OWN):
        mine = own(monkeypatch, tmp_path, text)
        digests.append(digest_code(job(algorithm=mine.Mine(lr=0.1))))
    assert changed_names(*digests) == names
    assert "own_method:Mine.fold" in digests[0]
    assert not any(name.startswith("atoll") for name in digests[0])


def test_constants_of_a_function_count_in_their_order() -> None:
    def one(f: Any) -> Any:
        return f(1, 2, 1)

    def other(f: Any) -> Any:
        return f(1, 1, 2)

    assert len({next(iter(digest_code(each).values())) for each in (one, other)}) == 2


def test_what_a_function_closes_over_counts() -> None:
    def make(share: float, table: Any) -> Any:
        return lambda data, seed: {"share": share, "sum": table.sum()}

    first, second = digest_code(make(0.1, np.arange(3))), digest_code(make(0.2, np.arange(3)))
    assert [name.rpartition(".")[2] for name in changed_names(first, second)] == ["share"]
    third = digest_code(make(0.1, np.arange(4)))
    assert [name.rpartition(".")[2] for name in changed_names(first, third)] == ["table"]


HELD = """
import dataclasses, functools, types
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, k=1.0):
        super().__init__()
        self.layer, self.k = nn.Linear(2, 2), k

@dataclasses.dataclass
class Settings:
    k: float = 1.0

class Loss:
    def __init__(self, k):
        self.k = k

def doubled(function):
    @functools.wraps(function)
    def call(*given):
        return function(*given) * 1.0
    return call

class Decorated(nn.Module):
    @doubled
    def forward(self, x):
        return x

PLAIN, HELD, TENSOR = types.SimpleNamespace(k=V), Settings(V), torch.tensor([V])
MIXED = {"act": torch.relu, "k": [V, Net]}
EDGE = torch.zeros(3, dtype=torch.bfloat16) + V

def default(k=V, *, more=V): return Net(k)
def reads(): return PLAIN.k, HELD.k, TENSOR, MIXED, EDGE

torch.manual_seed(int(V))
weights, attribute, loss = Net(), Net(V), nn.CrossEntropyLoss(weight=torch.tensor([1.0, V]))
layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh() if V > 1 else nn.ReLU())
partial = functools.partial(Net, k=V)
object_ = Loss(V)
"""


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("weights", ["own_method:Net().layer.bias", "own_method:Net().layer.weight"]),
        ("attribute", "own_method:Net().k"),
        ("layers", "torch.nn.modules.container:Sequential().1"),
        ("loss", ["torch.nn.modules.loss:CrossEntropyLoss().weight"]),
        ("partial", ["partial(own_method:Net).k"]),
        ("object_", ["own_method:Loss().k"]),
        ("default", ["own_method:default(k)", "own_method:default(more)"]),
        ("reads", [f"own_method:{constant}" for constant in ("EDGE", "HELD", "MIXED", "PLAIN", "TENSOR")]),
    ],
)
def test_what_objects_hold_counts(name: str, changed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    def digest(value: float) -> dict[str, str]:
        with torch.random.fork_rng(devices=[]):
            return digest_code(getattr(own(monkeypatch, tmp_path, HELD.replace("V", repr(value))), name))

    first, again, other = digest(1.0), digest(1.0), digest(2.0)
    assert first == again
    names = changed_names(first, other)
    assert names == changed if isinstance(changed, list) else changed in names


READ = """
import collections, datetime, decimal, enum, fractions, re, types
from pathlib import Path
import numpy as np
import own_settings

class Mode(enum.Enum):
    LOW, HIGH = "low", "high"

class Slotted:
    __slots__ = ("rate",)
    def __init__(self, rate):
        self.rate = rate

class Hidden:
    def __init__(self, rate):
        self._rate = rate

START = datetime.date(2020, 1, V)
PRICE, SHARE = decimal.Decimal(V), fractions.Fraction(V, 7)
FOLDER, WORD = Path(str(V)), re.compile(str(V))
MODE = Mode.LOW if V == 1 else Mode.HIGH
SLOTTED, HIDDEN = Slotted(V), Hidden(V)
DRAWS = np.random.default_rng(V)
KEYS = {(1, V): 0}
LAST = collections.deque([V])
SEEN = types.MappingProxyType({"rate": V})
TREE = {"rate": V}
TREE["self"] = TREE

def reads():
    return (START, PRICE, SHARE, FOLDER, WORD, MODE, SLOTTED, HIDDEN, DRAWS, KEYS, LAST, SEEN, TREE, own_settings.RATE)
"""


def test_every_constant_that_a_function_reads_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also those of other modules, by a dot, and those of classes of Python's own; what holds itself has an end."""

    def digest(value: int) -> dict[str, str]:
        settings: Any = types.ModuleType("own_settings")
        settings.__file__, settings.RATE = str(tmp_path / "own_settings.py"), value
        monkeypatch.setitem(sys.modules, "own_settings", settings)
        return digest_code(own(monkeypatch, tmp_path, READ.replace("V", str(value))).reads)

    first, again, other = digest(1), digest(1), digest(2)
    assert first == again
    names = [
        "DRAWS",
        "FOLDER",
        "HIDDEN",
        "KEYS",
        "LAST",
        "MODE",
        "PRICE",
        "SHARE",
        "SLOTTED",
        "START",
        "TREE",
        "SEEN",
        "WORD",
    ]
    expected = {f"own_method:{name}" for name in names} - {"own_method:HIDDEN", "own_method:SLOTTED"}
    assert set(changed_names(first, other)) == {
        *expected,
        "own_method:Hidden()._rate",
        "own_method:Slotted().rate",
        "own_settings:RATE",
    }


def test_libraries_beside_the_environment_are_no_code_of_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library: Any = types.ModuleType("own_library")
    library.__file__, library.RATE = str(tmp_path / "lib" / "python3" / "dist-packages" / "own_library.py"), 1
    monkeypatch.setitem(sys.modules, "own_library", library)
    found = digest_code(
        own(monkeypatch, tmp_path, "import own_library\ndef reads():\n    return own_library.RATE\n").reads
    )
    assert set(found) == {"own_method:reads"}


def test_a_decorator_with_the_name_of_its_function_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    edits = (HELD, HELD.replace("* 1.0", "* 2.0"), HELD.replace("return x\n", "return -x\n"))
    plain, wrapper, wrapped = (
        digest_code(own(monkeypatch, tmp_path, text.replace("V", "1.0")).Decorated) for text in edits
    )
    assert "own_method:Decorated.forward" in changed_names(plain, wrapper)
    assert "own_method:Decorated.forward" in changed_names(plain, wrapped)


@pytest.mark.parametrize("made", ["dictionary", "function", "partition", "held out"])
def test_a_finished_run_of_other_rows_is_not_reused(made: str, tmp_path: Path) -> None:
    def study(scale: float) -> str:
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
        parts = {name: atoll.data.Dataset({"x": x * (scale if name == "b" else 1.0), "y": y}) for name in "ab"}
        lines: list[str] = []
        whole = atoll.data.Islands.from_datasets(parts)
        held = whole.with_held_out(0.2, seed=0)
        data: Any = {"dictionary": parts, "function": lambda seed: whole, "partition": whole, "held out": held}[made]
        run_study(
            {"FedAvg": job(rounds=1).replace(model=linear(3, 2))},
            data,
            seeds=1,
            folder=tmp_path / "s",
            parallel=1,
            metric="loss",
            tell=lines.append,
        )
        return lines[0]

    assert "finished in" in study(1.0)
    assert "finished already" in study(1.0)
    assert "since your data have changed: data of b" in study(2.0)


def test_a_finished_run_of_other_code_is_not_reused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The case of an edited fold: the table showed the results of the code before the edit."""

    def study(text: str) -> tuple[Any, list[str]]:
        mine = own(monkeypatch, tmp_path, text)
        lines: list[str] = []
        arms = {"mine": job(algorithm=mine.Mine(lr=0.1)), "FedAvg": job()}
        return run_study(arms, partition, seeds=1, folder=tmp_path / "s", parallel=1, tell=lines.append), lines

    first, _ = study(OWN)
    again, lines = study(OWN)
    assert (lines[0], again.rows) == ("2 of 2 runs are finished already", first.rows)
    edited, lines = study(OWN.replace("FACTOR = 1.0", "FACTOR = 0.125"))
    assert lines[0] == (
        "mine_seed-0 runs again, since your code has changed: own_method:FACTOR; the old run is in superseded/mine_seed-0.1"
    )
    assert lines[1] == "1 of 2 runs are finished already"
    assert edited.rows[0]["values"] != first.rows[0]["values"]
    assert edited.rows[1] == first.rows[1]
    assert RunFolder(tmp_path / "s" / "superseded" / "mine_seed-0.1").metrics()  # nothing is lost
    (tmp_path / "s" / "code.json").unlink()
    _, lines = study(OWN)
    assert "mine_seed-0 runs again, what it ran is not known" in lines[0]


MODEL = """
import numpy as np
import torch
import atoll

STEP = 1.0

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x) * 2.0

def train(params, data, rng):
    return {"w": params["w"] + STEP}

def start(rng):
    return {"w": np.zeros(1)}

def measure(params, data):
    return {"loss": float(params["w"][0])}

loop = atoll.models.CustomLearner(init=start, train=train, evaluate=measure)
"""


@pytest.mark.parametrize(
    ("text", "made", "edit", "changed"),
    [
        (OWN, lambda mine: {"algorithm": mine.Mine(lr=0.1)}, ("FACTOR = 1.0", "FACTOR = 0.1"), "FACTOR"),
        (MODEL, lambda mine: {"model": mine.loop}, ("STEP = 1.0", "STEP = 2.0"), "STEP"),
        (MODEL, lambda mine: {"model": mine.Net}, ("* 2.0", "* 3.0"), "Net.forward"),
    ],
    ids=["algorithm", "own loop", "network"],
)
def test_a_sweep_says_which_code_has_changed(
    text: str,
    made: Any,
    edit: tuple[str, str],
    changed: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """People read the line that ``atoll.sweep`` prints by itself."""

    def swept(source: str) -> tuple[str, Any]:
        mine = own(monkeypatch, tmp_path, source)
        found = atoll.sweep(
            job().replace(**made(mine)), partition, seeds=1, folder=tmp_path / "s", parallel=1, metric="test/loss"
        )
        return capfd.readouterr().err, found.rows[0]["mean"]

    first, before = swept(text)
    again, same = swept(text)
    edited, after = swept(text.replace(*edit))
    assert "runs again" not in first + again
    assert same == before
    (line,) = [line for line in edited.splitlines() if "runs again" in line]
    assert line.startswith("sweep: run_seed-0 runs again, since your code has changed: ")
    assert changed in line
    assert line.endswith("the old run is in superseded/run_seed-0.1")
    assert after != before


def test_is_federating_worth_it_is_a_study() -> None:
    """Alone, federated and pooled, with equal work; each value is that of the function that trains so."""
    one = job(rounds=3)
    made = run_study(baseline_arms(one), partition, seeds=[1, 4], tell=silent)
    values = {row["group"]: row["values"] for row in made.rows}
    assert list(values) == ["alone", "federated", "pooled"]
    for seed in (1, 4):
        alone = train_alone(one, partition(seed), seed=seed, progress=False)
        assert values["alone"][str(seed)] == pytest.approx(statistics.fmean(alone), rel=1e-12)
        pooled = train_pooled(one, partition(seed), seed=seed, progress=False)
        assert values["pooled"][str(seed)] == pooled.metrics.last("test/accuracy")
    assert [row["alone/best"] >= row["alone/worst"] for row in made.runs[0].metrics()] == [True]


def test_an_arm_that_raises_is_named_with_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    run_study({"FedAvg": job(rounds=1), "own": lambda data, seed: data.nothing}, partition, seeds=1,
              folder=tmp_path / "s", parallel=2, tell=lines.append)  # fmt: skip
    (told,) = [line for line in lines if "own_seed-0" in line]
    assert "<lambda> raised AttributeError: " in told
    assert "(test_study.py, line " in told
    assert "Traceback" not in capfd.readouterr().err


def test_baseline_arms_take_data_sets_by_name_and_ask_for_test_rows() -> None:
    rows = {name: atoll.data.Dataset({"x": np.zeros((4, 3)), "y": np.arange(4) % 2}) for name in "ab"}
    alone = atoll.study.baseline_arms(job(rounds=1).replace(model=linear(3, 2)))["alone"]
    with pytest.raises(DataError, match=r"has no test rows, on which the arms are compared.*with_test"):
        alone(rows, 0)
