"""FedAP: distances of statistics and weights against their formulas, the warm-up is gossip, and nodes whose data are alike find each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedAvg, OutputPerturbation
from atoll.core.errors import CompositionError, ConfigError
from atoll.data import Dataset, Islands
from atoll.learn.topology.fedap import likeness_weights, statistics_distance
from atoll.models import mlp
from atoll.topology import Complete, FedAP, Gossip


def two_kinds(nodes: int = 6, rows: int = 30) -> Islands:
    """Nodes of two kinds, whose rows lie elsewhere and whose labels are each other's opposite."""
    draw = np.random.default_rng(7)
    parts, held = {}, {}
    for node in range(nodes):
        sign = 1 if node % 2 else -1
        x = draw.normal(size=(2 * rows, 3)) + sign * np.array([0.0, 2.0, 0.0])
        y = (sign * x[:, 0] > 0).astype(np.int64)
        columns = {"x": x.astype(np.float32), "y": y}
        parts[f"n{node}"] = Dataset({k: v[:rows] for k, v in columns.items()}, task="classification", classes=2)
        held[f"n{node}"] = Dataset({k: v[rows:] for k, v in columns.items()}, task="classification", classes=2)
    return Islands.from_datasets(parts).with_held_out(Islands.from_datasets(held))


DATA = two_kinds()


def job(topology: Any, **more: Any) -> Any:
    parts = {"model": mlp(3, 2, (4,)), "algorithm": FedAvg(lr=0.1, batch_size=10, epochs=3), "rounds": 4}
    return atoll.Training(**{**parts, "topology": topology, "selection": atoll.Everyone(), **more})


def run(topology: Any, data: Any = DATA, **more: Any) -> Any:
    return atoll.simulate(job(topology, **more), data, engine="inline", seed=3, progress=False)


def test_the_distance_is_that_of_gaussians() -> None:
    """The closed form for full covariances, ``|m|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2)``, of diagonal ones."""
    draw = np.random.default_rng(0)
    layers = [{"mean": draw.normal(size=(2, q)), "var": draw.gamma(2.0, size=(2, q))} for q in (3, 5)]
    one, other = ([{name: value[who] for name, value in layer.items()} for layer in layers] for who in range(2))
    expected = 0.0
    for mine, theirs in zip(one, other, strict=True):
        a, b = np.diag(mine["var"]), np.diag(theirs["var"])
        inner = np.sqrt(a) @ b @ np.sqrt(a)
        values, vectors = np.linalg.eigh(inner)
        root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
        expected += np.sqrt(((mine["mean"] - theirs["mean"]) ** 2).sum() + np.trace(a + b - 2 * root))
    assert statistics_distance(one, other) == pytest.approx(expected, rel=1e-9)
    assert statistics_distance(one, one) == 0
    assert statistics_distance(one, other) == statistics_distance(other, one)


@given(
    distances=st.lists(st.floats(0, 1e9), min_size=1, max_size=6),
    own=st.floats(0, 0.99),
    scale=st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_weights_are_shares_that_fall_with_the_distance_and_know_no_scale(
    distances: list[float], own: float, scale: float
) -> None:
    d = np.round(np.array(distances), 3)
    found = likeness_weights(d, own)
    assert found.sum() == pytest.approx(1 - own)
    assert (np.diff(found[np.argsort(d)]) <= 1e-12).all()
    if np.median(d) > 0:
        np.testing.assert_allclose(likeness_weights(d * scale, own), found, rtol=1e-6, atol=1e-12)


def test_equal_distances_share_alike_and_the_paper_formula_holds() -> None:
    np.testing.assert_allclose(likeness_weights(np.zeros(4), 0.5), np.full(4, 0.125))
    np.testing.assert_allclose(likeness_weights(np.array([1.0, 2.0, 4.0]), 0.3), 0.7 * np.array([4, 2, 1]) / 7)


def test_the_warm_up_is_gossip_on_the_complete_graph() -> None:
    ours, gossip = run(FedAP(warmup=4)), run(Gossip(graph=Complete(), share="params"))
    for name, value in gossip.params.items():
        assert np.array_equal(ours.params[name], value)
    own = ours.metrics.last("own/accuracy")
    assert 0 < own < 1


def test_nodes_of_one_kind_find_each_other() -> None:
    """With opposite labels, no common model is right at both kinds; each kind's own is."""
    alike, equal = run(FedAP(), rounds=10), run(FedAP(warmup=10), rounds=10)
    assert alike.metrics.last("own/accuracy") > equal.metrics.last("own/accuracy") + 0.05
    assert alike.metrics.last("consensus") > 10 * equal.metrics.last("consensus")


def test_a_round_mixes_by_the_statistics_of_the_common_model() -> None:
    """One round by hand: the same initial model at all, its profiles, training of each alone, then the weighted sum of models."""
    whole = FedAvg(lr=0.1, batch_size=None, epochs=2)
    found = run(FedAP(warmup=0, own=0.4), algorithm=whole, rounds=1)
    start = run(Gossip(graph=Complete()), algorithm=FedAvg(lr=1e-12, batch_size=None), rounds=1).params
    profiles = []
    for node in range(6):
        hidden = np.asarray(DATA.shard(node)["x"], np.float64) @ np.asarray(start["1.weight"]).T + np.asarray(
            start["1.bias"]
        )
        profiles.append([{"mean": hidden.mean(0), "var": hidden.var(0)}])
    alone = [run(Gossip(graph=Complete()), DATA.subset([node]), algorithm=whole, rounds=1).params for node in range(6)]
    mixed = []
    for node in range(6):
        others = [j for j in range(6) if j != node]
        weights = likeness_weights(np.array([statistics_distance(profiles[node], profiles[j]) for j in others]), 0.4)
        pairs = list(zip(weights, others, strict=True))
        mixed.append({name: 0.4 * own + sum(w * alone[j][name] for w, j in pairs) for name, own in alone[node].items()})
    for name, value in found.params.items():
        np.testing.assert_allclose(value, np.mean([one[name] for one in mixed], axis=0), rtol=1e-4, atol=1e-5)


def test_one_node_and_twins_keep_working() -> None:
    assert run(FedAP(), DATA.subset([0])).metrics.last("own/accuracy") > 0.5
    twin = DATA.shard(0)
    same = Islands.from_datasets(
        {f"n{k}": Dataset({"x": twin["x"], "y": twin["y"]}, task="classification", classes=2) for k in range(3)}
    )
    assert run(FedAP(), same).metrics.last("consensus") < 1.0


def test_what_has_no_statistics_or_keeps_them_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer"):
        run(FedAP(layers=("nothing",)))
    with pytest.raises(CompositionError, match="that all nodes have, and Uniform"):
        run(FedAP(), selection=atoll.selection.Uniform(2))
    with pytest.raises(CompositionError, match="statistics of their rows"):
        run(FedAP(), algorithm=OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1.0))
    for name, value in (("own", 1.0), ("own", -0.1), ("warmup", -1)):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            FedAP(**{name: value})
    with pytest.raises(ConfigError, match="layers='auto'"):
        FedAP(layers="auto")
