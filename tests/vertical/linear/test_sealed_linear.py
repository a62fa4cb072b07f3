"""Linear models on ciphertexts: the plain model of Taylor's loss, and nothing but ciphertexts and a few sums travels."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, MessageError
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure.encrypted import Paillier
from atoll.secure.encrypted.vectors import KeyOwner
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, SOFTMAX, TreeLoss
from atoll.vertical import Vertical, VerticalLinear
from atoll.vertical.job import train_pooled
from atoll.vertical.linear import solver
from atoll.vertical.linear.families import Taylor
from atoll.vertical.linear.protocols import LocalProducts, TaylorRows
from atoll.vertical.linear.rows import GuestTotals, HostTotals
from atoll.vertical.linear.sealed import ColumnFields, PeerColumns, encrypt_columns
from atoll.vertical.linear.solver import BATCHES, OwnBlock, _Pairs, fit_weights
from atoll.vertical.model import ColumnScales, GuestRows
from tests.support.sessions_by_hand import hold
from tests.support.vertical_toys import as_parties, draw

pytest.importorskip("gmpy2")
SHORT = Paillier(key_bits=512, insecure=True)
SEALED = ["pair", "arbiter"]


def train(parties, security="pair", **more):
    task = more.pop("task", "auto")
    job = Vertical(model=VerticalLinear(**{"security": security, "cipher": SHORT, **more}), task=task)
    return job, atoll.simulate(job, parties, engine="inline", progress=False)


@pytest.mark.parametrize(
    ("security", "seed"),
    [
        ("pair", 0),
        ("arbiter", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("pair", 1), ("pair", 2), ("arbiter", 0), ("arbiter", 2))
        ),
    ],
)
def test_encrypted_it_is_the_plain_model(security, seed):
    table = draw(700 + seed, 300, holes=True)
    parties, _ = as_parties(table, 1 + seed % 2, seed)
    job, result = train(parties, security, task=table.task, short_exponents=seed == 2)
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-9


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 5))])
def test_under_ckks_it_is_the_plain_model(seed):
    pytest.importorskip("tenseal")
    table = draw(700 + seed, 300, holes=True)
    parties, _ = as_parties(table, 1 + seed % 2, seed)
    job = Vertical(model=VerticalLinear(security="ckks"), task=table.task)
    result = atoll.simulate(job, parties, engine="inline", progress=False)
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-5
    foreseen = job.predict_cost({name: len(t["id"]) for name, t in parties.items()}, [len(t) - 1 - (name == "guest") for name, t in parties.items()])  # fmt: skip
    assert 0.2 < foreseen["bytes"] / result.cost["bytes"] < 5
    assert any("ring of 8192" in line for line in result.learns["host-1"])


def test_an_l1_penalty_and_counts_on_ciphertexts():
    rng = np.random.default_rng(1)
    x, ids = rng.normal(size=(120, 4)), np.arange(120)
    y = rng.poisson(np.exp(x @ [0.5, 0, 0.5, 0]))
    parties = {
        "bank": {"id": ids, "y": y, "a": x[:, 0], "b": x[:, 1]},
        "shop": {"id": ids, "c": x[:, 2], "d": x[:, 3]},
    }
    job, result = train(parties, family="poisson", penalty=0.0, l1=20.0, task="regression")
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-8
    assert (np.asarray(result.replies["shop"]["half"]["part"]["weights"])[1] == 0).all()


@pytest.mark.slow  # quicker: tests/cli/test_vertical.py has keys of full length
def test_a_key_of_full_length_gives_the_same():
    parties, _ = as_parties(draw(700, 300))
    job, result = train(parties, cipher=Paillier())
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-9


def test_taylors_loss_is_a_ridge_regression():
    """Hardy et al. 2017: of order 2 around 0, ``log 2 - y m / 2 + m^2 / 8`` with labels -1 and 1."""
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = (x[:, 0] + rng.normal(size=200) > 0.4).astype(float)
    scaled = ColumnScales.of(x).apply(x)
    part = VerticalLinear(security="pair", penalty=2.0).train_pooled(GuestRows(x, y, TreeLoss(LOGISTIC)))
    theirs = Ridge(alpha=8.0).fit(scaled, 4 * y - 2)
    np.testing.assert_allclose(part["weights"][:, 0], theirs.coef_, rtol=1e-9)
    assert part["base"][0] == pytest.approx(theirs.intercept_)
    m, step = rng.normal(size=(2, 200, 3))
    labels = rng.integers(0, 3, 200).astype(float)
    taylor = Taylor.of(TreeLoss(SOFTMAX, 3), labels)
    centred, direction = m - m.mean(axis=1, keepdims=True), step - step.mean(axis=1, keepdims=True)
    # The second-order expansion at 0: p - y there, and the curvature (I - 1/3) / 3.
    expected = (1 / 3 - np.eye(3)[labels.astype(int)] + centred / 3) * direction
    assert (taylor.curvature * (centred - taylor.targets) * direction).sum() == pytest.approx(expected.sum())


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_products_are_the_plain_ones(seed, columns, outputs):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    x = ColumnScales.of(rng.normal(size=(n, columns)) ** 3).apply(rng.normal(size=(n, columns)))
    x = np.clip(x, -np.sqrt(n), np.sqrt(n))
    v = rng.normal(size=(n, outputs)) * rng.choice([1e-9, 1.0, 1e4])
    owner = KeyOwner(SHORT, Secret(seed))
    peer = PeerColumns(SHORT, owner.public, encrypt_columns(SHORT, x, owner.encrypt), n, "shop")
    sealed = peer.multiply(v, Secret(seed + 1))
    found = ColumnFields(n, columns, 512).open(owner.decrypt(sealed), outputs)
    np.testing.assert_allclose(found, x.T @ v, rtol=0, atol=n * (1 + np.abs(v).max()) * 2.0**-39)
    again = peer.multiply(v, Secret(seed + 2))
    assert not (again == sealed).all(axis=1).any()  # fresh noise


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_numbers_do_not_reach_their_neighbours(sign):
    n = 9
    x = np.zeros((n, 4))
    x[0], x[:, 2] = 3.0, 1.0  # a column can be sqrt(n) in one row, or 1 in all
    v = np.full((n, 1), sign * (2.0**20 - 1))
    owner = KeyOwner(SHORT, Secret(1))
    peer = PeerColumns(SHORT, owner.public, encrypt_columns(SHORT, x, owner.encrypt), n, "shop")
    found = ColumnFields(n, 4, 512).open(owner.decrypt(peer.multiply(v, Secret(2))), 1)
    np.testing.assert_allclose(found, x.T @ v, rtol=1e-12)
    with pytest.raises(DataError, match="sums may overflow"):
        peer.multiply(2 * v, Secret(2))


@pytest.mark.parametrize(
    ("security", "points"), [("arbiter", 2), *(pytest.param(one, 8, marks=pytest.mark.slow) for one in SEALED)]
)
def test_killed_and_resumed_it_is_the_same(tmp_path, security, points):
    parties, _ = as_parties(draw(705, 260))
    job = Vertical(model=VerticalLinear(security=security, cipher=SHORT))
    ready = job.prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties, dict.fromkeys(job.model.helpers)), Inline(), folder=folder, resume=resume)

    killed_and_resumed(world, program, tmp_path, points=points)


def guest_rows(n=30):
    rng = np.random.default_rng(0)
    return GuestRows(rng.normal(size=(n, 2)), rng.integers(0, 2, n).astype(float), TreeLoss(LOGISTIC))


MODEL = VerticalLinear(security="pair", cipher=SHORT)


def guest(peers):
    return MODEL.train_guest(guest_rows(), peers, ["host"], secret=Secret(1))


def host(peers):
    return MODEL.train_host(np.random.default_rng(1).normal(size=(30, 5)), peers, "guest", secret=Secret(2))


ARBITRATED = VerticalLinear(security="arbiter", cipher=SHORT)


def arbitrated(seed=5, **altered):
    rng = np.random.default_rng(1)
    tables = {"host": rng.normal(size=(30, 5)), "mall": rng.normal(size=(30, 2))}

    def role(name):
        return lambda peers: ARBITRATED.train_host(tables[name], peers, "guest", secret=Secret([*tables].index(name) + seed))  # fmt: skip

    def first(peers):
        return ARBITRATED.train_guest(guest_rows(), peers, [*tables], secret=Secret(1))

    def arbiter(peers):
        return ARBITRATED.assist("arbiter", peers, ["guest", *tables], secret=Secret(4))

    return hold(**{"guest": first, **{name: role(name) for name in tables}, "arbiter": arbiter, **altered})


def test_the_arbiter_opens_uniform_numbers_and_the_parties_learn_the_same():
    (one, said), (other, again) = arbitrated(), arbitrated(seed=50)
    np.testing.assert_array_equal(one[0]["weights"], other[0]["weights"])
    opened, differently = (
        [m for source, target, m in heard if source == "arbiter" and target == "host" and isinstance(m, np.ndarray)]
        for heard in (said, again)
    )
    assert len(opened) == len(differently) > 2
    for a, b in zip(opened, differently, strict=True):
        assert a.shape == b.shape == (2, 64)
        assert not (a == b).all(axis=1).any()  # other masks, other numbers
    assert all(
        message == {"do": "end"} or set(message) == {"do", "sealed"}
        for _, target, message in said
        if target == "arbiter"
    )


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"do": "save"}, "'save' asked of the arbiter by 'host'"),
        ({"do": "open", "sealed": np.zeros((2, 12), np.uint8)}, "no 2 ciphertexts from 'host'"),
        ({"do": "open", "sealed": np.zeros((2, 128), np.uint8)}, "not invertible"),
        ("open", "None asked of the arbiter by 'host'"),
    ],
)
def test_a_party_that_asks_something_else_of_the_arbiter_is_refused(told, match):
    async def wrong(peers):
        await peers.send("arbiter", told)

    async def guest(peers):
        await peers.recv("arbiter")
        owner = KeyOwner(SHORT, Secret(9))
        await peers.send("arbiter", {"do": "open", "sealed": owner.encrypt([1])[:0]})

    def arbiter(peers):
        return ARBITRATED.assist("arbiter", peers, ["guest", "host"], secret=Secret(4))

    with pytest.raises(AtollError, match=match):
        hold(guest=guest, host=wrong, arbiter=arbiter)


def test_more_is_not_opened_than_in_the_first_round():
    async def greedy(peers):
        await peers.recv("arbiter")
        one = np.zeros((1, 128), np.uint8)
        one[0, 0] = 1
        await peers.send("arbiter", {"do": "open", "sealed": one})
        await peers.recv("arbiter")
        await peers.send("arbiter", {"do": "open", "sealed": np.repeat(one, 2, axis=0)})

    def arbiter(peers):
        return ARBITRATED.assist("arbiter", peers, ["guest"], secret=Secret(4))

    with pytest.raises(MessageError, match="no 1 ciphertexts from 'guest'"):
        hold(guest=greedy, arbiter=arbiter)


def test_who_helps_is_said_before_anyone_is_asked():
    job = Vertical(model=ARBITRATED)
    assert job.others(2) == job.helpers() == {"arbiter": "arbiter"}
    assert {"VerticalLinear", "arbiter"} <= set(job.names())
    told = job.explain(Community(as_parties(draw(705, 260))[0]))
    assert any(one.who == "arbiter" and "uniform numbers" in one.sees for one in told.exposures)
    with pytest.raises(ConfigError, match="a party with columns is named 'arbiter'"):
        job.roles(["bank", "arbiter"])
    assert Vertical(model=MODEL).roles(["bank", "arbiter"]) == ["bank", "arbiter"]


def leaves(message):
    if isinstance(message, dict):
        for value in message.values():
            yield from leaves(value)
    else:
        yield np.asarray(message)


def test_no_number_of_a_row_travels():
    _, said = hold(guest=guest, host=host)
    for _, _, message in said:
        for each in leaves(message):
            assert each.dtype.kind not in "f" or each.size <= 2, "numbers in the clear are totals alone"
    sealed = [m["sealed"] for _, _, m in said if isinstance(m, dict) and "sealed" in m]
    assert [each.shape for each in sealed] == [(30, 128), (60, 128)]  # 3 columns of the guest, 5 of the host
    rows = [row.tobytes() for each in sealed for row in each]
    assert len(set(rows)) == len(rows)


def tamper(alter, at):
    """A host whose message of that number is altered."""

    def role(peers):
        class Altered:
            names = peers.names
            count = 0

            async def send(self, role, message):
                self.count += 1
                await peers.send(role, alter(message) if self.count == at else message)

            async def broadcast(self, message, roles=None):
                for role in roles or self.names:
                    await self.send(role, message)

            async def recv(self, role):
                return await peers.recv(role)

        return host(Altered())

    return role


@pytest.mark.parametrize(
    ("at", "alter", "match"),
    [
        (1, lambda m: {**m, "columns": -1}, "-1 columns at 'host'"),
        (1, lambda m: {**m, "columns": 6.0}, "columns at 'host'"),
        (1, lambda m: {**m, "sealed": m["sealed"][:-1]}, "no 60 ciphertexts from 'host'"),
        (1, lambda m: {**m, "sealed": np.zeros_like(m["sealed"])}, "not invertible modulo"),
        (1, lambda m: {**m, "sealed": np.full_like(m["sealed"], 255)}, "not invertible modulo"),
        (1, lambda m: {**m, "key": KeyOwner(Paillier(key_bits=256, insecure=True), Secret(3)).public}, "256"),
        (1, lambda m: np.zeros(3), "None columns at 'host'"),
        (2, lambda m: m[:0], "no 1 ciphertexts from 'host'"),
        (2, lambda m: np.zeros_like(m), "not invertible modulo"),
        (3, lambda m: m * np.nan, "NaN or infinity from 'host'"),
    ],
)
def test_messages_of_another_form_are_refused(at, alter, match):
    with pytest.raises(AtollError, match=match):
        hold(guest=guest, host=tamper(alter, at))


def test_sums_beyond_their_fields_are_refused():
    owner = KeyOwner(SHORT, Secret(1))
    forged = owner.encrypt([1 << 500])
    with pytest.raises(MessageError, match="sums beyond their fields"):
        ColumnFields(30, 3, 512).open(owner.decrypt(forged), 1)


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(CompositionError, match="cipher with security='none'"):
        VerticalLinear(security="none", cipher=Paillier(key_bits=3072))
    with pytest.raises(CompositionError, match="short_exponents with security='none'"):
        VerticalLinear(security="none", short_exponents=True)
    with pytest.raises(CompositionError, match="l1 with security='ckks'"):
        VerticalLinear(security="ckks", l1=1.0)
    with pytest.raises(ConfigError, match="key_bits=1024"):
        Paillier(key_bits=1024)


@pytest.mark.parametrize("security", SEALED)
def test_the_cost_is_foreseen(security):
    parties, _ = as_parties(draw(705, 260))
    job, result = train(parties, security)
    keys = {name: len(table["id"]) for name, table in parties.items()}
    found = job.predict_cost(keys, [len(parties["guest"]) - 2, len(parties["host-1"]) - 1])
    assert 0.3 < found["bytes"] / result.cost["bytes"] < 3
    assert found["seconds"] > 0
    assert any("512 bits, under Paillier's assumption" in line for line in result.learns["host-1"])


@pytest.mark.parametrize(
    ("security", "solver"),
    [
        ("pair", "quasi-newton"),
        ("arbiter", "gradient"),
        pytest.param("arbiter", "quasi-newton", marks=pytest.mark.slow),
        pytest.param("ckks", "quasi-newton", marks=pytest.mark.slow),
    ],
)
def test_every_solver_finds_the_optimum_of_none(security, solver):
    """Least squares, whose optimum is the same under every protocol."""
    table = draw(703, 300, holes=True)
    assert table.task == "regression"
    parties, _ = as_parties(table)
    more = {} if security == "ckks" else {"cipher": SHORT}
    made = {
        name: atoll.simulate(Vertical(model=model, task=table.task), parties, engine="inline", progress=False)
        for name, model in (
            ("plain", VerticalLinear(security="none")),
            ("sealed", VerticalLinear(security=security, solver=solver, **more)),
        )
    }
    plain, sealed = (made[name].predictions["federated"] for name in ("plain", "sealed"))
    assert np.abs(plain - sealed).max() / np.std(table.y) < (1e-5 if security == "ckks" else 1e-8)
    assert any("of gradients" in line for line in made["sealed"].learns["host-1"])


def test_quasi_newton_takes_fewer_round_trips():
    """A product and one sum a step: fewer than conjugate gradients, and half of those of gradient descent or less, whose steps it outruns."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(60, 2))
    x = {name: np.concatenate([shared + 0.3 * rng.normal(size=(60, 2)), rng.normal(size=(60, 2))], axis=1) for name in ("guest", "host")}  # fmt: skip
    y = (shared.sum(axis=1) + rng.normal(size=60) > 0).astype(float)

    def count(solver):
        model = VerticalLinear(cipher=SHORT, solver=solver, penalty=0.1)
        own = GuestRows(x["guest"], y, TreeLoss(LOGISTIC))
        _, said = hold(
            guest=lambda peers: model.train_guest(own, peers, ["host"], secret=Secret(1)),
            host=lambda peers: model.train_host(x["host"], peers, "guest", secret=Secret(2)),
        )
        return sum(source == "host" for source, _, _ in said)

    found = {solver: count(solver) for solver in ("newton", "quasi-newton", "gradient")}
    assert found["quasi-newton"] < 0.8 * found["newton"], found
    assert found["quasi-newton"] < 0.5 * found["gradient"], found


class OpenProducts:
    """Products between two parties in the clear, which count the rows that are not 0."""

    def __init__(self, x, peers, other, counted):
        self.x, self.peers, self.other, self.counted = x, peers, other, counted

    async def multiply(self, v):
        self.counted.append(int(v.any(axis=1).sum()))
        await self.peers.send(self.other, v)
        return self.x.T @ (v + await self.peers.recv(self.other))


def test_batches_find_the_same_optimum_with_fewer_rows():
    """Byrd et al. 2016: curvature from a batch. Where columns tell of each other's across parties, half the rows of conjugate gradients suffice."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(6000, 20))
    x = np.concatenate([shared @ rng.normal(size=(20, 20)) + 0.3 * rng.normal(size=(6000, 20)) for _ in range(2)], axis=1)  # fmt: skip
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = x @ rng.normal(size=40) + rng.normal(size=6000)
    best = np.linalg.solve(x.T @ x + np.eye(40), x.T @ y)

    def fit(solver, batch):
        counted = []

        def role(own, totals, other, targets):
            async def run(peers):
                block = OwnBlock(own, np.ones(20), np.zeros(20), 2)
                rows = TaylorRows(block, 1.0, targets, OpenProducts(own, peers, other, counted), totals(peers), 1e-20, batch)  # fmt: skip
                return await fit_weights(block, rows, 1, solver=solver)

            return run

        found, _ = hold(
            guest=role(x[:, :20], lambda peers: GuestTotals(peers, ["host"]), "host", y[:, None]),
            host=role(x[:, 20:], lambda peers: HostTotals(peers, "guest"), "guest", None),
        )
        np.testing.assert_allclose(x @ np.concatenate(found)[:, 0], x @ best, atol=1e-8)
        return counted

    plain, sampled = fit("newton", None), fit(BATCHES, np.sort(rng.choice(6000, 600, replace=False)))
    assert set(sampled) <= {0, 600, 6000}  # the weights begin with 0
    assert sampled.count(600) > 20
    assert sum(sampled) < 0.6 * sum(plain), (sum(sampled), sum(plain))


def test_a_batch_stands_for_all_rows():
    rng = np.random.default_rng(0)
    x, p, batch = rng.normal(size=(50, 3)), rng.normal(size=(3, 2)), np.arange(0, 50, 5)
    block = OwnBlock(x, np.ones(3), np.zeros(3), 1)
    rows = TaylorRows(block, 0.25, None, LocalProducts(x), GuestTotals(None, []), 1e-20, batch)
    np.testing.assert_allclose(asyncio.run(rows.bend_batch(p)), 0.25 * 5 * x[batch].T @ x[batch] @ p)


@pytest.mark.parametrize("security", ["pair", pytest.param("arbiter", marks=pytest.mark.slow)])
def test_batches_on_ciphertexts_are_the_pooled_model(monkeypatch, security):
    rows, multiply = [], PeerColumns.multiply

    def count(self, v, secret):
        rows.append(int(v.any(axis=1).sum()))
        return multiply(self, v, secret)

    monkeypatch.setattr(PeerColumns, "multiply", count)
    parties, _ = as_parties(draw(703, 300))
    job, result = train(parties, security, solver="quasi-newton", batch=90, task="regression")
    assert result.compare(train_pooled(job, parties, result))["difference"] < 1e-8
    assert 90 in rows
    assert min(rows) <= 90 < max(rows)
    assert any("over 90 of them" in line for line in result.learns["host-1"])
    with pytest.raises(AtollError, match=r"a batch of 20 rows, where .* columns: sums over so few rows may tell them"):
        train(parties, security, solver="quasi-newton", batch=20, task="regression")


@pytest.mark.parametrize("more", [{"solver": "newton"}, {"solver": "quasi-newton", "security": "none"}, {"solver": "quasi-newton", "security": "ckks"}])  # fmt: skip
def test_batches_of_another_solver_are_refused(more):
    with pytest.raises(CompositionError, match="batch=90 with solver="):
        VerticalLinear(batch=90, **more)
    with pytest.raises(ConfigError, match="batch=-1"):
        VerticalLinear(batch=-1)


@given(st.integers(0, 10**6), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_the_memory_is_the_dense_formula_of_bfgs(seed, steps):
    """``H <- (I - rho s y') H (I - rho y s') + rho s s'`` (Nocedal 1980) over the last pairs, from the blocks' inverse."""
    rng = np.random.default_rng(seed)
    size = 6
    root = rng.normal(size=(size, size))
    bend, start = root @ root.T + np.eye(size), np.diag(rng.uniform(0.5, 2.0, size))
    pairs, r, kept = _Pairs(4), rng.normal(size=(size, 1)), []
    for _ in range(steps):
        p, length = rng.normal(size=(size, 1)), rng.uniform(0.1, 2.0)
        q = bend @ p
        told = [(start @ r, q), (start @ q, q), *pairs.with_those(r, start @ r, q, start @ q)]
        length = -float((r * p).sum() / (p * q).sum())  # the best step, after which r is across p
        crossed = [float((a * b).sum()) for a, b in told]
        left = pairs.add(length, p, q, start @ q, float((p * q).sum()), crossed)
        r = r + length * q
        kept.append((length * p, length * q))
    dense = start
    for s, y in kept[-4:]:
        rho = 1 / float((s * y).sum())
        turn = np.eye(size) - rho * s @ y.T
        dense = turn @ dense @ turn.T + rho * s @ s.T
    np.testing.assert_allclose(pairs.apply(start @ r), dense @ r, rtol=1e-7, atol=1e-9 * np.abs(r).max())
    assert left == pytest.approx(float((r.T @ dense @ r).item()), rel=1e-6, abs=1e-9)


def test_a_solver_belongs_to_encrypted_protocols_without_an_l1_penalty():
    for wrong in ({"security": "none"}, {"security": "shared"}, {"l1": 1.0}):
        with pytest.raises(CompositionError, match="solver"):
            VerticalLinear(solver="quasi-newton", **wrong)
    with pytest.raises(ConfigError, match="solver='sgd'"):
        VerticalLinear(solver="sgd")


def test_a_descent_that_does_not_end_is_refused(monkeypatch):
    monkeypatch.setattr(solver, "_DESCENTS", 3)
    with pytest.raises(DataError, match="the loss still falls after 3 products"):
        VerticalLinear(solver="gradient").train_pooled(guest_rows())
