"""FedMatch: disjoint parts, sparse replies counted in bytes, helpers by the similarity of outputs, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.algorithms import FedAvg, FedProx, Scaffold
from atoll.core.algebra.aggregate import Parts
from atoll.core.errors import CompositionError, ConfigError
from atoll.data import Islands
from atoll.labels.methods.fedmatch import DisjointGradient, FedMatch, NearestHelpers, join_parts, split, together
from atoll.reducers import SecureAggregation
from tests.support.killed_trainings import killed_training
from tests.support.label_toys import gap, images, islands, net, same, trained

WORK: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 8}
BASES = [FedAvg(**WORK), FedProx(mu=0.5, **WORK), Scaffold(**WORK)]


def fedmatch(**settings: Any) -> FedMatch:
    given = {"tau": 0.3, "icc": 1.0, "agree": 1.0, "l2": 0.1, "refresh": 1, "weak": None, "strong": None, **settings}
    return FedMatch(**(given if "base" in given else {**WORK, **given}))


class Slopes:
    """A gradient oracle whose losses have fixed slopes, and no unlabelled row in the mini-batch if ``there`` is 0."""

    def __init__(self, there: float, chosen: str = "") -> None:
        self.there, self.chosen = there, chosen

    def on(self, loss: Any = None, **given: Any) -> Slopes:
        return Slopes(self.there, loss)

    def read(self, loss: Any, params: Any) -> float:
        assert loss == "count"
        return self.there

    def __call__(self, params: Any) -> Any:
        return {"w": np.full(2, {"labelled": 1.0 - self.there, "unlabelled": self.there}[self.chosen])}


@pytest.mark.parametrize("there", [0.0, 1.0])
def test_rows_with_labels_move_sigma_and_rows_without_move_psi(there: float) -> None:
    both = together({"w": np.array([1.0, 2.0])}, {"w": np.array([0.5, -0.5])})
    weights = {"weight": 10.0, "l1": 0.25, "l2": 2.0}
    slope = DisjointGradient(Slopes(there), ("labelled", "unlabelled", "count"), weights)(both)
    sigma, psi = split(slope)
    if there:
        assert sigma["w"].tolist() == [0.0, 0.0]
        assert psi["w"].tolist() == [1 + 0.25 - 4 * 0.5, 1 - 0.25 - 4 * 2.5]
    else:
        assert sigma["w"].tolist() == [10.0, 10.0]
        assert psi["w"].tolist() == [0.0, 0.0]


def test_a_model_in_two_parts_is_their_sum() -> None:
    sigma, psi = {"a": np.ones(2)}, {"a": np.arange(2.0)}
    assert join_parts(together(sigma, psi))["a"].tolist() == [1.0, 2.0]
    assert split(together(sigma, psi)) == (sigma, psi)
    with pytest.raises(CompositionError, match="no common curvature"):
        DisjointGradient(None, (), {}).hvp({}, {})


def rows(share: float, parties: int = 3) -> Islands:
    return islands(images(share=share), parties)


@pytest.mark.quick("base0")
@pytest.mark.parametrize("base", BASES)
def test_with_all_labels_it_is_the_algorithm_inside_to_rounding(base: Any) -> None:
    for neighbours in (0, 2):
        method = fedmatch(base=base, neighbours=neighbours, least=0.0, floor=0.0)
        assert gap(trained(method, rows(2.0)), trained(base, rows(2.0))) < 1e-6


@pytest.mark.slow
@pytest.mark.quick("2-base1", "base1-2")
@pytest.mark.parametrize("neighbours", [0, 2])
@pytest.mark.parametrize("base", BASES)
def test_blocks_of_clients_train_as_single_ones(base: Any, neighbours: int) -> None:
    method = fedmatch(base=base, neighbours=neighbours)
    assert gap(trained(method, rounds=3), trained(method, rounds=3, engine="batched")) < 1e-5


def test_helpers_and_unlabelled_rows_count() -> None:
    alone, helped = (trained(fedmatch(neighbours=h), rounds=3) for h in (0, 2))
    assert gap(alone, helped) > 1e-5
    assert gap(alone, trained(fedmatch(neighbours=0, agree=0.0, icc=0.0, l1=0.0, l2=0.0), rounds=3)) > 1e-5


def test_what_a_hidden_label_holds_is_out_of_reach() -> None:
    one, two = (trained(fedmatch(), islands(images(garbage=seed))) for seed in (5, 6))
    assert same(one, two)


def bytes_up(share: float, **settings: Any) -> float:
    """Of one client that trains one round."""
    job = atoll.Training(model=net(), algorithm=fedmatch(neighbours=0, **settings), rounds=1)
    return float(atoll.simulate(job, rows(share, 1), engine="inline", seed=0, progress=False).metrics[0]["bytes_up"])


@pytest.mark.usefixtures("labels_unchecked")
def test_a_client_without_labels_sends_psi_alone_and_only_what_changed() -> None:
    """A parameter costs 4 bytes and an index of 10 bits; sigma and psi have 308 each."""
    size = sum(leaf.numel() for leaf in net().parameters())
    assert size == 308
    labelled, unlabelled = bytes_up(2.0), bytes_up(0.0)
    for sent in (labelled, unlabelled):
        assert sent < size * (4 + 10 / 8) + 1000, "one part, with a header"
    assert bytes_up(0.5) > labelled + 0.7 * size * 4, "both parts"
    few, fewer = (bytes_up(0.0, least=least) for least in (5e-3, 5e-1))
    assert fewer < few - 100
    assert few < unlabelled


def test_the_pull_to_zero_makes_psi_sparse() -> None:
    """Entries below the floor become 0 and stay there: ``nnz(psi)`` falls with ``l1``."""
    nonzero = []
    for l1 in (0.0, 0.05, 0.15):
        method = fedmatch(neighbours=0, l1=l1, l2=0.0, icc=0.0, floor=0.02, least=0.0, steps=6)
        local = _local(method)
        nonzero.append(int(sum((abs(leaf) > 0).sum() for leaf in split(local)[1].values())))
    assert nonzero == sorted(nonzero, reverse=True)
    assert nonzero[-1] < nonzero[0]


def _local(method: FedMatch) -> Any:
    """Return both parts as the server folds them after one client's round without labels."""
    from atoll.learn.algorithm import RoundInfo

    data = rows(0.0, 1)
    job = atoll.Training(model=net(), algorithm=method, rounds=1)
    learner = job.learner(data)
    params = {name: leaf.detach().numpy() for name, leaf in net().named_parameters()}
    state = method.init(params)
    reply, _ = learner.training.one(data.shard(0), method.broadcast(state, "train"), None, 1)
    sums = {name: np.asarray(a.value) if not isinstance(a.value, dict) else a.value for name, a in reply.items()}
    state = method.fold(state, {"update": sums["update"]}, RoundInfo(1, 1, 1, 1), "train")
    return together(state["sigma"], state["psi"])


def test_the_nearest_outputs_help_and_far_ones_are_denied() -> None:
    """Logits are the psi itself: the distances are those of softmaxes."""

    def model(x: Any, params: Any, *, training: bool) -> Any:
        return params["w"].expand(len(x), 3)

    psi = torch.tensor([[0.0, 0.0, 0.1], [0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 0.5], [9.0, 9.0, 9.0]])
    pool = {"psi": {"w": psi}, "there": torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])}
    own = {"sigma": {"w": torch.zeros(3)}, "psi": {"w": torch.zeros(3)}}
    made = NearestHelpers(count=3, farthest=0.5)(
        model=model, x=torch.zeros(2, 1, 4), broadcast={"pool": pool, "own": own}
    )
    assert made["chosen"].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert made["denied"].tolist() == [0, 0, 1, 0, 0]


def test_a_helper_that_most_clients_deny_is_forgotten() -> None:
    from atoll.core.algebra.aggregate import Part
    from atoll.learn.algorithm import RoundInfo

    method = fedmatch(neighbours=1, pool=2, refresh=10)
    state = {**method.init({"w": np.ones(2, np.float32)}), "turn": 3}
    state["pool"] = {**state["pool"], "there": np.ones(2, np.float32)}
    update = together({"w": np.zeros(2, np.float32)}, {"w": np.zeros(2, np.float32)})
    sums = {"update": [Part(update, 1.0), Part(update, 3.0), Part(update, 1.0)], "denied": np.array([2.0, 1.0])}
    state["owners"] = {**state["owners"], "who": np.array([7, 2])}
    made = method.fold(state, sums, RoundInfo(4, 3, 3, 3), "train")
    assert made["pool"]["there"].tolist() == [0.0, 1.0]
    assert list(method.outliers(made)) == [7]
    assert "say 2 clients" in method.outliers(made)[7]
    again = method.fold(made, {**sums, "denied": np.array([3.0, 0.0])}, RoundInfo(5, 3, 3, 3), "train")
    assert method.outliers(again) == {}, "an empty place of the pool cannot be denied"
    assert again["owners"]["barred"].tolist() == [7]
    both = method.fold(state, {**sums, "denied": np.array([3.0, 3.0])}, RoundInfo(4, 3, 3, 3), "train")
    assert both["pool"]["there"].tolist() == [0.0, 0.0]
    assert method.outliers(both) == {}, "where all are far off, nobody is singled out"


@dataclass(frozen=True, kw_only=True)
class Forging(FedMatch):
    """One client sends a psi of its own making: finite, small in number, and far off in what it says."""

    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        reply, kept = super().finish(local, broadcast, client, work)
        update = reply["update"]
        if work.examples != FORGER:
            return reply, kept
        forged = {n: leaf + 1e3 * torch.arange(4.0) if n == "psi/4.bias" else leaf for n, leaf in update.value.items()}
        return {**reply, "update": Parts(forged, examples=update.weight)}, kept


FORGER = 21


def test_a_forged_helper_is_named_in_the_history_and_helps_nobody() -> None:
    """Four clients; the one with 21 rows shifts the last bias of psi by thousands. Its reply counts in the mean, its model helps no other."""
    parts = {f"c{i}": images(20 + (i == 2), share=0.5, seed=i) for i in range(4)}
    job = atoll.Training(
        model=net(), algorithm=Forging(**WORK, neighbours=1, pool=4, refresh=1, tau=0.3, weak=None, strong=None, farthest=0.5),
        selection=atoll.Everyone(), rounds=3, compile="never",
    )  # fmt: skip
    made = atoll.simulate(job, Islands.from_datasets(parts), engine="inline", seed=0, progress=False)
    named = [row.get("outlying_clients", {}) for row in made.metrics]
    assert named[0] == {}, "nobody has compared a model yet"
    assert set(named[1]) == {"c2"}
    assert "far off" in named[1]["c2"]
    assert set(named[2]) <= {"c2"}


def test_single_replies_are_refused_where_sums_hide_them() -> None:
    with pytest.raises(CompositionError, match=r"FedMatch shows clients' models to others.*FedMatch\(neighbours=0\)"):
        trained(fedmatch(), reducer=SecureAggregation())


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit(tmp_path: Any) -> None:
    """Each client's last psi is private state."""
    job = atoll.Training(model=net(), algorithm=fedmatch(steps=1), rounds=3)
    killed_training(job, rows(0.5), tmp_path, points=5)


def test_a_wrapper_that_moves_the_model_moves_sigma() -> None:
    method = fedmatch(neighbours=0)
    state = method.init({"w": np.ones(2, np.float32)})
    moved = method.moved({**state, "params": {"w": np.full(2, 3.0, np.float32)}})
    assert moved["psi"]["w"] == pytest.approx(state["psi"]["w"])
    assert moved["sigma"]["w"] == pytest.approx(3.0 - state["psi"]["w"])


@pytest.mark.parametrize(
    "settings",
    [{"neighbours": -1}, {"pool": 1}, {"refresh": 0}, {"share": 2.0}, {"tau": 0.0}, {"l1": -1.0}, {"icc": -1.0}],
)
def test_settings_without_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(settings.values())))):
        FedMatch(**settings)


@pytest.mark.slow
def test_labels_at_the_server_move_sigma_and_clients_move_psi() -> None:
    hidden = islands(images(share=0.0)).with_others({"labels": images(40, share=2.0, seed=7)})
    work: dict[str, Any] = {"labels_at": "server", "warm_up": 10, "label_steps": 3, "neighbours": 0}
    one, many = (trained(fedmatch(**work), hidden, engine=engine) for engine in ("inline", "batched"))
    assert gap(one, many) < 1e-5
    assert gap(one, trained(fedmatch(**work, agree=0.0, l2=0.0, l1=0.0), hidden)) > 1e-5
    method = fedmatch(labels_at="server")
    state = method.init({"w": np.ones(2, np.float32)})
    taught = method.taught(state, {"w": np.full(2, 0.5, np.float32)})
    assert taught["psi"]["w"].tolist() == state["psi"]["w"].tolist()
    assert taught["params"]["w"] == pytest.approx([1.5, 1.5])
