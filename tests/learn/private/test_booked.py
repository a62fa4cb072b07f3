"""Nothing costs more than its ledger says: epsilon is counted anew from the draws that a mechanism makes, whatever its settings say."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.event import Gaussian, Laplace, Ledger
from atoll.core.requests.context import StageContext
from atoll.learn.private import CentralDP, FedSelDP, GaussianLDP, LaplaceLDP, SignsLDP
from atoll.privacy import epsilon_of
from atoll.privacy.discrete import GaussianLattice, LaplaceLattice
from atoll.privacy.events import RandomisedResponse
from atoll.stages import (
    Anonymous,
    Clip,
    FedSel,
    GaussianNoise,
    LocalGaussian,
    LocalLaplace,
    RandomisedSigns,
    SparseVector,
)
from atoll.stages.local import fedsel, response

TERMS = (1e-5, "pld", "server", "replace-one")
CLIP = 0.5


@pytest.fixture
def drawn(monkeypatch):
    """Every draw, as the release that it is: noise with its scale, and each report and each choice with its epsilon."""
    seen = []

    def noting(kind, name):
        draw = kind.draw

        def noted(self, source, count):
            seen.append((name, self.scale))
            return draw(self, source, count)

        monkeypatch.setattr(kind, "draw", noted)

    noting(LaplaceLattice, "laplace")
    noting(GaussianLattice, "gaussian")
    report, choose = response.response, fedsel.chosen

    def reporting(values, limit, epsilon, draw):
        seen.extend([("response", epsilon)] * len(values))
        return report(values, limit, epsilon, draw)

    def choosing(sizes, fraction, count, epsilon, draw):
        seen.extend([("response", epsilon)] * count)
        return choose(sizes, fraction, count, epsilon, draw)

    monkeypatch.setattr(response, "response", reporting)
    monkeypatch.setattr(fedsel, "response", reporting)
    monkeypatch.setattr(fedsel, "chosen", choosing)
    return seen


def cost(seen, moved, contacts=1):
    """Epsilon of these draws, of which so many contacts are made of one client's value that two values are ``moved`` apart."""
    made = {
        "laplace": lambda scale: Laplace(epsilon=moved / scale),
        "gaussian": lambda scale: Gaussian(noise_multiplier=scale / moved),
        "response": lambda epsilon: RandomisedResponse(epsilon=epsilon),
    }
    return epsilon_of(tuple((made[kind](size), contacts) for kind, size in seen), *TERMS)


STAGES = {
    "LocalLaplace": (LocalLaplace(bound=CLIP, epsilon=1.3), 2 * CLIP),
    "LocalGaussian": (LocalGaussian(bound=CLIP, multiplier=1.3), 2 * CLIP),
    "GaussianNoise": (GaussianNoise(1.3), 2 * CLIP),
    **{f"signs {n}": (RandomisedSigns(limit=0.1, epsilon=2.0, entries=n), 0) for n in (1, 4, 200)},
    **{f"fedsel {n}": (FedSel(limit=0.1, epsilon=2.0, entries=n, share=0.3), 0) for n in (1, 4, 200)},
}


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("name", STAGES)
def test_a_reply_costs_no_more_than_its_stage_books(name, size, drawn):
    stage, moved = STAGES[name]
    context = StageContext(seeds=np.ones((1, 32), np.uint8), sensitivity=CLIP)
    block = {"w": np.linspace(-1, 1, size)[None]}
    if stage.remembers:
        stage.remember_block(block, {"residual": {"w": np.zeros((1, size))}}, context)
    else:
        stage.encode_block(block, context)
    booked = epsilon_of(tuple((event, 1) for event in stage.events(CLIP)), *TERMS)
    sent = cost(drawn, moved)
    assert 0 < sent <= booked * (1 + 1e-6)
    if size == 40 and not name.endswith("200"):
        assert sent == pytest.approx(booked, rel=1e-3)


def test_choices_and_reports_of_fedsel_share_its_epsilon():
    """Both are booked: without the choices, the ledger would have seven tenths of what is spent."""
    choices, reports = FedSel(limit=0.1, epsilon=2.0, entries=4, share=0.3).events(None)
    assert choices.count * choices.epsilon == pytest.approx(0.6)
    assert reports.count * reports.epsilon == pytest.approx(1.4)
    (event,) = Anonymous(FedSel(limit=0.1, epsilon=2.0, entries=4, share=0.3), clients=9).events(None)
    assert event.epsilon == pytest.approx(2.0)


def test_what_the_sparse_vector_draws_adds_up_to_its_epsilon(drawn):
    """A threshold of sensitivity ``limit``, comparisons and values that may each move by ``2 entries limit`` together."""
    stage = SparseVector(limit=0.1, epsilon=2.0, entries=3, threshold=0.0)
    stage.encode({"w": np.linspace(-1, 1, 50)}, StageContext(seeds=np.ones((1, 32), np.uint8)))
    threshold, comparisons, values = (scale for _, scale in drawn)
    assert 0.1 / threshold + 2 * 3 * 0.1 / comparisons + 2 * 3 * 0.1 / values == pytest.approx(2.0)


MECHANISMS = {
    "LaplaceLDP": (LaplaceLDP(epsilon=4.0, clip=CLIP), 2 * CLIP),
    "GaussianLDP": (GaussianLDP(epsilon=4.0, delta=1e-5, clip=CLIP), 2 * CLIP),
    "CentralDP": (CentralDP(epsilon=4.0, delta=1e-5, clip=CLIP, neighbours="replace-one", amplified=False), 2 * CLIP),
    **{f"SignsLDP {n}": (SignsLDP(epsilon=4.0, delta=1e-5, limit=0.1, entries=n), 0) for n in (3, 100, 20_000)},
    **{f"FedSelDP {n}": (FedSelDP(epsilon=4.0, delta=1e-5, limit=0.1, entries=n), 0) for n in (3, 100, 20_000)},
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_training_costs_no_more_than_it_claims(name, drawn):
    mechanism, moved = MECHANISMS[name]
    clients = atoll.data.iid(atoll.data.iris(), parties=4, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), rounds=2,
        privacy=mechanism, evaluation=atoll.Evaluation(server=False),
    )  # fmt: skip
    result = atoll.simulate(job, clients, engine="inline", progress=False)
    claim = result.prepared.claim
    mine = drawn if name == "CentralDP" else drawn[: len(drawn) // 4]  # all clients draw alike
    assert len(drawn) % (1 if name == "CentralDP" else 8) == 0
    assert 0 < cost(mine, moved) <= claim.epsilon * (1 + 1e-3)
    assert claim.epsilon <= 4.0 * (1 + 1e-6)
    assert cost(mine, moved) == pytest.approx(claim.epsilon, rel=2e-3)


def test_noise_of_a_ledger_is_the_noise_that_was_drawn(drawn, tmp_path):
    """An uplink of one's own: epsilon of the ledger's lines against epsilon of the draws."""
    clients = atoll.data.iid(atoll.data.iris(), parties=4, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), rounds=2,
        uplink=[Clip(CLIP), GaussianNoise(8.0)], evaluation=atoll.Evaluation(server=False),
    )  # fmt: skip
    atoll.simulate(job, clients, engine="inline", progress=False, folder=tmp_path / "run")
    (path,) = (tmp_path / "run").rglob("ledger.jsonl")
    ledger = Ledger(path, readable=True)
    spent = atoll.privacy.spent(ledger, *TERMS)
    assert cost(drawn[: len(drawn) // 4], 2 * CLIP) <= spent["client-0"] * (1 + 1e-6)
