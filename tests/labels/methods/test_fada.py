"""FADA: whose features leave with whose consent, discriminators of pairs, and weights of sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atoll
from atoll.algorithms import FedProx, Scaffold
from atoll.core.algebra.rng import Rng
from atoll.core.errors import AtollError, CompositionError, ConfigError, PolicyError
from atoll.core.requests.policy import ROW_FEATURES, Policy, SitePolicy
from atoll.data import Dataset, Islands
from atoll.labels import FADA, FADE
from atoll.labels.methods.fada import judge_features, trained_judge
from atoll.labels.objectives.clusters import gain_weights
from atoll.learn.wrapped import Wrapped
from tests.support.adaptation_toys import WIDTH, Watched, federation, network, plain_linear, trained
from tests.support.killed_trainings import killed_training

BASE = atoll.FedAvg(lr=0.2, batch_size=10, steps=4)


def parties(sources: int = 2, hidden: int = 0, shift: float = 2.0) -> Islands:
    """Sources with labels, and the target's rows at the helper; its hidden labels hold any number."""
    whole = federation(sizes=(20,) * (sources + 1), targets=(sources,), shift=shift)
    target = whole.shard(sources).dataset()
    rows = Dataset({"x": target.x, "y": target.y * 0 + hidden, "labelled": np.zeros(len(target), bool)})
    named = {f"source {i}": whole.shard(i).dataset() for i in range(sources)}
    return Islands.from_datasets(named).with_test(whole.test).with_others({"target": rows})


def test_the_round_of_one_pair_is_that_of_a_bare_loop() -> None:
    """One source, full batches, one step: a discriminator on both parties' features, then a step of each against it, in plain PyTorch."""
    lr, weight, data = 0.3, 0.7, parties(1)
    method = FADA(base=atoll.FedAvg(lr=lr, batch_size=None, steps=1), weight=weight, rows=20, judge_steps=5)
    made = trained(method, network(), data, rounds=1)
    net, source = network(), data.shard(0)
    x, y = torch.tensor(source.x), torch.tensor(source.y)
    far = torch.tensor(data.others["target"].x)
    seen: dict[str, Any] = {}

    class Noted(FADA):
        def advance(self, state: Any, info: Any) -> Any:
            seen.update(state["judges"])
            return super().advance(state, info)

    settings = {"base": method.base, "weight": weight, "rows": 20, "judge_steps": 5}
    trained(Noted(**settings), network(), data, rounds=1)  # type: ignore[arg-type]
    judge = {name: torch.tensor(leaf[0]) for name, leaf in seen.items()}
    before = {name: leaf.clone() for name, leaf in judge.items()}
    for rows, of in ((x, 1.0), (far, 0.0)):
        z = net.features(rows)
        game = F.binary_cross_entropy_with_logits(judge_features(judge, z), torch.full((len(rows),), of))
        taught = F.cross_entropy(net.classifier(z), y) if of else 0.0
        net.zero_grad()
        (taught - weight * game).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0 if p.grad is None else lr * p.grad
    for name, p in net.named_parameters():
        np.testing.assert_allclose(made.params[name], p.detach(), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(judge[name], leaf) for name, leaf in before.items())


def test_a_discriminator_learns_as_a_module_does() -> None:
    """Autograd on a dict against ``nn.Sequential`` and plain SGD from the same start; more steps tell the domains apart."""
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(30, 4)).astype("f4"), rng.normal(1.5, size=(20, 4)).astype("f4")
    start, made = (trained_judge(near, far, hidden=5, steps=n, lr=0.4, rng=Rng(1)) for n in (0, 20))
    with torch.random.fork_rng(devices=[]):
        net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    first, last = net[0], net[2]
    with torch.no_grad():
        first.weight.copy_(torch.tensor(start["A"]).T)
        first.bias.copy_(torch.tensor(start["a"]))
        last.weight.copy_(torch.tensor(start["b"])[None])
        last.bias.copy_(torch.tensor(start["c"])[None])
    for _ in range(20):
        net.zero_grad()
        loss = sum(
            F.binary_cross_entropy_with_logits(net(torch.tensor(z)), torch.full((len(z), 1), of))
            for z, of in ((near, 1.0), (far, 0.0))
        )
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.4 * p.grad
    np.testing.assert_allclose(made["A"], first.weight.detach().T, rtol=1e-3, atol=1e-5)
    found = [judge_features({n: torch.tensor(v) for n, v in made.items()}, torch.tensor(z)) > 0 for z in (near, far)]
    assert found[0].float().mean() > 0.8
    assert found[1].float().mean() < 0.2


def test_each_source_plays_against_its_own_pair() -> None:
    """A source's step changes with its own discriminator alone, which it finds by its tag."""
    method, params = FADA(base=BASE), {n: p.detach().numpy() for n, p in network().named_parameters()}
    state = method.client_init(params)
    sent = {**method.broadcast(method.init(params), "sources"), "tags": np.array([5.0, 9.0], "f4")}
    sent |= {"judges": {}, "weights": np.array([0.3, 0.7], "f4"), "at_target": np.float32(0.0)}
    for tag, wanted in ((5.0, [1.0, 0.0]), (9.0, [0.0, 1.0])):
        np.testing.assert_array_equal(method.start(sent, {**state, "tag": np.float32(tag)})["play"], wanted)
    at_target = {**sent, "at_target": np.float32(1.0)}
    np.testing.assert_allclose(method.start(at_target, {**state, "tag": np.float32(7.0)})["play"], [0.3, 0.7])


@pytest.mark.parametrize("squared", [False, True])
def test_sources_weigh_by_the_gain_of_the_targets_clusters(squared: bool) -> None:
    """Weights add up to 1; those of the first round, which knows no gain, are equal, and later ones are the softmax of the drops."""
    told: list[Any] = []

    class Noted(FADA):
        def advance(self, state: Any, info: Any) -> Any:
            told.append((state["weights"], state["before"]))
            return super().advance(state, info)

    trained(Noted(base=BASE, rows=20, squared=squared, judge_steps=3), network(), parties(3), rounds=2)
    (first, before), (second, after) = told
    np.testing.assert_allclose(first, 1 / 3, rtol=1e-6)
    drops = [list(one.values()) for one in (before, after)]
    assert list(before) == list(after)
    np.testing.assert_allclose(second, gain_weights(*drops), rtol=1e-5)
    assert second.sum() == pytest.approx(1.0, rel=1e-6)
    assert np.ptp(second) > 1e-3


def test_a_party_alone_and_parties_in_a_block_learn_the_same() -> None:
    """Each source has 20 rows, and room for 25; few steps of a discriminator, which enlarges rounding."""
    method = FADA(base=BASE, rows=25, judge_steps=3)
    one, many = (trained(method, network(), parties(), engine=e, rounds=2) for e in ("inline", "batched"))
    for leaf, value in one.params.items():
        np.testing.assert_allclose(many.params[leaf], value, rtol=1e-4, atol=1e-5)


def test_hidden_labels_change_no_bit() -> None:
    one, two = (trained(FADA(base=BASE, judge_steps=3), network(), parties(hidden=h), rounds=2) for h in (0, 2))
    for leaf, value in one.params.items():
        np.testing.assert_array_equal(two.params[leaf], value)


def test_a_killed_run_resumes_to_the_bit(tmp_path: Any) -> None:
    """Tags of the sources and the target's dispersions are part of the checkpoint."""
    method = FADA(base=BASE, rows=20, judge_steps=2)
    job = atoll.Training(model=network(), algorithm=method, selection=atoll.Everyone(), rounds=3, compile="never")
    killed_training(job, parties(), tmp_path, points=3)


@pytest.mark.parametrize("base", [FedProx(mu=0.1, lr=0.1, steps=1), Scaffold(lr=0.1, steps=1)])
def test_other_algorithms_take_the_steps(base: Any) -> None:
    """The game changes features; in the first step, nothing else."""
    one, two = (
        trained(FADA(base=base, judge_steps=2, weight=w), network(), parties(), rounds=1).params for w in (0.0, 0.5)
    )
    assert all(np.isfinite(leaf).all() for leaf in two.values())
    assert not np.array_equal(one["features.0.weight"], two["features.0.weight"])
    np.testing.assert_allclose(two["classifier.weight"], one["classifier.weight"], rtol=1e-5)


@pytest.mark.slow
def test_the_target_gains() -> None:
    """Rows shifted far: the game makes the target's rows more accurate than the same steps on the sources' labels do."""
    base, data = atoll.FedAvg(lr=0.2, batch_size=20, steps=3), parties(2, shift=3.0)
    with_, without = (
        trained(FADA(base=base, weight=w, judge_steps=10), network(), data, rounds=8).history[-1]["test/accuracy"]
        for w in (2.0, 0.0)
    )
    assert with_ > without + 0.1  # 1.0 and .85


# ---------------------------------------------------------------------- consent


class Silent(Policy):
    """Fails if anything is asked."""

    def admit(self, request: Any) -> None:
        raise AssertionError(request)


def simulated(policy: Any, algorithm: Any = None) -> Any:
    job = atoll.Training(
        model=network(),
        algorithm=algorithm or FADA(base=BASE),
        selection=atoll.Everyone(),
        rounds=1,
        compile="never",
    )
    return atoll.simulate(job, parties(), engine="inline", policy=policy, progress=False)


@pytest.mark.parametrize("name", ["source 1", "target"])
@pytest.mark.parametrize("allow", [(), ("*",), ("training",)])
def test_without_a_sites_consent_nothing_begins(name: str, allow: tuple[str, ...]) -> None:
    """One site that has not named it is enough, whatever else it allows; no party is asked anything."""
    others = {one: Silent() for one in ("source 0", "source 1", "target") if one != name}
    with pytest.raises(PolicyError, match=f"features of single rows(?s:.*){name}(?s:.*)row-features"):
        simulated({**others, name: SitePolicy(allow=allow)})


def test_with_consent_features_leave_and_fade_needs_none() -> None:
    agreed = SitePolicy(allow=["*", ROW_FEATURES])
    assert simulated(agreed).history
    job = atoll.Training(model=network(discriminator=True), algorithm=FADE(base=BASE), rounds=1, compile="never")
    assert atoll.simulate(job, federation(), engine="inline", policy=SitePolicy(), progress=False).history
    seen = Watched()
    simulated(seen)
    assert (64, WIDTH) in seen.shapes  # 20 rows and padding


class Around(Wrapped):
    """A wrapper that adds nothing."""


def test_a_wrapper_hides_no_need_of_consent() -> None:
    for inside in (FADA(base=BASE), Around(base=FADA(base=BASE))):
        assert ROW_FEATURES in atoll.Training(model=network(), algorithm=inside, rounds=1).names()
    assert ROW_FEATURES not in atoll.Training(model=network(), algorithm=Around(base=BASE), rounds=1).names()


REFUSED = {
    "weight": (lambda: FADA(weight=-1.0), ConfigError, r"weight=-1\.0"),
    "rows": (lambda: FADA(rows=0), ConfigError, "rows=0"),
    "clusters": (lambda: FADA(clusters=0), ConfigError, "clusters=0"),
    "judge": (lambda: FADA(judge_lr=0.0), ConfigError, r"judge_lr=0\.0"),
    "phases": (lambda: FADA(base=atoll.algorithms.GIANT()), CompositionError, "phases"),
    "no target": (lambda: trained(FADA(base=BASE), network(), federation()), AtollError, "target"),
    "hidden sums": (
        lambda: trained(FADA(base=BASE), network(), parties(), reducer=atoll.reducers.SecureAggregation()),
        AtollError,
        r"FADA|single",
    ),
    "network": (lambda: trained(FADA(base=BASE), plain_linear(), parties()), AtollError, "DomainNetwork"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    make, kind, said = REFUSED[name]
    with pytest.raises(kind, match=said):
        make()
