"""Differential privacy that is claimed is there: a marker in every kind of state of a client is in nothing that leaves it.

The marker is a size. Rows are ten thousand times as large as any clip, so that updates, optimisers, control variates and losses are too, and clients hold odd numbers of rows.
Nothing that crosses the link may be larger than a clip and its noise, carry a weight of its own, or be no value that is clipped. What no mechanism can protect is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError, CompositionError
from atoll.core.execution.executor import Executor
from atoll.core.requests.chain import Chain
from atoll.core.requests.island import Island
from atoll.data import Dataset, Islands
from atoll.learn import Training
from atoll.learn.local.reports import arrays_leaving
from atoll.reducers import Enclave, MultiRound, OneShot, SecureAggregation, SecureTree, TwoServers
from atoll.selection import Everyone
from tests.support.part_examples import ALGORITHMS, COMPANIONS, PARTS

MARK, LIMIT = 1e5, 1e3
"""Sizes of rows, and of what may leave: a clip of 1 with all its noise is far below."""
SIZES = (29, 31, 37, 41)
SOME = ("FedAvg", "FedAdam", "Scaffold", "FedProx", "MimeSVRG", "FedDyn")
"""Algorithms with an optimiser, control variates, full gradients and models of their own; the others run with ``make thorough``."""
REDUCERS = {
    "plain": None,
    "masks": lambda: SecureAggregation(masks="virtual"),
    "shot": OneShot,
    "enclave": Enclave,
    "servers": TwoServers,
    "rounds": MultiRound,
    "tree": lambda: SecureTree(SecureAggregation(masks="virtual"), size=4),
}


def rows(n: int, at: int) -> Dataset:
    draw = np.random.default_rng(at)
    return Dataset(
        {"x": MARK * draw.normal(size=(n, 4)), "y": draw.integers(0, 2, n)}, task="classification", classes=2
    )


DATA = Islands.from_datasets([rows(n, at) for at, n in enumerate(SIZES)], test=rows(9, 99))


@pytest.fixture
def left(monkeypatch):
    """Everything that leaves a client: ``(name, role, weight, largest entry, how many releases its stages book)``."""
    seen: list[tuple[str, str, float, float, int]] = []
    send, ran = Chain.send, Executor.run

    def size(value: Any) -> float:
        leaves = [np.abs(np.asarray(leaf, np.float64)).max(initial=0.0) for leaf in T.leaves(value)]
        return float(max(leaves, default=0.0))

    def sent(self, aggregate, public, rng, memory, seeds=None, name="", rehearsal=False):
        made = send(self, aggregate, public, rng, memory, seeds, name, rehearsal)
        if not rehearsal and not name.isdigit():  # lanes of words, which hide what this has seen already
            told = aggregate.value if aggregate.kind == "parts" else self.decode(made.total, public, name).value
            seen.append((name, aggregate.role, float(np.asarray(aggregate.weight)), size(told), len(self.events)))
        return made

    async def asked(self, request, positions, *args, **more):
        found = await ran(self, request, positions, *args, **more)
        bare = request.wraps is None and not request.task.name.startswith("atoll.secure.")
        seen.extend(
            (request.task.name, "reply", 0.0, np.inf, 0) for one in found if bare and one.reply.value is not None
        )
        return found

    monkeypatch.setattr(Chain, "send", sent)
    monkeypatch.setattr(Executor, "run", asked)
    monkeypatch.setattr(Island, "note", lambda self, progress: seen.append(("a note", "note", 0.0, np.inf, 0)))
    return seen


def job(algorithm: str, mechanism: str | None, reducer: str = "plain", model: Any = None) -> Training:
    given = ALGORITHMS[algorithm]()
    own = {slot: PARTS[slot][name]() for slot, name in COMPANIONS.get(mechanism or "", {}).items()}
    if REDUCERS[reducer] is not None:
        own["reducer"] = REDUCERS[reducer]()
    everyone = {"selection": Everyone()} if given.card.everyone else {}
    made = PARTS["model"]["linear"]() if model is None else model
    private = {} if mechanism is None else {"privacy": PARTS["privacy"][mechanism]()}
    return Training(model=made, algorithm=given, rounds=2, **{**own, **everyone, **private})


def run(training: Training) -> Any:
    with np.errstate(all="ignore"):
        return atoll.simulate(training, DATA, engine="inline", seed=1, secret_seed=2, progress=False)


def check(algorithm: str, mechanism: str, left: list[Any], reducer: str = "plain") -> bool:
    """Return whether the parts go together; fail if a marker leaves."""
    left.clear()
    try:
        result = run(job(algorithm, mechanism, reducer))
    except AtollError as refused:
        result, why = None, str(refused)
    if result is None:
        assert "Remedy: " in why
        assert not left, f"something left before it was refused: {why}"
        return False
    assert left
    public = mechanism == "ExampleDP"  # numbers of examples are, and with them weights and counts of steps
    for name, role, weight, largest, _ in left:
        assert role in ("update", "buffer", *(["side"] if public else [])), (
            f"{name!r} leaves as {role}, which nothing protects"
        )
        assert largest < LIMIT, f"{name!r} leaves with {largest:g}"
        assert weight == 1.0 or public, f"{name!r} leaves with a weight of {weight:g}"
    training = job(algorithm, mechanism, reducer)
    training = training.installed(DATA, training.learner(DATA))
    known = {
        name
        for phase in training.algorithm.phases
        for name in arrays_leaving(
            training.local_algorithm, {"weight": np.zeros((4, 2)), "bias": np.zeros(2)}, phase=phase
        )
    }
    assert {name for name, *_ in left} <= known, "what leaves is not what the one answer says"
    assert result.prepared.claim.epsilon > 0
    return True


@pytest.mark.every(5)  # each mechanism once, with another algorithm
@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize("mechanism", list(PARTS["privacy"]))
def test_no_marker_leaves(mechanism: str, algorithm: str, left: list[Any]) -> None:
    check(algorithm, mechanism, left)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(SOME)))
@pytest.mark.parametrize("mechanism", list(PARTS["privacy"]))
def test_no_marker_leaves_of_any_other_algorithm(mechanism: str, algorithm: str, left: list[Any]) -> None:
    check(algorithm, mechanism, left)


@pytest.mark.slow
@pytest.mark.parametrize("reducer", [name for name in REDUCERS if name != "plain"])
@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize("mechanism", list(PARTS["privacy"]))
def test_no_marker_leaves_under_any_reducer(mechanism: str, algorithm: str, reducer: str, left: list[Any]) -> None:
    check(algorithm, mechanism, left, reducer)


@pytest.mark.parametrize(
    ("mechanism", "reducer"), [("CentralDP", "masks"), ("DistributedDP", "shot"), ("GaussianLDP", "enclave")]
)
def test_no_marker_leaves_under_some_reducers(mechanism: str, reducer: str, left: list[Any]) -> None:
    assert check("FedAvg", mechanism, left, reducer)


def test_without_a_mechanism_the_markers_leave(left: list[Any]) -> None:
    """Or the law would show nothing: of every algorithm tried by default, the update is beyond the limit, and weights and losses leave."""
    for algorithm in SOME:
        left.clear()
        run(job(algorithm, None))
        assert max(largest for *_, largest, _ in left) > LIMIT, algorithm
        assert {role for _, role, *_ in left} & {"metric", "side"}
        assert {weight for _, _, weight, *_ in left} & set(map(float, SIZES)), algorithm


def test_most_mechanisms_go_with_some_algorithms(left: list[Any]) -> None:
    assert [name for name in PARTS["privacy"] if not check("FedAvg", name, left)] == []


# ---------------------------------------------------------------------- buffers


def _moving() -> Any:
    torch = pytest.importorskip("torch")

    class Average(torch.nn.Module):
        """Follows its inputs in a buffer, as a standardisation, a codebook or a normalisation of one's own does."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)
            self.register_buffer("average", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            if self.training:
                self.average.mul_(0.9).add_(0.1 * x.mean(0).detach())
            return self.linear(x - self.average)

    return Average


@pytest.mark.parametrize("mechanism", list(PARTS["privacy"]))
def test_a_buffer_that_follows_the_data_is_refused_by_name(mechanism: str, left: list[Any]) -> None:
    alone = mechanism == "ExampleDP"  # clips the gradient of each example: local buffers would not help
    remedy = "a model whose passes write no buffer.* or GaussianLDP or CentralDP with buffers='local'" if alone else "buffers='local'"  # fmt: skip
    with pytest.raises(CompositionError, match=rf"average.*Remedy: use {remedy}"):
        run(job("FedAvg", mechanism, model=_moving()))
    if alone:
        with pytest.raises(CompositionError, match=rf"average.*Remedy: use {remedy}"):
            run(job("FedAvg", mechanism, model=_moving()).replace(buffers="local"))
    assert not left


def test_a_buffer_under_noise_of_ones_own_uplink_is_refused_by_name(left: list[Any]) -> None:
    from atoll.stages import Clip, GaussianNoise

    training = job("FedAvg", None, model=_moving()).replace(uplink=[Clip(1.0), GaussianNoise(2.0)])
    with pytest.raises(CompositionError, match=r"average.*Remedy: use buffers='local'"):
        run(training)
    assert not left


@pytest.mark.parametrize("mechanism", ["CentralDP", "GaussianLDP"])
def test_a_buffer_that_stays_at_its_client_is_no_leak(mechanism: str, left: list[Any]) -> None:
    run(job("FedAvg", mechanism, model=_moving()).replace(buffers="local"))
    assert {name for name, *_ in left} == {"update"}
    assert max(largest for *_, largest, _ in left) < LIMIT


def test_a_buffer_that_nothing_changes_goes_with_every_mechanism(left: list[Any]) -> None:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)
            self.register_buffer("scale", torch.full((4,), 1e-5))

        def forward(self, x: Any) -> Any:
            return self.linear(x * self.scale)

    run(job("FedAvg", "CentralDP", model=Scaled))
    assert {name for name, *_ in left} == {"update"}


def test_without_a_mechanism_the_buffer_travels_and_the_learner_says_so(left: list[Any]) -> None:
    training = job("FedAvg", None, model=_moving())
    assert set(training.learner(DATA).buffers()) == {"average"}
    run(training)
    assert "buffers" in {name for name, *_ in left}
