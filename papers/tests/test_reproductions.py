"""The entries of the distribution, and FedAvg on MNIST: words when the data are not there, and the path of the real thing on data of a second."""

from __future__ import annotations

import ast
import gzip
import json
import struct
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.cli import run
from atoll.core.addresses import load_object
from atoll.reproduce import Entry, Lab, TrainedRun, entries, names, read_tallies, reproduce, tallies
from atoll.runs import RunFolder
from atoll_papers.fedavg import paper_cnn, some_digits

PAPERS = Path(__file__).parents[1]
PROJECT = tomllib.loads((PAPERS / "pyproject.toml").read_text(encoding="utf-8"))["project"]
POINTS: dict[str, str] = PROJECT["entry-points"]["atoll.papers"]
PAGES = PAPERS / "docs"
ADDRESSES: dict[str, str] = PROJECT["entry-points"]["atoll.addresses"]


def test_every_entry_bears_the_name_that_people_type() -> None:
    found = entries()
    assert set(found) == set(POINTS), "run make: the installed list is an old one"
    for name, made in found.items():
        assert isinstance(made, Entry), made
        assert made.name == name
        assert made.title
        assert made.source


def test_no_entry_is_left_out_of_the_list() -> None:
    made = {
        f"{path.relative_to(PAPERS / 'src').with_suffix('').as_posix().replace('/', '.')}:{target.id}"
        for path in (PAPERS / "src").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.endswith("ENTRY")
    }
    assert made == set(POINTS.values())


# What configurations of today's entries name, and what each name must find. Kept trainings lie in folders named by a digest of these words: none of them ever changes.
DECLARED = (Path(__file__).parent / "declared_names.txt").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_name_finds_its_part(name: str) -> None:
    assert callable(load_object(name))


def test_no_address_is_without_a_declared_name() -> None:
    assert {name.partition(":")[0] for name in DECLARED} == set(ADDRESSES)


def test_the_tally_that_is_listed_is_that_of_the_pages() -> None:
    assert tallies() == read_tallies(PAGES), "run: python -m atoll_papers papers/docs"


def test_the_list_tells_measured_from_derived_statements(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["reproductions"]}
    assert list(rows) == names()
    assert rows["fedaq-table"]["verdicts"] == tallies()["fedaq-table"]
    assert set(rows["fedaq-table"]["verdicts"]) == {"measured", "derived"}


def rows(*values: float | None) -> TrainedRun:
    made = [{"round": i, "test/accuracy": v} for i, v in enumerate(values, 1)]
    return TrainedRun(RunFolder("nowhere"), made, 1.0)


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
    from atoll_papers import fedavg

    monkeypatch.setattr(fedavg, "_QUICK_ROWS", 300)
    monkeypatch.setattr(fedavg, "_2NN", {"name": "linear", "features": 784, "outputs": 10})
    monkeypatch.setattr(fedavg, "_ENGINE", "inline")
    found = reproduce("fedavg-mnist", Lab(tmp_path / "kept"), quick=True)
    assert set(found) == {"name", "claims", "seconds"}
    assert found["seconds"] > 0
    for claim in found["claims"]:
        assert set(claim) == {"claim", "paper", "ours", "holds", "note", "part", "basis", "kind"}
        pooled = float(claim["note"].split()[1]) / 100
        assert claim["holds"] == (claim["ours"] >= pooled - 0.02)
        assert claim["note"].endswith("chosen after looking at the test rows: a smoke test, no evidence")


@pytest.mark.parametrize(("values", "ours", "holds"), [((0.5, 0.96, 0.98), 2.5, True), ((0.5, 0.9), None, False)])
def test_rounds_claims_are_judged_by_their_rule(values: tuple[float, ...], ours: float | None, holds: bool) -> None:
    from atoll_papers.fedavg import _rounds

    claim = _rounds("rounds to 97 %", 2, rows(*values), 0.97)
    assert (claim.ours, claim.holds) == (ours, holds)
    slow = _rounds("rounds to 97 %", 1, rows(*values), 0.97)
    assert not slow.holds
