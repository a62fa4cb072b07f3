"""Every algorithm with everything it can be put together with: it trains, or is refused with a reason before anyone is contacted.

New algorithms are taken up by themselves: a composition that is neither trained nor listed in ``REFUSED`` fails here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.clock import Free
from atoll.core.errors import AtollError, CompositionError
from atoll.data import Dataset, Islands
from atoll.learn import Everyone, Training
from atoll.learn.algorithms import FedProx, Upcycled
from atoll.learn.catalogue import example, kinds
from atoll.learn.topology import Gossip, Ring
from atoll.stages import QSGD, ErrorFeedback, TopK

COMPOSITIONS = {
    "alone": lambda algorithm: {"algorithm": algorithm},
    "upcycled": lambda algorithm: {"algorithm": Upcycled(base=algorithm, coefficient=0.5)},
    "quantised": lambda algorithm: {"algorithm": algorithm, "uplink": [QSGD()]},
    "error feedback": lambda algorithm: {"algorithm": algorithm, "uplink": [ErrorFeedback(TopK(0.5))]},
    "gossip": lambda algorithm: {"algorithm": algorithm, "topology": Gossip(graph=Ring())},
}

SETTINGS: dict[str, dict[str, Any]] = {
    # The step that suits losses of this curvature, where the default does not.
    "CEADMM": {"bound": 2.5},
    "DANE": {"lr": 0.5, "steps": 5},
    "DINGO": {"lr": 0.5},
    "GIANT": {"lr": 0.5},
    "FedNL": {"lr": 0.3, "begin": "exact", "compressor": "full"},
    "FedSSO": {"server_lr": 0.3},
    "IFCA": {"seed": 1},
    # As little noise as shows whether it trains.
    "OutputPerturbation": {"sigma": 0.01},
    "ObjectivePerturbation": {"base": FedProx(lr=0.1, mu=2.0), "alpha": 50.0},
}
"""Options other than those of the card's example, by algorithm."""

_OWN = "act on its replies, and {} sends a binary form before that"
_SERVER = "stages act between clients and a server, and there is none"
_COMPRESSED = (
    "ADIANA", "DIANA", "DeepGradientCompression", "FLECS", "FedAQ", "FedCOMGATE", "FedPAQ", "MemSGD", "QSVRG", "QuantisedSGD",
    "SketchedSGD", "SparseTernary", "TwoWaySGDM",
)  # fmt: skip
"""They bring a compressor of their own."""
REFUSED = {
    **{(name, "quantised"): _OWN.format("QSGD") for name in _COMPRESSED},
    **{(name, "error feedback"): _OWN.format("ErrorFeedback") for name in _COMPRESSED},
    **{(name, "gossip"): _SERVER for name in _COMPRESSED},
    ("SufficientStatistics", "upcycled"): "finds its statistics exactly, with nothing to extrapolate",
    ("SufficientStatistics", "error feedback"): "replaces its statistics in every round",
    ("SufficientStatistics", "gossip"): "adds up what all clients sent",
}
"""``(algorithm, composition) -> reason``: what makes no sense."""


class Counting(Free):
    """No delays; counts what is sent to anyone."""

    def __init__(self) -> None:
        self.contacts = 0

    def plan(self, parties: Any, plan: Any) -> Any:
        self.contacts += len(parties)
        return super().plan(parties, plan)

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        self.contacts += 1
        return super().transfer(source, target, nbytes)


def population(name: str) -> tuple[Any, Islands, str]:
    """A model, five clients with twelve rows each, and the measure that must fall: their loss over all rows."""
    draw = np.random.default_rng(0)
    parts = []
    two_classes = name in ("ObjectivePerturbation", "SufficientStatistics")
    for i in range(5):
        x = draw.normal(size=(12, 3))
        y = x @ np.array([1.0, -1.0, 0.5]) + 0.1 * i + 0.1 * draw.normal(size=12)
        if two_classes:
            x = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
            parts.append(Dataset({"x": x, "y": (y > 0).astype(int)}, task="classification", classes=2))
        else:
            parts.append(Dataset({"x": x, "y": y}, task="regression"))
    columns = {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in ("x", "y")}
    test = Dataset(columns, task=parts[0].task, **({"classes": 2} if two_classes else {}))
    if name == "SufficientStatistics":
        model: Any = pytest.importorskip("sklearn.naive_bayes").GaussianNB()
    else:
        model = atoll.models.linear(3, 2 if two_classes else 1, l2=0.01)
    return model, Islands.from_datasets(parts, test=test), "test/loss"


def before(name: str, islands: Islands) -> float:
    """The loss of a model that knows nothing: zeros."""
    y = np.asarray(islands.test.y, dtype=np.float64)
    return float(np.log(2.0)) if islands.task != "regression" else float(np.mean(y**2))


def made(name: str) -> Any:
    """The algorithm with options that suit the problem."""
    return replace(example(kinds()[name]), **SETTINGS.get(name, {}))


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", kinds())
def test_it_trains_or_is_refused_beforehand(name: str, composition: str) -> None:
    model, islands, measure = population(name)
    seen = Counting()

    def train() -> Any:
        parts = COMPOSITIONS[composition](made(name))
        job = Training(model=model, selection=Everyone(), rounds=6, **parts)
        return atoll.simulate(job, islands, engine="inline", devices=seen)

    reason = REFUSED.get((name, composition))
    if reason is None:
        assert train().metrics.last(measure) < 0.995 * before(name, islands)
        assert seen.contacts > 0
        return
    with pytest.raises(AtollError, match=reason) as caught:
        train()
    assert caught.value.remedy
    assert seen.contacts == 0


def test_what_is_refused_is_an_algorithm() -> None:
    assert {name for name, _ in REFUSED} | set(SETTINGS) <= set(kinds())


def test_statistics_inside_wrappers_are_refused_too() -> None:
    from atoll.learn import SufficientStatistics
    from atoll.learn.algorithms import FirstOrderResidual

    with pytest.raises(CompositionError, match="nothing to extrapolate"):
        Upcycled(base=FirstOrderResidual(base=SufficientStatistics()), coefficient=0.5)


def test_a_stage_before_a_compressor_that_packs_nothing_is_taken() -> None:
    from atoll.learn.algorithms import FedPAQ
    from atoll.stages import Clip

    model, islands, measure = population("FedPAQ")
    job = Training(model=model, selection=Everyone(), rounds=4, algorithm=FedPAQ(lr=0.1), uplink=[Clip(10.0)])
    assert atoll.simulate(job, islands, engine="inline").metrics.last(measure) < before("FedPAQ", islands)


def test_statistics_of_a_model_with_gradients_are_refused_beforehand() -> None:
    seen, (model, islands, _) = Counting(), population("FedAvg")
    job = Training(model=model, selection=Everyone(), rounds=1, algorithm=atoll.learn.SufficientStatistics())
    with pytest.raises(CompositionError, match="a model that is trained by gradients has no sufficient statistics"):
        atoll.simulate(job, islands, engine="inline", devices=seen)
    assert seen.contacts == 0
