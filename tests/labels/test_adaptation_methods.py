"""Methods between domains: what they equal, what they hold, and what leaves a party."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.labels import FADE, DomainNetwork, EfficientFDA, SelfTraining, Supervised
from atoll.labels.domain_network import outputs_of
from atoll.labels.methods.self_training import align_probabilities, confidence_of
from tests.support.adaptation_toys import CLASSES, WIDTH, Watched, federation, network, plain_linear, trained

# ---------------------------------------------------------------------- the network


def test_a_network_gives_logits_and_in_training_all_that_looks_at_features():
    net = network(discriminator=True, conditional=True, second=True)
    x = torch.tensor(np.random.default_rng(1).normal(size=(5, 4)), dtype=torch.float32)
    z = net.features(x)
    out = outputs_of(net.train()(x), dict(net.named_parameters()), "here")
    logits = net.classifier(z)
    assert torch.equal(net.eval()(x), logits)
    assert torch.equal(out.logits, logits)
    assert torch.equal(out.features, z)
    assert torch.equal(out.second, net.second(z))
    seen = (logits.softmax(1).unsqueeze(2) * z.unsqueeze(1)).flatten(1)
    torch.testing.assert_close(out.score, net.discriminator(seen).squeeze(1))
    assert torch.equal(out.held, out.score)


def test_another_network_is_refused():
    with pytest.raises(DataError, match=r"train an atoll\.labels\.DomainNetwork"):
        trained(EfficientFDA(), plain_linear(), federation())
    with pytest.raises(AtollError, match="a network without a discriminator"):
        trained(FADE(), network(), federation())


# ---------------------------------------------------------------------- FADE


def test_without_its_tricks_at_one_party_fade_is_dann():
    """Ganin's reversal layer and plain SGD in a bare loop over all rows."""
    data, lr, weight, steps = federation(sizes=(30,), targets=()), 0.2, 0.3, 6
    rows = data.pooled()
    source = np.arange(30) % 2 == 0
    whole = atoll.data.Dataset({"x": rows.x, "y": np.where(source, rows.y, 0), "labelled": source})
    islands = atoll.data.Islands.from_datasets({"all": whole}).with_test(rows)
    base = atoll.FedAvg(lr=lr, batch_size=None, steps=2)
    made = trained(
        FADE(base=base, weight=weight, power=1, certain=False), network(discriminator=True), islands, rounds=steps // 2
    )

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, slope):
            return -weight * slope

    net, x, s = network(discriminator=True).train(), torch.tensor(rows.x), torch.tensor(source)
    optimiser = torch.optim.SGD(net.parameters(), lr)
    for _ in range(steps):
        z = net.features(x)
        judged = F.binary_cross_entropy_with_logits(
            net.discriminator(Reverse.apply(z)).squeeze(1), s.float(), reduction="none"
        )
        taught = F.cross_entropy(net.classifier(z[s]), torch.tensor(rows.y)[s])
        optimiser.zero_grad()
        (taught + judged[s].mean() + judged[~s].mean()).backward()
        optimiser.step()
    for name, p in net.named_parameters():
        np.testing.assert_allclose(made.params[name], p.detach(), rtol=1e-4, atol=1e-6)


def test_without_weight_the_game_changes_no_feature():
    """The discriminator learns; features and classifier are those of labelled rows alone, to the bit."""
    base, data = atoll.FedAvg(lr=0.2, batch_size=7, steps=3), federation()
    made = trained(FADE(base=base, weight=0.0), network(discriminator=True, conditional=True), data)
    plain = trained(Supervised(base=base), network().alone(), data)
    for name, leaf in plain.params.items():
        np.testing.assert_array_equal(made.params[name], leaf)
    start = dict(network(discriminator=True, conditional=True).named_parameters())
    assert not np.allclose(made.params["discriminator.0.weight"], start["discriminator.0.weight"].detach())


# ---------------------------------------------------------------------- EfficientFDA


def discrepancy_step(data, weight, lr):
    """One step of plain SGD on all parties' rows: cross-entropy of each source, and ``weight ||mean_i mean z_i - mean_T z||^2`` as often as there are sources."""
    net = network()
    parts = [data.shard(i) for i in range(len(data))]
    means = [net.features(torch.tensor(one.x)).mean(0) for one in parts]
    sources = [i for i, one in enumerate(parts) if one["labelled"].all()]
    targets = [i for i in range(len(parts)) if i not in sources]
    gap = sum(means[i] for i in sources) / len(sources) - sum(means[i] for i in targets) / len(targets)
    taught = sum(
        F.cross_entropy(net.classifier(net.features(torch.tensor(parts[i].x))), torch.tensor(parts[i].y))
        for i in sources
    )
    ((taught + len(sources) * weight * (gap**2).sum()) / len(parts)).backward()
    return {name: (p - lr * p.grad).detach() for name, p in net.named_parameters()}


@pytest.mark.parametrize("targets", [(2,), (1, 2)])
def test_a_step_of_efficientfda_is_one_of_the_pooled_discrepancy(targets):
    """The chain rule in the clear, from one sum: after a first round that only counts the parties (at a rate of nearly 0)."""
    lr, weight, data = 0.3, 0.7, federation(targets=targets)

    class FromTheSecondRound(EfficientFDA):
        def rate(self, turn):
            return float(turn > 0)

    method = FromTheSecondRound(base=atoll.FedAvg(lr=lr, batch_size=None, steps=1), weight=weight, horizon=1)
    made = trained(method, network(), data, rounds=2)
    for name, p in discrepancy_step(data, weight, lr).items():
        np.testing.assert_allclose(made.params[name], p, rtol=1e-4, atol=1e-6)


def test_encrypted_it_is_the_plain_training_up_to_fixed_point():
    from atoll.reducers import Encrypted
    from atoll.secure.encrypted import Paillier

    method, data = EfficientFDA(base=atoll.FedAvg(lr=0.2, batch_size=None, steps=2), weight=0.5), federation()
    plain = trained(method, network(), data)
    sealed = trained(method, network(), data, reducer=Encrypted(Paillier(key_bits=256, insecure=True)))
    for name, leaf in plain.params.items():
        np.testing.assert_allclose(sealed.params[name], leaf, atol=2e-6)
    assert not np.allclose(plain.params["features.0.weight"], trained(
        EfficientFDA(base=method.base, weight=0.0), network(), data
    ).params["features.0.weight"], atol=1e-4)  # fmt: skip


def test_efficientfda_needs_a_base_with_one_contact():
    with pytest.raises(CompositionError, match="phases"):
        EfficientFDA(base=atoll.algorithms.GIANT())


# ---------------------------------------------------------------------- self-training


def test_aligned_guesses_have_the_classes_of_the_labels():
    rng = np.random.default_rng(0)
    p = torch.tensor(rng.dirichlet([0.3, 1.0, 2.0], 4000))
    wanted = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    moved = align_probabilities(p, p.mean(0), wanted)
    torch.testing.assert_close(moved.sum(1), torch.ones(4000, dtype=torch.float64))
    assert (moved.mean(0) - wanted).abs().max() < (p.mean(0) - wanted).abs().max() / 2
    torch.testing.assert_close(align_probabilities(p, wanted, wanted), p)  # nothing to move


@given(st.integers(1, 30), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_the_surest_portion_ends_at_its_last_row(rows, portion, seed):
    """Against sorting what counts: ``floor(portion n)`` rows, at least one, are as sure; rows that do not count never decide."""
    rng = np.random.default_rng(seed)
    sure, counts = torch.tensor(rng.uniform(0.1, 1, rows)), torch.tensor(rng.integers(0, 2, rows).astype(float))
    found = confidence_of(sure, counts, torch.tensor(portion, dtype=torch.float64))
    there = sure[counts > 0]
    if len(there):
        assert int((there >= found).sum()) == max(1, int(np.floor(portion * len(there))))


def test_guesses_without_weight_are_the_sources_alone():
    """The target has no weight then: the same model as without its party, up to the rows of another block."""
    base, whole = atoll.FedAvg(lr=0.2, batch_size=None, steps=2), federation()
    sources = atoll.data.Islands.from_datasets({str(i): whole.shard(i).dataset() for i in (0, 1)}).with_test(whole.test)
    made = trained(SelfTraining(base=base, weight=0.0), network().alone(), whole)
    alone = trained(Supervised(base=base), network().alone(), sources)
    for name, leaf in alone.params.items():
        np.testing.assert_allclose(made.params[name], leaf, rtol=1e-5, atol=1e-6)


def test_a_portion_counts_where_no_guess_is_sure():
    """Above a confidence of 1 - 1e-9 lies nothing: without a portion the target teaches nothing, with one it does; the portion grows from a quarter."""
    base, data = atoll.FedAvg(lr=0.2, batch_size=20, steps=3), federation()
    terms = {"base": base, "tau": 1 - 1e-9}
    none, some = (trained(SelfTraining(**terms, portion=p), network().alone(), data) for p in (0.0, 0.5))
    assert not np.allclose(none.params["features.0.weight"], some.params["features.0.weight"], atol=1e-4)
    method = SelfTraining(portion=0.8, warm=2, grow=4)
    state = method.init({"classifier.bias": np.zeros(3, np.float32)})
    sent = [method.broadcast({**state, "turn": turn}, "train") for turn in (0, 2, 4, 6, 9)]
    np.testing.assert_allclose([float(one["portion"][0]) for one in sent], [0.2, 0.2, 0.5, 0.8, 0.8], rtol=1e-6)
    assert [float(one["guessing"][0]) for one in sent] == [0, 1, 1, 1, 1]


def test_self_training_learns_where_the_sources_alone_do_not():
    data = federation(sizes=(80, 80), targets=(1,), shift=0.0, turn=0.8)  # .80 and .975
    base = atoll.FedAvg(lr=0.2, batch_size=20, steps=6)
    alone = trained(Supervised(base=base), network().alone(), data, rounds=8)
    taught = trained(SelfTraining(base=base, tau=0.6, warm=3), network().alone(), data, rounds=8)
    assert taught.history[-1]["test/accuracy"] > alone.history[-1]["test/accuracy"] + 0.1


# ---------------------------------------------------------------------- all of them

ALL = {
    "FADE": (lambda: FADE(ramp=2), {"discriminator": True, "conditional": True}),
    "EfficientFDA": (lambda: EfficientFDA(), {}),
    "SelfTraining": (lambda: SelfTraining(tau=0.5, warm=1, portion=0.7, grow=2), {}),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ALL)
def test_a_party_alone_and_parties_in_a_block_learn_the_same(name):
    method, parts = ALL[name]
    one, many = (trained(method(), network(**parts), federation(), engine=engine) for engine in ("inline", "batched"))
    for leaf, value in one.params.items():
        np.testing.assert_allclose(many.params[leaf], value, rtol=1e-4, atol=1e-5)
    assert [row["bytes_up"] for row in one.history] == [row["bytes_up"] for row in many.history]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ALL)
def test_hidden_labels_change_no_bit(name):
    method, parts = ALL[name]
    data = federation()
    whole = data.pooled()
    other = whole.with_columns({"y": np.where(whole["labelled"], whole.y, 1)})
    owner = np.repeat(range(3), 20)
    again = atoll.data.Islands.from_owner(other, owner, 3).with_test(data.test)
    one, two = (trained(method(), network(**parts), rows, rounds=2) for rows in (data, again))
    for leaf, value in one.params.items():
        np.testing.assert_array_equal(two.params[leaf], value)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ALL)
def test_no_features_of_rows_leave_a_party(name):
    """Every array has the shape of a parameter, of one row's features, of the classes, or is a number; parties have 23 rows, and so has no array."""
    method, parts = ALL[name]
    seen, net = Watched(), network(**parts)
    job = atoll.Training(model=net, algorithm=method(), selection=atoll.Everyone(), rounds=2, compile="never")
    atoll.simulate(job, federation(sizes=(23, 23, 23)), engine="inline", policy=seen, progress=False)
    allowed = {tuple(p.shape) for p in net.parameters()} | {(WIDTH,), (CLASSES,), (2,), ()}
    assert {tuple(p.shape) for p in net.parameters()} <= seen.shapes <= allowed


REFUSED = {
    "weight": (lambda: FADE(weight=-1.0), "weight=-1.0"),
    "power": (lambda: FADE(power=0), "power=0"),
    "tau": (lambda: SelfTraining(tau=1.5), "tau=1.5"),
    "portion": (lambda: SelfTraining(portion=1.5), "portion=1.5"),
    "grow": (lambda: SelfTraining(grow=-1), "grow=-1"),
    "discrepancy": (lambda: EfficientFDA(weight=float("nan")), "weight=nan"),
    "conditional": (
        lambda: DomainNetwork(nn.Tanh(), nn.Tanh(), conditional=True),
        "without a discriminator",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_make_no_sense_are_refused(name):
    make, said = REFUSED[name]
    with pytest.raises(ConfigError, match=said):
        make()


def test_functional_calls_see_a_part_of_the_parameters():
    """What the losses of DualAdapt and FRuDA rest on: a part of other parameters, the rest as they are."""
    net, x = network(), torch.ones(2, 4)
    other = {name: p * 0 for name, p in net.named_parameters() if name.startswith("features.")}
    assert torch.equal(functional_call(net.eval(), other, (x,)), net.classifier(torch.zeros(2, WIDTH)))
