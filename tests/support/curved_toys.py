"""A round loop of a few lines over losses with a curvature, for laws that look into states."""

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.facets import facet
from atoll.learn.algorithm import Phased, RoundInfo
from atoll.learn.local.update import local_contact


def spd(draw, dim, low=0.2, high=5.0):
    """A symmetric matrix with eigenvalues between two bounds."""
    turn, _ = np.linalg.qr(draw.normal(size=(dim, dim)))
    return turn @ np.diag(np.exp(draw.uniform(np.log(low), np.log(high), size=dim))) @ turn.T


class Quadratics:
    """``F_k(w) = 1/2 w^T H_k w - b_k^T w``."""

    def __init__(self, pairs):
        self.pairs = pairs

    @classmethod
    def drawn(cls, seed=0, clients=4, dim=4, alike=False):
        draw = np.random.default_rng(seed)
        made = [(spd(draw, dim), draw.normal(size=dim)) for _ in range(clients)]
        return cls([made[0]] * clients if alike else made)

    def loss_gradient(self, params, x, y):
        return float(params["w"] @ (0.5 * x @ params["w"] - y)), {"w": x @ params["w"] - y}

    def curvature(self, params, x, y, vector):
        return {"w": x @ vector["w"]}


class Logistic(Quadratics):
    """Log-loss with an l2 penalty of 0.05."""

    @classmethod
    def drawn(cls, seed=0, clients=4, dim=4, rows=30):
        draw = np.random.default_rng(seed)
        truth = draw.normal(size=dim)
        xs = [draw.normal(size=(rows, dim)) + 0.3 * draw.normal(size=dim) for _ in range(clients)]
        return cls([(x, np.sign(x @ truth + 0.5 * draw.normal(size=rows))) for x in xs])

    def loss_gradient(self, params, x, y):
        w, margin = params["w"], y * (x @ params["w"])
        slope = -y / (1 + np.exp(margin))
        return float(np.logaddexp(0, -margin).mean() + 0.025 * w @ w), {"w": x.T @ slope / len(y) + 0.05 * w}

    def curvature(self, params, x, y, vector):
        p = 1 / (1 + np.exp(-(x @ params["w"])))
        return {"w": x.T @ (p * (1 - p) * (x @ vector["w"])) / len(y) + 0.05 * vector["w"]}


class Loop:
    """An algorithm on such losses, with everything open to view."""

    def __init__(self, algorithm, losses, w=None):
        self.algorithm, self.losses = algorithm, losses
        self.clients = [None] * len(losses.pairs)
        self.state = algorithm.init({"w": np.zeros(losses.pairs[0][0].shape[1]) if w is None else w})
        self.number, self.phases, self.floats = 0, [], []

    @property
    def w(self):
        return self.state["params"]["w"]

    def value(self, w=None):
        w = self.w if w is None else w
        return float(np.mean([self.losses.loss_gradient({"w": w}, x, y)[0] for x, y in self.losses.pairs]))

    def gradients(self, w=None):
        w = self.w if w is None else w
        return np.array([self.losses.loss_gradient({"w": w}, x, y)[1]["w"] for x, y in self.losses.pairs])

    def hessians(self, w=None):
        w = self.w if w is None else w
        each = [
            [self.losses.curvature({"w": w}, x, y, {"w": e})["w"] for e in np.eye(len(w))] for x, y in self.losses.pairs
        ]
        return np.array(each)

    def round(self, cohort=None):
        cohort = list(range(len(self.clients))) if cohort is None else cohort
        self.number += 1
        self.phases, self.floats = [], []
        examples = float(sum(len(y) for _, y in self.losses.pairs))
        info = RoundInfo(self.number, len(cohort), len(cohort), len(self.clients), examples)
        for phase in self.algorithm.plan(self.state):
            if not facet(self.algorithm, Phased).wanted(self.state, phase):
                continue
            self.phases.append(phase)
            sent = self.algorithm.broadcast(self.state, phase)
            replies = [self._contact(k, phase, sent) for k in cohort]
            self.floats.append(sum(_floats(aggregate.value) for aggregate in replies[0].values()))
            totals = [{name: aggregate.total() for name, aggregate in reply.items()} for reply in replies]
            sums = {name: total.result() for name, total in merge_totals(totals).items()}
            self.state = self.algorithm.fold(self.state, sums, info, phase)
        self.state = facet(self.algorithm, Phased).advance(self.state, info)
        return self

    def _contact(self, k, phase, sent):
        x, y = self.losses.pairs[k]
        key = Rng(7).child(self.number, phase, k).key
        reply, kept, _ = local_contact(
            self.algorithm,
            phase,
            self.losses.loss_gradient,
            sent,
            self.clients[k],
            x,
            y,
            key,
            self.losses.curvature,
        )
        self.clients[k] = self.clients[k] if kept is None else kept
        return reply


def _floats(tree):
    """Floating-point numbers in a tree."""
    return sum(np.size(leaf) for leaf in T.leaves(tree) if np.asarray(leaf).dtype.kind == "f")
