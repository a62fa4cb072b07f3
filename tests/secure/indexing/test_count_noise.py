"""Noise on counts and on sums of codewords: what one client can change, by search, the noise's size, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.aggregation import EqualWeights
from atoll.core.errors import AtollError, CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.privacy import epsilon_of, spent
from atoll.reducers import SecureIndexing
from atoll.secure import CountNoise
from atoll.secure.indexing import party_steps
from atoll.secure.indexing.counts import BITS, grid_books
from atoll.stages import Clip, ProductQuantizer

SIZES = {"a": [[5, 4], [3, 2]], "b": [[2, 3]]}
BLOCKS = 10


def books(seed=0, width=3):
    rng = np.random.default_rng(seed)
    return {name: [rng.normal(size=(k, width)) for _, k in rows] for name, rows in SIZES.items()}


def released(index, space, made):
    """Counts of one client, or its sum of codewords, laid out."""
    parts = []
    for name, rows in SIZES.items():
        for layer, (blocks, k) in enumerate(rows):
            counts = np.zeros((blocks, k), dtype=np.int64)
            counts[np.arange(blocks), index[name][layer] % k] = 1
            parts.append((counts @ made[name][layer] if space == "codewords" else counts).ravel())
    return np.concatenate(parts)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["counts", "codewords"]), st.integers(0, 5))
def test_no_neighbours_move_the_release_further_than_declared(one, other, space, seed):
    """Search over the indices of clients: one that is left out, and one in place of another."""
    made, _ = grid_books(books(seed), SIZES, 0.5)

    def drawn(key):
        rng = np.random.default_rng(key)
        return {name: [rng.integers(0, 12, size=blocks) for blocks, _ in rows] for name, rows in SIZES.items()}

    first, second = (released(drawn(key), space, made) for key in (one, other))
    assert np.linalg.norm(first) <= CountNoise(1.0, space).bound_move(SIZES, made) * (1 + 1e-12)
    assert np.linalg.norm(first - second) <= CountNoise(1.0, space, replaced=True).bound_move(SIZES, made) * (1 + 1e-12)


def test_sensitivities_are_the_closed_forms():
    """Prasad et al. 2022 leave them open: ``B`` blocks, L2 ``sqrt(B)`` or ``sqrt(2 B)``; codewords ``sqrt(sum max ||C_r||^2)``."""
    assert CountNoise(1.0).bound_move(SIZES, {}) == math.sqrt(BLOCKS)
    assert CountNoise(1.0, replaced=True).bound_move(SIZES, {}) == math.sqrt(2 * BLOCKS)
    made, step = grid_books(books(), SIZES, 0.5)
    expected = sum(
        blocks * max(np.linalg.norm(row) ** 2 for row in books()[name][layer])
        for name, rows in SIZES.items()
        for layer, (blocks, _) in enumerate(rows)
    )
    assert step * CountNoise(1.0, "codewords").bound_move(SIZES, made) == pytest.approx(math.sqrt(expected), rel=1e-3)


@pytest.mark.parametrize("space", ["counts", "codewords"])
def test_the_noise_has_the_variance_of_its_event(space):
    noise, sizes = CountNoise(0.7, space), {"a": [[4000, 4]]}
    made, _ = grid_books({"a": [np.random.default_rng(0).normal(size=(4, 2))]}, sizes, 0.7)
    rng = np.random.default_rng(1)
    told = noise.add([np.zeros((4000, 4), dtype=np.uint8)], sizes, made, lambda n: rng.integers(0, 2**64 - 1, n, dtype=np.uint64, endpoint=True))  # fmt: skip
    values = told[0].astype(np.int64).ravel()
    values = np.where(values >= 1 << (BITS - 1), values - (1 << BITS), values)
    event = noise.event(sizes, made)
    assert event.variance == pytest.approx((0.7 * noise.bound_move(sizes, made)) ** 2)
    z = values / math.sqrt(event.variance)
    assert abs((z**2).sum() - len(z)) < 6 * math.sqrt(2 * len(z))
    assert epsilon_of(((event, 1),), 1e-5, "rdp", "model") < 9
    assert epsilon_of(((event, 1),), 1e-5, "rdp") > 17  # helpers see who takes part


# ---------------------------------------------------------------------- trainings


@pytest.fixture(scope="module")
def islands():
    made = atoll.data.iid(atoll.data.digits(), parties=10, seed=0)
    return made.with_public(made.shard(9).dataset())


UPLINK = (Clip(1.0, alone=True), ProductQuantizer(1, 8, spread=1.0, layers="all", least=0))


def job(noise, *, by="enclave", rounds=2, uplink=UPLINK, **parts):
    return atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.2), selection=atoll.Everyone(), rounds=rounds, uplink=uplink,
        **{"aggregation": EqualWeights(), "reducer": SecureIndexing(by, max_weight=1.0, noise=noise), **parts},
    )  # fmt: skip


def run(training, islands, **world):
    return atoll.simulate(training, islands, engine="batched", seed=1, progress=False, **world)


@pytest.mark.parametrize(
    ("by", "space", "servers"),
    [("enclave", "counts", 1), ("enclave", "codewords", 1), ("shares", "codewords", 2), ("keys", "counts", 2)],
)
def test_a_round_differs_from_one_without_noise_by_the_noise(islands, by, space, servers, tmp_path, monkeypatch):
    """650 blocks of one entry; two servers add their noise each. The model errs by what the event says: 650 draws tell it to 12 %."""
    multiplier, steps = 0.02, []

    def watched(*given):
        made = grid_books(*given)
        steps.append(made[1])
        return made

    monkeypatch.setattr(party_steps, "grid_books", watched)
    clean = run(job(None, by=by, rounds=1), islands)
    noisy = run(job(CountNoise(multiplier, space), by=by, rounds=1), islands, folder=tmp_path / "run")
    gap = np.concatenate([(noisy.params[k] - clean.params[k]).ravel() for k in clean.params])
    entries = [line for line in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl") if line["kind"] == "skellam"]
    assert sorted(line["party"] for line in entries) == sorted(f"client-{i}" for i in range(10))
    moved = entries[0]["sensitivity"]
    if space == "counts":
        assert moved == pytest.approx(math.sqrt(650))
        assert gap.std() > 0
    else:
        assert gap.std() == pytest.approx(multiplier * moved * steps[-1] * math.sqrt(servers) / 10, rel=0.12)
    charged = spent(Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl"), 1e-5, "rdp")
    assert charged["client-0"] > 0


def test_every_round_is_charged_once(islands, tmp_path):
    made = run(job(CountNoise(5.0), rounds=3), islands, folder=tmp_path / "run")
    lines = [line for line in Ledger(tmp_path / "run" / "checkpoints" / "ledger.jsonl") if line["kind"] == "skellam"]
    assert len(lines) == 30
    assert len({(line["party"], line["scope"]) for line in lines}) == 30
    assert len(made.metrics) == 3


def test_who_knows_the_seed_does_not_know_the_noise(islands):
    one, two = (run(job(CountNoise(1.0), rounds=1), islands) for _ in range(2))
    assert np.abs(one.params["weight"] - two.params["weight"]).max() > 0


@pytest.mark.parametrize(
    ("parts", "error", "match"),
    [
        ({"uplink": (Clip(1.0, alone=True), ProductQuantizer(4, 8))}, AtollError, "numbers beside its indices"),
        ({"uplink": UPLINK[1:]}, CompositionError, "measurements that leave without noise"),
        ({"aggregation": atoll.aggregation.Renormalised()}, AtollError, "weight of"),
    ],
    ids=["uncoded layer", "measurements", "weights"],
)
def test_what_would_leave_without_noise_is_refused(islands, parts, error, match):
    with pytest.raises(error, match=match):
        run(job(CountNoise(1.0), **parts), islands)


def test_no_round_begins_without_a_public_codebook(islands):
    for space, said in (("counts", "numbers beside its indices"), ("codewords", "no codebook yet")):
        with pytest.raises(AtollError, match=said):
            run(job(CountNoise(1.0, space)), islands.with_public(None))


def test_settings_without_sense_are_refused():
    with pytest.raises(ConfigError, match="multiplier=0"):
        CountNoise(0.0)
    with pytest.raises(ConfigError, match="space="):
        CountNoise(1.0, "sums")
    with pytest.raises(ConfigError, match="max_weight=4096"):
        SecureIndexing(noise=CountNoise(1.0))
