"""SFTL: gradient descent of one loss over both parties' rows, whoever hides what; and its peers are not believed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError
from atoll.core.message import Bits, encode
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.runtime.job_spec import JobConfig
from atoll.secure.encrypted import Paillier
from atoll.secure.encrypted.paillier import to_number
from atoll.testing import killed_and_resumed
from atoll.vertical import SFTL, SecureBoost, Vertical, VerticalPrediction
from atoll.vertical.model import GuestRows
from atoll.vertical.transfer.representation import Representation
from tests.support.transfer_toys import cut_people, cut_rows, draw_people, draw_rows, talk, train_both

SMALL = Paillier(key_bits=512, insecure=True)
FEW = {"width": 3, "steps": 4, "rate": 0.1}


def hidden(security, **more):
    return SFTL(security=security, **{**FEW, **more}, **({"cipher": SMALL} if security == "paillier" else {}))


def train_in_one_place(model, rows, x, others):
    """The same loss written down once, over all rows in one place, and its gradients by PyTorch: the oracle."""
    import torch

    outputs = rows.objective.outputs
    targets = np.concatenate([rows.targets, others[0].targets])
    known = torch.from_numpy(~np.isnan(targets))
    codes = torch.from_numpy(np.nan_to_num(targets)).long()
    y = (
        2.0 * codes[:, None].double() - 1
        if outputs == 1
        else 2.0 * torch.nn.functional.one_hot(codes, outputs).double() - 1
    )
    n, few = len(x), int(known[: len(x)].sum())
    nets, inputs, free = [], [], []
    for party, all_rows in enumerate((np.concatenate([rows.x, others[0].x]), np.concatenate([x, others[1]]))):
        net = Representation.begin(_scales(all_rows), model.width, np.random.default_rng([model.seed, party]))
        nets.append([torch.tensor(one, requires_grad=True) for one in (net.encode, net.decode)])
        inputs.append(torch.from_numpy(net.read(all_rows)))
        free.append([torch.zeros_like(one) for one in nets[-1]])

    def loss():
        u = [torch.tanh(z @ net[0]) for z, net in zip(inputs, nets, strict=True)]
        phi = (y * known[:, None]).T @ u[0] / known.sum()

        def taylor(signs, points):
            scores = points @ phi.T
            return (np.log(2) - signs * scores / 2 + scores**2 / 8).sum(dim=1).mean()

        shared = known[:n]
        made = taylor(y[:n][shared], u[1][:n][shared]) if few else 0.0
        made = made + model.align * ((u[0][:n] - u[1][:n]) ** 2).sum(dim=1).mean()
        made = made + model.source * taylor(y[known], u[0][known])
        for z, net, points in zip(inputs, nets, u, strict=True):
            back = torch.column_stack([points, torch.ones(len(points), dtype=torch.float64)]) @ net[1]
            made = made + model.restore * ((z[:, :-1] - back) ** 2).mean() + model.penalty / 2 * (net[0] ** 2).sum()
        return made, phi

    for _ in range(model.steps):
        flat = [one for net in nets for one in net]
        gradients = iter(torch.autograd.grad(loss()[0], flat))
        for net, speeds in zip(nets, free, strict=True):
            for i in range(2):
                speeds[i] = model.momentum * speeds[i] + next(gradients)
                net[i] = (net[i] - model.rate * speeds[i]).detach().requires_grad_()
    return [[one.detach().numpy() for one in net] for net in nets], loss()[1].detach().numpy()


def _scales(rows):
    from atoll.vertical.model import ColumnScales

    return ColumnScales.of(rows)


drawn = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6), "shared": st.integers(1, 9), "alone": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "columns": st.tuples(st.integers(1, 4), st.integers(1, 4)), "outputs": st.sampled_from([1, 3]), "labelled": st.sampled_from([1.0, 0.5]),
    }
)  # fmt: skip
weights = st.fixed_dictionaries(
    {name: st.sampled_from([0.0, 0.7]) for name in ("align", "source", "restore", "penalty")}
)


@settings(max_examples=6, deadline=None)
@given(drawn, weights)
def test_it_is_gradient_descent_of_one_loss(table, weights):
    rows, x, others = draw_rows(**table)
    model = SFTL(security="none", width=2, steps=4, rate=0.2, **weights)
    guest, host, _ = train_both(model, rows, x, others)
    nets, phi = train_in_one_place(model, rows, x, others)
    for part, expected in zip((guest, host), nets, strict=True):
        for name, values in zip(("encode", "decode"), expected, strict=True):
            np.testing.assert_allclose(part["net"][name], values, atol=1e-10)
    np.testing.assert_allclose(guest["phi"], phi, atol=1e-10)


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 3]))
def test_both_protocols_are_plain_sftl(seed, outputs):
    """Shares and ciphertexts round alike and add exactly, so they agree to the last bit; with the plain one up to units of 2^-20."""
    pytest.importorskip("gmpy2")
    rows, x, others = draw_rows(seed, shared=6, outputs=outputs, labelled=0.8)
    plain, shared, sealed = (train_both(hidden(how), rows, x, others)[:2] for how in ("none", "shared", "paillier"))
    for k in range(2):
        for name in ("encode", "decode"):
            np.testing.assert_array_equal(shared[k]["net"][name], sealed[k]["net"][name])
            np.testing.assert_allclose(shared[k]["net"][name], plain[k]["net"][name], atol=1e-5)
    assert not np.array_equal(shared[1]["net"]["encode"], plain[1]["net"]["encode"])


@pytest.mark.parametrize("security", ["shared", "paillier"])
def test_what_a_party_hears_is_hidden_by_fresh_masks(security):
    """The same rows with other secrets: the same model, and no frame twice. Without a mask what the key's owner decrypts would be the same."""
    pytest.importorskip("gmpy2")
    rows, x, others = draw_rows(3, shared=5)
    model = hidden(security, steps=1)
    one, other = (train_both(model, rows, x, others, secret=secret) for secret in (1, 3))
    np.testing.assert_array_equal(one[1]["net"]["encode"], other[1]["net"]["encode"])
    said = [
        [np.asarray(value).tobytes() for _, _, message in run[2] for value in _arrays(message)] for run in (one, other)
    ]
    assert len(said[0]) == len(said[1]) > 6
    frames = [(a, b) for a, b in zip(*said, strict=True) if len(a) > 16]
    assert all(a != b for a, b in frames)
    if security == "paillier":  # seven sums of 64 bits are far shorter than the key, unless the mask is uniform
        keys = {who: int(to_number(message["key"]["n"])) for who, _, message in one[2] if "key" in message}
        opened = [(keys[who], row) for who, _, message in one[2] if "opened" in message for row in message["opened"]]
        assert opened
        for n, row in opened:
            value = int.from_bytes(row.tobytes(), "little")
            assert min(value, n - value).bit_length() > 470


def _arrays(message):
    if isinstance(message, dict):
        return [one for value in message.values() for one in _arrays(value)]
    if isinstance(message, list | tuple):
        return [one for value in message for one in _arrays(value)]
    return [message] if isinstance(message, np.ndarray) else []


def replace(sender, key, make):
    """A party that sends something else under a key."""

    def change(me, message):
        if me == sender and isinstance(message, dict) and key in message:
            return {**message, key: make(message[key])}
        return message

    return change


BAD = [
    ("none", "shop", "columns", lambda _: 0, "'shop' does not say how many columns"),
    ("none", "bank", "columns", lambda _: "3", "'bank' does not say how many columns"),
    ("none", "bank", "labelled", lambda _: Bits.pack(np.ones(5, bool)), "'bank' does not say which of 12 rows"),
    ("none", "bank", "outputs", lambda _: True, "'bank' does not say which of 12 rows"),
    ("none", "bank", "c", lambda c: c[:, :-1], r"no 3 x 15 numbers up to 1.1 of 'bank'"),
    ("none", "bank", "c", lambda c: c.astype(np.float32), "no 3 x 15 numbers"),
    ("none", "shop", "c", lambda c: c * np.nan, r"no 3 x 15 numbers up to 1 of 'shop'"),
    ("none", "shop", "c", lambda c: np.full_like(c, 1.5), r"no 3 x 15 numbers up to 1 of 'shop'"),
    ("paillier", "bank", "key", lambda key: {**key, "n": key["n"][:16]}, "public key"),
    ("paillier", "bank", "sealed", lambda c: c[1:], "no 45 ciphertexts of 'bank'"),
    ("paillier", "bank", "sealed", lambda c: 0 * c, "not invertible"),
    ("paillier", "shop", "masked", lambda c: np.concatenate([c, c]), "no 2 masked sums of 'shop'"),
    ("paillier", "bank", "opened", lambda c: np.full_like(c, 255), "a decrypted sum of 'bank' beyond its key"),
    ("paillier", "bank", "opened", lambda c: c[:, 1:], "no 2 decrypted sums of 'bank'"),
    ("shared", "bank", "share", lambda c: c.astype(np.float64), "no share of 1 x 3 products of 'bank'"),
    ("shared", "shop", "share", lambda c: c[:, :-1], "no share of 1 x 4 products of 'shop'"),
]  # fmt: skip


@pytest.mark.parametrize(("security", "sender", "key", "make", "match"), BAD)
def test_what_no_party_sends_is_refused(security, sender, key, make, match):
    pytest.importorskip("gmpy2")
    rows, x, others = draw_rows(0)
    with pytest.raises(AtollError, match=match):
        train_both(hidden(security), rows, x, others, change=replace(sender, key, make))


def test_outliers_that_may_overflow_fixed_point_are_refused():
    rows, x, others = draw_rows(0)
    with pytest.raises(AtollError, match="may overflow fixed point"):
        train_both(hidden("shared", align=1e7), rows, x, others)


@pytest.mark.parametrize("security", ["none", "shared", "paillier"])
def test_predictions_are_products_of_both_parts(security):
    pytest.importorskip("gmpy2")
    rows, x, others = draw_rows(1, outputs=3)
    model = hidden(security)
    guest, host, _ = train_both(model, rows, x, others)
    expected = model.margins(guest, rows.x, [model.read_answer(guest, model.answer(host, x), len(x), 1, "shop")])
    asked, _, _ = talk(
        lambda line: SFTL().predict_guest(guest, rows.x, line, ["shop"], secret=Secret(1)),
        lambda line: SFTL().predict_host(host, x, line, "bank", secret=Secret(2)),
    )
    _, own, said = talk(
        lambda line: SFTL().serve_guest(guest, line, "shop", len(x), secret=Secret(1)),
        lambda line: SFTL().serve_host(host, x, line, "bank", secret=Secret(2)),
    )
    np.testing.assert_allclose(asked, expected, atol=1e-5)
    np.testing.assert_allclose(own, expected, atol=1e-5)
    np.testing.assert_array_equal(model.own_margins(host, guest, x), expected)
    assert ("c" in said[0][2]) == (security == "none")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    parties = cut_people(draw_people(0, rows=300, columns=4), overlap=0.2, labelled=0.7)
    folder = tmp_path_factory.mktemp("transfer")
    job = Vertical(model=hidden("none", steps=60))
    result = atoll.simulate(job, parties, engine="inline", progress=False, results=folder)
    return job, parties, result, folder


def test_the_target_predicts_its_own_rows(trained):
    _, parties, result, folder = trained
    expected = result.predict_own("shop", parties["shop"])
    shuffled = parties["shop"].take(np.arange(len(parties["shop"]))[::-1])
    found = atoll.simulate(
        VerticalPrediction(target="shop"),
        {**parties, "shop": shuffled},
        engine="inline",
        progress=False,
        results=folder,
    ).outcome
    np.testing.assert_array_equal(found.predictions, expected[::-1])
    assert list(found.ids) == [str(one) for one in shuffled["id"].tolist()]
    assert found.unknown == 0
    told = result.predictions
    place = {str(name): i for i, name in enumerate(parties["shop"]["id"].tolist())}
    np.testing.assert_allclose(told["federated"][:, 0], expected[[place[name] for name in told["id"].tolist()]])


def test_a_part_of_another_training_answers_nothing(trained, tmp_path):
    _, parties, _, folder = trained
    shutil.copytree(folder, tmp_path / "kept")
    other = Vertical(model=hidden("none", steps=1))
    atoll.simulate(other, parties, engine="inline", progress=False, results=tmp_path / "other")
    part = "shop/vertical-model.msg"
    shutil.copy(tmp_path / "other" / part, tmp_path / "kept" / part)
    with pytest.raises(AtollError, match="another model than that of 'shop'"):
        atoll.simulate(
            VerticalPrediction(target="shop"), parties, engine="inline", progress=False, results=tmp_path / "kept"
        )


def test_a_configuration_names_it():
    job = Vertical(model=SFTL(security="shared", width=3), guest="bank")
    told = JobConfig.of(job, name="few", sites=["bank", "shop"]).model_dump(exclude_defaults=True)
    assert told["model"].items() >= {"name": "SFTL", "security": "shared", "width": 3}.items()
    shown = VerticalPrediction(target="shop").explain(Community(dict.fromkeys(["bank", "shop"])))
    assert (shown.exposures[0].who, shown.exposures[0].sees) == ("bank", "how many rows shop predicts")


def test_rows_without_a_label_count_for_columns_alone(trained):
    _, parties, result, _ = trained
    told = result.predictions
    has = dict(zip(map(str, parties["bank"]["id"].tolist()), parties["bank"]["labelled"].tolist(), strict=True))
    np.testing.assert_array_equal(np.isnan(told["y"]), [not has[name] for name in told["id"].tolist()])
    assert 0 < np.isnan(told["y"]).sum() < len(told["y"])
    assert np.isfinite(list(result.scores.values())).all()
    with pytest.raises(AtollError, match=r"\d+ of 60 shared rows have no label"):
        atoll.simulate(Vertical(model=SecureBoost(security="none", trees=1)), parties, engine="inline", progress=False)
    with pytest.raises(AtollError, match="predictions of a host's rows by SecureBoost"):
        SecureBoost.own_margins({}, {}, np.zeros((1, 1)))


def test_held_out_rows_train_nothing(trained):
    """Neither as shared rows nor among a party's other rows."""
    job, parties, result, _ = trained
    told = result.predictions
    held = set(told["id"][told["test"]].tolist())
    assert held
    changed = {}
    for name, table in parties.items():
        x = np.array(table["x"])
        x[[str(one) in held for one in table["id"].tolist()]] = 5.0
        changed[name] = table.with_columns({"x": x})
    other = atoll.simulate(job, changed, engine="inline", progress=False)
    for name in parties:
        one, two = (run.replies[name]["half"]["part"]["net"] for run in (result, other))
        np.testing.assert_array_equal(one["encode"], two["encode"])


@pytest.mark.parametrize(
    "security",
    ["none", pytest.param("shared", marks=pytest.mark.slow), pytest.param("paillier", marks=pytest.mark.slow)],
)
def test_killed_and_resumed_it_is_the_same(tmp_path, security):
    pytest.importorskip("gmpy2")
    parties = cut_people(draw_people(1, rows=60, columns=2), overlap=0.4)
    job = Vertical(model=hidden(security, steps=20 if security == "none" else 2))
    ready = job.prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks
    life = killed_and_resumed(
        lambda folder, resume: World(Community(parties), Inline(), folder=folder, resume=resume),
        program,
        tmp_path,
        points=2,
    )
    assert life.result["bank"]["rows"]["aligned"] == 24


@pytest.mark.parametrize("security", ["none", "shared", "paillier"])
def test_bytes_are_foreseen(security):
    pytest.importorskip("gmpy2")
    rows, x, others = draw_rows(0, shared=30, columns=(3, 3))
    model = hidden(security, steps=3)
    guest, host, said = train_both(model, rows, x, others)
    _, _, more = talk(
        lambda line: model.predict_guest(guest, rows.x, line, ["shop"], secret=Secret(1)),
        lambda line: model.predict_host(host, x, line, "bank", secret=Secret(2)),
    )
    foreseen = model.predict_cost(30, [3, 3])
    assert foreseen["bytes"] == pytest.approx(sum(len(encode(one)) for _, _, one in said + more), rel=0.25)
    assert foreseen["seconds"] > 0


def test_labels_teach_the_target_more_than_the_shared_rows_alone_would():
    """Few shared rows with noisy labels: what the bank makes of all its labels beats a model of the shop's columns that has those of the shared rows."""
    linear = pytest.importorskip("sklearn.linear_model")
    metrics = pytest.importorskip("sklearn.metrics")
    model, gains = SFTL(security="none", steps=100), []
    for seed in range(8):
        rows, x, others, truth = cut_rows(draw_people(seed, rows=300), shared=20)
        guest, host, _ = train_both(model, rows, x, others)
        alone = linear.LogisticRegression(max_iter=1000).fit(x, rows.targets).decision_function(others[1])
        found = [model.own_margins(host, guest, others[1])[:, 0], alone]
        gains.append(np.subtract(*(metrics.roc_auc_score(truth, one) for one in found)))
    assert np.mean(gains) > 0.03


def test_what_it_cannot_do_is_refused():
    for settings_, match in (
        ({"width": 0}, "width=0"), ({"steps": 0}, "steps=0"), ({"rate": 0.0}, "rate=0"), ({"momentum": 1.0}, "momentum=1"),
        ({"align": -1.0}, "align=-1"), ({"security": "ckks"}, "security='ckks'"), ({"security": "none", "cipher": SMALL}, "cipher with security='none'"),
    ):  # fmt: skip
        with pytest.raises(AtollError, match=match):
            SFTL(**settings_)
    people = draw_people(0, rows=60, columns=2)
    parties = cut_people(people, overlap=1.0)
    three = {**parties, "mall": parties["shop"]}
    with pytest.raises(AtollError, match="2 hosts"):
        atoll.simulate(Vertical(model=hidden("none")), three, engine="inline", progress=False)
    with pytest.raises(AtollError, match="labels that are numbers"):
        atoll.simulate(Vertical(model=hidden("none"), task="regression"), parties, engine="inline", progress=False)
    with pytest.raises(AtollError, match="predict_own"):
        atoll.simulate(Vertical(model=hidden("none")), parties, engine="inline", progress=False).predict_own(
            "bank", parties["bank"]
        )
    with pytest.raises(AtollError, match="no representations of 2 rows of 'shop'"):
        SFTL.read_answer({"phi": np.zeros((1, 3))}, {"u": np.full((2, 3), np.nan)}, 2, 1, "shop")
    assert not np.isnan(
        GuestRows(np.zeros((2, 1)), np.array([0.0, 1.0]), SFTL().fit_objective(_binary())).targets
    ).any()


def _binary():
    from atoll.trees.objectives import LOGISTIC, TreeLoss

    return TreeLoss(LOGISTIC)
