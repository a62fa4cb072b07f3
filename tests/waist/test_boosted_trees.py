"""Boosted trees over two parties' columns, in one session: gradient and hessian of a row travel packed in one ciphertext (SecureBoost, Cheng et al. 2021).

The guest has the labels and a key; the host adds ciphertexts by node and bin, which multiplies them. A tree is a step: after a crash the trees that
both have stay. The trees are those of all columns in one place.
"""

from __future__ import annotations

import math

import numpy as np

from atoll.core import Island, Peers
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from tests.support.paillier import decrypt, encrypt, pack, prime, unpack
from tests.waist.packed_trees import BINS, DEPTH, ROWS, TREES, best, gradients, in_one_place, leaves, packed, summed


@task
async def guest(island: Island, peers: Peers):
    bins, y = island.data["bins"], island.data["y"]
    state = await peers.restore({"tree": 0, "margin": np.zeros(ROWS), "cuts": []})
    while state["tree"] < TREES:
        p, q = prime(island.secret), prime(island.secret)
        m, nodes, cuts, margin = (
            packed(*gradients(y, state["margin"])),
            np.zeros(ROWS, dtype=np.int64),
            [],
            state["margin"].copy(),
        )
        await peers.send("host", {"n": pack([p * q]), "sealed": pack([encrypt(v, p * q, island.secret) for v in m])})
        for _ in range(DEPTH):
            await peers.channel("nodes").send("host", nodes)
            theirs = {
                int(n): [decrypt(c, p, q) for c in unpack(sums)] for n, sums in (await peers.recv("host")).items()
            }
            chosen = {
                n: best({"guest": sums, "host": theirs[n]}) for n, sums in summed(m, nodes.tolist(), bins, sum).items()
            }
            await peers.channel("cuts").send("host", {str(n): cut for n, (who, cut) in chosen.items() if who == "host"})
            right = await peers.channel("cuts").recv("host")
            mine = np.array(
                [bins[i] >= chosen[n][1] if chosen[n][0] == "guest" else right[i] for i, n in enumerate(nodes.tolist())]
            )
            nodes, cuts = 2 * nodes + mine, [*cuts, sorted((n, *cut) for n, cut in chosen.items())]
        state = {"tree": state["tree"] + 1, "margin": leaves(m, nodes, margin), "cuts": [*state["cuts"], cuts]}
        await peers.checkpoint(state)
    return state


@task
async def host(island: Island, peers: Peers):
    bins = np.asarray(island.data["bins"])
    for tree in range(await peers.restore(0), TREES):
        order = await peers.recv("guest")
        square, sealed = unpack(order["n"])[0] ** 2, unpack(order["sealed"])
        for _ in range(DEPTH):
            nodes = await peers.channel("nodes").recv("guest")
            by_bin = summed(sealed, nodes.tolist(), bins, lambda some, s=square: math.prod(some) % s)
            await peers.send("guest", {str(n): pack(sums) for n, sums in by_bin.items()})
            cuts = await peers.channel("cuts").recv("guest")
            await peers.channel("cuts").send(
                "guest", np.array([bins[i] >= cuts.get(str(n), BINS) for i, n in enumerate(nodes.tolist())])
            )
        await peers.checkpoint(tree + 1)


async def grow(fed):
    state = await fed.restore(None)
    if state is None:
        state = (await fed.session({"guest": ("guest", guest), "host": ("host", host)}))["guest"]
        await fed.checkpoint(state)
    return state


def test_the_trees_are_those_of_all_columns_in_one_place(survive):
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(BINS, size=ROWS) for name in ("guest", "host")}
    y = (columns["host"] + 0.3 * columns["guest"] + rng.normal(size=ROWS) > 2).astype(np.float64)
    people = Community({"guest": {"bins": columns["guest"], "y": y}, "host": {"bins": columns["host"]}})
    life = survive(grow, people, points=8)
    margin, trees = in_one_place(columns, y)
    np.testing.assert_allclose(life.result["margin"], margin, atol=1e-9)
    assert [[[list(cut) for cut in level] for level in tree] for tree in trees] == [
        [[list(cut) for cut in level] for level in tree] for tree in life.result["cuts"]
    ]
    assert {who for tree in trees for level in tree for _, who, _ in level} == {"guest", "host"}
    assert ((margin > 0) == y).mean() > 0.7
