"""A cohort in native code is shared among threads, and nothing that comes out depends on how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

import atoll
from atoll.algorithms import FedAvg, Scaffold
from atoll.core.requests.cohort import Cohort
from atoll.core.requests.party import Parties, Roster
from atoll.data import About, Islands
from atoll.learn.learner import LearnerSettings, adapt
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining, local
from tests.support.torch_toys import broadcast_of, keys_of, seeded, shards_of

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
SIZES = [7, 40, 12, 10, 33, 5, 0, 1, 25, 60, 8, 19]


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))


def _linear() -> nn.Module:
    return seeded(lambda: nn.Linear(6, 4))


def _training(algorithm: Any, threads: int) -> LocalTraining:
    form = {"native": True, "widths": [5], "stretch": 1024, "uneven": True, "threads": threads}
    return LocalTraining(_linear(), algorithm, choices={"mode": "vector", "block": 3, **form})


def _bits(training: LocalTraining, shards: list[Any]) -> dict[str, Any]:
    made = training.many_sum(shards, broadcast_of(_linear()), None, keys_of(len(shards)))
    values = {name: total.value for name, total in made.totals.items()}
    return {"totals": values, "rejected": made.rejected, "rest": [made.kept, made.losses, made.steps]}


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """More threads than parts too."""
    algorithm, shards = FedAvg(lr=0.1, epochs=8, batch_size=5), shards_of(SIZES, (6,))
    shards[3][0][2, 3] = np.nan
    wanted = _bits(_training(algorithm, 1), shards)
    assert list(wanted["rejected"]) == [3]
    for threads in (2, 3, 100):
        training = _training(algorithm, threads)
        for _ in range(3):
            np.testing.assert_equal(_bits(training, shards), wanted)
        assert training._runner is not None
        code = next(iter(training._runner.natives._made.values()))._code  # type: ignore[union-attr]
        assert len(code._room) >= 2 * code._needs(
            8 * 12, 60
        )  # scratch memory of several threads, each with a client's mini-batches


def _islands(stored: bool = True, kind: str = "f4") -> Islands:
    def make(client: int, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": rng.normal(size=(20, 6)).astype(kind), "y": np.arange(20) % 4}

    about = About(name="made", task="classification", classes=4)
    made = Islands.generate(8, make, sizes=20, about=about)
    return Islands.from_datasets([made.shard(i).dataset() for i in range(8)]) if stored else made


@pytest.mark.parametrize(
    ("stored", "kind", "compile_", "fetched", "threads"),
    [
        (True, "f4", "always", 0, 3),
        (True, "f8", "always", 960, 3),
        (True, "f8", "always", 959, 1),
        (True, "f4", "never", 960, 1),
        (False, "f4", "always", 960, 1),
    ],
    ids=["read where they are", "converted", "too much to fetch", "without native code", "made on demand"],
)
def test_threads_are_taken_where_workers_would_bring_less(
    stored: bool, kind: str, compile_: str, fetched: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three cores the other two would fetch the rows of twice as many clients as this one prepares."""
    monkeypatch.setattr(local, "_FETCHED", fetched)
    islands, model = _islands(stored, kind), _linear()
    settings = LearnerSettings(algorithm=FedAvg(lr=0.1, batch_size=5), compile=compile_)
    tuning = adapt(model, settings, islands).train.tuning
    assert tuning is not None
    cohort = Cohort(Parties(Roster(islands.names), np.arange(1)), keys_of(1), islands)
    seconds = tuning.prepare(cohort, {"broadcast": broadcast_of(model), "phase": "train"}, 3)
    assert tuning.choices["threads"] == threads
    assert (seconds == 0.0) == (threads > 1)  # nothing is left for workers


@pytest.mark.slow
def test_a_run_on_two_cores_is_that_on_one() -> None:
    """To the bit, private states included; the record says how it ran."""
    job = atoll.Training(
        model=_linear(),
        algorithm=Scaffold(lr=0.1, epochs=8, batch_size=5),
        selection=atoll.Uniform(6),
        rounds=3,
        evaluation=atoll.Evaluation(server=False),
        compile="always",
    )
    one, two = (atoll.simulate(job, _islands(), engine="batched", workers=n, seed=1) for n in (1, 2))
    for name, value in one.params.items():
        assert np.array_equal(value, two.params[name])
    (task,) = two.engine["tasks"].values()
    assert (task["workers"], task["tuning"]["threads"]) == (1, 2)
    assert one.engine["tasks"].popitem()[1]["tuning"]["threads"] == 1
