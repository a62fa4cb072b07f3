"""DualAdapt and FRuDA: who trains what, with what is held held."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch.func import functional_call

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.labels import DualAdapt, FRuDA
from atoll.labels.methods.collaborators import Candidate, Collaborators
from atoll.labels.methods.dualadapt import SourceLoss, TargetLoss, log_density, mixture_of
from atoll.labels.objectives import Mixture, projections, sliced_quantiles, transfer_bound, wasserstein
from tests.support.adaptation_toys import CLASSES, WIDTH, Watched, federation, network, trained

BASE = atoll.FedAvg(lr=0.2, batch_size=10, steps=4)


def server_and_targets():
    """The source's rows at the helper, two targets without labels."""
    whole = federation()
    source, targets = whole.shard(0).dataset(), [whole.shard(i).dataset() for i in (1, 2)]
    hidden = [one.with_columns({"y": one.y * 0, "labelled": np.zeros(len(one), bool)}) for one in targets]
    data = atoll.data.Islands.from_datasets({"one": hidden[0], "two": hidden[1]}).with_test(whole.test)
    return data.with_others({"labels": source})


def slopes(loss, net, *, labelled, mixture=None):
    """The gradient of a loss by name of parameter, on rows of the first party."""
    rows = federation().shard(0)
    params = {name: p.detach().requires_grad_() for name, p in net.train().named_parameters()}
    sent = {name: p.detach() for name, p in params.items()}

    def model(x, given=None, *, training=True):
        net.train(training)
        return functional_call(net, {**params, **(given or {})}, (x,))

    inputs = {
        "model": model,
        "x": torch.tensor(rows.x),
        "target": torch.tensor(rows.y),
        "labelled": torch.full((len(rows.y),), labelled),
        "keys": torch.arange(len(rows.y)) * 7919 + (5 << 32),
        "real": torch.ones(len(rows.y)),
        "broadcast": {"params": sent, "mixture": mixture},
    }
    asked = {name: inputs[name] for name in inspect.signature(loss).parameters}
    made = torch.autograd.grad(loss(**asked), list(params.values()), allow_unused=True)
    return {name: 0.0 if g is None else float(g.abs().max()) for name, g in zip(params, made, strict=True)}


def unknown():
    zero = torch.zeros(CLASSES, WIDTH)
    return {"known": zero[0, :1], "shares": zero[:, 0], "means": zero, "variances": zero + 1}


def test_disagreement_trains_features_at_the_source_and_classifiers_at_targets():
    """Step 2 of the maximum classifier discrepancy cannot change the features, step 3 cannot change the classifiers."""
    third = slopes(SourceLoss(None, 1.0, 0.75), network(second=True), labelled=False, mixture=unknown())
    second = slopes(TargetLoss(None, 1.0, 0.5), network(second=True), labelled=False)
    for name in third:
        at_features = name.startswith("features.")
        assert (third[name] > 0) == at_features, name
        assert (second[name] > 0) == (not at_features), name


@pytest.mark.slow
def test_a_round_moves_what_it_says():
    """At no learning rate of the source, the features stay; classifiers move at the targets."""
    data, net = server_and_targets(), network(second=True)
    made = trained(DualAdapt(base=BASE, tau=0.4), net, data, rounds=3)
    again = trained(DualAdapt(base=BASE, tau=0.4), net, data, rounds=3, engine="batched")
    for name, leaf in made.params.items():
        np.testing.assert_allclose(again.params[name], leaf, rtol=1e-4, atol=1e-5)
        assert not np.allclose(leaf, dict(net.named_parameters())[name].detach())
    assert made.history[-1]["test/accuracy"] > 0.6


def test_no_features_of_rows_leave_a_target():
    seen, net = Watched(), network(second=True)
    job = atoll.Training(
        model=net, algorithm=DualAdapt(base=BASE), selection=atoll.Everyone(), rounds=2, compile="never"
    )
    atoll.simulate(job, server_and_targets(), engine="inline", policy=seen, progress=False)
    allowed = {tuple(p.shape) for p in net.parameters()} | {(CLASSES, WIDTH), (CLASSES,), ()}
    assert seen.shapes <= allowed


def test_sums_make_the_mixture_of_weighted_rows():
    rng = np.random.default_rng(0)
    z, p = rng.normal(size=(50, 3)), rng.dirichlet(np.ones(2), 50)
    found = mixture_of({"count": p.sum(0), "first": p.T @ z, "second": p.T @ z**2})
    for k in range(2):
        mean = np.average(z, axis=0, weights=p[:, k])
        np.testing.assert_allclose(found["means"][k], mean)
        np.testing.assert_allclose(
            found["variances"][k], np.average((z - mean) ** 2, axis=0, weights=p[:, k]), atol=2e-4
        )
    np.testing.assert_allclose(found["shares"], p.mean(0))
    own = Mixture(*(found[name] for name in ("shares", "means", "variances")))
    tensors = {name: torch.tensor(value) for name, value in found.items()}
    np.testing.assert_allclose(log_density(torch.tensor(z), tensors), own.log_density(z), rtol=1e-9)


def test_fruda_moves_the_features_and_leaves_the_classifier():
    """From a model that knows the source, towards its features: the target's domain cannot be told from the source's as well as before."""
    data = federation(sizes=(60, 60), targets=(1,))
    start = network(discriminator=True)
    made = trained(FRuDA(base=atoll.FedAvg(lr=0.2, batch_size=20), lazy=3, weight=0.5), start, data, rounds=4)
    again = trained(
        FRuDA(base=atoll.FedAvg(lr=0.2, batch_size=20), lazy=3, weight=0.5), start, data, rounds=4, engine="batched"
    )
    before = {name: p.detach().numpy() for name, p in start.named_parameters()}
    for name, leaf in made.params.items():
        np.testing.assert_allclose(again.params[name], leaf, rtol=1e-4, atol=1e-5)
        assert np.array_equal(leaf, before[name]) == name.startswith("classifier."), name
    assert FRuDA(lazy=3).steps == 3


def test_a_collaborator_is_the_nearest_domain():
    """From quantiles alone: an adapted target near the new one beats the source, until its own error is too large."""
    rng, directions = np.random.default_rng(0), projections(4, 50, np.random.default_rng(1))
    told = {
        name: sliced_quantiles(rng.normal(size=(200, 4)) + moved, directions, 20, least=10)
        for name, moved in {"source": 0.0, "adapted": 1.5, "new": 2.0}.items()
    }
    away = {name: wasserstein(told[name], told["new"], 4) for name in ("source", "adapted")}
    assert away["adapted"] == pytest.approx(1.0, rel=0.25)  # a shift of .5 in four features
    assert transfer_bound(0.2, away["adapted"]) < transfer_bound(0.1, away["source"])
    assert transfer_bound(9.0, away["adapted"]) > transfer_bound(0.1, away["source"])


def ranked(data, candidates, **settings):
    rule = Collaborators(model=network().alone, candidates=candidates, least=1, **settings)
    return atoll.simulate(rule.program("2"), data, engine="inline", progress=False)


def test_a_new_domain_chooses_by_the_bound_and_no_row_leaves_a_party():
    """Two sources, one of them where the new domain is: its distance is the smaller, and its error what its labels say."""
    data = federation(sizes=(60, 60, 60), targets=(1, 2))  # the second lies where the third does
    near = data.shard(1).dataset().with_columns({"labelled": np.ones(60, bool)})
    parts = {"0": data.shard(0).dataset(), "1": near, "2": data.shard(2).dataset()}
    params = {name: p.detach().numpy() for name, p in network().alone().named_parameters()}
    islands = atoll.data.Islands.from_datasets(parts)
    seen = Watched()
    rule = Collaborators(model=network().alone, candidates={n: Candidate(params) for n in "01"}, least=1)
    offers = atoll.simulate(rule.program("2"), islands, engine="inline", policy=seen, progress=False)
    assert [offer.name for offer in sorted(offers, key=lambda offer: offer.distance)] == ["1", "0"]
    assert {(50, 4), (60, 4), (60, WIDTH), (60, CLASSES)}.isdisjoint(seen.shapes)
    p = network().alone()(torch.tensor(near.x)).softmax(1).detach().numpy()
    first = next(offer for offer in offers if offer.name == "1")
    assert first.error == pytest.approx(1 - p[np.arange(60), near.y].mean(), rel=1e-5)
    assert first.bound == pytest.approx(transfer_bound(first.error, first.distance))
    assert [offer.bound for offer in offers] == sorted(offer.bound for offer in offers)


def test_an_adapted_domain_is_a_candidate_with_the_error_that_it_was_promised():
    whole = federation(sizes=(60, 60, 60), targets=(1, 2))
    data = atoll.data.Islands.from_datasets({str(i): whole.shard(i).dataset() for i in range(3)})
    params = {name: p.detach().numpy() for name, p in network().alone().named_parameters()}
    far, near = Candidate(params), Candidate(params, error=0.1)
    assert ranked(data, {"0": far, "1": near})[0].name == "1"
    assert ranked(data, {"0": far, "1": Candidate(params, error=99.0)})[0].name == "0"
    with pytest.raises(DataError, match="1 has no label, and its error is not known"):
        ranked(data, {"1": Candidate(params)})


REFUSED = {
    "candidates": (lambda: Collaborators(model=None, candidates={}), "no candidate"),
    "levels": (lambda: Collaborators(model=None, candidates={"a": Candidate({})}, levels=0), "levels=0"),
    "error": (lambda: Collaborators(model=None, candidates={"a": Candidate({}, error=-1.0)}), "error=-1.0"),
    "mix": (lambda: DualAdapt(mix=0.0), "mix=0.0"),
    "lazy": (lambda: FRuDA(lazy=0), "lazy=0"),
    "one classifier": (lambda: trained(DualAdapt(), network(), server_and_targets()), "a network with one classifier"),
    "no source": (lambda: trained(DualAdapt(), network(second=True), federation()), "labels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    make, said = REFUSED[name]
    with pytest.raises((ConfigError, DataError, AtollError), match=said):
        make()
