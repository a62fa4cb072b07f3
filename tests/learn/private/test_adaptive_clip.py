"""Adaptive clipping: the clip reaches the quantile, its bits are charged, and nothing leaves with a larger norm than the noise is for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg, MimeSVRG, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Ledger
from atoll.core.facets import facet
from atoll.learn import LocalWork, RoundInfo, Training
from atoll.learn.algorithm import Stateful
from atoll.learn.private.central import BITS, ClippedInside
from atoll.mechanisms import AdaptiveClip, CentralDP
from atoll.runs.config import RunConfig, validated
from atoll.selection import Uniform

DATA = atoll.data.iid(atoll.data.digits(), parties=30, seed=0)
PARAMS = {"w": np.zeros(5), "b": np.zeros(())}
INFO = RoundInfo(1, 10, 10, 10)


def reply(algorithm: ClippedInside, update: Any, clip: float) -> dict[str, Any]:
    state = algorithm.init(PARAMS)
    state["clips"] = dict.fromkeys(state["clips"], clip)
    broadcast, client = algorithm.broadcast(state, "train"), facet(algorithm, Stateful).client_init(PARAMS)
    local = {**algorithm.start(broadcast, client), "params": T.add(broadcast["params"], update)}
    return algorithm.finish(local, broadcast, client, LocalWork(3.0, 2.0))[0]


NUMBERS = st.floats(-1e12, 1e12)


@given(
    st.lists(NUMBERS, min_size=5, max_size=5), NUMBERS, st.floats(1e-6, 1e6), st.sampled_from([FedAvg(), Scaffold()])
)
def test_whatever_a_client_computes_nothing_leaves_with_a_norm_above_one(
    w: list[float], b: float, clip: float, base: Any
) -> None:
    for aggregate in reply(ClippedInside(base=base), {"w": np.array(w), "b": np.array(b)}, clip).values():
        assert float(T.norm(aggregate.value)) <= 1 + 1e-9


@pytest.mark.parametrize(("length", "inside"), [(0.5, True), (2.0, True), (2.1, False), (50.0, False)])
def test_the_server_gets_back_the_clipped_update_and_counts_who_was_below(length: float, inside: bool) -> None:
    algorithm = ClippedInside(base=FedAvg(), adapt=AdaptiveClip(quantile=0.3, rate=0.5))
    update = {"w": np.array([0.6, 0.0, 0.8, 0.0, 0.0]) * length, "b": np.zeros(())}
    sent = reply(algorithm, update, 2.0)
    state = {**algorithm.init(PARAMS), "clips": {"update": np.float64(2.0)}}
    after = algorithm.fold(state, {name: a.value for name, a in sent.items()}, INFO, "train")
    np.testing.assert_allclose(after["params"]["w"], update["w"] * min(1.0, 2.0 / length))
    assert float(sent[BITS].value[0]) == (1.0 if inside else -1.0)
    assert after["clips"]["update"] == pytest.approx(2.0 * math.exp(-0.5 * (float(inside) - 0.3)))


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_clip_reaches_the_quantile_of_the_norms(quantile: float) -> None:
    """Norms of a log-normal population: Andrew et al. 2021, section 2."""
    norms = np.random.default_rng(0).lognormal(mean=1.0, sigma=0.7, size=4000)
    adapt, clip, history = AdaptiveClip(quantile=quantile), 0.01, []
    for _ in range(400):
        clip = adapt.move_clip(clip, float((norms <= clip).mean()))
        history.append(clip)
    assert np.mean(history[-50:]) == pytest.approx(np.quantile(norms, quantile), rel=0.02)


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_bits_and_update_are_one_release_as_in_the_paper(share: float) -> None:
    """``z_update = (z^-2 - (2 s)^-2)^(-1/2)`` for bits of +-1/2 with noise ``s``: Andrew et al. 2021, Theorem 1."""
    mechanism = CentralDP(noise=1.3, clip=4.0, accountant="rdp", adapt=AdaptiveClip(share=share))
    training = Training(model=atoll.models.linear(64, 10), selection=Uniform(10), privacy=mechanism)
    part = training.installed(DATA, training.learner(DATA)).aggregation
    bits, update = part.deviation(BITS) / 2, part.deviation("update")
    assert part.values == 2
    assert update == pytest.approx((1.3**-2 - (2 * bits) ** -2) ** -0.5)
    assert bits == pytest.approx(1.3 / (2 * math.sqrt(share)))


def test_a_training_finds_its_clip_and_pays_once_a_round(tmp_path: Any) -> None:
    mechanism = CentralDP(noise=0.3, clip=0.001, accountant="rdp", adapt=AdaptiveClip(rate=2.0))
    job = Training(
        model=atoll.models.linear(64, 10), algorithm=FedAvg(lr=0.1), selection=Uniform(15), rounds=8, privacy=mechanism
    )
    found = {
        engine: atoll.simulate(
            job, DATA, engine=engine, seed=1, secret_seed=1, folder=tmp_path / engine, progress=False
        )
        for engine in ("inline", "batched")
    }
    np.testing.assert_allclose(found["inline"].params["weight"], found["batched"].params["weight"], atol=1e-4)
    lines = list(Ledger(tmp_path / "inline" / "checkpoints" / "ledger.jsonl"))
    assert [line["noise_multiplier"] for line in lines if line["kind"] == "gaussian"] == [0.3] * 8
    fixed = atoll.simulate(
        job.replace(privacy=CentralDP(noise=0.3, clip=0.001, accountant="rdp")),
        DATA,
        engine="inline",
        seed=1,
        progress=False,
    )
    moved, still = (np.linalg.norm(one.params["weight"]) for one in (found["inline"], fixed))
    assert moved > 10 * still


def test_a_file_has_it_as_a_section() -> None:
    said = {"name": "CentralDP", "noise": 1.0, "clip": 0.1, "adapt": {"quantile": 0.8}}
    settings = {
        "data": {"source": "digits"},
        "model": {"name": "linear", "features": 64, "outputs": 10},
        "privacy": said,
    }
    config = validated(RunConfig, settings, "c.yaml")
    assert config.privacy is not None
    assert config.privacy.build("privacy") == CentralDP(noise=1.0, clip=0.1, adapt=AdaptiveClip(quantile=0.8))


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(CompositionError, match="MimeSVRG has several phases, or replies with a pass of another kind"):
        Training(
            model=atoll.models.linear(64, 10),
            algorithm=MimeSVRG(),
            privacy=CentralDP(noise=1.0, clip=1.0, adapt=AdaptiveClip()),
        )
    for settings, said in (
        ({"quantile": 1.0}, "quantile=1.0"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"share": 0.0}, "share=0.0"),
    ):
        with pytest.raises(ConfigError, match=said):
            AdaptiveClip(**settings)
    with pytest.raises(ConfigError, match=r"adapt=0\.5"):
        CentralDP(noise=1.0, clip=1.0, adapt=0.5)  # type: ignore[arg-type]
