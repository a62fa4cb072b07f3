"""Boosting on ciphertexts: the plain trees, and nothing but ciphertexts, leaves and bins travels."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import atoll
from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, MessageError
from atoll.core.message import Bits, encode
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure.encrypted import Paillier
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import SQUARED, TreeLoss
from atoll.vertical import SecureBoost, Vertical
from atoll.vertical.job import train_pooled
from atoll.vertical.trees import sealed
from atoll.vertical.trees.boosting import GradientUnits, HostColumns, HostRole, PlainSums
from atoll.vertical.trees.columns import OwnedColumns, Splits
from atoll.vertical.trees.sealed import GuestCipher, HostCipher
from tests.support.vertical_toys import as_parties, draw

pytest.importorskip("gmpy2")
SHORT = Paillier(key_bits=512, insecure=True)
FEW = {"trees": 2, "depth": 3, "bins": 8}


def train(parties, **settings):
    more = {name: settings.pop(name) for name in ("secret_seed", "engine") if name in settings}
    model = SecureBoost(**{**FEW, "cipher": SHORT, **settings})
    return atoll.simulate(Vertical(model=model), parties, **{"engine": "inline", **more}, progress=False)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(3))
def test_encrypted_trees_are_the_plain_trees(seed):
    parties, _ = as_parties(draw(500 + seed, 320, holes=seed == 1), hosts=1 + seed % 2, seed=seed)
    sealed = train(parties, short_exponents=seed == 2)
    plain = atoll.simulate(
        Vertical(model=SecureBoost(**FEW, security="none")), parties, engine="inline", progress=False
    )
    for name, values in plain.predictions.items():
        np.testing.assert_array_equal(sealed.predictions[name], values)
    for party in parties:
        if party != "guest":
            assert encode(sealed.replies[party]["half"]) == encode(plain.replies[party]["half"])


@pytest.mark.parametrize("settings", [{"batch": 1}, {"batch": 100, "packed": False}, {"batch": 10_000}])
def test_batches_and_packing_change_no_tree(settings):
    parties, _ = as_parties(draw(505, 230, holes=True), hosts=1)
    plain, found = train(parties, trees=1), train(parties, trees=1, **settings)
    np.testing.assert_array_equal(found.predictions["federated"], plain.predictions["federated"])
    assert (
        found.cost["bytes"] > plain.cost["bytes"] + (0 if settings.get("packed", True) else 5000)
        or settings["batch"] > 1000
    )
    bare, streamed = (
        train(parties, security="none", cipher=Paillier()),
        train(parties, security="none", cipher=Paillier(), batch=7),
    )
    np.testing.assert_array_equal(streamed.predictions["federated"], bare.predictions["federated"])


@pytest.mark.slow  # quicker: tests/cli/test_vertical.py has keys of full length, with short exponents
def test_a_key_of_full_length_gives_the_same():
    parties, _ = as_parties(draw(504, 210))
    sealed = train(parties, cipher=Paillier(), trees=1, depth=2)
    plain = atoll.simulate(
        Vertical(model=SecureBoost(**{**FEW, "trees": 1, "depth": 2}, security="none")),
        parties,
        engine="inline",
        progress=False,
    )
    np.testing.assert_array_equal(sealed.predictions["federated"], plain.predictions["federated"])


def test_killed_and_resumed_it_grows_the_same_trees(tmp_path):
    parties, _ = as_parties(draw(503, 240))
    ready = Vertical(model=SecureBoost(**FEW, cipher=SHORT)).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks

    def world(folder, resume):
        return World(Community(parties), Inline(), folder=folder, resume=resume)

    killed_and_resumed(world, program, tmp_path, points=2)


class Line:
    """Two ends of a session whose messages are kept as they travel."""

    def __init__(self):
        self.said = {"host": [], "guest": []}
        self.queues = {"host": asyncio.Queue(), "guest": asyncio.Queue()}

    def end(self, me):
        line, other = self, {"host": "guest", "guest": "host"}[me]

        class End:
            async def send(self, role, message):
                line.said[me].append(message)
                await line.queues[role].put(message)

            async def broadcast(self, message, roles):
                for role in roles:
                    await self.send(role, message)

            async def recv(self, role):
                assert role == other
                return await line.queues[me].get()

        return End()


def hold(guest_rows, host_x, model, host_model=None):
    line = Line()

    async def both():
        guest = model.train_guest(guest_rows, line.end("guest"), ["host"], secret=Secret(1))
        host = (host_model or model).train_host(host_x, line.end("host"), "guest", secret=Secret(2))
        return await asyncio.wait_for(asyncio.gather(guest, host), 120)

    return asyncio.run(both()), line.said


def arrays(message):
    if isinstance(message, dict):
        for value in message.values():
            yield from arrays(value)
    elif isinstance(message, list | tuple):
        for value in message:
            yield from arrays(value)
    elif isinstance(message, Bits):
        yield message.packed
    else:
        yield np.asarray(message)


def test_no_label_gradient_value_or_cut_travels():
    table = draw(501, 240, holes=True)
    rows, f = table.rows(slice(0, 2)), table.x.shape[1]
    host_x = table.x[:, 2:f]
    model = SecureBoost(**FEW, cipher=SHORT)
    (_, splits), said = hold(rows, host_x, model)
    assert len(splits["feature"]) > 0
    for message in said["host"]:
        assert all(
            each.dtype in (np.uint8, np.int64) for each in arrays(message)
        )  # ciphertexts, bits, and how many cuts
    for message in said["guest"]:
        floats = [each for each in arrays(message) if each.dtype.kind == "f"]
        assert not floats
    sealed = [message["sealed"] for message in said["guest"] if message.get("do") == "begin"]
    assert [each.shape for each in sealed] == [(len(host_x), 128)] * FEW["trees"]
    assert len({row.tobytes() for each in sealed for row in each}) == FEW["trees"] * len(host_x)


def test_plain_gradients_would_travel_without_encryption():
    """The guard of the test above: with ``none`` the same recorder sees gradients."""
    table = draw(501, 240)
    _, said = hold(table.rows(slice(0, 2)), table.x[:, 2:], SecureBoost(**FEW, security="none"))
    assert any(each.shape == (len(table.x), 2) for message in said["guest"] for each in arrays(message))


def test_a_host_refuses_another_security_or_a_shorter_key():
    table = draw(501, 240)
    rows, x = table.rows(slice(0, 2)), table.x[:, 2:]
    with pytest.raises(MessageError, match="security='none', where 'paillier' was agreed"):
        hold(rows, x, SecureBoost(**FEW, security="none"), SecureBoost(**FEW, cipher=SHORT))
    with pytest.raises(DataError, match="a public key of 512 bits that is none of 2048"):
        hold(rows, x, SecureBoost(**FEW, cipher=SHORT), SecureBoost(**FEW))


@pytest.mark.parametrize(
    ("seed", "hosts", "security"), [(506, 1, "none"), (507, 2, "none"), (508, 2, "none"), (505, 1, "paillier")]
)
def test_splits_that_are_tried_change_no_tree(monkeypatch, seed, hosts, security):
    parties, _ = as_parties(draw(seed, 400, holes=True), hosts=hosts)
    more = {"security": security, "cipher": SHORT if security == "paillier" else Paillier(), "depth": 4}
    said, answer = [], HostRole.answer

    def heard(self, message):
        said.append(message["do"])
        return answer(self, message)

    monkeypatch.setattr(HostRole, "answer", heard)
    plain, found = train(parties, **more), train(parties, **more, optimistic=True)
    for name, values in plain.predictions.items():
        np.testing.assert_array_equal(found.predictions[name], values)
    assert encode(found.replies["guest"]["half"]["part"]) == encode(plain.replies["guest"]["half"]["part"])
    assert said.count("try") == said.count("keep") + said.count("undo") > 0
    assert any("tried and taken back" in line for line in found.learns["host-1"])


def test_splits_are_tried_only_where_it_was_agreed(role):
    rows = role.columns.rows
    tried = {"do": "try", "nodes": np.array([0]), "children": np.array([1]), "left": Bits.pack(np.arange(rows) < 9)}
    role.answer(role.begun)
    with pytest.raises(MessageError, match="which was not agreed"):
        role.answer(tried)
    for wrong in ("keep", "undo"):
        with pytest.raises(MessageError, match="no splits were tried"):
            role.answer({"do": wrong})
    role._optimistic = True
    role._tries = 0
    role.answer(tried)
    with pytest.raises(MessageError, match="which was not agreed"):
        role.answer(tried)
    assert len(role.columns.rows_at(1)) == 9
    role.answer({"do": "undo"})
    assert len(role.columns.rows_at(0)) == rows


@pytest.mark.parametrize("plain", [True, False])
def test_a_host_takes_batches_of_all_rows_once(plain):
    table = draw(501, 240)
    rows = len(table.x)
    guest = GuestCipher.of(SHORT, GradientUnits(2.0**-24, 2.0**-24, (25, 25)), rows, Secret(1), None, short=False)
    columns = OwnedColumns(table.x[:, 2:], 8)
    pairs = np.random.default_rng(0).integers(-(2**20), 2**20, (rows, 2))
    seal = (lambda given: given) if plain else guest.seal

    def begun(*messages):
        role = HostRole(
            columns, PlainSums() if plain else HostCipher.of(SHORT, guest.public, rows, Secret(2)), Splits()
        )
        for message in messages:
            role.answer(message)
        return role

    first = {"do": "begin", "sealed": seal(pairs[:100]), "last": False}
    last = {"do": "more", "sealed": seal(pairs[100:])}
    asked = {"do": "sum", "nodes": np.array([0])}
    known = HostColumns(columns.counts, columns.fullest)
    opened = (PlainSums() if plain else guest).open(
        begun(first, last).answer(asked)["sums"], known, pairs.sum(axis=0)[None], [columns.rows_at(0)]
    )
    np.testing.assert_array_equal(opened, columns.sums(pairs.astype(np.float32), [0]))
    for messages, words in (
        ((first, asked), f"sums after gradients of 100 of {rows} rows"),
        ((first, {**last, "sealed": seal(pairs[101:])}), f"for {rows - 100} rows"),
        ((first, {**last, "last": False}), f"for {rows - 100} rows"),
        ((first, last, last), "further rows, where all are there"),
        ((last,), "further rows, where all are there"),
        (({**first, "sealed": seal(pairs)},), f"for {rows} rows"),
    ):
        with pytest.raises(MessageError, match=words):
            begun(*messages)


@pytest.fixture
def role():
    table = draw(501, 240)
    units = GradientUnits(2.0**-24, 2.0**-24, (25, 25))
    guest = GuestCipher.of(SHORT, units, len(table.x), Secret(1), None, short=False)
    columns = OwnedColumns(table.x[:, 2:], 8)
    made = HostRole(columns, HostCipher.of(SHORT, guest.public, len(table.x), Secret(2)), Splits())
    made.begun = {"do": "begin", "sealed": guest.seal(np.ones((len(table.x), 2), np.int64))}
    return made


def answers(*wrong, nodes=(0,), children=(1,)):
    return {"nodes": np.array(nodes), "children": np.array(children), **dict(wrong)}


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ("hello", "a message None"),
        ({"do": "steal"}, "a message 'steal'"),
        ({"do": "sum"}, "a message 'sum' without 'nodes'"),
        ({"do": "sum", "nodes": np.array([3])}, "node 3 is no leaf"),
        ({"do": "split", **answers(("feature", [99]), ("cut", [0]), ("default_left", [True]))}, "column 99"),
        ({"do": "split", **answers(("feature", [0]), ("cut", [99]), ("default_left", [True]))}, "behind bin 99"),
        (
            {"do": "split", **answers(("feature", [0]), ("cut", [0]), ("default_left", [True]), children=[-5])},
            "into node -5",
        ),
        (
            {"do": "split", **answers(("feature", []), ("cut", []), ("default_left", []), nodes=[], children=[])},
            "no leaf",
        ),
        ({"do": "split", **answers(("feature", [0, 1]), ("cut", [0]), ("default_left", [True]))}, "of several lengths"),
        ({"do": "move", **answers(("left", Bits.pack(np.ones(3, bool))))}, "answers to where rows go"),
        ({"do": "begin", "sealed": np.zeros((3, 128), np.uint8)}, "gradients of shape"),
        ({"do": "begin", "sealed": np.zeros((240, 128), np.uint8)}, "gradients of shape|not invertible"),
    ],
)
def test_a_host_refuses_foreign_messages_nodes_and_ciphertexts(role, message, match):
    role.answer(role.begun)
    with pytest.raises(AtollError, match=match):
        role.answer(message)


def split_of(node, child, *, cut=0):
    return {"do": "split", **answers(("feature", [0]), ("cut", [cut]), ("default_left", [True]), nodes=[node], children=[child])}  # fmt: skip


def test_a_host_answers_what_the_agreed_trees_take_and_no_more(role):
    """Without bounds a guest could split on until it has the bins of all values, or ask for sums of many made-up gradients in one round."""
    columns, begun = role.columns, role.begun
    role = HostRole(columns, role._sums, Splits(), depth=2, outputs=2)
    for _ in range(2):
        role.answer(begun)
        role.answer({"do": "sum", "nodes": np.array([0])})
        with pytest.raises(MessageError, match="sums of node 0 again"):
            role.answer({"do": "sum", "nodes": np.array([0])})
        role.answer(split_of(0, 1))
        role.answer(split_of(1, 3))
        for message in (split_of(3, 5), {"do": "move", **answers(("left", Bits.pack(np.ones(len(columns.rows_at(3)), bool))), nodes=[3], children=[5])}):  # fmt: skip
            with pytest.raises(MessageError, match="a split of node 3 below level 2"):
                role.answer(message)
        with pytest.raises(MessageError, match="sums of node 3 again, or below level 2"):
            role.answer({"do": "sum", "nodes": np.array([3])})
    with pytest.raises(MessageError, match="tree 3 of a round of 2"):
        role.answer(begun)
    role.end_round()
    role.answer(begun)


@pytest.mark.parametrize("least", [2, 30, 200])
def test_a_bin_has_the_least_number_of_rows(least):
    x = draw(501, 240, holes=True).x
    joined, plain = OwnedColumns(x, 32, least), OwnedColumns(x, 32)
    for f, cuts in enumerate(joined.cuts):
        known = x[~np.isnan(x[:, f]), f]
        counts = np.bincount(np.searchsorted(cuts, known, side="right"), minlength=len(cuts) + 1)
        assert len(cuts) == 0 or counts.min() >= least
        assert set(cuts.tolist()) <= set(plain.cuts[f].tolist())
        assert len(cuts) == 0 or least < 200
    assert sum(joined.counts) > 0 or least == 200


def test_the_joint_model_with_a_least_number_of_rows_is_the_pooled_one():
    parties, _ = as_parties(draw(505, 300))
    job = Vertical(model=SecureBoost(**FEW, security="none", min_bin_rows=40))
    result = atoll.simulate(job, parties, engine="inline", progress=False)
    assert result.compare(train_pooled(job, parties, result))["difference"] == 0
    plain = atoll.simulate(Vertical(model=SecureBoost(**FEW, security="none")), parties, engine="inline", progress=False)  # fmt: skip
    assert (result.predictions["federated"] != plain.predictions["federated"]).any()
    assert any("at least 40 training rows" in line for line in result.learns["guest"])
    assert not any("at least" in line for line in plain.learns["guest"])


@pytest.mark.parametrize("outputs", [None, 0, 10**6, True])
def test_a_host_refuses_no_number_of_trees(outputs):
    with pytest.raises(MessageError, match="trees a round"):
        SecureBoost(security="none")._read_outputs({"security": "none", "outputs": outputs})


def test_a_host_needs_gradients_before_sums():
    columns = OwnedColumns(draw(501, 240).x, 8)
    with pytest.raises(MessageError, match="before gradients"):
        HostRole(columns, PlainSums(), Splits()).answer({"do": "sum", "nodes": np.array([0])})


@pytest.mark.parametrize(
    "told",
    [None, {"counts": [1]}, {"counts": np.array([300]), "fullest": np.array([0])}, {"counts": np.array([2]), "fullest": np.array([9])}, {"counts": np.array([2.0]), "fullest": np.array([0])}],
)  # fmt: skip
def test_a_guest_refuses_hosts_with_no_or_too_many_cuts(told):
    with pytest.raises(MessageError, match=r"cuts|fullest"):
        HostColumns.of(told)


def test_a_guest_refuses_sums_of_another_shape():
    guest = GuestCipher.of(SHORT, GradientUnits(1.0, 1.0, (25, 25)), 50, Secret(1), None, short=False)
    with pytest.raises(MessageError, match=r"sums of shape \(1, 128\), expected \(2, 128\)"):
        guest.open(guest.owner.encrypt([0]), HostColumns([9], [0]), np.zeros((1, 2), np.int64), ())
    with pytest.raises(MessageError, match="expected"):
        PlainSums().open(np.zeros((1, 1, 4, 2), np.int64), HostColumns([9], [0]), np.zeros((1, 2), np.int64), ())


def test_gradients_that_may_overflow_are_refused():
    y = np.array([0.0, 1.0])
    units = GradientUnits.of(TreeLoss(SQUARED), y, np.array([0.5]))
    assert units.g == 2.0**-24
    ones = np.ones(2, np.float32)
    assert np.abs(units.whole(7 * ones, ones)).max() == 7 * 2**24
    with pytest.raises(DataError, match="lower rate"):
        units.whole(9 * ones, ones)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(CompositionError, match="short_exponents with security='none'"):
        SecureBoost(security="none", short_exponents=True)
    with pytest.raises(CompositionError, match="cipher with security='none'"):
        SecureBoost(security="none", cipher=Paillier(key_bits=3072))
    with pytest.raises(ConfigError, match="key_bits=1024"):
        SecureBoost(cipher=Paillier(key_bits=1024))


def test_the_assumption_of_short_exponents_is_told():
    told = SecureBoost(short_exponents=True).learns()["host"][0]
    assert "448 bits" in told
    assert "2048 bits" in told
    assert "448" not in SecureBoost().learns()["host"][0]


def test_bytes_are_known_beforehand():
    """The ciphertexts of rows are all but a few of the bytes; what else travels is bits and small counts."""
    parties, _ = as_parties(draw(504, 900))
    model = SecureBoost(**FEW, cipher=SHORT)
    result = atoll.simulate(Vertical(model=model), parties, engine="inline", progress=False)
    columns = [len(parties["guest"]) - 2, len(parties["host-1"]) - 1]
    foreseen = Vertical(model=model).predict_cost({name: len(part["id"]) for name, part in parties.items()}, columns)
    assert result.cost["seconds"] > 0
    assert 0.8 < result.cost["bytes"] / foreseen["bytes"] < 1.25
    assert (
        SecureBoost(**FEW, security="none").predict_cost(100, [2, 3])["bytes"]
        < model.predict_cost(100, [2, 3])["bytes"]
    )


def test_short_exponents_are_foreseen_to_take_less(monkeypatch):
    monkeypatch.setattr(sealed, "time_product", lambda bits: 1e-9 * bits)  # measured twice, a busy machine decides
    long, short = (
        SecureBoost(short_exponents=short).predict_cost(20_000, [10, 2])["seconds"] for short in (False, True)
    )
    assert 0 < short < long
