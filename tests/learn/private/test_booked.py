"""Nothing costs more than its ledger says: epsilon is counted anew from the draws that a mechanism makes, whatever its settings say."""

from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.core.event import Gaussian, Laplace, Ledger
from atoll.core.facets import facet
from atoll.core.requests.stage import Guarding, StageContext, WithMemory
from atoll.learn.private import base, claim, example, ftrl
from atoll.learn.private.ftrl import CorrelatedSum
from atoll.mechanisms import (
    DPFTRL,
    CentralDP,
    DistributedDP,
    ExampleDP,
    FedSelDP,
    GaussianLDP,
    LaplaceLDP,
    NbAFL,
    ShuffledDP,
    SignsLDP,
)
from atoll.models import linear_model
from atoll.privacy import Budget, Shuffled, epsilon_of
from atoll.privacy.discrete import DiscreteGaussianLaw, DiscreteSampler, GaussianLattice, LaplaceLattice, SkellamLaw
from atoll.privacy.events import DistributedGaussian, RandomisedResponse, Skellam, SkellamMixture
from atoll.reducers import SecureAggregation
from atoll.secure.keystream import NoiseStream
from atoll.secure.masking import reducer as masking
from atoll.secure.noise import LatticeNoise, SkellamMixtureNoise
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
from atoll.stages import local as local_stages

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
    report, choose = local_stages.response, local_stages.choose_places

    def reporting(values, limit, epsilon, draw):
        seen.extend([("response", epsilon)] * len(values))
        return report(values, limit, epsilon, draw)

    def choosing(sizes, fraction, count, epsilon, draw):
        seen.extend([("response", epsilon)] * count)
        return choose(sizes, fraction, count, epsilon, draw)

    monkeypatch.setattr(local_stages, "response", reporting)
    monkeypatch.setattr(local_stages, "choose_places", choosing)
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
    if facet(stage, WithMemory).remembers:
        facet(stage, WithMemory).remember_block(block, {"residual": {"w": np.zeros((1, size))}}, context)
    else:
        stage.encode_block(block, context)
    booked = epsilon_of(tuple((event, 1) for event in facet(stage, Guarding).events(CLIP)), *TERMS)
    sent = cost(drawn, moved)
    assert 0 < sent <= booked * (1 + 1e-6)
    if size == 40 and not name.endswith("200"):
        assert sent == pytest.approx(booked, rel=1e-3)


def test_choices_and_reports_of_fedsel_share_its_epsilon():
    """Both are booked: without the choices, the ledger would have seven tenths of what is spent."""
    choices, reports = facet(FedSel(limit=0.1, epsilon=2.0, entries=4, share=0.3), Guarding).events(None)
    assert choices.count * choices.epsilon == pytest.approx(0.6)
    assert reports.count * reports.epsilon == pytest.approx(1.4)
    (event,) = facet(Anonymous(FedSel(limit=0.1, epsilon=2.0, entries=4, share=0.3), clients=9), Guarding).events(None)
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


@pytest.mark.every(3)
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


# ---------------------------------------------------------------------- whole trainings, from what is seen of them


class Seen:
    """What a training does with secrets, seen from outside its settings.

    Attributes:
        contacts: of each local update the client, its draws ``(kind, scale)``, and the chances of its coins.
        draws: of each lattice of whole numbers the variance that is added, or taken back if it is below 0.
        lengths: of each update that is rounded to whole numbers.
        moved: of each example's gradient, as it is added to a mini-batch's sum.
        rounds: of each sum with correlated noise the normal numbers that were drawn for it, and the noise in it.
    """

    def __init__(self, drawn):
        self.drawn, self.coins = drawn, []
        self.contacts, self.draws, self.lengths, self.moved, self.rounds = [], [], [], [], []

    def of(self, client):
        return [(draws, coins) for name, draws, coins in self.contacts if name == client]

    def trained(self, honest):
        def trained(algorithm, island, *rest):
            at, coins = len(self.drawn), len(self.coins)
            made = honest(algorithm, island, *rest)
            self.contacts.append((island.name, self.drawn[at:], self.coins[coins:]))
            return made

        return trained

    def toss(self, honest):
        def toss(stream, count, chance):
            self.coins.append(chance)
            return honest(stream, count, chance)

        return toss

    def clipped(self, honest):
        def clipped(learner, params, x, y, clipping):
            each = [honest(learner, params, x[i : i + 1], y[i : i + 1], clipping) for i in range(len(y))]
            self.moved.extend(map(norm_of, each))
            return honest(learner, params, x, y, clipping)

        return clipped

    def draw(self, honest):
        def draw(sampler, source, count):
            if isinstance(sampler.law, SkellamLaw | DiscreteGaussianLaw):
                self.draws.append(sampler.law.variance)
            return honest(sampler, source, count)

        return draw

    def rounded(self, honest):
        def rounded(stage, vector, source):
            made = honest(stage, vector, source)
            self.lengths.append(norm_of(made))
            return made

        return rounded

    def subtract(self, honest):
        def subtract(*args):
            at = len(self.draws)
            honest(*args)
            self.draws[at:] = [-variance for variance in self.draws[at:]]

        return subtract

    def secret_of(self, honest):
        def secret_of(info):
            numbers, drawn = honest(info).generator(), []
            self.rounds.append((drawn, []))

            def standard_normal(size):
                drawn.append(numbers.standard_normal(size))
                return drawn[-1]

            return SimpleNamespace(generator=lambda: SimpleNamespace(standard_normal=standard_normal))

        return staticmethod(secret_of)

    def noisy_sums(self, honest):
        def noisy_sums(combined, add, expected):
            def added(name, values):
                made = add(name, values)
                self.rounds[-1][1].append(made - values)
                return made

            return honest(combined, added, expected)

        return noisy_sums


def norm_of(tree):
    return float(np.sqrt(sum((np.asarray(leaf, float) ** 2).sum() for leaf in T.leaves(tree))))


@pytest.fixture
def seen(drawn, monkeypatch):
    found = Seen(drawn)
    for owner, name, watch in (
        (linear_model, "trained", found.trained),
        (NoiseStream, "coins", found.toss),
        (linear_model.LinearLearner, "clipped", found.clipped),
        (DiscreteSampler, "draw", found.draw),
        (LatticeNoise, "_round_vector", found.rounded),
        (SkellamMixtureNoise, "_round_vector", found.rounded),
        (masking, "subtract_parts", found.subtract),
        (CorrelatedSum, "secret_of", found.secret_of),
        (ftrl, "noisy_sums", found.noisy_sums),
    ):
        monkeypatch.setattr(owner, name, watch(getattr(owner, name)))
    return found


def sent_by_clients(seen, client, terms):
    """A model of one client and noise on it: two clipped models are twice the clip apart."""
    releases = [min(scale for _, scale in draws) for draws, _ in seen.of(client)]
    return epsilon_of(tuple((Gaussian(noise_multiplier=scale / (2 * CLIP)), 1) for scale in releases), *terms)


def sent_by_steps(seen, client, terms):
    """A noisy sum a step, over a mini-batch by coins: an example moves it by the longest gradient that was added."""
    moved, steps = max(seen.moved), Counter[Gaussian]()
    for draws, coins in seen.of(client):
        for (_, scale), chance in zip(draws, coins, strict=True):
            sampled = {"sampling": chance, "drawn_by": "party", "between": "add-remove"}
            steps[Gaussian(unit="example", noise_multiplier=scale / moved, **sampled)] += 1
    return epsilon_of(tuple(steps.items()), *terms)


def sent_in_sums(release, sharing=4, replies=4):
    """Whole noise in words: what ``sharing`` clients have added and nobody took back, against twice the longest update."""

    def sent(seen, client, terms):
        del client
        rounds = [variance * sharing / replies for variance in np.split(np.array(seen.draws), 2)]
        apart = 2 * max(seen.lengths)
        return epsilon_of(tuple((release(float(added.sum()), apart), 1) for added in rounds), *terms)

    return sent


def skellam(variance, apart):
    return Skellam(variance=variance, sensitivity=apart, values=15)


def mixture(variance, apart):
    return SkellamMixture(variance=variance, sensitivity=apart, values=15, largest=int(apart) + 2, both=True)


def discrete(variance, apart):
    return DistributedGaussian(variance=variance, sensitivity=apart, values=15, parties=4)


def sent_among(seen, client, terms):
    """A reply with Laplace noise, among as many as there were in its round."""
    del client
    rounds = [seen.drawn[: len(seen.drawn) // 2], seen.drawn[len(seen.drawn) // 2 :]]
    assert sum(2 * CLIP / draws[0][1] for draws in rounds) > 1.2 * sum(
        epsilon_of(((Shuffled(epsilon=2 * CLIP / draws[0][1], clients=len(draws)), 1),), *terms) for draws in rounds
    ), "nothing is gained by the others' replies, so their number would not be seen"
    return epsilon_of(
        tuple((Shuffled(epsilon=2 * CLIP / draws[0][1], clients=len(draws)), 1) for draws in rounds), *terms
    )


def sent_in_turns(seen, client, terms):
    """One Gaussian release of all rounds: how far a client moves them, measured by the noise's own covariance.

    The covariance is found from the noise and the numbers that it was made of, and the attack is the best of those that move every sum along one line.
    """
    numbers = np.array([row for rows, _ in seen.rounds for row in rows])
    noise = np.array([np.concatenate(parts) for _, parts in seen.rounds])
    mixing = np.linalg.lstsq(numbers.T, noise.T, rcond=None)[0].T
    assert noise == pytest.approx(mixing @ numbers, abs=1e-5), "the noise is no mixture of what was drawn"
    inverse = np.linalg.inv(mixing @ mixing.T)
    order = [name for name, *_ in seen.contacts]
    each = len(order) // len(noise)
    turns = [at for at in range(len(noise)) if client in order[at * each : (at + 1) * each]]
    seen_of = inverse[np.ix_(turns, turns)]
    moved = 2 * CLIP if terms[-1] == "replace-one" else CLIP
    apart = max(float(s @ seen_of @ s) for s in moved * np.array(list(product((1, -1), repeat=len(turns)))))
    between = "" if terms[-1] == "replace-one" else "add-remove"
    return epsilon_of(((Gaussian(noise_multiplier=apart**-0.5, between=between), 1),), *terms)


SPENT = {"epsilon": 4.0, "delta": 1e-5, "clip": CLIP}
QUORUM = {"reducer": SecureAggregation(masks="virtual"), "pacing": atoll.Synchronous(quorum=4)}
TURNS = {"rounds": 6, "selection": atoll.Uniform(2)}
TRAININGS = {
    "NbAFL": (NbAFL(**SPENT), sent_by_clients, {}),
    "ExampleDP": (ExampleDP(**SPENT, batch=8), sent_by_steps, {}),
    "ExampleDP rate": (ExampleDP(**SPENT, batch=8, rate=0.1), sent_by_steps, {"steps": 3}),
    "ShuffledDP": (
        ShuffledDP(epsilon=0.5, delta=1e-5, local=LaplaceLDP(noise=1.0, clip=CLIP), shuffler="server"), sent_among,
        {"parties": 100, "pacing": atoll.Synchronous(quorum=1.0)},
    ),
    "DistributedDP alone": (DistributedDP(**SPENT, local=True), sent_in_sums(skellam, 1), {}),
    "DistributedDP": (DistributedDP(**SPENT, least=4), sent_in_sums(skellam), QUORUM),
    "DistributedDP corrupt": (DistributedDP(**SPENT, least=4, corrupt=0.25), sent_in_sums(skellam, 3), QUORUM),
    "DistributedDP gaussian": (DistributedDP(**SPENT, least=4, law="discrete-gaussian"), sent_in_sums(discrete), QUORUM),
    "DistributedDP mixture": (DistributedDP(**SPENT, least=4, law="mixture"), sent_in_sums(mixture), QUORUM),
    "DistributedDP excess": (
        DistributedDP(**SPENT, least=3, remove_excess=True), sent_in_sums(skellam),
        {"reducer": SecureAggregation(), "pacing": atoll.Synchronous(quorum=3)},
    ),
    "DPFTRL": (DPFTRL(**SPENT), sent_in_turns, TURNS),
    "DPFTRL optimal": (DPFTRL(**SPENT, factorisation="optimal"), sent_in_turns, TURNS),
    "DPFTRL tree": (DPFTRL(**SPENT, factorisation="tree", honaker=False), sent_in_turns, {"rounds": 4}),
    "DPFTRL replaced": (DPFTRL(**SPENT, neighbours="replace-one"), sent_in_turns, TURNS),
}  # fmt: skip


def require_booked(name, seen, folder, budget=None):
    """Run a training, and compare what every client has sent with the claim and with the ledger: never more, and not much less."""
    mechanism, sent_by, given = TRAININGS[name]
    algorithm = atoll.FedAvg(lr=10.0, batch_size=8, **({"steps": given["steps"]} if "steps" in given else {}))
    clients = atoll.data.iid(atoll.data.iris(), parties=given.get("parties", 4), seed=0)
    parts = {key: value for key, value in given.items() if key not in ("steps", "parties")}
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=algorithm, privacy=mechanism, budget=budget,
        **{"selection": atoll.Everyone(), "rounds": 2, "evaluation": atoll.Evaluation(server=False), **parts},
    )  # fmt: skip
    claim = atoll.simulate(job, clients, engine="inline", progress=False, folder=folder).prepared.claim
    terms = (mechanism.delta, mechanism.accountant, mechanism.adversary, mechanism.neighbours)
    (path,) = folder.rglob("ledger.jsonl")
    ledger = atoll.privacy.spent(Ledger(path, readable=True), *terms)
    assert len(ledger) == len({client for client, *_ in seen.contacts}) == given.get("parties", 4)
    for client in sorted(ledger)[:4]:
        sent = sent_by(seen, client, terms)
        for booked, where in ((claim.epsilon, "claim"), (ledger[client], "ledger")):
            assert sent <= booked * (1 + 1e-3), f"{client} has sent {sent:.4g}, and its {where} says {booked:.4g}"
            assert sent > 0.75 * booked, f"half of this {where} could be as much as {client} has sent"
    assert claim.epsilon <= mechanism.epsilon * (1 + 1e-6)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", TRAININGS)
def test_clients_send_what_is_claimed_and_booked(name, seen, tmp_path):
    require_booked(name, seen, tmp_path / "run")


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.quick("NbAFL", "ExampleDP", "ShuffledDP", "DistributedDP corrupt", "DistributedDP excess", "DPFTRL tree")
def test_half_a_booking_is_found(name, seen, tmp_path, monkeypatch):
    """Epsilon is counted as half of what it is, so that half of the noise seems enough. A budget of one's own lets it: by default one counts anew, and refuses the second round."""
    mechanism = TRAININGS[name][0]
    terms = {"adversary": mechanism.adversary, "neighbours": mechanism.neighbours}
    budget = Budget(100.0, 1e-5, method=mechanism.accountant, **terms)
    for room in (base, example):
        monkeypatch.setattr(room, "count_epsilon", lambda *args: claim.count_epsilon(*args) / 2)
    base._noise.cache_clear()
    try:
        with pytest.raises(AssertionError, match=r"has sent .*, and its claim says"):
            require_booked(name, seen, tmp_path / "run", budget)
    finally:
        base._noise.cache_clear()
