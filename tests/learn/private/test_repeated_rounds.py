"""A round that is repeated after a crash never spends twice, and never forgets; ``kill -9`` at file operations changes neither."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.event import Gaussian, Ledger
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Roster
from atoll.core.requests.results import Combined
from atoll.learn import RoundInfo, Training
from atoll.learn.round.phases import release_round
from atoll.mechanisms import CentralDP
from atoll.privacy import LossTally
from atoll.selection import Uniform

DATA = atoll.data.iid(atoll.data.digits(), parties=12, seed=0)
ROUNDS = 6


def job(**more: Any) -> Training:
    settings = {
        "privacy": CentralDP(noise=1.0, clip=1.0, accountant="rdp"),
        "checkpoint_every": 3,
        "rounds": ROUNDS,
        **more,
    }
    return Training(model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.1), selection=Uniform(4), **settings)


def run(folder: Path, **more: Any) -> Any:
    return atoll.simulate(job(), DATA, engine="inline", seed=1, folder=folder, progress=False, **more)


def charges(folder: Path) -> list[str]:
    lines = list(Ledger(folder / "checkpoints" / "ledger.jsonl"))
    return [line["request"] for line in lines if line["kind"] == Gaussian.kind]


class _CrashError(Exception):
    pass


def test_repeated_rounds_release_the_same_and_are_charged_once(tmp_path: Path) -> None:
    """The checkpoint is of round 3, rounds 4 and 5 have been seen, and run again."""
    seen: list[dict[str, Any]] = []

    def record(row: dict[str, Any]) -> None:
        seen.append(row)
        if len(seen) == 5:
            raise _CrashError("after round 5")

    with pytest.raises(_CrashError, match="after round 5"):
        run(tmp_path / "run", on_record=record)
    before = charges(tmp_path / "run")
    assert len(before) == 5
    made = run(tmp_path / "run", resume=True)
    assert charges(tmp_path / "run")[:5] == before
    assert len(charges(tmp_path / "run")) == ROUNDS
    again = {row["round"]: row for row in made.metrics}
    for row in seen:  # the same sample, sum and noise
        assert again[row["round"]]["test/loss"] == row["test/loss"]
        assert again[row["round"]]["replied"] == row["replied"]
    assert made.metrics.last("epsilon") == made.prepared.claim.epsilon


def test_a_new_run_in_the_same_world_has_another_secret(tmp_path: Path) -> None:
    one = run(tmp_path / "one")
    other = run(tmp_path / "other")
    assert one.metrics.last("test/loss") != other.metrics.last("test/loss")


@pytest.mark.network
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("operation", [9, 23, 31])
def test_killed_at_a_file_operation(tmp_path: Path, operation: int) -> None:
    """Killed once before a flush or a rename, then resumed: every round is charged once, and no row that was seen changes."""
    shown = tmp_path / "shown.jsonl"

    def child(kill: int | None) -> int:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _run_and_die(tmp_path / "run", shown, kill)
                code = 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert child(operation) == -signal.SIGKILL
    assert child(None) == 0
    assert len(charges(tmp_path / "run")) == len(set(charges(tmp_path / "run"))) == ROUNDS
    rows: dict[int, Any] = {}
    for line in shown.read_text().splitlines():
        number, loss = json.loads(line)
        assert rows.setdefault(number, loss) == loss
    assert sorted(rows) == list(range(1, ROUNDS + 1))


def _run_and_die(folder: Path, shown: Path, kill: int | None) -> None:
    count = [0]

    def counted(operation: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **kwargs)

        return wrapped

    os.fsync, Path.replace = counted(os.fsync), counted(Path.replace)  # type: ignore[method-assign]

    def record(row: dict[str, Any]) -> None:
        with shown.open("a") as file:
            file.write(json.dumps([row["round"], row["test/loss"]]) + "\n")

    begun = (folder / "checkpoints").exists()
    run(folder, resume=begun, on_record=record)


# ---------------------------------------------------------------------- sums that differ


class _World(SimpleNamespace):
    def secret(self, *purpose: Any) -> Secret:
        return Secret(("/".join(map(str, purpose))).encode())


def released_again(values: list[float], event: Gaussian) -> tuple[list[np.ndarray[Any, Any]], Ledger]:
    """The noise of one round whose sum is in turn each of these, and the ledger."""
    ledger, parties = Ledger(), Roster(["a", "b"]).all()
    fed: Any = _World(
        slot="main", hub="server", world=SimpleNamespace(ledger=ledger, secret_seed=None), parties=parties
    )
    part = SimpleNamespace(event=event, noisy=True, disclosed=lambda info: info)
    noises = []
    for value in values:
        sums = Combined({"update": np.full(4, value)}, 2, {"update": 2.0}, parties, parties, kinds={"update": "mean"})
        info = release_round(
            fed, SimpleNamespace(aggregation=part), sums, RoundInfo(1, 2, 2, 2), (1, "train"), first=True
        )  # type: ignore[arg-type]
        assert info.secret is not None
        noises.append(info.secret.stream().standard_normal(4))
    return noises, ledger


def test_another_sum_of_the_same_round_has_fresh_noise_and_is_charged() -> None:
    """Equal noise on two sums would give away their difference."""
    event = Gaussian(noise_multiplier=1.0)
    noises, ledger = released_again([0.5, 0.5, 0.7, 0.5, 0.7], event)
    np.testing.assert_array_equal(noises[0], noises[1])
    np.testing.assert_array_equal(noises[2], noises[4])
    assert np.abs(noises[0] - noises[2]).min() > 0
    losses = LossTally(ledger).update()
    assert losses.of("a").gaussian == losses.of("b").gaussian == 2.0


def test_a_sample_that_is_released_twice_is_counted_in_full() -> None:
    event = Gaussian(noise_multiplier=1.0, sampling=0.1, drawn_by="server")
    _, ledger = released_again([0.5, 0.7], event)
    counts = {e.sampling: n for e, n in LossTally(ledger).update().of("a").releases}
    assert counts == {0.1: 1, 1.0: 2}
    assert replace(event, sampling=1.0, drawn_by="public") in dict(LossTally(ledger).update().of("b").releases)
