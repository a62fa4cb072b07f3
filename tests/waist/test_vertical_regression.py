"""Linear regression over columns at two parties: rows aligned by private set intersection, gradients under encryption.

Residuals travel encrypted (Hardy et al. 2017). The guest has labels and columns, the host further columns; each takes Newton steps in its own. The
host's terms and the residuals are under the key holder's key (Paillier), and the key holder decrypts gradients under uniform masks alone. So a party
learns which rows are common and its own gradients, the key holder nothing. All follow the protocol, and the key holder colludes with nobody.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import atoll
from atoll.core.errors import QuorumError
from atoll.core.requests.cohort import Community
from atoll.testing import Timetable
from tests.support.paillier import decrypt, encrypt, pack, prime, unpack
from tests.support.scales import assert_true_bytes
from tests.waist.test_set_intersection import common_rows, intersect

SCALE, STEPS = 2**30, 10
GUEST, HOST, HOLDER = "guest", "host", "key-holder"
OTHER = {GUEST: HOST, HOST: GUEST}


@atoll.task
def make_key(island, _):
    p, q = prime(island.secret), prime(island.secret)
    island.state = pack([p, q])
    for name in OTHER:
        island.post(name, pack([p * q]))


@atoll.task
def align(island, _):
    """The common rows, in the same order at both parties, and weights of 0."""
    rows = np.array(common_rows(island, island.inbox[OTHER[island.name]]))
    island.state = {"n": island.inbox[HOLDER], "rows": rows, "w": {"0": np.zeros(island.data["x"].shape[1])}}


def own(island):
    return island.data["x"][island.state["rows"]], unpack(island.state["n"])[0]


def sealed(island, numbers, n):
    return [encrypt(number, n, island.secret) for number in np.rint(numbers * SCALE).astype(np.int64).tolist()]


def post_gradient(island, x, n, residuals):
    """Enc(x'd + mask), for the key holder."""
    masks, totals = [island.secret.integer(n) for _ in x.T], []
    for mask, column in zip(masks, np.rint(x.T * SCALE).astype(np.int64).tolist(), strict=True):
        powers = (pow(d, k, n * n) for d, k in zip(residuals, column, strict=True))
        totals.append(math.prod(powers) * encrypt(mask, n, island.secret) % n**2)
    island.post(HOLDER, pack(totals))
    island.state = {**island.state, "masks": pack(masks)}


@atoll.task
def send_terms(island, step):
    x, n = own(island)
    island.post(GUEST, pack(sealed(island, x @ island.state["w"][step], n)))


@atoll.task
def send_residuals(island, step):
    x, n = own(island)
    mine = sealed(island, x @ island.state["w"][step] - island.data["y"][island.state["rows"]], n)
    residuals = [a * b % n**2 for a, b in zip(mine, unpack(island.inbox[HOST]), strict=True)]
    island.post(HOST, pack(residuals))
    post_gradient(island, x, n, residuals)


@atoll.task
def send_gradient(island, _):
    post_gradient(island, *own(island), unpack(island.inbox[GUEST]))


@atoll.task
def decrypt_all(island, _):
    p, q = unpack(island.state)
    for name, masked in island.inbox.items():
        island.post(name, pack([decrypt(c, p, q) % (p * q) for c in unpack(masked)]))


@atoll.task
def descend(island, steps):
    """The next weights, beside those of this step: if the other party is lost, the step is done again."""
    (x, n), (now, then), w = own(island), steps, island.state["w"]
    masked = zip(unpack(island.inbox[HOLDER]), unpack(island.state["masks"]), strict=True)
    gradient = np.array([(total - mask + n // 2) % n - n // 2 for total, mask in masked], dtype=float) / SCALE**2
    island.state = {**island.state, "w": {now: w[now], then: w[now] - np.linalg.solve(x.T @ x, gradient)}}


@atoll.task
def weights(island, step):
    return island.state["w"][step]


async def set_up(fed, at):
    key = await fed.exchange(fed.parties.named(HOLDER), make_key, at=at)
    await fed.exchange(fed.parties, align, mail=key.mail | await intersect(fed, at), quorum=2, at=at)


async def descent(fed, step, at):
    guest, host, holder = (fed.parties.named(name) for name in (GUEST, HOST, HOLDER))
    terms = await fed.exchange(host, send_terms, str(step), at=at)
    first = await fed.exchange(guest, send_residuals, str(step), mail=terms.mail, at=at)
    second = await fed.exchange(host, send_gradient, mail=first.mail, at=at)
    mail = (await fed.exchange(holder, decrypt_all, mail=first.mail | second.mail, at=at)).mail
    await fed.exchange(fed.parties, descend, [str(step), str(step + 1)], mail=mail, quorum=2, at=at)


async def regression(fed):
    """A step that loses a party is done again from its beginning, with fresh masks."""
    state = await fed.restore({"step": -1, "tries": 0})
    while state["step"] < STEPS:
        at = (state["step"], state["tries"])
        try:
            await (set_up(fed, at) if state["step"] < 0 else descent(fed, state["step"], at))
            state = {**state, "step": state["step"] + 1}
        except QuorumError:
            state = {**state, "tries": state["tries"] + 1}
        await fed.checkpoint(state)
    return {"tries": state["tries"], "w": (await fed.ask_all(fed.parties, weights, str(STEPS), quorum=2)).values}


LOST = {"blind_again/@-1/0": [HOST], "send_gradient/@2/1": [HOST], "decrypt_all/@5/2": [HOLDER], "descend/@9/3": [GUEST]}  # fmt: skip


@pytest.mark.quick("inline")
def test_it_equals_the_fit_on_the_joined_table(survive):
    rng = np.random.default_rng(34)
    x = rng.normal(size=(24, 4))
    y = x @ [1.0, -2.0, 0.5, 3.0] + rng.normal(size=24)
    guest, host = (rng.permutation(24)[:20] for _ in range(2))
    common = np.intersect1d(guest, host)
    data = {
        GUEST: {"ids": guest.tolist(), "x": x[guest, :2], "y": y[guest]},
        HOST: {"ids": host.tolist(), "x": x[host, 2:]},
    }
    people, cost = Community(data, others={HOLDER: None}), Timetable(lost=LOST)
    life = survive(regression, people, cost=cost, points=4)
    assert (life.result["tries"], len(common)) == (len(LOST), 16)
    np.testing.assert_allclose(np.concatenate(life.result["w"]), np.linalg.lstsq(x[common], y[common])[0], atol=1e-6)
    assert_true_bytes(life, regression, people, cost)
