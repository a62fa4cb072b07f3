"""A round loop of a few lines over quadratics, for laws that look into states."""

from dataclasses import replace

import numpy as np

from atoll.core.algebra.aggregate import merge_totals
from atoll.core.algebra.rng import Rng
from atoll.core.facets import facet
from atoll.learn.algorithm import Phased, RoundInfo
from atoll.learn.local.update import local_contact
from atoll.models.quadratic import minimiser, quadratics


class Loop:
    """An algorithm on quadratics, with everything open to view.

    ``steps`` gives each client a number of local steps of its own.
    """

    def __init__(self, algorithm, clients=4, dim=3, seed=0, steps=None):
        data = quadratics(clients, dim, seed)
        self.data = [(np.asarray(s.x), np.asarray(s.y)) for s in map(data.shard, range(clients))]
        self.best = minimiser(data)[0]
        self.algorithms = [algorithm if steps is None else replace(algorithm, steps=steps[k]) for k in range(clients)]
        self.algorithm = algorithm
        self.state = algorithm.init({"w": np.zeros(dim)})
        self.clients = [None] * clients
        self.number = 0

    @property
    def w(self):
        return self.state["params"]["w"]

    @property
    def gap(self):
        matrix = np.mean([x for x, _ in self.data], axis=0)
        return float(0.5 * (self.w - self.best) @ matrix @ (self.w - self.best))

    def gradient(self, k, w):
        x, y = self.data[k]
        return x @ w - y

    def mean_gradient(self, w):
        return np.mean([self.gradient(k, w) for k in range(len(self.data))], axis=0)

    def round(self, cohort=None):
        cohort = range(len(self.data)) if cohort is None else cohort
        self.number += 1
        info = RoundInfo(self.number, len(cohort), len(cohort), len(self.data))
        for phase in self.algorithm.plan(self.state):
            broadcast = self.algorithm.broadcast(self.state, phase)
            totals = []
            for k in cohort:
                reply = self._contact(k, phase, broadcast)
                totals.append({name: aggregate.total() for name, aggregate in reply.items()})
            sums = {name: total.result() for name, total in merge_totals(totals).items()}
            self.state = self.algorithm.fold(self.state, sums, info, phase)
        self.state = facet(self.algorithm, Phased).advance(self.state, info)
        return self

    def rounds(self, count, cohort=0, seed=0):
        draw = np.random.default_rng(seed)
        for _ in range(count):
            self.round(draw.choice(len(self.data), cohort, replace=False) if cohort else None)
        return self

    def _contact(self, k, phase, broadcast):
        def loss_gradient(params, x, y):
            turned = x @ params["w"]
            return float(params["w"] @ (0.5 * turned - y)), {"w": turned - y}

        key = Rng(self.number).child(phase, int(k)).key
        made = local_contact(self.algorithms[k], phase, loss_gradient, broadcast, self.clients[k], *self.data[k], key)
        self.clients[k] = self.clients[k] if made[1] is None else made[1]
        return made[0]
