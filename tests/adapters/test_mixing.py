"""A participant's own mixture: what it learns alone, how its weights are chosen, what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.adapters import AttAI, Bottleneck, LinearHead, Tuning, leave_domains_out, mix_personal
from atoll.adapters.mixing import _choose
from atoll.core.errors import AtollError
from tests.adapters.test_leave_out import rows_of
from tests.support.encoders import make_encoder, make_reviews

LOCAL = atoll.FedAvg(lr=0.05, batch_size=None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixing")
    make_encoder(folder / "tiny")
    make_reviews(folder / "data", sites=2, rows=20)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))


def tuning(place: Path, method: Any = None, **more: Any) -> Tuning:
    settings = {"rounds": 1, "length": 8, "algorithm": LOCAL, "prompt": "{label} crew", **more}
    return Tuning(encoder=str(place / "tiny"), method=method or Bottleneck(hidden=4), **settings)


def reviews(place: Path) -> Any:
    return atoll.data.from_csv_folder(place / "data", target="label", keep=["text"], features=[])


def test_what_a_participant_learns_alone_is_a_training_with_it_alone(place: Path) -> None:
    """Oracle: rounds of one client, of full steps, from the first adapter."""
    job, shard = tuning(place, rounds=3), reviews(place).shard(0)
    rows = shard.source.take(shard.rows)
    islands = atoll.data.Islands.from_datasets({"own": rows})
    shared = atoll.simulate(job.replace(rounds=1), islands, engine="inline")
    mixture = mix_personal(job, shared.params, rows, rows, algorithm=LOCAL, epochs=2, step=1.0)
    for name, value in atoll.simulate(job, islands, engine="inline").params.items():
        np.testing.assert_allclose(mixture.params[name], value, rtol=1e-5, atol=1e-7)


def test_a_mixture_scores_as_its_parts_and_is_never_behind_the_shared_adapter_where_it_was_chosen(place: Path) -> None:
    job, rows = tuning(place), reviews(place)
    shared = atoll.simulate(job, rows, engine="inline")
    own, other = rows.shard(0), rows.shard(1)
    mixture = mix_personal(job, shared.params, own, other, algorithm=LOCAL, epochs=3)
    assert mixture.frozen + mixture.shared + mixture.own == pytest.approx(1)
    frozen, adapted, tuned = mixture._scorer.score(other, mixture.params)
    mixed = mixture.frozen * frozen + mixture.shared * adapted + mixture.own * tuned
    np.testing.assert_allclose(mixture.score(other), mixed, rtol=1e-6)
    y = np.asarray(other["y"])
    assert (mixed.argmax(1) == y).mean() >= max((one.argmax(1) == y).mean() for one in (frozen, adapted, tuned))
    encoder = job.model.rows.encoder
    features, prompts = encoder.encode(job.model.rows.texts(other)), encoder.encode(["bad crew", "good crew"])
    cosines = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (features, prompts)]
    np.testing.assert_allclose(frozen, 20 * cosines[0] @ cosines[1].T, rtol=1e-4, atol=1e-4)


def test_ties_go_to_the_likelier_and_then_to_the_shared_adapter() -> None:
    right, wrong = np.array([[2.0, 0.0]]), np.array([[0.0, 2.0]])
    y = np.array([0])
    assert _choose(np.stack([right, right, right]), y, 4, True) == (0.0, 1.0, 0.0)
    assert _choose(np.stack([wrong, right, 2 * right]), y, 4, True) == (0.0, 0.0, 1.0)
    assert _choose(np.stack([right, wrong, wrong]), y, 4, True) == (1.0, 0.0, 0.0)
    assert _choose(np.stack([right, wrong, wrong]), y, 4, False)[0] == 0.0  # without prompts there is no frozen score


def test_leaving_out_tells_of_the_mixtures(place: Path) -> None:
    def simulate(job: Any, islands: Any, seed: int) -> Any:
        return atoll.simulate(job, islands, engine="inline", seed=seed)

    found = leave_domains_out(tuning(place), *rows_of(place), run=simulate, leave_out="none", mix=True)
    (fold,) = found["folds"]
    assert found["mixed"] == fold["mixed"] == pytest.approx(np.mean([*fold["mixed_domains"].values()]))
    assert [sum(one) for one in fold["mixtures"].values()] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": atoll.algorithms.Scaffold()}, "algorithm is a Scaffold"),
        ({"epochs": 0}, "epochs=0"),
        ({"step": 0.3}, "step=0.3"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(change: dict[str, Any], words: str, place: Path) -> None:
    rows = reviews(place).shard(0)
    with pytest.raises(AtollError, match=words):
        mix_personal(tuning(place), {}, rows, rows, **change)


def test_values_of_another_method_and_no_rows_are_refused(place: Path) -> None:
    rows = reviews(place).shard(0)
    with pytest.raises(AtollError, match="not those of this job"):
        mix_personal(tuning(place, AttAI()), {"weight": np.zeros(3)}, rows, rows)
    with pytest.raises(AtollError, match="no rows to choose"):
        mix_personal(tuning(place, LinearHead(), prompt=""), {}, rows, rows.source.take(np.arange(0)))
