"""Mechanisms at clients: what leaves is privatised, what is released is in the ledger, and the budget holds."""

import math
from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.algorithms import (
    Accelerated,
    FedAvg,
    FedDyn,
    FedProx,
    FedYogi,
    Mime,
    ObjectivePerturbation,
    OutputPerturbation,
    PFedMe,
    Scaffold,
    Upcycled,
)
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError, PolicyError, TaskError
from atoll.core.requests.island import Secret
from atoll.learn.algorithm import LocalWork, Stragglers
from atoll.learn.local.examples import SecretStream
from atoll.learn.transforms import Momentum
from atoll.learn.wrapped import Wrapped
from atoll.privacy import Budget, cost, exact_epsilon, moments_epsilon, objective_epsilon, spent
from atoll.testing import check_algorithm

LOCAL = {"lr": 0.05, "epochs": 2, "batch_size": 8}
ONE = [FedAvg(**LOCAL), FedYogi(**LOCAL), Scaffold(**LOCAL), FedDyn(**LOCAL), FedProx(**LOCAL)]
TWO = [
    PFedMe(lr=0.05, lam=5.0, epochs=1),
    Accelerated(base=FedAvg(**LOCAL), transforms=(Momentum(0.5),), memory="client"),
]


def ids(algorithm):
    return type(algorithm).__name__


def islands(parties=6, unit=True):
    """Two classes of iris, rows scaled into the unit ball."""
    data = atoll.data.iris()
    two = data.take(np.flatnonzero(np.asarray(data.y) < 2))
    x = np.asarray(two.x, dtype=np.float64)
    x = x / 10.0 if unit else x
    made = atoll.data.Dataset({"x": x, "y": np.asarray(two.y)}, task="classification", name="two irises")
    return atoll.data.iid(made, parties=parties, seed=1)


def run(algorithm, rounds=3, data=None, engine="inline", model=None, **more):
    world = {name: more.pop(name) for name in ("folder", "secret_seed", "seed") if name in more}
    options = {"selection": atoll.Uniform(3), **more}
    job = atoll.Training(model=model or atoll.models.linear(4, 2), algorithm=algorithm, rounds=rounds, **options)
    return atoll.simulate(job, data or islands(), engine=engine, **{"seed": 3, **world})


def numbers(reply, kept):
    """Everything that a client sends and keeps."""
    return [np.asarray(v) for v in T.leaves([*(a.value for a in reply.values()), kept]) if v is not None]


@pytest.mark.parametrize("base", ONE + TWO, ids=ids)
def test_everything_that_leaves_or_stays_follows_from_the_released_models(base):
    """Two clients whose data differ, and whose released models happen to be equal, cannot be told apart by anything."""
    private = OutputPerturbation(base=base, tau=1.0, sigma=0.5)
    params = {"weight": np.zeros((4, 2)), "bias": np.zeros(2)}
    broadcast, client = private.broadcast(private.init(params), "train"), private.client_init(params)
    start = private.start(broadcast, client)
    draw = np.random.default_rng(0)
    ends = []
    for stretch in (3.0, 7.0):  # beyond tau in the same direction: clipped to the same point
        draw = np.random.default_rng(0)
        local = T.map(lambda leaf, s=stretch, d=draw: s * d.normal(size=np.shape(leaf)), start)
        reply, kept = private.finish(
            {**local, "drawn": private.draw(Rng(5), params)}, broadcast, client, LocalWork(9.0, 4.0)
        )
        ends.append(numbers(reply, kept))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("base", ONE, ids=ids)
def test_no_upload_is_computed_from_the_model_without_noise(base):
    """With FedYogi's delta and SCAFFOLD's control variate as with the rest: equal ends, other noise, other uploads."""
    private = OutputPerturbation(base=base, tau=1e6, sigma=2.0)
    params = {"weight": np.zeros((40, 2)), "bias": np.zeros(2)}
    broadcast, client = private.broadcast(private.init(params), "train"), private.client_init(params)
    local = T.map(lambda leaf: leaf + 1.0, private.start(broadcast, client))
    uploads = []
    for key in (1, 2):
        reply, kept = private.finish(
            {**local, "drawn": private.draw(Rng(key), params)}, broadcast, client, LocalWork(9.0, 4.0)
        )
        uploads.append(numbers(reply, kept))
    for a, b in zip(*uploads, strict=True):
        assert np.abs(a - b).min() > 0
        if base is ONE[0] and a.size >= 80:
            assert (a - b).std() == pytest.approx(2.0 * math.sqrt(2), rel=0.3)


def test_sigma_is_a_standard_deviation():
    """The public code hands its square to the sampler; here sigma = 3 means 3, not 9, and the ledger says so."""
    private = OutputPerturbation(base=FedAvg(), tau=2.0, sigma=3.0)
    noise = private.draw(Rng(0), {"w": np.zeros(40_000)})["noise"]["params"]["w"]
    assert noise.std() == pytest.approx(3.0, rel=0.02)
    (event,) = private.events(10)
    assert event.noise_multiplier == 3.0 / (2 * 2.0)
    (event,) = OutputPerturbation(base=FedAvg(), tau=2.0, sigma=3.0, sensitivity=0.1).events(10)
    assert event.noise_multiplier == pytest.approx(30.0)


def test_the_model_is_clipped_not_the_update():
    private = OutputPerturbation(base=FedAvg(), tau=1.0, sigma=1e-9)
    for length, want in ((0.5, 0.5), (5.0, 1.0)):
        far = {"params": {"w": np.array([100.0, 0.0])}, "lr": 0.1}
        local = {"params": {"w": np.array([0.0, length])}, "drawn": private.draw(Rng(0), far["params"])}
        reply, _ = private.finish(local, far, None, LocalWork(1.0, 1.0))
        np.testing.assert_allclose(reply["update"].value["w"], [-100.0, want], atol=1e-7)


def test_an_even_round_multiplies_the_noise_of_its_odd_round():  # T7
    """Var (1 + eta)^2 sigma^2 sum p_i^2 a coordinate, and nothing of the next."""
    eta, sigma, n = 0.5, 2.0, 4000
    data = islands(4)
    frozen = OutputPerturbation(base=FedAvg(lr=1e-9, steps=1), tau=1e6, sigma=sigma)
    model = atoll.models.linear(4, 2)
    found = {1: [], 2: []}
    for rounds in found:
        for seed in range(n // 80):
            job = atoll.Training(
                model=model, algorithm=Upcycled(base=frozen, coefficient=eta), selection=atoll.Everyone(), rounds=rounds
            )
            made = atoll.simulate(job, data, engine="inline", seed=0, secret_seed=seed).params
            found[rounds] += [made["weight"].ravel(), made["bias"].ravel()]
    shares = np.asarray(data.sizes) / np.sum(data.sizes)
    odd, even = (np.concatenate(found[r]).std() for r in (1, 2))
    assert odd == pytest.approx(sigma * math.sqrt((shares**2).sum()), rel=0.1)
    assert even == pytest.approx((1 + eta) * odd, rel=1e-5)


def test_the_ledger_counts_rounds_that_a_client_joined_and_no_even_round(tmp_path):  # T8
    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=4.0)
    odd = run(Upcycled(base=private, coefficient=0.5), rounds=3, folder=tmp_path / "odd")
    even = run(Upcycled(base=private, coefficient=0.5), rounds=4, folder=tmp_path / "even")
    from atoll.core.event import Ledger

    ledgers = [list(Ledger(tmp_path / name / "checkpoints" / "ledger.jsonl")) for name in ("odd", "even")]
    assert len(ledgers[0]) == len(ledgers[1]) == 2 * 3
    assert spent(ledgers[0], 1e-5) == spent(ledgers[1], 1e-5)
    joined = {}
    for entry in ledgers[0]:
        joined[entry["party"]] = joined.get(entry["party"], 0) + 1
    for party, epsilon in spent(ledgers[0], 1e-5, "moments").items():
        assert epsilon == pytest.approx(moments_epsilon(cost(joined[party], 2.0, 4.0), 1e-5))
    assert len(odd.metrics) == 3
    assert len(even.metrics) == 4
    assert "loss" not in next(iter(odd.metrics))  # the training loss would leave without noise


def test_two_models_of_a_client_are_two_releases():
    for base in TWO:
        private = OutputPerturbation(base=base, tau=1.0, sigma=4.0)
        assert len(private.outgoing) == 2
        (event,) = private.events(10)
        assert event.count == 2
    for base in ONE:
        (event,) = OutputPerturbation(base=base, tau=1.0, sigma=4.0).events(10)
        assert event.count == 1


def test_noise_comes_from_the_secret_and_is_never_the_same_twice():
    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=0.5)
    one, two = run(private), run(private)
    assert np.abs(one.params["weight"] - two.params["weight"]).min() > 0
    seeded = [run(private, secret_seed=1) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].params["weight"], seeded[1].params["weight"])

    class Counting(Secret):
        asked = 0

        def bytes(self, n):
            Counting.asked += n
            return bytes(range(n))

    SecretStream(Counting()).child("noise").generator().normal()
    assert Counting.asked >= 16  # at least 128 bits


@pytest.mark.parametrize("engine", ["batched", "processes", "socket"])
def test_engines_spend_and_compute_the_same(engine, tmp_path):
    private = OutputPerturbation(base=Scaffold(**LOCAL), tau=1.0, sigma=0.5)
    one = run(private, secret_seed=4, folder=tmp_path / "one")
    many = run(private, secret_seed=4, engine=engine, folder=tmp_path / "many")
    np.testing.assert_allclose(many.params["weight"], one.params["weight"], rtol=1e-6)
    lines = [sorted((tmp_path / n / "checkpoints" / "ledger.jsonl").read_text().splitlines()) for n in ("one", "many")]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 9 + 1


def test_pytorch_models_are_privatised_too(tmp_path):
    torch = pytest.importorskip("torch")

    def model():
        return torch.nn.Linear(4, 2)

    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=0.5)
    runs = [run(private, secret_seed=4, engine=e, model=model, folder=tmp_path / e) for e in ("inline", "batched")]
    np.testing.assert_allclose(runs[0].params["weight"], runs[1].params["weight"], rtol=1e-5)
    assert len((tmp_path / "batched" / "checkpoints" / "ledger.jsonl").read_text().splitlines()) == 9 + 1
    assert "loss" not in next(iter(runs[0].metrics))
    run(ObjectivePerturbation(base=FedProx(**LOCAL, mu=1.0), alpha=5.0), model=model)
    deep = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with pytest.raises(CompositionError, match="not a function of y"):
        run(ObjectivePerturbation(base=FedProx(**LOCAL, mu=1.0), alpha=5.0), model=deep)
    normed = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    with pytest.raises(CompositionError, match=r"buffers of the model .*running_mean"):
        run(private, model=normed)
    with pytest.raises(CompositionError, match=r"training changes buffers of the model \(seen\), .* without noise"):
        run(private, model=_remembering(torch))
    run(private, model=_remembering(torch), rounds=1, buffers="local")


def _remembering(torch):
    """A model that keeps a mean of its inputs, which no layer of PyTorch's tells of."""

    class Remembering(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            if self.training:
                self.seen.copy_(x.detach().mean(0))
            return self.layer(x)

    return Remembering()


def test_feddyns_state_goes_with_the_client():
    """Indexing g_k by the place in the cohort gives another model; here each client finds its own, whoever else is drawn."""
    seen = {}

    class Watching(FedDyn):
        def finish(self, local, broadcast, client, work):
            seen.setdefault(float(work.examples), []).append(float(T.norm(client["slope"])))
            return super().finish(local, broadcast, client, work)

    data = atoll.data.dirichlet(atoll.data.digits(), parties=6, alpha=0.3, seed=1)
    assert len(set(data.sizes)) == 6
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=Watching(lr=0.01, alpha=0.1), selection=atoll.Uniform(2), rounds=8
    )
    atoll.simulate(job, data, engine="inline", seed=0)
    assert all(norms[0] == 0.0 and all(n > 0 for n in norms[1:]) for norms in seen.values())
    assert max(len(norms) for norms in seen.values()) > 1


def test_objective_noise_has_the_right_length():  # T10
    """Gamma with shape d, all parameters and not the features only; its direction has no favourite."""
    private = ObjectivePerturbation(base=FedProx(mu=1.0), alpha=4.0)
    params = {"weight": np.zeros((20, 2)), "bias": np.zeros(2)}
    noise = [private.draw(Rng(seed), params)["noise"]["params"] for seed in range(3000)]
    lengths = np.array([T.norm(n) for n in noise])
    assert lengths.mean() == pytest.approx(42 / 4.0, rel=0.01)
    assert lengths.var() == pytest.approx(42 / 16.0, rel=0.1)
    mean = np.mean([n["weight"] / length for n, length in zip(noise, lengths, strict=True)], axis=0)
    assert np.abs(mean).max() < 4 / math.sqrt(3000 * 42)
    share = np.mean([(n["bias"] ** 2).sum() / length**2 for n, length in zip(noise, lengths, strict=True)])
    assert share == pytest.approx(2 / 42, rel=0.1)


@pytest.mark.parametrize(
    "base",
    [
        FedProx(lr=0.5, steps=4000, batch_size=None, mu=0.5),
        Accelerated(base=FedProx(lr=0.3, steps=4000, batch_size=None, mu=0.5), transforms=(Momentum(0.5),)),
    ],
    ids=["plain", "momentum"],
)
def test_the_perturbed_minimiser_is_that_of_the_tilted_objective(base):
    """grad F(w) + mu (w - W) + n = 0, with momentum as without: the noise is in the objective."""
    from atoll.learn.learner import LearnerSettings, adapt
    from atoll.learn.local.update import local_update

    private = ObjectivePerturbation(base=base, alpha=20.0)
    data = islands(2)
    learner = adapt(atoll.models.linear(4, 2), LearnerSettings(algorithm=private), data)
    start = learner.init(Rng(0))
    shard = data.shard(0)
    broadcast = private.broadcast(private.init(start), "train")
    reply, _, _ = local_update(private, learner.loss_gradient, broadcast, None, shard.x, shard.y, 7)
    w = reply["update"].value
    noise = private.draw(Rng(7).child("draw"), start)["noise"]["params"]
    slope = learner.loss_gradient(w, shard.x, shard.y)[1]
    left = T.add(T.add(slope, T.scale(w, 0.5)), noise)
    assert float(T.norm(noise)) > 0.1
    assert float(T.norm(left)) < 1e-8


def test_objective_perturbation_spends_by_each_clients_size(tmp_path):
    private = ObjectivePerturbation(base=FedProx(**LOCAL, mu=1.0), alpha=2.0)
    data = islands(4)
    run(private, data=data, selection=atoll.Everyone(), folder=tmp_path)
    from atoll.core.event import Ledger

    found = spent(Ledger(tmp_path / "checkpoints" / "ledger.jsonl"), 1e-5)
    for name, n in zip(data.names, data.sizes, strict=True):
        assert found[name] == pytest.approx(objective_epsilon(int(n), 2.0, 1.0, releases=3, radius=2.0))


def test_objective_perturbation_refuses_what_its_theorem_does_not_cover():
    good = {"base": FedProx(**LOCAL, mu=1.0), "alpha": 2.0}
    with pytest.raises(CompositionError, match="not a function of y"):
        run(ObjectivePerturbation(**good), model=atoll.models.linear(4, 3))
    with pytest.raises((TaskError, DataError), match="features of norm"):
        run(ObjectivePerturbation(**good), data=islands(unit=False))
    with pytest.raises(ConfigError, match=r"mu=0\.001 is too small"):
        run(ObjectivePerturbation(base=FedProx(**LOCAL, mu=0.001), alpha=2.0))
    with pytest.raises(ConfigError, match="no quadratic term"):
        ObjectivePerturbation(base=FedAvg(), alpha=2.0)
    with pytest.raises(CompositionError, match="only a minimiser is protected"):
        ObjectivePerturbation(base=PFedMe(lr=0.05), alpha=2.0)
    with pytest.raises(ConfigError, match="alpha=0"):
        ObjectivePerturbation(base=FedProx(mu=1.0), alpha=0)
    late = FedProx(mu=1.0, epochs=5, stragglers=Stragglers(0.9))
    for base in (late, Accelerated(base=late, transforms=(Momentum(0.5),))):
        with pytest.raises(CompositionError, match=r"Stragglers\(probability=0\.9\) end a solve early"):
            ObjectivePerturbation(base=base, alpha=2.0)
    OutputPerturbation(base=late, tau=1.0, sigma=1.0)  # its bound holds for any model


def test_a_budget_ends_the_training_before_anyone_is_asked(tmp_path):
    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=8.0)
    enough = exact_epsilon(cost(3, 2.0, 8.0), 1e-5)
    everyone = {"selection": atoll.Everyone(), "rounds": 10}
    stop = {"on_excess": "stop"}
    made = run(private, budget=Budget(enough, **stop), folder=tmp_path, **everyone)
    assert len(made.metrics) == 3
    assert "would make it" in made.reason
    assert len((tmp_path / "checkpoints" / "ledger.jsonl").read_text().splitlines()) == 3 * 6
    twice = run(Upcycled(base=private, coefficient=0.5), budget=Budget(enough, **stop), **everyone)
    assert len(twice.metrics) == 6  # the same budget, twice the rounds
    name = islands().names[2]
    one = run(private, budget=Budget(enough, clients={name: enough * 0.8}, **stop), **everyone)
    assert len(one.metrics) < 3
    assert name in one.reason
    with pytest.raises(PolicyError, match="privacy budget of"):
        run(private, budget=Budget(enough / 100), **everyone)
    with pytest.raises(CompositionError, match="FedAvg promises no privacy"):
        run(FedAvg(), budget=Budget(1.0))


def test_rounds_that_a_budget_cannot_afford_are_refused_before_anyone_is_asked(tmp_path):
    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=8.0)
    enough = Budget(exact_epsilon(cost(3, 2.0, 8.0), 1e-5))
    everyone = {"selection": atoll.Everyone(), "budget": enough}
    with pytest.raises(PolicyError, match=r"10 rounds exceed the privacy budget, and 3 fit") as found:
        run(private, rounds=10, folder=tmp_path, **everyone)
    assert "use rounds=3" in str(found.value)
    assert not (tmp_path / "checkpoints" / "ledger.jsonl").exists()
    assert len(run(private, rounds=3, **everyone).metrics) == 3
    twice = Upcycled(base=private, coefficient=0.5)
    with pytest.raises(PolicyError, match="7 rounds exceed the privacy budget, and 6 fit"):
        run(twice, rounds=7, **everyone)
    name = islands().names[2]
    poor = Budget(enough.epsilon, clients={name: exact_epsilon(cost(2, 2.0, 8.0), 1e-5)})
    with pytest.raises(PolicyError, match=r"3 rounds .* and 2 fit.* affords 2 to 3"):
        run(private, rounds=3, selection=atoll.Everyone(), budget=poor)
    # 2 of 6 clients a round, 3 contacts each: 9 rounds by the luckiest draw
    sampled = {"selection": atoll.Uniform(2), "budget": enough}
    with pytest.raises(PolicyError, match="10 rounds exceed the privacy budget, and at most 9 fit"):
        run(private, rounds=10, **sampled)
    # a world in which two trainings follow each other: the second one ends in time
    job = atoll.Training(model=atoll.models.linear(4, 2), algorithm=private, rounds=2, **everyone)
    learner = job.learner(islands())

    async def twice_over(fed):
        return [(await job.program(islands(), learner)(fed.scope(name))).reason for name in ("one", "two")]

    first, second = atoll.simulate(twice_over, islands(), engine="inline", tasks=job.named_tasks(learner, islands()))
    assert ("would make it" in first, "would make it" in second) == (False, True)
    may_end = run(private, rounds=10, stop=(atoll.rounds.loop.MaxTime(1e9),), **everyone)
    assert len(may_end.metrics) == 3
    assert "would make it" in may_end.reason


def test_a_budget_wants_to_know_what_everyone_would_release():
    known = islands()

    class Unsized:
        """The same clients, whose sizes nobody has said."""

        names, test, task = known.names, known.test, known.task

        def __len__(self):
            return len(known)

        def shard(self, position):
            return known.shard(position)

    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=8.0)
    with pytest.raises(CompositionError, match="needs the clients' numbers of examples beforehand"):
        run(private, data=Unsized(), budget=Budget(10.0))


def test_what_would_go_around_a_mechanism_is_refused():
    private = OutputPerturbation(base=FedAvg(**LOCAL), tau=1.0, sigma=8.0)

    class Telling(Wrapped):
        def finish(self, local, broadcast, client, work):
            reply, kept = super().finish(local, broadcast, client, work)
            return {**reply, "raw": Mean(local["params"])}, kept

    with pytest.raises(CompositionError, match="Telling changes what clients do around"):
        run(Telling(base=private))
    with pytest.raises(CompositionError, match="the local step of OutputPerturbation"):
        run(Accelerated(base=private, transforms=(Momentum(0.5),), memory="server"))
    with pytest.raises(CompositionError, match="measures of clients"):
        run(private, evaluation=atoll.Evaluation(clients=-1))
    for base in (Scaffold(option=1), Mime()):
        with pytest.raises(CompositionError, match="more than one update"):
            OutputPerturbation(base=base, tau=1.0, sigma=1.0)
    with pytest.raises(CompositionError, match="a mechanism already"):
        OutputPerturbation(base=private, tau=1.0, sigma=1.0)
    for wrong in ({"tau": 0.0}, {"sigma": -1.0}, {"sensitivity": 0.0}):
        with pytest.raises(ConfigError, match="positive, finite"):
            replace(private, **wrong)


@pytest.mark.parametrize("base", ONE + TWO, ids=ids)
def test_the_contract_holds(base):
    check_algorithm(OutputPerturbation(base=base, tau=10.0, sigma=0.01), descends=False)


def test_the_contract_holds_for_perturbed_objectives():
    check_algorithm(ObjectivePerturbation(base=FedProx(mu=1.0), alpha=100.0), descends=False)
    check_algorithm(
        Upcycled(base=OutputPerturbation(base=FedAvg(), tau=10.0, sigma=0.01), coefficient=0.3), descends=False
    )
