"""Aggregations of LoRA factors in a training, beside clients that are trained alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import AverageFactors, FedExLoRA, FFALoRA, FlexLoRA, FLoRA, Peft, Tuning, load_adapter, mixing_error
from atoll.adapters.lora_mean import layers_in
from atoll.core.errors import AtollError
from atoll.secure import FixedPoint
from tests.support.encoders import make_encoder, make_reviews

LORA = Peft("LORA", {"r": 2, "lora_alpha": 6, "target_modules": ["query", "value"]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    make_encoder(folder / "tiny")
    make_reviews(folder / "data", sites=3)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))


def reviews(place: Path, *only: str) -> Any:
    folder = place / "_".join(("data", *only))
    for name in only:
        folder.mkdir(exist_ok=True)
        shutil.copy(place / "data" / f"{name}.csv", folder)
    return atoll.data.from_csv_folder(folder, target="label", keep=["text"], features=[])


def tuning(place: Path, aggregation: Any, **more: Any) -> Tuning:
    settings = {"rounds": 1, "algorithm": atoll.FedAvg(lr=0.5, batch_size=None, steps=4), "length": 8, **more}
    return Tuning(encoder=str(place / "tiny"), method=LORA, aggregation=aggregation, **settings)


def run(place: Path, aggregation: Any, *only: str, **more: Any) -> Any:
    return atoll.simulate(tuning(place, aggregation, **more), reviews(place, *only), engine="inline")


def products(params: Any) -> dict[str, Any]:
    """Return what each layer adds: residual and product of the factors."""
    wide = {name: np.asarray(value, dtype=np.float64) for name, value in params.items()}
    return {layer: wide.get(r, 0.0) + wide[b] @ wide[a] for layer, (b, a, r) in layers_in(wide).items()}


@pytest.fixture(scope="module")
def alone(place: Path) -> Any:
    """Return the factors of each client trained alone for a round, by layer, and their exact mean."""
    results = [run(place, atoll.aggregation.Renormalised(), name).params for name in ("site0", "site1", "site2")]
    own = {
        layer: [(np.float64(p[b]), np.float64(p[a])) for p in results]
        for layer, (b, a, _) in layers_in(results[0]).items()
    }
    return own, {layer: np.mean([b @ a for b, a in pairs], axis=0) for layer, pairs in own.items()}


@pytest.mark.quick("FedExLoRA(share='products')", "FLoRA(share='factors')")
@pytest.mark.parametrize("aggregation", [FedExLoRA(), FedExLoRA("factors"), FLoRA(), FLoRA("factors")], ids=str)
def test_fedex_and_flora_are_the_mean_of_products(aggregation: Any, place: Path, alone: Any) -> None:
    result = run(place, aggregation)
    for layer, found in products(result.params).items():
        assert np.linalg.norm(found - alone[1][layer]) <= 1e-6 * np.linalg.norm(alone[1][layer])
    assert result.metrics.last("mixing_error") < 1e-6
    assert result.metrics.last("plain_error") > 0.01


def test_ffa_trains_and_sends_b_alone(place: Path, alone: Any) -> None:
    results = [run(place, FFALoRA(), *only).params for only in ((), ("site0",), ("site1",), ("site2",))]
    assert not any("lora_A" in name for name in results[0])
    assert results[0].keys() == results[1].keys()
    for name in results[0]:
        np.testing.assert_allclose(
            results[0][name], np.mean([one[name] for one in results[1:]], axis=0), rtol=1e-5, atol=1e-7
        )


def test_plain_averaging_is_fedavg_and_its_error_is_known(place: Path, alone: Any) -> None:
    plain, measured = run(place, atoll.aggregation.Renormalised()), run(place, AverageFactors(probes=64))
    for name, value in plain.params.items():
        np.testing.assert_array_equal(measured.params[name], value)
    off, size = 0.0, 0.0
    for pairs in alone[0].values():
        exact = float(np.linalg.norm(np.mean([b @ a for b, a in pairs], axis=0)))
        off, size = off + (mixing_error(pairs) * exact) ** 2, size + exact**2
    assert measured.metrics.last("mixing_error") == pytest.approx((off / size) ** 0.5, rel=0.25)
    exact = run(place, FedExLoRA())
    assert exact.metrics.last("plain_error") == pytest.approx((off / size) ** 0.5, rel=1e-3)
    for name in plain.params:
        np.testing.assert_allclose(exact.params[name], plain.params[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("share", ["products", "factors"])
def test_flex_is_the_best_of_the_rank(share: Any, place: Path, alone: Any) -> None:
    result = run(place, FlexLoRA(share))
    off, size = 0.0, 0.0
    for layer, found in products(result.params).items():
        u, s, v = np.linalg.svd(alone[1][layer])
        best = (u[:, :2] * s[:2]) @ v[:2]
        assert np.linalg.norm(found - best) <= 1e-5 * np.linalg.norm(best)
        off, size = off + float((s[2:] ** 2).sum()), size + float((s**2).sum())
    assert result.metrics.last("mixing_error") == pytest.approx((off / size) ** 0.5, rel=1e-4)


@pytest.mark.slow  # `test_products_add_up_under_masks_and_in_blocks` has clients of two ranks
def test_clients_of_mixed_ranks(place: Path) -> None:
    same, mixed = run(place, FlexLoRA(ranks=[2])), run(place, FlexLoRA())
    for name, value in mixed.params.items():
        np.testing.assert_allclose(same.params[name], value, rtol=1e-4, atol=1e-6)
    low = run(place, FlexLoRA(ranks=[1]), "site0", rounds=2)
    for found in products(low.params).values():
        assert np.linalg.matrix_rank(found, tol=1e-5) == 1
    both = [run(place, FlexLoRA(share, ranks=[1, 2]), rounds=2).params for share in ("products", "factors")]
    for layer, found in products(both[0]).items():
        np.testing.assert_allclose(products(both[1])[layer], found, rtol=1e-3, atol=1e-5)


def test_the_residual_is_saved_in_factors_that_peft_loads(place: Path, tmp_path: Path) -> None:
    import torch

    result = run(place, FedExLoRA(), rounds=2)
    loaded = load_adapter(result.save(tmp_path / "adapter"), str(place / "tiny"))
    rows = result.job.model.rows
    texts = rows.texts(reviews(place).shard(0))
    with torch.no_grad():
        ours = result.model.eval()(torch.from_numpy(rows.encoder.tokenise(texts))).numpy()
        plain = load_adapter(run(place, AverageFactors(), rounds=2).save(tmp_path / "plain"), str(place / "tiny"))
    np.testing.assert_allclose(loaded.score(texts), ours, rtol=0, atol=1e-5)
    assert np.abs(plain.score(texts) - ours).max() > 1e-3


@pytest.mark.quick("FlexLoRA*")
@pytest.mark.parametrize("aggregation", [FedExLoRA(), FLoRA(), FlexLoRA(ranks=[1, 2])], ids=str)
def test_products_add_up_under_masks_and_in_blocks(aggregation: Any, place: Path) -> None:
    plain = run(place, aggregation, rounds=2)
    masked = run(
        place, aggregation, rounds=2, reducer=atoll.SecureAggregation(codec=FixedPoint(value_bits=32, max_weight=64))
    )
    blocks = atoll.simulate(tuning(place, aggregation, rounds=2, compile="never"), reviews(place), engine="batched")
    for layer, found in products(plain.params).items():
        for other in (masked, blocks):
            np.testing.assert_allclose(products(other.params)[layer], found, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"aggregation": FedExLoRA(), "method": Peft("IA3", {"target_modules": ["key"], "feedforward_modules": []})},
            "the model has none",
        ),
        (
            {"aggregation": FLoRA(), "method": Peft("LORA", {"r": 2, "target_modules": ["query"], "use_dora": True})},
            "lora_magnitude_vector.*without use_dora",
        ),
        ({"aggregation": FlexLoRA(ranks=[4])}, "the layers have rank 2"),
        ({"aggregation": FedExLoRA(), "algorithm": atoll.FedAvg(server_lr=0.5)}, "does not just add the mean update"),
        ({"aggregation": FedExLoRA("factors"), "reducer": atoll.SecureAggregation()}, "sees single replies"),
        (
            {"aggregation": FFALoRA(), "method": Peft("IA3", {"target_modules": ["key"], "feedforward_modules": []})},
            "no such factor",
        ),
    ],
)
def test_what_has_no_factors_or_changes_their_mean_is_refused(change: dict[str, Any], words: str, place: Path) -> None:
    def train() -> None:
        job = Tuning(**{"encoder": str(place / "tiny"), "method": LORA, "rounds": 1, "length": 8, **change})
        atoll.simulate(job, reviews(place), engine="inline")

    with pytest.raises(AtollError, match=words):
        train()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedExLoRA("sums"), "share='sums'"),
        (lambda: FlexLoRA(ranks=[0]), "ranks="),
        (lambda: AverageFactors(probes=-1), "probes=-1"),
    ],
)
def test_settings_are_checked(make: Any, words: str) -> None:
    with pytest.raises(AtollError, match=words):
        make()
