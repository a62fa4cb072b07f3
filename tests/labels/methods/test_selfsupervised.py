"""Self-supervised methods: their laws, what leaves a client, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg, FedProx, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Parts
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.labels import (
    SSFL,
    FedBYOL,
    FedCA,
    FedEMA,
    FedMAE,
    FedMoCo,
    FedSimCLR,
    FedSimSiam,
    FedU,
    FedX,
    MaskedAutoencoder,
    Orchestra,
    Siamese,
)
from atoll.labels.evaluators import fit_probe
from atoll.labels.heads import parts_of, seen_by
from atoll.labels.methods.fedca import _renew_entries
from atoll.labels.methods.fedu import divergence
from atoll.labels.objectives.contrastive import feature_spread
from atoll.learn.wrapped import dry_reply
from atoll.selection import Once
from atoll.testing import killed_and_resumed
from atoll.views import Affine, ColourJitter, Compose, Cutout
from tests.support.label_toys import gap, images, islands, same, trained

WORK: dict[str, Any] = {"lr": 0.05, "steps": 2, "batch_size": 8}
QUIET: dict[str, Any] = {**WORK, "gauge": 0.0}


def encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten())


def seeded(make: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: nn.Module = make()
    return made


def siamese(**heads: Any) -> nn.Module:
    return seeded(lambda: Siamese(encoder(), 64, width=6, hidden=10, **heads))


def masked() -> nn.Module:
    return seeded(lambda: MaskedAutoencoder(encoder(), 64, (1, 8, 8), hidden=16))


def orchestra(**settings: Any) -> Orchestra:
    return Orchestra(**{"clusters": 4, "sent": 2, "memory": 8, "server_steps": 5, **QUIET, **settings})


METHODS: dict[str, tuple[Any, Any]] = {
    "FedSimCLR": (FedSimCLR(**WORK), siamese),
    "FedSimSiam": (FedSimSiam(**WORK), siamese),
    "FedBYOL": (FedBYOL(**QUIET), siamese),
    "FedMoCo": (FedMoCo(queue=12, **QUIET), siamese),
    "FedU": (FedU(threshold=0.0, **QUIET), siamese),
    "FedEMA": (FedEMA(**QUIET), siamese),
    "SSFL": (SSFL(**QUIET), siamese),
    "FedMAE": (FedMAE(**WORK), masked),
    "Orchestra": (orchestra(), lambda: siamese(predictor=False, turns=True)),
    "FedX": (FedX(base=FedSimCLR(**QUIET), lr=0.002), siamese),
    "FedX of FedU": (FedX(base=FedU(**QUIET), lr=0.002), siamese),
}


def run(method: Any, data: Any = None, *, model: Any = None, **settings: Any) -> Any:
    data = islands(images(40), parties=2) if data is None else data
    return trained(method, data, model=siamese() if model is None else model, compile="never", **settings)


@pytest.mark.slow
@pytest.mark.quick("Orchestra")
@pytest.mark.parametrize("name", METHODS)
def test_blocks_of_clients_train_as_single_ones(name: str) -> None:
    method, model = METHODS[name]
    assert gap(run(method, model=model()), run(method, model=model(), engine="batched")) < 1e-5


@pytest.mark.every(3)
@pytest.mark.parametrize("name", METHODS)
def test_labels_are_out_of_reach_and_the_encoder_learns(name: str) -> None:
    method, model = METHODS[name]
    one, two = (
        run(method, islands(images(40, share=0.0, garbage=seed), 2), model=model(), rounds=1) for seed in (1, 2)
    )
    assert same(one, two)
    before = model().state_dict()
    assert max(float(np.abs(one[n] - before[n].numpy()).max()) for n in one if n.startswith("encoder.")) > 1e-5


def test_byol_whose_target_keeps_nothing_is_simsiam_at_four_times_the_rate_to_the_bit() -> None:
    byol = FedBYOL(base=FedAvg(lr=2.0**-6, steps=3, batch_size=8), keep=0.0, gauge=0.0)
    simsiam = FedSimSiam(base=FedAvg(lr=2.0**-4, steps=3, batch_size=8), gauge=0.0)
    assert same(run(byol, rounds=1), run(simsiam, rounds=1))
    assert not same(run(byol, rounds=1), run(FedBYOL(base=byol.base, keep=0.5, gauge=0.0), rounds=1))


def test_fedema_without_weight_is_fedu_that_always_takes_the_global_predictor_to_the_bit() -> None:
    plain = run(FedU(threshold=float("inf"), **QUIET))
    assert same(run(FedEMA(lam=0.0, **QUIET)), plain)
    assert not same(run(FedEMA(lam=1.0, **QUIET)), plain)


def tree(seed: int) -> Any:
    draws = np.random.default_rng(seed)
    return {"encoder.w": draws.normal(size=3), "projector.w": draws.normal(size=2), "predictor.w": draws.normal(size=2)}


@pytest.mark.parametrize("lam", [None, 0.0, 0.3, 1e6])
def test_fedema_begins_between_both_networks(lam: float | None) -> None:
    """Equations (94) and (95): a convex combination, whose weight multiplies the local network; 0.7 where the own weight is found."""
    method, globally, locally = FedEMA(lam=lam), tree(0), tree(1)
    mixed, memories = method.meet_global(globally, locally, {"lam": np.float64(0.0)})
    apart = divergence(locally, globally, "encoder")
    mu = 0.7 if lam is None else min(lam * apart, 1.0)
    for name in globally:
        assert np.allclose(mixed[name], (1 - mu) * globally[name] + mu * locally[name])
    assert lam is not None or memories["lam"] == pytest.approx(0.7 / apart)


def test_a_client_that_was_never_there_copies_the_global_network() -> None:
    globally = tree(0)
    for method in (FedEMA(), FedU()):
        memories = {"lam": np.float64(0.0)}
        mixed, after = method.meet_global(globally, globally, memories)
        assert same(mixed, globally)
        assert after.get("lam", 0.0) == 0.0  # the first divergence is still to come


@pytest.mark.parametrize("measured", ["predictor", "encoder"])
def test_fedu_takes_the_global_predictor_below_the_threshold_alone(measured: str) -> None:
    globally, locally = tree(0), tree(1)
    apart = float(divergence(locally, globally, measured))
    for threshold, taken in ((apart * 1.01, globally), (apart * 0.99, locally)):
        mixed, _ = FedU(threshold=threshold, measured=measured).meet_global(globally, locally, {})
        assert same(mixed, {**globally, "predictor.w": taken["predictor.w"]})


def test_what_orchestras_server_gets_has_no_rows_features() -> None:
    """By the schema of replies: the update, metrics, and centroids, whose number does not depend on rows; 262,144 bits for 16 of width 512."""
    method = Orchestra(**QUIET | {"steps": 16})
    with torch.random.fork_rng(devices=[]):
        model = Siamese(encoder(), 64, width=512, predictor=False, turns=True)
    params = {name: value.detach().numpy() for name, value in model.named_parameters()}
    for examples in (128.0, 4096.0):
        reply = dry_reply(method, params, examples=examples)
        assert set(reply) == {"update", "centroids"}
        assert isinstance(reply["centroids"], Parts)
        assert reply["centroids"].value.shape == (16, 512)
        assert reply["centroids"].value.nbytes * 8 == 262_144
    assert method.client_init(params) is None


def heads_of(rows: torch.Tensor, real: torch.Tensor) -> Any:
    """Return what the heads of a network make of features."""
    model = seeded(lambda: Siamese(nn.Identity(), 64, width=6, hidden=10))
    known = {name: value.detach() for name, value in model.named_parameters()}

    def call(x: Any, params: Any) -> Any:
        return torch.func.functional_call(model, params, (x,))

    return parts_of(seen_by(call, rows, real, "test", known), known, "test")


def test_what_all_rows_have_in_common_does_not_reach_the_heads() -> None:
    """Features of an encoder are mostly the same for all rows. If the heads show that part, a loss without negatives has one direction to learn."""
    draws = torch.Generator().manual_seed(0)
    own = torch.randn(32, 64, generator=draws)
    made = heads_of(0.05 * own + 1.0, torch.ones(32))
    for embeddings in (made.projection, made.prediction):
        assert feature_spread(embeddings) > 0.5
    torch.testing.assert_close(made.projection, heads_of(own, torch.ones(32)).projection, rtol=0.0, atol=0.02)


def test_padding_takes_no_part_in_the_heads_normalisation() -> None:
    draws = torch.Generator().manual_seed(0)
    rows, real = torch.randn(8, 64, generator=draws), torch.ones(8)
    padded, there = torch.cat([rows, torch.full((3, 64), 9.0)]), torch.cat([real, torch.zeros(3)])
    alone, among = heads_of(rows, real), heads_of(padded, there)
    torch.testing.assert_close(alone.prediction, among.prediction[:8], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(alone.prediction, heads_of(padded, torch.ones(11)).prediction[:8], atol=0.1)


@pytest.mark.slow  # what the heads must do for it is held by the tests above
def test_methods_without_negatives_learn_more_than_an_untrained_encoder_knows() -> None:
    """With layer normalisation in the heads, the features of 100 steps had one direction: a probe on them knew .52, on the untrained encoder's .79."""
    train, test = (pictures(part) for part in atoll.data.digits().with_test(None).split(0.3, seed=0))
    few = np.concatenate([np.flatnonzero(train.y == c)[:10] for c in range(10)])

    def known(model: nn.Module) -> float:
        with torch.no_grad():
            seen = [model.eval()(torch.from_numpy(np.array(part.x))).numpy() for part in (train.take(few), test)]
        return fit_probe(seen[0], train.y[few], classes=10, l2=10.0).accuracy(seen[1], test.y)

    view = Compose([Affine(), ColourJitter((0.3, 1.3), (1.0, 1.0)), Cutout(0.35)])
    data = atoll.data.Islands.from_datasets([train.with_columns({"y": train.y * 0})])
    for method in (FedBYOL, FedSimSiam):
        job = atoll.Training(
            model=digit_network(), algorithm=method(view=view, lr=0.05, steps=100), rounds=1, compile="never"
        )
        learnt = atoll.simulate(job, data, engine="inline", seed=0, progress=False).model
        assert known(learnt) > known(digit_network()) + 0.01


def pictures(rows: Any) -> Any:
    x = np.asarray(rows.x, np.float32).reshape(-1, 1, 8, 8)
    return rows.with_columns({"x": x / x.max()})


def digit_network() -> nn.Module:
    def make() -> nn.Module:
        encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(),
        )  # fmt: skip
        return Siamese(encoder, 64, width=32, hidden=64)

    return seeded(make)


class Collapsing(FedSimSiam):
    """From the second round on, the projector makes a constant."""

    def broadcast(self, state: Any, phase: str) -> Any:
        sent = super().broadcast(state, phase)
        constant = {**sent["params"], "projector.3.weight": sent["params"]["projector.3.weight"] * 0.0}
        return sent if state["turn"] == 0 else {**sent, "params": constant}


def test_a_run_whose_embeddings_collapse_stops() -> None:
    with pytest.raises(ConfigError, match=r"embeddings have collapsed: .* by round 2 \(in Collapsing\.gauge\)"):
        run(Collapsing(lr=1e-9, steps=2, batch_size=8), rounds=3)
    run(Collapsing(lr=1e-9, steps=2, batch_size=8, gauge=0.0))


def test_private_state_survives_a_kill(tmp_path: Any) -> None:
    data = islands(images(30))
    method = FedX(base=FedMoCo(queue=6, memory="client", lr=0.05, steps=1, batch_size=4, gauge=0.0))
    job = atoll.Training(model=siamese(), algorithm=method, rounds=3, selection=atoll.Uniform(2), compile="never")
    learner = job.learner(data)
    train = job.program(data, learner)

    async def program(fed: Any) -> Any:
        return (await train(fed)).params

    def world(folder: Any, resume: bool) -> World:
        tasks = {task.name: task for task in (learner.train, learner.measure)}
        return World(data, ENGINES["inline"](1), folder=folder, resume=resume, registry=tasks)

    killed_and_resumed(world, program, tmp_path, points=2)


@pytest.mark.slow
@pytest.mark.parametrize("base", [FedProx(mu=1.0, **WORK), Scaffold(**WORK)])
def test_what_goes_around_the_steps_acts_on_the_methods_loss(base: Any) -> None:
    assert gap(run(FedSimCLR(base=base)), run(FedSimCLR(base=FedAvg(**WORK)))) > 1e-6


def test_the_momentum_of_fedsimclr_goes_on_from_round_to_round_and_that_of_others_starts_anew() -> None:
    """Law: two rounds of one step by one client, who returns model and momentum whole, are one round of two steps."""
    alone = islands(images(8), parties=1)
    settings: dict[str, Any] = {"batch_size": 8, "gauge": 0.0, "view": None}

    def apart(method: type[Any]) -> float:
        pieces = run(method(steps=1, **settings), alone, rounds=2)
        return gap(pieces, run(method(steps=2, **settings), alone, rounds=1))

    assert FedSimCLR().base.lr == 0.05
    assert apart(FedSimCLR) < 1e-5 < 1e-4 < apart(FedSimSiam)


def test_fedxs_terms_vanish_with_their_weights() -> None:
    base, off = FedSimCLR(**QUIET), {"contrast": 0.0, "local": 0.0, "overall": 0.0}
    plain = run(base, rounds=1)
    assert same(run(FedX(base=base, **off), rounds=1), plain)
    for name in off:
        assert not same(run(FedX(base=base, **{**off, name: 1.0}), rounds=1), plain)


def test_fedcas_public_rows_come_from_their_party_and_everybody_sees_features() -> None:
    method = FedCA(dictionary=20, shared=3, aligned=4, **QUIET)
    assert method.consents == ("row-features",)  # a site must allow it by that name
    data = islands(images(30), parties=2)
    made = [run(method, data.with_others({"public": images(12, seed=seed)})) for seed in (9, 10)]
    assert not same(*made)
    with pytest.raises(AtollError, match="public"):
        run(method, data)
    params = {name: value.detach().numpy() for name, value in siamese().named_parameters()}
    assert dry_reply(method, params)["shared"].value.shape == (3, 6)
    fresh = _renew_entries(np.zeros((4, 2), np.float32), [np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[0.0, 2.0]])])
    np.testing.assert_allclose(fresh, [[0.6, 0.8], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: FedSimCLR(batch_size=1), r"batch_size=1.*at least 2 rows"),
        (lambda: FedX(base=FedBYOL(batch_size=1)), "batch_size=1"),
        (lambda: FedX(base=FedAvg()), r"FedX\(base=FedSimCLR\(\)\)"),
        (lambda: FedX(base=FedSimCLR(), local=-1.0), r"local=-1\.0"),
        (lambda: FedSimCLR(gauge=1.0), r"gauge=1\.0"),
        (lambda: FedMoCo(queue=0), "queue=0"),
        (lambda: FedBYOL(keep=1.5), r"keep=1\.5"),
        (lambda: FedU(threshold=-1.0), r"threshold=-1\.0"),
        (lambda: FedU(measured="projector"), "measured='projector'"),
        (lambda: FedEMA(lam=-0.1), r"lam=-0\.1"),
        (lambda: FedEMA(tau=2.0), r"tau=2\.0"),
        (lambda: FedMAE(kind="tables"), r"kind='tables'.*table"),
        (lambda: FedMAE(share=0.0), r"share=0\.0"),
        (lambda: FedCA(shared=0), "shared=0"),
        (lambda: FedCA(shared=64, batch_size=32), "shared=64 with batch_size=32"),
        (lambda: Orchestra(sent=16, memory=20), r"sent=16, memory=20"),
        (lambda: Orchestra(steps=2, batch_size=16), r"memory=128 with 2 steps of 16 rows"),
    ],
)
def test_bad_settings_are_refused(make: Any, match: str) -> None:
    with pytest.raises((ConfigError, CompositionError), match=match):
        make()


def test_clients_with_one_row_have_nothing_to_contrast_with() -> None:
    data = images(13)
    lonely = atoll.data.natural(data.with_columns({"who": np.array([0] * 12 + [1])}), "who")
    for engine in ("inline", "batched"):
        with pytest.raises(AtollError, match=r"1 row, and the loss SimCLRLoss needs 2") as caught:
            run(FedSimCLR(**QUIET), lonely, engine=engine)
        assert isinstance(caught.value, DataError) or "1" in str(caught.value)


def test_models_without_the_heads_are_refused() -> None:
    with pytest.raises(AtollError, match=r"no projector.*atoll\.labels\.Siamese"):
        run(FedSimCLR(**WORK), model=seeded(lambda: nn.Sequential(encoder(), nn.Linear(64, 4))))
    with pytest.raises(AtollError, match=r"no head 'predictor'.*predictor=True"):
        run(FedBYOL(**WORK), model=siamese(predictor=False))


def test_a_network_shows_features_in_evaluation_and_all_parts_in_training() -> None:
    x = torch.zeros(2, 1, 8, 8)
    model = siamese(turns=True)
    assert model(x).shape == (2, 64 + 6 + 6 + 4)
    assert torch.equal(model.eval()(x), model.encoder(x))
    assert masked()(x).shape == (2, 1, 8, 8)
    assert T.size({"made": masked().eval()(x).detach().numpy()}) == 128


@pytest.mark.parametrize(
    "method", [FedMoCo(**QUIET), FedU(**QUIET), FedEMA(**QUIET), SSFL(**QUIET), FedBYOL(memory="client", **QUIET)]
)
def test_methods_whose_clients_keep_state_are_refused_for_clients_that_never_return(method: Any) -> None:
    with pytest.raises(CompositionError, match=r"Once invites every client once and never again, and .* private state"):
        run(method, selection=Once(1))


def test_orchestra_trains_clients_that_never_return() -> None:
    data = atoll.data.iid(images(48), parties=4, seed=0)
    one, two = (
        run(orchestra(), data, model=siamese(predictor=False, turns=True), selection=Once(1, seed=seed))
        for seed in (0, 1)
    )
    assert not same(one, two)
