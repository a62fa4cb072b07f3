"""Every method of one round against a few lines of NumPy: three rounds on least squares at three clients of 4, 6 and 9 rows.

The references are written from the papers' formulas (the class names them), not from the implementations; ``n`` is rows, ``p = n / sum n``, and
``grad(k, w)`` the gradient of client ``k``'s mean squared error. All of it goes through ``atoll.simulate``: messages, stages and folds.
"""

# ruff: noqa: B023 - the directions are called where they are made

import numpy as np
import pytest

import atoll
from atoll import algorithms as A
from atoll.data import Dataset, Islands
from atoll.stages import RandomK, Sign, TopK

D, T, LR, ROUNDS = 4, 3, 0.05, 3
N = np.array([4, 6, 9])
_draw = np.random.default_rng(5)
X = [_draw.normal(size=(n, D)) for n in N]
Y = [x @ _draw.normal(size=D) + 0.1 * _draw.normal(size=len(x)) for x in X]
EXACT = RandomK(1.0)
"""A compressor that loses nothing."""


class Named(TopK):
    """Top-k under the name of an unbiased stage: the arithmetic of a method can be followed by hand without random numbers."""

    unbiased = True


LOCAL = {"lr": LR, "steps": T, "batch_size": None}
p = N / N.sum()
K = range(len(N))
mean = lambda values: np.einsum("k,k...->...", p, np.array(values))  # noqa: E731


def grad(k, w):
    """Of ``mean (X w + c - y)^2``; the last entry of ``w`` is the intercept ``c``."""
    rest = X[k] @ w[:-1] + w[-1] - Y[k]
    return np.append(2 * X[k].T @ rest, 2 * rest.sum()) / N[k]


def hessian(k):
    rows = np.column_stack([X[k], np.ones(N[k])])
    return 2 * rows.T @ rows / N[k]


def run(algorithm, cohorts):
    """The model after three rounds, as a vector."""
    data = Islands.from_datasets([Dataset({"x": x, "y": y}, task="regression") for x, y in zip(X, Y, strict=True)])
    job = atoll.Training(
        model=atoll.models.linear(D, 1, loss="mse"), algorithm=algorithm, rounds=ROUNDS,
        selection=atoll.Everyone() if cohorts is None else atoll.selection.Schedule(cohorts),
    )  # fmt: skip
    params = atoll.simulate(job, data, engine="inline", seed=0).params
    return np.append(params["weight"].ravel(), params["bias"])


def descend(w, direction):
    """``T`` local steps."""
    for _ in range(T):
        w = w - LR * direction(w)
    return w


# ---------------------------------------------------------------------------- the references


def fedavg(server=1.0, decay=1.0, mu=0.0):
    w = np.zeros(D + 1)
    for r in range(ROUNDS):
        moved = []
        for k in K:
            y = w
            for _ in range(T):
                y = y - LR * decay**r * (grad(k, y) + mu * (y - w))
            moved.append(y - w)
        w = w + server * mean(moved)
    return w


def server_rule(rule):
    w, m, s = np.zeros((3, D + 1))
    for _ in range(ROUNDS):
        delta = mean([descend(w, lambda y, k=k: grad(k, y)) - w for k in K])
        step, m, s = rule(delta, m, s)
        w = w + step
    return w


def fedavgm(delta, m, s):
    m = 0.9 * m + delta
    return delta + 0.9 * m, m, s


def fedadam(delta, m, s):
    m, s = 0.9 * m + 0.1 * delta, 0.99 * s + 0.01 * delta**2
    return 0.1 * m / (np.sqrt(s) + 1e-3), m, s


def fedyogi(delta, m, s):
    m, s = 0.9 * m + 0.1 * delta, s - 0.01 * delta**2 * np.sign(s - delta**2)
    return 0.1 * m / (np.sqrt(s) + 1e-3), m, s


def fedadagrad(delta, m, s):
    m, s = 0.5 * m + 0.5 * delta, s + delta**2
    return 0.1 * m / (np.sqrt(s) + 1e-3), m, s


def local_rule(rule, where):
    """An optimiser at clients; its memory is private, reset or averaged."""
    w, memory = np.zeros(D + 1), np.zeros((len(N), 2, D + 1))
    count = np.zeros(len(N), int)
    for _ in range(ROUNDS):
        ends = []
        for k in K:
            if where == "round":
                memory[k], count[k] = 0, 0
            y = w
            for _ in range(T):
                count[k] += 1
                v, memory[k] = rule(grad(k, y), *memory[k], count[k])
                y = y - LR * v
            ends.append(y)
        w = mean(ends)
        if where == "server":
            memory[:] = mean(memory)
    return w


def heavy_ball(g, m, s, t):
    m = 0.5 * m + g
    return m, (m, s)


def adam(g, m, s, t):
    m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
    return m / (1 - 0.9**t) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8), (m, s)


def adagrad(g, m, s, t):
    return g / (np.sqrt(s + g**2) + 1e-8), (m, s + g**2)


def rmsprop(g, m, s, t):
    s = 0.99 * s + 0.01 * g**2
    return g / (np.sqrt(s / (1 - 0.99**t)) + 1e-8), (m, s)


def fedac(mu=0.5):
    gamma = max(np.sqrt(LR / (mu * T)), LR)
    alpha = 1 / (gamma * mu)
    beta = alpha + 1
    w, ag = np.zeros((2, D + 1))
    for _ in range(ROUNDS):
        ends = []
        for k in K:
            x, z = w, ag
            for _ in range(T):
                md = x / beta + (1 - 1 / beta) * z
                x, z = (1 - 1 / alpha) * x + md / alpha - gamma * grad(k, md), md - LR * grad(k, md)
            ends.append((x, z))
        w, ag = mean(ends)
    return ag


def scaffold(option, cohorts):
    x, c, own = np.zeros(D + 1), np.zeros(D + 1), np.zeros((len(N), D + 1))
    for S in cohorts:
        ends, fresh = [], own.copy()
        for k in S:
            y = descend(x, lambda y, k=k: grad(k, y) - own[k] + c)
            fresh[k] = grad(k, x) if option == 1 else own[k] - c + (x - y) / (T * LR)
            ends.append(y)
        x, c, own = np.mean(ends, axis=0), c + (fresh - own).sum(axis=0) / len(N), fresh
    return x


def feddyn(alpha, cohorts):
    w, h, slope = np.zeros(D + 1), np.zeros(D + 1), np.zeros((len(N), D + 1))
    for S in cohorts:
        ends = [descend(w, lambda y, k=k: grad(k, y) - slope[k] + alpha * (y - w)) for k in S]
        for k, y in zip(S, ends, strict=True):
            slope[k] -= alpha * (y - w)
        h = h - alpha / len(N) * sum(y - w for y in ends)
        w = np.mean(ends, axis=0) - h / alpha
    return w


def vrlsgd():
    w, delta = np.zeros(D + 1), np.zeros((len(N), D + 1))
    for _ in range(ROUNDS):
        ends = np.array([descend(w, lambda y, k=k: grad(k, y) - delta[k]) for k in K])
        w = ends.mean(axis=0)
        delta = delta + (w - ends) / (T * LR)
    return w


def fedcomgate():
    w, delta = np.zeros(D + 1), np.zeros((len(N), D + 1))
    for _ in range(ROUNDS):
        sent = np.array([w - descend(w, lambda y, k=k: grad(k, y) - delta[k]) for k in K])
        delta = delta + (sent - mean(sent)) / (T * LR)
        w = w - mean(sent)
    return w


def fednova(rho):
    w = np.zeros(D + 1)
    for _ in range(ROUNDS):
        moved, weights = [], []
        for k in K:
            y, m, a, b = w, 0.0, 0.0, 0.0
            for _ in range(T):
                m = rho * m + grad(k, y)
                y, b = y - LR * m, rho * b + 1
                a += b  # each gradient's weight in the update, summed
            moved.append((y - w) / a)
            weights.append(a)
        w = w + mean(weights) * mean(moved)
    return w


def mime(name, lite):
    w, m = np.zeros((2, D + 1))
    v, gone = None, []
    for _ in range(ROUNDS):
        c = mean([grad(k, w) for k in K])
        v = c**2 if v is None else v

        def toward(y, k, c=c, m=m, v=v, w=w):
            g = grad(k, y) if lite else grad(k, y) - grad(k, w) + c
            g = g if name in ("sgd", "adagrad") else 0.1 * g + 0.9 * m
            return g / (np.sqrt(v) + 1e-8) if name[:3] == "ada" else g

        w = mean([descend(w, lambda y, k=k: toward(y, k)) for k in K])
        m, gone = 0.1 * c + 0.9 * m, [*gone, c**2]
        v = sum(gone) if name == "adagrad" else 0.01 * c**2 + 0.99 * v
    return w


def compact(cohorts):
    w, M, last = np.zeros(D + 1), np.zeros(D + 1), np.zeros((len(N), D + 1))
    for r, S in enumerate(cohorts):
        ends, before = [], last.copy()
        for k in S:
            y, own = w, M
            for _ in range(T):
                g = grad(k, y)
                y = y - LR * (g - last[k] + own)
                own, last[k] = own + (g - last[k]) / len(N) * (r > 0), g
            ends.append(y)
        w, M = np.mean(ends, axis=0), M + (last - before).sum(axis=0) / len(N)
    return w


def mirror(l1, dual):
    soft = lambda z, c: np.sign(z) * np.maximum(np.abs(z) - c, 0)  # noqa: E731
    w, gone = np.zeros(D + 1), 0.0
    for _ in range(ROUNDS):
        ends = []
        for k in K:
            z = w
            for t in range(T):
                ahead = z - LR * grad(k, soft(z, (gone + t * LR) * l1) if dual else z)
                z = ahead if dual else soft(ahead, LR * l1)
            ends.append(z)
        w, gone = mean(ends), gone + T * LR
    return soft(w, gone * l1) if dual else w


def pfedme(lam, inner):
    w = np.zeros(D + 1)
    for _ in range(ROUNDS):
        ends = []
        for k in K:
            y = theta = w
            for _ in range(T):
                for _ in range(inner):
                    theta = theta - LR * (grad(k, theta) + lam * (theta - y))
                y = y - LR * lam * (y - theta)
            ends.append(y)
        w = 0.5 * w + 0.5 * mean(ends)
    return w


def admm(kind, cohorts, rho=2.0):
    """``z = mean (x_k + pi_k / rho)`` with those who have not come at the first model."""
    z, x, pi = np.zeros(D + 1), np.zeros((len(N), D + 1)), np.zeros((len(N), D + 1))
    met = set()
    for S in cohorts:
        for k in S:
            if k not in met:
                x[k] = np.zeros(D + 1) if kind == "walkman" else z
                met.add(k)
            if kind in ("fedadmm", "walkman"):
                x[k] = descend(x[k], lambda y, k=k: grad(k, y) + pi[k] + rho * (y - z))
                pi[k] += rho * (x[k] - z)
            elif kind == "exact":
                x[k] = np.linalg.solve(hessian(k) + rho * np.eye(D + 1), rho * z - pi[k] - grad(k, np.zeros(D + 1)))
                pi[k] += rho * (x[k] - z)
            else:
                for _ in range(T):
                    x[k] = z - (grad(k, z) + pi[k]) / (7.0 + rho)
                    pi[k] += rho * (x[k] - z)
        z = (x + pi / rho).mean(axis=0)
    return z


def lfedadmm(rho, weight, printed):
    z, x, pi = np.zeros(D + 1), np.zeros((len(N), D + 1)), np.zeros((len(N), D + 1))
    for _ in range(ROUNDS):
        for k in K:
            for _ in range(T):
                x[k] = (rho * LR * z - LR * pi[k] + x[k] - LR * grad(k, x[k])) / (1 + rho * LR)
                pi[k] += rho * (x[k] - z) * printed
            pi[k] += rho * (x[k] - z) * (not printed)
        total = (pi + rho * x).sum(axis=0)
        z = np.sign(total) * np.maximum(np.abs(total) - weight, 0) / (len(N) * rho)
    return z


def two_phase(accelerate, rho=1.0):
    """Goldstein et al. 2014 with the plain restart; the cost is summed over the clients."""
    z = ahead = np.zeros(D + 1)
    dual = dual_ahead = np.zeros((len(N), D + 1))
    a, c = 1.0, np.inf
    for _ in range(ROUNDS):
        x = np.array(
            [np.linalg.solve(hessian(k) + rho * np.eye(D + 1), rho * ahead - dual_ahead[k] - grad(k, 0 * z)) for k in K]
        )
        fresh = (x + dual_ahead / rho).mean(axis=0)
        turned = dual_ahead + rho * (x - fresh)
        cost = ((turned - dual_ahead) ** 2).sum() / rho + rho * len(N) * ((fresh - ahead) ** 2).sum()
        go = accelerate and cost < 0.999 * c
        following = (1 + np.sqrt(1 + 4 * a * a)) / 2 if go else 1.0
        b = (a - 1) / following if go else 0.0
        ahead, dual_ahead = fresh + b * (fresh - z), turned + b * (turned - dual)
        z, dual, a, c = fresh, turned, following, cost
    return z


def one_gradient(rule):
    """``w <- w - rule(gradients)``, a gradient a client and round."""
    w, memory = np.zeros(D + 1), {}
    for _ in range(ROUNDS):
        w = w - rule([grad(k, w) for k in K], memory)
    return w


def top(v, count):
    found = np.zeros_like(v)
    kept = np.argsort(-np.abs(v))[:count]
    found[kept] = v[kept]
    return found


def signum(gradients, memory):
    m = memory["m"] = 0.9 * memory.get("m", np.zeros((len(N), D + 1))) + 0.1 * np.array(gradients)
    return LR * np.sign(np.sign(m).sum(axis=0))


def diana(gradients, memory):
    """Shifts learn by 0.3 of a top-2 of differences; heavy ball 0.5; the prox of 0.2 ||.||_1 follows outside."""
    h = memory.setdefault("h", np.zeros((len(N), D + 1)))
    sent = np.array([top(g - h[k], 2) for k, g in enumerate(gradients)])
    ghat, memory["h"] = mean(h + sent), h + 0.3 * sent
    v = memory["v"] = 0.5 * memory.get("v", 0.0) + ghat
    return LR * v


def signs(v):
    """Blockwise: the weights and the intercept are two tensors."""
    return np.concatenate([np.abs(b).mean() * np.where(b < 0, -1.0, 1.0) for b in (v[:-1], v[-1:])])


def two_way():
    """``w`` is what clients hold; the server's own model is ahead of it by what it could not say yet."""
    w, down, e, m = np.zeros(D + 1), np.zeros(D + 1), np.zeros((len(N), D + 1)), np.zeros((len(N), D + 1))
    for _ in range(ROUNDS):
        gradients = np.array([grad(k, w) for k in K])
        m = 0.9 * m + gradients
        due = LR * (0.9 * m + gradients) + e
        sent = np.array([signs(v) for v in due])
        e, total = due - sent, mean(sent) + down
        w, down = w - signs(total), total - signs(total)
    return w - down


def qsvrg(gradients, memory):
    return LR * mean(gradients)  # (g_k(w) - g_k(w0) + mu) averages to the gradient where nothing is lost


def sketched(gradients, memory):
    """A sketch that is wide enough reads exactly: the two largest of the mean, and both accumulators forgotten there."""
    u, v = memory.setdefault("u", np.zeros((len(N), D + 1))), memory.setdefault("v", np.zeros((len(N), D + 1)))
    u[:] = 0.9 * u + gradients
    v[:] = v + u
    sent = top(mean(v), 2)
    u[:, sent != 0] = v[:, sent != 0] = 0
    return LR * sent


def adiana(mu, L, omega):
    n = len(N)
    prob = min(1, max(1, np.sqrt(n / (32 * omega)) - 1) / (2 * (1 + omega)))
    eta = min(1 / (2 * L), n / (64 * omega * (2 * prob * (omega + 1) + 1) ** 2 * L))
    t1 = min(0.25, np.sqrt(eta * mu / prob))
    gam = eta / (2 * (t1 + eta * mu))
    assert prob == 1  # the anchor moves in every round
    y = z = w = np.zeros(D + 1)
    for _ in range(ROUNDS):
        x = t1 * z + 0.5 * w + (0.5 - t1) * y
        step = x - eta * mean([grad(k, x) for k in K])
        z = (1 - gam * mu) * z + gam * mu * x + gam / eta * (step - x)
        y, w = step, y
    return y


def mem_sgd():
    w, e = np.zeros(D + 1), np.zeros((len(N), D + 1))
    for _ in range(ROUNDS):
        due = np.array([descend(w, lambda y, k=k: grad(k, y)) - w for k in K]) + e
        sent = np.array([top(v, 2) for v in due])
        e, w = due - sent, w + mean(sent)
    return w


def newton(kind):
    w, E = np.zeros(D + 1), np.zeros((len(N), D + 1, D + 1))
    for _ in range(ROUNDS):
        g = mean([grad(k, w) for k in K])
        if kind == "dane":
            w = w - 0.8 * mean([np.linalg.solve(hessian(k) + 2.0 * np.eye(D + 1), 0.9 * g) for k in K])
            continue
        for k in K:
            values, axes = np.linalg.eigh(hessian(k) - E[k])
            i = np.argmax(np.abs(values))
            E[k] += 0.7 * values[i] * np.outer(axes[:, i], axes[:, i])
        left = mean([np.linalg.norm(E[k] - hessian(k)) for k in K])
        w = w - np.linalg.solve(mean(E) + left * np.eye(D + 1), g)
    return w


# ---------------------------------------------------------------------------- the table

SOME = ([0, 1], [2, 0], [1, 2])
ALL = ([0, 1, 2],) * ROUNDS
ADMM = {"rho": 2.0}
CASES = {
    "FedAvg": (A.FedAvg(**LOCAL, server_lr=0.7, decay=0.8), lambda: fedavg(0.7, 0.8)),
    "FedProx": (A.FedProx(**LOCAL, mu=0.6), lambda: fedavg(mu=0.6)),
    "FedAvgM": (A.FedAvgM(**LOCAL), lambda: server_rule(fedavgm)),
    "FedAdam": (A.FedAdam(**LOCAL), lambda: server_rule(fedadam)),
    "FedYogi": (A.FedYogi(**LOCAL), lambda: server_rule(fedyogi)),
    "FedAdagrad": (A.FedAdagrad(**LOCAL, beta1=0.5), lambda: server_rule(fedadagrad)),
    "MFL": (A.MFL(**LOCAL), lambda: local_rule(heavy_ball, "server")),
    "LocalMomentum": (A.LocalMomentum(**LOCAL), lambda: local_rule(heavy_ball, "round")),
    "LocalAdam": (A.LocalAdam(**LOCAL), lambda: local_rule(adam, "client")),
    "LocalAdaGrad": (A.LocalAdaGrad(**LOCAL), lambda: local_rule(adagrad, "client")),
    "LocalRMSProp": (A.LocalRMSProp(**LOCAL), lambda: local_rule(rmsprop, "client")),
    "FedAC": (A.FedAC(**LOCAL, mu=0.5), fedac),
    "FedAQ": (A.FedAQ(**LOCAL, mu=0.5, compressor=EXACT), fedac),
    "Scaffold 1": (A.Scaffold(**LOCAL, option=1), lambda: scaffold(1, SOME), SOME),
    "Scaffold 2": (A.Scaffold(**LOCAL), lambda: scaffold(2, SOME), SOME),
    "FedDyn": (A.FedDyn(**LOCAL, alpha=0.7), lambda: feddyn(0.7, SOME), SOME),
    "VRLSGD": (A.VRLSGD(**LOCAL), vrlsgd),
    "FedCOMGATE": (A.FedCOMGATE(**LOCAL, compressor=EXACT), fedcomgate),
    "FedNova": (A.FedNova(**LOCAL, momentum=0.6), lambda: fednova(0.6)),
    "Mime": (A.Mime(**LOCAL), lambda: mime("sgdm", False)),
    "Mime Adam": (A.Mime(**LOCAL, optimiser="adam"), lambda: mime("adam", False)),
    "Mime AdaGrad": (A.Mime(**LOCAL, optimiser="adagrad"), lambda: mime("adagrad", False)),
    "MimeLite AdaGrad": (A.MimeLite(**LOCAL, optimiser="adagrad"), lambda: mime("adagrad", True)),
    "MimeSVRG": (A.MimeSVRG(**LOCAL), lambda: mime("sgd", False)),
    "MimeLite": (A.MimeLite(**LOCAL), lambda: mime("sgdm", True)),
    "MimeLite Adam": (A.MimeLite(**LOCAL, optimiser="adam"), lambda: mime("adam", True)),
    "CompactEstimate": (A.CompactEstimate(**LOCAL), lambda: compact(SOME), SOME),
    "FedMirror": (A.FedMirror(**LOCAL, l1=0.3), lambda: mirror(0.3, False)),
    "FedDualAvg": (A.FedDualAvg(**LOCAL, l1=0.3), lambda: mirror(0.3, True)),
    "Ditto": (A.Ditto(**LOCAL), fedavg),
    "PFedMe": (A.PFedMe(**LOCAL, lam=4.0, k=2, beta=0.5), lambda: pfedme(4.0, 2)),
    "FedADMM": (A.FedADMM(**LOCAL, **ADMM), lambda: admm("fedadmm", SOME), SOME),
    "CEADMM": (A.CEADMM(steps=T, bound=7.0, **ADMM), lambda: admm("inexact", SOME), SOME),
    "CEADMM exact": (A.CEADMM(solver="exact", **ADMM), lambda: admm("exact", SOME), SOME),
    "LFedADMM": (A.LFedADMM(**LOCAL, **ADMM, regulariser="l1", weight=0.4), lambda: lfedadmm(2.0, 0.4, False)),
    "LFedADMM printed": (
        A.LFedADMM(**LOCAL, **ADMM, regulariser="l1", weight=0.4, dual_update="step"),
        lambda: lfedadmm(2.0, 0.4, True),
    ),
    "Walkman": (A.Walkman(**LOCAL, **ADMM), lambda: admm("walkman", ALL)),
    "FastADMM": (A.FastADMM(), lambda: two_phase(True)),
    "FedSGD": (A.FedSGD(lr=LR), lambda: one_gradient(lambda g, _: LR * mean(g))),
    "SignSGD": (A.SignSGD(lr=LR), lambda: one_gradient(lambda g, _: LR * np.sign(np.sign(g).sum(axis=0)))),
    "Signum": (A.Signum(lr=LR), lambda: one_gradient(signum)),
    "QSVRG": (A.QSVRG(lr=LR, period=2, compressor=EXACT), lambda: one_gradient(qsvrg)),
    "DIANA": (A.DIANA(lr=LR, compressor=Named(0.4), a=0.3, momentum=0.5), lambda: one_gradient(diana)),
    "ADIANA": (
        A.ADIANA(mu=0.2, smoothness=6.0, omega=1e-3, clients=3, compressor=EXACT),
        lambda: adiana(0.2, 6.0, 1e-3),
    ),
    "TwoWaySGDM": (A.TwoWaySGDM(lr=LR, compressor=Sign(), down=Sign()), two_way),
    "SketchedSGD": (A.SketchedSGD(lr=LR, keep=2, columns=1000), lambda: one_gradient(sketched)),
    "MemSGD": (A.MemSGD(**LOCAL, compressor=TopK(0.4)), mem_sgd),
    "DANE": (A.DANE(lr=0.8, eta=0.9, mu=2.0), lambda: newton("dane")),
    "FedNL": (A.FedNL(begin="zero", option=2, rate=0.7), lambda: newton("fednl")),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_three_rounds_are_those_of_the_formulas(name):
    algorithm, reference, *cohorts = CASES[name]
    expected = reference()
    # Scales travel as float32, hence the looser bound of those that are sent with one.
    close = 1e-6 if name == "TwoWaySGDM" else 1e-9
    np.testing.assert_allclose(run(algorithm, cohorts[0] if cohorts else None), expected, rtol=close, atol=close)
    assert np.linalg.norm(expected) > 1e-3
