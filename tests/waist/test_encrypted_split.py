"""The best split of a tree node over two parties' features, with encrypted gradients (SecureBoost, Cheng et al. 2021)."""

from __future__ import annotations

import math

import numpy as np

from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import task
from tests.support.paillier import decrypt, encrypt, pack, prime, unpack

SCALE, BINS, LAMBDA = 10**6, 4, 1.0


def histogram(columns, bins):
    return [[column[bins == k].sum() / SCALE for k in range(BINS)] for column in columns]


def best(histograms):
    """``(gain, feature, bin)`` of the best split; a histogram holds sums of gradients and hessians by bin."""
    total_g, total_h = (sum(column) for column in next(iter(histograms.values())))
    splits = []
    for feature, (g, h) in sorted(histograms.items()):
        for cut in range(1, BINS):
            gl, hl = sum(g[:cut]), sum(h[:cut])
            gain = gl**2 / (hl + LAMBDA) + (total_g - gl) ** 2 / (total_h - hl + LAMBDA)
            splits.append((round(gain - total_g**2 / (total_h + LAMBDA), 9), feature, cut))
    return max(splits, key=lambda split: (split[0], split[1], -split[2]))


@task
def send_gradients(island, hosts):
    """The guest's gradients and hessians, under its own key."""
    p, q = prime(island.secret), prime(island.secret)
    for host in hosts:
        columns = [[encrypt(m, p * q, island.secret) for m in c.tolist()] for c in island.data["gradients"]]
        island.post(host, {"n": pack([p * q]), "columns": [pack(column) for column in columns]})
    island.state = {"primes": pack([p, q])}


@task
def add_up(island, guest):
    """The host adds ciphertexts by bin, which multiplies them; it learns nothing."""
    square, bins = unpack(island.inbox[guest]["n"])[0] ** 2, island.data["bins"]
    sums = []
    for column in map(unpack, island.inbox[guest]["columns"]):
        by_bin = [[c for c, b in zip(column, bins, strict=True) if b == k] for k in range(BINS)]
        sums.append(pack([math.prod(terms) % square for terms in by_bin]))
    island.post(guest, sums)


@task
def choose(island, message):
    key = unpack(island.state["primes"])
    theirs = {
        name: [[decrypt(c, *key) / SCALE for c in unpack(column)] for column in sums]
        for name, sums in island.inbox.items()
    }
    return list(best({island.name: histogram(island.data["gradients"], island.data["bins"]), **theirs}))


async def find_split(fed):
    guest, hosts = fed.parties[:1], fed.parties[1:]
    state = await fed.restore(None)
    if state is None:
        sealed = await fed.exchange(guest, send_gradients, hosts.names)
        sums = await fed.exchange(hosts, add_up, guest.names[0], mail=sealed.mail)
        state = {"mail": sums.mail.sealed()}
        await fed.checkpoint(state)
    return (await fed.exchange(guest, choose, mail=Mailboxes(state["mail"]))).values[0]


def test_the_split_is_that_of_the_plain_data(survive):
    rng = np.random.default_rng(0)
    g, h = rng.normal(size=30), rng.uniform(0.1, 1, size=30)
    bins = {
        name: np.clip(np.digitize(g * w + rng.normal(size=30), [-1, 0, 1]), 0, 3)
        for name, w in [("guest", 0.1), ("host-1", 0.5), ("host-2", 2)]
    }
    fixed = [np.round(g * SCALE).astype(np.int64), np.round(h * SCALE).astype(np.int64)]
    data = {name: {"bins": b} for name, b in bins.items()}
    data["guest"]["gradients"] = fixed
    life = survive(find_split, Community(data), points=10)
    assert life.result == list(best({name: histogram(fixed, b) for name, b in bins.items()}))
    assert life.result[1] == "host-2"
