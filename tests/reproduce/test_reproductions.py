"""Reproductions: claims as data, trainings that are kept, and words when the data are not there."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll.reproduce
from atoll.cli import run
from atoll.core.errors import ConfigError, DataError
from atoll.reproduce import Claim, Entry, Interrupted, Lab, entries, find_entry, reproduce
from atoll.reproduce.entry import TrainedRun
from atoll.reproduce.fedavg_mnist import paper_cnn, some_digits
from atoll.runs import RunFolder, Stopping


def test_every_file_of_the_room_is_an_entry() -> None:
    found = entries()
    assert "fedavg-mnist" in found
    for name, made in found.items():
        assert isinstance(made, Entry), made
        assert made.name == name
        assert made.title
        assert made.source
    with pytest.raises(ConfigError, match=r"no reproduction 'fedavg-mnst'\. Did you mean 'fedavg-mnist'"):
        find_entry("fedavg-mnst")


def test_a_broken_entry_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "torn_page.py").write_text("raise RuntimeError('half a file')")
    (tmp_path / "empty_page.py").write_text("")
    monkeypatch.setattr(atoll.reproduce, "__path__", [*atoll.reproduce.__path__, str(tmp_path)])
    assert find_entry("fedavg-mnist").name == "fedavg-mnist"
    with pytest.raises(
        ConfigError, match=r"'torn-page' cannot be loaded: RuntimeError: half a file.*repair that module"
    ):
        find_entry("torn-page")
    assert run(["reproduce", "torn-page"]) == ConfigError.exit_code
    capsys.readouterr()
    assert run(["reproduce", "--json"]) == 0
    listed = {row["name"]: row["title"] for row in json.loads(capsys.readouterr().out)["reproductions"]}
    assert listed["torn-page"].startswith(
        "broken: the reproduction 'torn-page' cannot be loaded: RuntimeError: half a file"
    )
    assert "no attribute 'ENTRY'" in listed["empty-page"]
    assert not listed["fedavg-mnist"].startswith("broken")


def test_a_training_runs_once(settings: dict[str, Any], tmp_path: Path) -> None:
    seen: list[int] = []
    watch = lambda title, rounds: lambda row: seen.append(row["round"])  # noqa: E731
    first = Lab(tmp_path, watch=watch).train(settings)
    assert seen == [1, 2, 3, 4]
    lab = Lab(tmp_path, watch=watch)
    again = lab.train({**settings, "name": "blink"})
    assert seen == [1, 2, 3, 4]
    assert again.rows == first.rows
    assert lab.seconds == first.seconds > 0
    Lab(tmp_path, watch=watch).train({**settings, "seed": 1})
    assert len(seen) == 8
    Lab(tmp_path, watch=watch, fresh=True).train(settings)
    assert len(seen) == 12


def test_a_training_that_was_stopped_goes_on(settings: dict[str, Any], tmp_path: Path) -> None:
    stopping = Stopping()
    stopping.ask()
    with pytest.raises(Interrupted, match="blink"):
        Lab(tmp_path, stopping).train(settings)
    seen: list[int] = []
    made = Lab(tmp_path, watch=lambda title, rounds: lambda row: seen.append(row["round"])).train(settings)
    assert seen == [2, 3, 4]
    assert [row["round"] for row in made.rows] == [1, 2, 3, 4]


def test_a_damaged_training_is_not_taken_for_a_finished_one(settings: dict[str, Any], tmp_path: Path) -> None:
    made = Lab(tmp_path).train(settings)
    (made.folder.path / "manifest.json").unlink()
    seen: list[int] = []
    again = Lab(tmp_path, watch=lambda title, rounds: lambda row: seen.append(row["round"])).train(settings)
    assert seen == []  # its checkpoint is whole: there is nothing left to train
    assert again.rows == made.rows


def rows(*values: float | None) -> TrainedRun:
    made = [{"round": i, "test/accuracy": v} for i, v in enumerate(values, 1)]
    return TrainedRun(RunFolder("nowhere"), made, 1.0)


def test_rounds_to_a_target_are_interpolated_on_the_best_so_far() -> None:
    # McMahan et al. 2017, section 3: curves are made monotone, crossings are interpolated linearly.
    assert rows(0.2, 0.6, 0.4, 0.8).rounds_to(0.7) == 3.5
    assert rows(0.2, 0.6).rounds_to(0.4) == 1.5
    assert rows(0.2, None, 0.6).rounds_to(0.4) == 2.0
    assert rows(0.5).rounds_to(0.25) == 0.5
    assert rows(0.2, 0.3).rounds_to(0.9) is None
    assert (rows(0.2, 0.6, 0.4).best(), rows(0.2, 0.6, 0.4).last()) == (0.6, 0.4)
    with pytest.raises(DataError, match="test/accuracy was never measured"):
        rows(None).best()


def test_the_models_are_those_of_the_paper() -> None:
    pytest.importorskip("torch")
    import atoll

    # Parameters as the paper counts them (section 3): 199,210 for the 2NN and 1,663,370 for the CNN.
    assert sum(p.numel() for p in atoll.models.mlp(784, 10, (200, 200))().parameters()) == 199_210
    assert sum(p.numel() for p in paper_cnn()().parameters()) == 1_663_370


def test_without_the_data_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    assert run(["reproduce", "fedavg-mnist", "--quick", "--root", str(tmp_path), "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "DataError"
    assert error["what"] == "the environment variable ATOLL_DATA is not set"
    assert "set ATOLL_DATA to the folder with " in error["remedy"]


def test_the_registry_is_listed(capsys: Any) -> None:
    assert run(["reproduce", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["reproductions"]
    assert {"name", "title", "source", "needs", "verdicts"} == set(listed[0])
    assert "fedavg-mnist" in [row["name"] for row in listed]


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up images in MNIST's form: 1,200 to train by 40 writers and 200 to test, a bright spot for each class."""
    rng = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "qmnist_writers").mkdir()
    writers = {}
    for part, count in (("train", 1200), ("t10k", 200)):
        y = rng.integers(0, 10, count).astype(np.uint8)
        x = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for i, label in enumerate(y):
            x[i, 2 * label + 2 : 2 * label + 5, 5:23] = 250
        images = struct.pack(">IIII", 0x803, count, 28, 28) + x.tobytes()
        labels = struct.pack(">II", 0x801, count) + y.tobytes()
        (tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
        writers[part] = rng.permutation(np.arange(count) % 40)
    np.savez(
        tmp_path / "qmnist_writers" / "mnist_writer_ids.npz", train_writer=writers["train"], test_writer=writers["t10k"]
    )
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    return tmp_path


def test_a_part_of_the_digits_is_fixed_and_keeps_writers_whole(small_mnist: Path) -> None:
    whole, part = some_digits(), some_digits(300)
    assert (len(whole), len(part), len(part.test or [])) == (1200, 300, 200)
    assert np.array_equal(part.x, some_digits(300).x)
    assert some_digits(300, flat=False).x.shape == (300, 1, 28, 28)
    by_writer, everyone = some_digits(300, writers=True), some_digits(writers=True)
    people, counts = np.unique(by_writer["writer"], return_counts=True)
    assert len(by_writer) == 300  # forty writers of thirty rows: ten of them
    assert len(people) == 10
    assert all(count == (everyone["writer"] == person).sum() for person, count in zip(people, counts, strict=True))


@pytest.mark.slow
def test_the_quick_reproduction_gives_claims_as_data(
    small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of the real thing on data of a second: every claim is judged by its own rule."""
    pytest.importorskip("torch")
    from atoll.reproduce import fedavg_mnist

    monkeypatch.setattr(fedavg_mnist, "_QUICK_ROWS", 300)
    monkeypatch.setattr(fedavg_mnist, "_2NN", {"name": "linear", "features": 784, "outputs": 10})
    monkeypatch.setattr(fedavg_mnist, "_ENGINE", "inline")
    found = reproduce("fedavg-mnist", Lab(tmp_path / "kept"), quick=True)
    assert set(found) == {"name", "claims", "seconds"}
    assert found["seconds"] > 0
    for claim in found["claims"]:
        assert set(claim) == {"claim", "paper", "ours", "holds", "note", "part", "basis"}
        pooled = float(claim["note"].split()[1]) / 100
        assert claim["holds"] == (claim["ours"] >= pooled - 0.02)
        assert claim["note"].endswith("chosen after looking at the test rows: a smoke test, no evidence")


def test_a_claim_is_plain_data() -> None:
    claim = Claim("rounds to 97 %", 87, 80.5, True, "rule").plain()
    assert json.loads(json.dumps(claim)) == claim


@pytest.mark.parametrize(("values", "ours", "holds"), [((0.5, 0.96, 0.98), 2.5, True), ((0.5, 0.9), None, False)])
def test_rounds_claims_are_judged_by_their_rule(values: tuple[float, ...], ours: float | None, holds: bool) -> None:
    from atoll.reproduce.fedavg_mnist import _rounds

    claim = _rounds("rounds to 97 %", 2, rows(*values), 0.97)
    assert (claim.ours, claim.holds) == (ours, holds)
    slow = _rounds("rounds to 97 %", 1, rows(*values), 0.97)
    assert not slow.holds
