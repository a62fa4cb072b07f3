"""PrADA: gradient descent of one loss against one adversary a group, under whatever protocol, and its peers are not believed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import AtollError
from atoll.core.message import Bits
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.world import World
from atoll.engines import Inline
from atoll.secure.encrypted import Paillier
from atoll.testing import killed_and_resumed
from atoll.trees.objectives import LOGISTIC, SOFTMAX, TreeLoss
from atoll.vertical import PrADA, Vertical
from atoll.vertical.model import ColumnScales, GuestRows
from atoll.vertical.transfer.representation import Representation
from tests.support.transfer_toys import talk, train_both

SMALL = Paillier(key_bits=512, insecure=True)


def draw_domains(seed, n=14, own=2, columns=5, outputs=1, labelled=0.7):
    """Rows of two domains at the guest, with the domain as their first column, and the host's."""
    rng = np.random.default_rng(seed)
    target = rng.random(n) < 0.5
    y = np.where(rng.random(n) < labelled, rng.integers(0, max(2, outputs), n).astype(np.float64), np.nan)
    x = np.column_stack([target, rng.normal(size=(n, own))])
    loss = TreeLoss(LOGISTIC) if outputs == 1 else TreeLoss(SOFTMAX, outputs)
    return GuestRows(x, y, loss), rng.normal(size=(n, columns)) + target[:, None]


def train_in_one_place(model, rows, x):
    """The same loss and adversaries written down once, with gradients by PyTorch: the oracle. The guest's own model comes first, as in the training."""
    import torch

    one = lambda z: torch.column_stack([z, torch.ones(len(z), dtype=torch.float64)])  # noqa: E731
    known, target = torch.from_numpy(~np.isnan(rows.targets)), torch.from_numpy(rows.x[:, model.domain] == 1)
    codes = torch.from_numpy(np.nan_to_num(rows.targets)).long()
    outputs = rows.objective.outputs
    y = 2.0 * (codes[:, None] if outputs == 1 else torch.nn.functional.one_hot(codes, outputs)).double() - 1
    offset = torch.from_numpy(model.margins(model.train_pooled(rows), rows.x, []))
    scales = ColumnScales.of(x)
    mask = torch.zeros(x.shape[1] + 1, model.units, dtype=torch.float64)
    mask[-1] = 1
    for g, group in enumerate(model.groups):
        mask[list(group), g * model.width : (g + 1) * model.width] = 1
    encode = Representation.begin(scales, model.units, np.random.default_rng([model.seed, 1])).encode
    w = (torch.from_numpy(encode) * mask).requires_grad_()
    v = torch.from_numpy(
        np.random.default_rng([model.seed, 0]).normal(size=(model.units, outputs)) / np.sqrt(model.units)
    ).requires_grad_()
    q = torch.zeros(model.width + 1, len(model.groups), dtype=torch.float64, requires_grad=True)
    inputs, flat, speeds = one(torch.from_numpy(scales.apply(x))), [w, v, q], [0.0] * 3
    for step in range(model.steps):
        w, v, q = flat
        z = torch.tanh(inputs @ w)
        late = step >= round(model.steps * (1 - model.tune)) and bool((known & target).any())
        counts = known & target if late else known
        scores = offset + z @ v
        label = (-y * scores / 2 + scores**2 / 8)[counts].sum() / max(1, int(counts.sum()))
        apart = torch.zeros((), dtype=torch.float64)
        if target.any() and not target.all():
            for g in range(len(model.groups)):
                told = (one(z[:, g * model.width : (g + 1) * model.width]) @ q[:, g : g + 1])[:, 0]
                losses = torch.nn.functional.binary_cross_entropy_with_logits(told, target.double(), reduction="none")
                apart = apart + losses[target].mean() / 2 + losses[~target].mean() / 2
        loss = label - model.adapt * apart + model.penalty / 2 * ((w**2).sum() + (v**2).sum())
        gradients = list(torch.autograd.grad(loss, [w, v]))
        gradients.append(
            torch.autograd.grad(torch.tanh(inputs @ w.detach()).sum() * 0 + _again(model, inputs, w, q, target), [q])[0]
        )
        gradients[0] = gradients[0] * mask
        speeds = [model.momentum * speed + g for speed, g in zip(speeds, gradients, strict=True)]
        flat = [(each - model.rate * speed).detach().requires_grad_() for each, speed in zip(flat, speeds, strict=True)]
    return [each.detach().numpy() for each in flat]


def _again(model, inputs, w, q, target):
    """The discriminators' losses, which they descend on."""
    import torch

    z, total = torch.tanh(inputs @ w.detach()), (q * 0).sum()
    if target.all() or not target.any():
        return total
    for g in range(len(model.groups)):
        part = torch.column_stack(
            [z[:, g * model.width : (g + 1) * model.width], torch.ones(len(z), dtype=torch.float64)]
        )
        losses = torch.nn.functional.binary_cross_entropy_with_logits(part @ q[:, g], target.double(), reduction="none")
        total = total + losses[target].mean() / 2 + losses[~target].mean() / 2
    return total


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 3]), st.sampled_from([0.0, 0.8]), st.sampled_from([0.0, 0.5]))
def test_it_is_gradient_descent_against_one_adversary_a_group(seed, outputs, adapt, tune):
    rows, x = draw_domains(seed, outputs=outputs)
    model = PrADA(groups=[[0, 2], [1], [4, 3]], width=2, steps=4, adapt=adapt, tune=tune, security="none")
    guest, host, _ = train_both(model, rows, x)
    w, v, q = train_in_one_place(model, rows, x)
    for mine, expected in ((host["net"]["encode"], w), (guest["v"], v), (host["q"], q)):
        np.testing.assert_allclose(mine, expected, atol=1e-10)
    other = PrADA(groups=[[0, 2], [1], [4]], width=2, steps=1, security="none")
    assert (train_both(other, rows, x)[1]["net"]["encode"][3] == 0).all()  # a column of no group is not read


def test_both_protocols_are_the_plain_one():
    pytest.importorskip("gmpy2")
    rows, x = draw_domains(3, n=6, columns=2)
    made = {}
    for how in ("none", "shared", "paillier"):
        more = {"cipher": SMALL} if how == "paillier" else {}
        model = PrADA(groups=[[0], [1]], width=1, steps=3, security=how, **more)
        guest, host, _ = train_both(model, rows, x)
        asked, _, _ = talk(
            lambda line, part=guest, model=model: model.predict_guest(part, rows.x, line, ["shop"], secret=Secret(1)),
            lambda line, part=host, model=model: model.predict_host(part, x, line, "bank", secret=Secret(2)),
        )
        said = model.margins(guest, rows.x, [model.read_answer(guest, model.answer(host, x), len(x), 1, "shop")])
        np.testing.assert_allclose(asked, said, atol=1e-5)
        made[how] = np.concatenate([guest["v"].ravel(), host["net"]["encode"].ravel()])
    np.testing.assert_array_equal(made["shared"], made["paillier"])
    np.testing.assert_allclose(made["shared"], made["none"], atol=1e-5)


def two_domains(seed, rows=200):
    """A bank with an old product and a new one, whose customers' features at the shop are shifted; ten customers of the new one have labels."""
    rng = np.random.default_rng(seed)
    target = rng.random(rows) < 0.5
    y = rng.integers(0, 2, rows)
    x = (
        rng.normal(size=(rows, 6))
        + np.outer(2 * y - 1, [0.8, 0.8, 0.4, 0.4, 0, 0])
        + np.outer(target, [1.5, 1.0, 0.5, 0, 1, 0])
    )
    return target, y, x


def test_killed_and_resumed_it_is_the_same(tmp_path):
    target, y, x = two_domains(0, 60)
    ids = np.arange(60)
    parties = {
        "bank": {"id": ids, "new": target.astype(float), "y": y},
        "shop": {"id": ids[::-1], **{f"c{i}": x[::-1, i] for i in range(6)}},
    }
    ready = Vertical(model=PrADA(groups=[[0, 1], [2, 3, 4]], steps=20, security="none")).prepare(Community(parties))

    async def program(fed):
        return await ready.program(fed)

    program.tasks = ready.tasks
    life = killed_and_resumed(
        lambda folder, resume: World(Community(parties), Inline(), folder=folder, resume=resume),
        program,
        tmp_path,
        points=2,
    )
    assert life.result["bank"]["scores"]["test/federated/auc"] > life.result["bank"]["scores"]["test/alone/auc"] == 0.5


def test_adversaries_help_in_a_domain_with_few_labels():
    """The same training without them, on the same rows: where the target's features are shifted, and ten of its rows have labels."""
    metrics = pytest.importorskip("sklearn.metrics")
    gains = []
    for seed in range(6):
        target, y, x = two_domains(seed)
        known = ~target | (np.cumsum(target) <= 10)
        rows = GuestRows(
            target[:, None].astype(np.float64), np.where(known, y, np.nan).astype(np.float64), TreeLoss(LOGISTIC)
        )
        found = []
        for adapt in (1.0, 0.0):
            model = PrADA(groups=[[0, 1], [2, 3], [4, 5]], adapt=adapt, tune=0.0, steps=100, security="none")
            guest, host, _ = train_both(model, rows, x)
            said = model.margins(guest, rows.x, [model.answer(host, x)["z"]])[~known, 0]
            found.append(metrics.accuracy_score(y[~known], said > 0))
        gains.append(found[0] - found[1])
    assert np.mean(gains) > 0.04


@pytest.mark.parametrize(
    ("sender", "key", "make", "match"),
    [
        ("bank", "labelled", lambda _: Bits.pack(np.ones(3, bool)), "does not say of 14 rows which are labelled"),
        ("bank", "target", lambda _: np.ones(14, bool), "does not say of 14 rows which are target"),
        ("bank", "outputs", lambda _: 0, "does not say how many classes"),
        ("shop", "columns", lambda _: -1, "does not say how many columns"),
        ("bank", "c", lambda c: c * np.nan, "no 2 x 16 numbers up to 1000 of 'bank'"),
        ("shop", "c", lambda c: 2 + c, "no 2 x 16 numbers up to 1 of 'shop'"),
    ],
)
def test_what_no_party_sends_is_refused(sender, key, make, match):
    def change(me, message):
        return {**message, key: make(message[key])} if me == sender and key in message else message

    with pytest.raises(AtollError, match=match):
        train_both(PrADA(groups=[[0], [1]], width=1, steps=2, security="none"), *draw_domains(0), change=change)


def test_what_it_cannot_do_is_refused():
    for more, match in (
        ({"groups": []}, "groups="), ({"groups": [[0], [0]]}, "groups="), ({"groups": [[0], []]}, "groups="), ({"groups": [[-1]]}, "groups="),
        ({"domain": -1}, "domain=-1"), ({"width": 0}, "width=0"), ({"steps": 0}, "steps=0"), ({"rate": 0.0}, "rate=0"), ({"momentum": 1.0}, "momentum=1"),
        ({"adapt": -1.0}, "adapt=-1"), ({"tune": 1.5}, "tune=1.5"), ({"penalty": -1.0}, "penalty=-1"), ({"security": "ckks"}, "security='ckks'"),
        ({"security": "none", "cipher": SMALL}, "cipher with security='none'"),
    ):  # fmt: skip
        with pytest.raises(AtollError, match=match):
            PrADA(**{"groups": [[0]], **more})
    rows, x = draw_domains(0)
    with pytest.raises(AtollError, match="column 9 of group 0, where the host has 5"):
        train_both(PrADA(groups=[[9]], security="none"), rows, x)
    for domain in (1, 7):
        with pytest.raises(AtollError, match=f"column {domain} of the guest does not say"):
            train_both(PrADA(groups=[[0]], domain=domain, security="none"), rows, x)
    assert atoll.vertical.VerticalModel in PrADA.__mro__
