"""The columns with real data, on generated files of the same form."""

import gzip
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atoll.core.errors import DataError
from atoll.reproduce import Lab, find_entry
from atoll_papers.upcycled.entries import PROTOCOL_AT_30, PROTOCOL_AT_90, RATES
from atoll_papers.upcycled.trainings import (
    COLUMNS,
    UpcycledMethod,
    UpcycledProtocol,
    divided,
    encode,
    islands,
    model,
    settings,
    vocabulary,
)

TINY = UpcycledProtocol(late=0.9, rounds=2, seeds=1, epochs=2, rows=1500)


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty writers with twenty digits, and 1,600 tweets whose words say their label."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    divided.cache_clear()
    rng = np.random.default_rng(0)
    for name in ("mnist", "qmnist_writers", "sent140"):
        (tmp_path / name).mkdir()
    for part, n in (("train", 1200), ("t10k", 10)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (n, 28, 28), np.uint8)),
            ("labels-idx1", (np.arange(n) % 10).astype(np.uint8)),
        ):
            (tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(_idx(array), 1))
    np.savez(
        tmp_path / "qmnist_writers" / "mnist_writer_ids.npz",
        train_writer=(np.arange(1200) % 60).astype(np.int16),
        test_writer=np.full(10, 900, np.int16),
    )
    lines = ["id,user_id,label,date,text"]
    for i in range(1600):
        good = i % 2
        words = " ".join(rng.choice(["happy", "great", "sunny"] if good else ["sad", "awful", "rain"], 6))
        once = "q" + "".join(chr(97 + int(digit)) for digit in str(i))
        lines.append(f"{i},{i % 900},{good},x,{words} today {once}")
    (tmp_path / "sent140" / "sent140_20k_with_users.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    yield tmp_path
    divided.cache_clear()


def test_words_become_numbers():
    known = vocabulary(["b a b", "A b c", "c d!"])
    assert known == {"b": 2, "a": 3, "c": 4}  # "d" and "!" occur once; "a" and "c" twice, in the order of the alphabet
    assert vocabulary(["b a b", "a b"], size=1) == {"b": 2}
    np.testing.assert_array_equal(
        encode(["a zebra b", "", "a b c a b"], known, 4), [[0, 3, 1, 2], [0] * 4, [3, 2, 4, 3]]
    )


def test_fifty_writers_are_clients(folder):
    train, test = divided("qmnist")
    assert len(train) == len(test) == 50
    assert train.sizes.tolist() == [18] * 50
    assert test.sizes.tolist() == [2] * 50
    assert [*train.names] == [*divided("qmnist", tuning=True)[0].names]
    assert [*train.names] != [*divided("qmnist", draw=1)[0].names]
    assert model("qmnist").make()(__import__("torch").zeros(1, 784)).shape == (1, 10)


def test_tweets_are_skewed_by_label_and_read_with_the_training_words(folder):
    train, test = divided("tweets", rows=1500)
    fit, check = divided("tweets", tuning=True, rows=1500)
    assert len(train) == 52
    assert sum(train.sizes) + sum(test.sizes) == 1500
    assert sum(fit.sizes) + sum(check.sizes) == sum(train.sizes)
    shares = [float(np.mean(np.asarray(train.shard(i).y))) for i in range(52)]
    assert np.std(shares) > 0.15
    x = np.asarray(train.pooled().x)
    assert x.shape[1] == 25
    assert x.max() == 2 + 7 - 1  # six words and "today"; the last word of each tweet occurs once
    assert (x[:, -1] == 1).all()


def test_the_recurrent_model_is_pytorchs_lstm_with_the_weights_that_it_is_given(folder):
    torch = pytest.importorskip("torch")
    made = model("tweets", rows=1500).make()
    x = torch.arange(75).reshape(3, 25)
    states = made.cells(made.embed(x))[0]
    ends = torch.cat([states[:, -1, :32], states[:, 0, 32:]], -1)
    torch.testing.assert_close(made(x), made.last(ends))
    given = {name: (2 * value).detach().requires_grad_() for name, value in made.named_parameters()}
    found = torch.func.functional_call(made, given, (x,))
    assert all((slope != 0).any() for slope in torch.autograd.grad(found.square().sum(), list(given.values())))


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.network
def test_a_cell_runs(folder, tmp_path, kind):
    run = Lab(tmp_path / "lab").train(
        settings(UpcycledMethod("FedAvg", "upcycled", 0.1, 0.3), kind, TINY, tuning=False, seed=0)
    )
    assert [row["selected"] for row in run.rows] == [15, 0, 15, 0]
    right = run.last() * len(islands(kind, rows=1500).test)
    assert right == pytest.approx(round(right), abs=1e-6)


@pytest.mark.slow
def test_the_lstm_learns(folder, tmp_path):
    longer = UpcycledProtocol(late=0.0, rounds=6, seeds=1, epochs=3, rows=800)
    run = Lab(tmp_path / "lab").train(
        settings(UpcycledMethod("FedAvg", "base", 0.3), "tweets", longer, tuning=False, seed=0)
    )
    assert run.last() > 0.9


@pytest.mark.slow
def test_the_entry_judges_what_it_ran(folder, tmp_path):
    claims = {claim.claim: claim for claim in find_entry("upcycled-columns").run(Lab(tmp_path / "lab"), True)}
    assert claims["Upcycled-FedAvg is better than FedAvg on our FEMNIST, qmnist"].paper == "81.38 -> 82.10"


def test_table_3_has_the_rates_that_were_picked_for_table_1():
    page = (Path(__file__).parents[1] / "docs" / "upcycled.md").read_text(encoding="utf-8")
    picked = page.partition("<!-- atoll reproduce upcycled-columns -->")[2].partition("<!-- end")[0]
    row = re.compile(
        r"\| Upcycled-(\w+) is better than \w+ on our \w+, (\w+) \|.* lr=([\d.]+) -> lr=([\d.]+), u=0.3 \|"
    )
    assert {(base, kind): (float(own), float(up)) for base, kind, own, up in row.findall(picked)} == RATES
    assert replace(PROTOCOL_AT_30, late=0.9) == PROTOCOL_AT_90


def test_missing_data_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    divided.cache_clear()
    with pytest.raises(DataError, match="mnist"):
        divided("qmnist")
