"""Reproductions of compression underneath secure sums: configurations, judges, and the arithmetic of what is left without an enclave."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import atoll
from atoll.reproduce import find_entry
from atoll.runs import parse_config
from atoll.stages import ProductQuantizer, RandomK, ScalarQuantizer
from atoll_papers.secure_compression import (
    LENGTH,
    UPLINKS,
    CompressionTask,
    Found,
    _encoded,
    characters,
    found_of,
    judge_all,
    judge_without_enclave,
    settings,
)

NAMES = ("secure-compression-femnist", "secure-compression-celeba", "secure-compression-sent140")
TASK = CompressionTask(
    "writers", "FEMNIST", 40, {"name": "perceptron", "features": 784, "hidden": 32, "outputs": 10}, {"lr": 0.1}, cohort=100, rounds=20
)  # fmt: skip


def test_every_configuration_is_a_run_file():
    for name in UPLINKS:
        config = parse_config(settings(TASK, name), name)
        stages = [one.build("uplink") for one in config.uplink]
        assert all(isinstance(one, ScalarQuantizer | RandomK | ProductQuantizer) for one in stages)
    assert {find_entry(name).name for name in NAMES} == set(NAMES)


def found(accuracy, rate, overflowed=None, rounds=10.0):
    run = SimpleNamespace(rounds_to=lambda target: rounds)
    return Found(accuracy, 32.0 / rate, rate, None if overflowed is None else 0.01, overflowed, run)


def papers():
    """What the paper says, as numbers."""
    made = {name: found(0.9 - 0.001 * i, 2.0 + i) for i, name in enumerate(UPLINKS) if name != "plain"}
    made["plain"] = found(0.9, 1.0)
    for name in made:
        if name.startswith("sq"):
            bits, word = map(int, name.split()[1].split(","))
            lost = {1: 0.2, 2: 0.05}.get(word - bits, 0.0)
            made[name] = found(0.9 - lost - 0.001 * (32 / word), 32 / word, lost / 2)
    made["sq 8,9 late"] = found(0.6, 3.5, 0.2)
    made["pq 8,256"], made["pq 8,64"], made["pq 16,256"] = found(0.899, 32), found(0.898, 42.7), found(0.88, 64)
    made["pq 4,16"], made["pq 4,16 late"], made["pq 16,16"], made["pq 16,16 late"] = (
        found(0.899, 31),
        found(0.898, 31),
        found(0.85, 128),
        found(0.8, 128),
    )
    for n in (8, 16, 32):
        made[f"prune 1/{n}"], made[f"prune 1/{n} scaled"] = found(0.86 - n / 1000, n), found(0.86 - n / 1000, n)
    made["prune 1/8 scaled fixed"] = found(0.8, 8)
    return made


def verdicts(made):
    return {claim.claim: claim.holds for claim in judge_all(TASK, made) if claim.basis == "measured"}


def test_numbers_as_the_paper_tells_them_hold_and_others_do_not():
    good = verdicts(papers())
    assert len(good) == 10
    assert [claim for claim, holds in good.items() if not holds] == []
    plain = {**papers(), **{name: found(0.5, one.rate, 0.0, None) for name, one in papers().items() if name != "plain"}}
    assert sum(verdicts(plain).values()) <= 4


def test_rates_count_all_bits_of_a_reply():
    rows = [
        {"test/accuracy": a, "clamped": 0.1 * a, "overflowed": 0.2, "replied": 5, "bits_declared": 5 * 100}
        for a in (0.1, 0.4, 0.5, 0.6)
    ]
    made = found_of(SimpleNamespace(rows=rows), 3200.0)
    assert made.accuracy == pytest.approx(0.5)
    assert (made.rate, made.overflowed) == (32.0, pytest.approx(0.2))
    assert found_of(SimpleNamespace(rows=[{"test/accuracy": 0.5, "replied": 5}]), 3200.0).rate == 1.0


def test_one_hot_shares_cost_codewords_times_the_bits_of_a_count():
    notes = [claim.note for claim in judge_without_enclave(TASK)]
    # 100 clients: counts of 7 bits. 32 codewords are 224 bits, 256 are 1,792, and their two keys 2 x 614.
    assert "224 as shares" in notes[0]
    assert "1792 as shares; 1228 as two keys" in notes[2]


def test_tweets_are_read_by_characters():
    torch = pytest.importorskip("torch")
    data = atoll.data.Dataset(
        {"text": np.array(["Hi!", "é a" + "b" * 99]), "y": np.array([0, 1])}, task="binary", classes=2
    )
    made = _encoded(data)
    assert made["x"].shape == (2, LENGTH)
    assert made["x"][0, :4].tolist() == [ord("h") - 31, ord("i") - 31, ord("!") - 31, 0]
    model = characters()()
    assert model(torch.tensor(np.array(made["x"]))).shape == (2, 2)
    assert sum(p.numel() for p in model.parameters()) == 96 * 16 + 4 * 32 * (16 + 32 + 2) + 32 * 2 + 2
