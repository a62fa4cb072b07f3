"""Compression underneath secure sums: accuracy against uplink bytes, for scalar quantisation, pruning and product quantisation.

Source: Prasad, Ghosh, Cormode, Mironov, Yousefpour, Stock, "Reconciling Security and Communication Efficiency in Federated Learning", 2022 (arXiv 2207.12779). The paper's accuracies and bytes are in figures, so its statements are judged, not its numbers. Words and counts are those that a masked sum and an enclave would
add up: a test holds trainings under `SecureAggregation` and `SecureIndexing` to the same models.

Three tasks, and how their data and models differ from the paper's:

* **femnist**: the paper has FEMNIST with 3,550 writers and a ResNet18. Ours are MNIST's digits by their 539 real writers (QMNIST's record), and a perceptron with
  one hidden layer.
* **celeba**: the paper has the images, 9,343 clients and a CNN. Ours are CelebA's 39 other attributes, 10,177 people, and a perceptron that says whether a
  person smiles.
* **sent140**: the paper has 59,400 users and an LSTM. Ours are 20,000 tweets, of which no user has more than 9, over 500 clients of a Dirichlet distribution of labels,
  and a small LSTM over characters.

Some clients are no clients here: their rows are public, and a mock client on them fits scales and codebooks. Learning rates were chosen on these rows, by the
plain training, never on test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.reducers import SecureIndexing
from atoll.reproduce import Claim, Entry, Lab, TrainedRun

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = [
    "CELEBA_ENTRY",
    "CompressionTask",
    "FEMNIST_ENTRY",
    "Found",
    "SENT140_ENTRY",
    "UPLINKS",
    "celebrities",
    "characters",
    "curve",
    "entry_of",
    "found_of",
    "judge_all",
    "judge_quick",
    "judge_without_enclave",
    "perceptron",
    "settings",
    "sweep",
    "tweets",
    "writers",
]


# ------------------------------------------------------------------ data and models

LENGTH = 40
"""Characters of a tweet that the model reads."""


def writers(public: int = 30, clients: int = 0, tests: int = 0) -> Islands:
    """Return MNIST by writer.

    Args:
        public: writers whose digits are public.
        clients: number of the others; 0 for all.
        tests: most test rows; 0 for all.
    """
    from atoll.data import natural, qmnist_writers

    data = qmnist_writers(flat=True)
    return _with_public(data, natural(data, "writer"), public, clients, tests)


def celebrities(public: int = 100, clients: int = 0, tests: int = 4000) -> Islands:
    """Return CelebA's attributes by identity; arguments as in `writers`."""
    from atoll.data import celeba_attributes, natural

    data = celeba_attributes()
    return _with_public(data, natural(data, "identity"), public, clients, tests)


def tweets(public: int = 25, clients: int = 0, tests: int = 0, alpha: float = 10.0) -> Islands:
    """Return tweets as characters, over 500 clients with labels by a Dirichlet distribution; arguments as in `writers`.

    Args:
        public: clients whose tweets are public.
        clients: number of the others; 0 for all.
        tests: most test rows; 0 for all.
        alpha: the distribution's concentration.
    """
    from atoll.data import dirichlet, sentiment140

    data = _encoded(sentiment140())
    return _with_public(data, dirichlet(data, parties=500, alpha=alpha, seed=0), public, clients, tests)


def _with_public(data: Dataset, whole: Islands, public: int, clients: int, tests: int) -> Islands:
    """Make the rows of the first clients of a fixed shuffle public, and keep some of the others."""
    order = np.random.default_rng(0).permutation(len(whole))
    own, others = order[:public], order[public : public + clients if clients else None]
    rows = whole.subset(np.sort(own)).pooled().with_test(None)
    made = whole.subset(np.sort(others))
    if tests and data.test is not None:
        made = made.with_test(data.test.take(np.arange(min(tests, len(data.test)))))
    return made.with_public(rows)


def _encoded(data: Dataset) -> Dataset:
    """Turn texts into numbers of characters: printable ASCII from 1, anything else and the rest 0."""

    def codes(part: Any) -> Any:
        texts = part["text"]
        x = np.zeros((len(texts), LENGTH), dtype=np.int64)
        for row, text in zip(x, texts, strict=True):
            own = np.frombuffer(str(text).lower().encode("ascii", "ignore")[:LENGTH], dtype=np.uint8).astype(np.int64)
            row[: len(own)] = np.where((own >= 32) & (own < 127), own - 31, 0)
        return part.with_columns({"x": x})

    made = codes(data)
    return made.with_test(None if made.test is None else codes(made.test))  # type: ignore[no-any-return]


def perceptron(features: int, hidden: int, outputs: int) -> Callable[[], Any]:
    """Return a maker of a perceptron with one hidden layer, so that its weights follow the run's seed."""
    from atoll.models import mlp

    return mlp(features, outputs, [hidden])


def characters(embedding: int = 16, hidden: int = 32) -> Callable[[], Any]:
    """Return a maker of an LSTM over characters whose last states vote for two classes."""

    def make() -> Any:
        from torch import nn

        class Characters(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(96, embedding)
                self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
                self.head = nn.Linear(hidden, 2)

            def forward(self, x: Any) -> Any:
                states, _ = self.lstm(self.embedding(x))
                return self.head(states.mean(dim=1))

        return Characters()

    return make


# ------------------------------------------------------------------ the sweep: configurations of the uplink, their trainings, accuracy and rate

_ROOM = "atoll.reproduce.compression.tasks"


def _sq(bits: int, word: int, refresh: int = 1) -> list[dict[str, Any]]:
    # Without check words, as in the paper: nothing is masked here, so overflows are counted exactly.
    words = {"bits": bits, "modulus_bits": word, "checked": 0}
    return [{"name": "ScalarQuantizer", **words, "spread": 2.0, "refresh": refresh}]


def _prune(fraction: float, scaled: bool = False, seed: int | None = None) -> list[dict[str, Any]]:
    fixed = {} if seed is None else {"seed": seed}
    return [{"name": "RandomK", "fraction": fraction, "scaled": scaled, "shared": True, "per": "tensor", **fixed}]


def _pq(block: int, codewords: int, refresh: int = 1) -> list[dict[str, Any]]:
    book = {"block": block, "codewords": codewords, "spread": 1.0, "iterations": 10, "refresh": refresh}
    return [{"name": "ProductQuantizer", **book}]


LATE = 20
"""Rounds between two fits, where the period of refreshing is looked at."""
UPLINKS: dict[str, list[dict[str, Any]]] = {
    "plain": [],
    **{
        f"sq {b},{p}": _sq(b, p)
        for b, p in ((8, 16), (8, 12), (8, 11), (8, 10), (8, 9), (4, 8), (4, 6), (2, 4), (2, 3))
    },
    **{f"prune 1/{n}": _prune(1 / n) for n in (8, 16, 32)},
    **{f"prune 1/{n} scaled": _prune(1 / n, scaled=True) for n in (8, 16, 32)},
    **{f"pq {d},{k}": _pq(d, k) for d, k in ((4, 16), (8, 256), (8, 64), (8, 32), (16, 256), (16, 16))},
    "prune 1/4, sq 8,10": [*_prune(1 / 4), *_sq(8, 10)],
    "sq 8,12 late": _sq(8, 12, LATE),
    "sq 8,9 late": _sq(8, 9, LATE),
    "pq 4,16 late": _pq(4, 16, LATE),
    "pq 16,16 late": _pq(16, 16, LATE),
    "prune 1/8 scaled fixed": _prune(1 / 8, scaled=True, seed=1),
}
"""Name -> stages. ``sq b,p``: codes and words; ``pq d,k``: entries a block and codewords; ``late``: fitted every 20 rounds."""


@dataclass(frozen=True)
class CompressionTask:
    """A task, and how much of it is run.

    Attributes:
        name: of the task, a function of this module that makes its clients.
        paper: the name of the paper's data set.
        rate: the paper's uplink compression at equal accuracy.
        model: function of this module that makes the model, and its settings.
        training: learning rate, epochs and batch size.
        cohort: clients a round.
        rounds: number of rounds.
        data: settings of the data.
        more: further settings of a run.
    """

    name: str
    paper: str
    rate: int
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    cohort: int
    rounds: int
    data: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What a training found.

    Attributes:
        accuracy: mean of the last three measured test accuracies.
        bits: bits of a reply, as its stages declare them; of a plain reply, 32 a parameter.
        rate: bits of a plain reply, over these.
        clamped: largest share of clamped entries of a round; ``None`` if nothing can be clamped.
        overflowed: mean share of overflowed sums.
        run: the training.
    """

    accuracy: float
    bits: float
    rate: float
    clamped: float | None
    overflowed: float | None
    run: TrainedRun


def settings(task: CompressionTask, uplink: str, seed: int = 0) -> dict[str, Any]:
    """Return a run's configuration."""
    model = dict(task.model)
    return {
        "name": f"{task.paper}-{uplink}".lower().replace(" ", "-").replace(",", "-").replace("/", "-"),
        "data": {"source": {"name": f"{_ROOM}:{task.name}", **task.data}},
        "model": {"name": f"{_ROOM}:{model.pop('name')}", **model},
        "engine": "batched",
        "algorithm": {"name": "FedAvg", **task.training},
        "selection": {"name": "Uniform", "count": task.cohort},
        "uplink": UPLINKS[uplink],
        "evaluation": {"every": max(1, task.rounds // 20)},
        "rounds": task.rounds,
        "checkpoint_every": task.rounds,
        "seed": seed,
        **task.more,
    }


def found_of(run: TrainedRun, plain: float) -> Found:
    """Return accuracy and rate of a training; ``plain`` are the bits of a plain reply."""
    seen = [float(row["test/accuracy"]) for row in run.rows if row.get("test/accuracy") is not None]
    last = run.rows[-1]
    bits = last["bits_declared"] / last["replied"] if last.get("bits_declared") else plain
    clamped = [row["clamped"] for row in run.rows if row.get("clamped") is not None]
    over = [row["overflowed"] for row in run.rows if row.get("overflowed") is not None]
    return Found(
        float(np.mean(seen[-3:])), bits, plain / bits, max(clamped) if clamped else None, float(np.mean(over)) if over else None, run
    )  # fmt: skip


def sweep(lab: Lab, task: CompressionTask, names: tuple[str, ...] = ()) -> dict[str, Found]:
    """Train the configurations, the plain one first."""
    names = tuple(dict.fromkeys(("plain", *(names or UPLINKS))))
    runs = {name: lab.train(settings(task, name)) for name in names}
    plain = 32.0 * parameters(runs["plain"])
    return {name: found_of(run, plain) for name, run in runs.items()}


def parameters(run: TrainedRun) -> int:
    """Return the number of parameters of a training's model."""
    from atoll.core.algebra import tree as T
    from atoll.runs.kept import read_model

    return sum(int(np.size(leaf)) for leaf in T.leaves(read_model(run.folder.model_file)))


# ------------------------------------------------------------------ verdicts; every rule was set before the test rows were looked at

_WITHOUT = "Without an enclave"
EQUAL = 0.01
"""Accuracies that differ by at most one point count as equal."""
FARTHER = 1.25
"""Rounds that compression may need, as a factor on those of the plain training."""


def judge_all(task: CompressionTask, found: Mapping[str, Found]) -> list[Claim]:
    """Judge every statement of the paper about one task."""
    return [
        *_rates(task, found), *_order(found), _rounds(found), *_refresh(found), _margin(found), _overflow(found), *judge_without_enclave(task),
    ]  # fmt: skip


def _points(found: Found) -> str:
    return f"{100 * found.accuracy:.1f} %"


def _rates(task: CompressionTask, found: Mapping[str, Found]) -> list[Claim]:
    plain = found["plain"]
    equal = {
        name: one.rate
        for name, one in found.items()
        if name.startswith("pq") and one.accuracy >= plain.accuracy - EQUAL
    }
    best = max(equal, key=lambda name: equal[name], default="")
    ours = round(equal[best], 1) if best else None
    note = f"plain: {_points(plain)}; {best or 'no codebook'} is the shortest within one point, its rate with the uncompressed biases"
    return [
        Claim(
            f"Experiments, {task.paper}: uplink compression by product quantisation at equal accuracy",
            task.rate, ours, ours is not None and ours >= task.rate, note,
        )
    ]  # fmt: skip


def _order(found: Mapping[str, Found]) -> list[Claim]:
    pq, sq, plain = found["pq 8,256"], found["sq 2,3"], found["plain"]
    pruned = {
        n: max((found[f"prune 1/{n}"], found[f"prune 1/{n} scaled"]), key=lambda one: one.accuracy) for n in (8, 32)
    }
    return [
        Claim(
            "Experiments: at a rate of 32, product quantisation (8 entries, 256 codewords) beats pruning (1/32, the better scaling)",
            None, [_points(pq), _points(pruned[32])], pq.accuracy > pruned[32].accuracy, f"rates {pq.rate:.1f} and {pruned[32].rate:.1f}. {curve(found, 'pq')}",
        ),
        Claim(
            "Experiments: at high rates, pruning (1/8, the better scaling) beats scalar quantisation at its highest rate (2 bits in words of 3)",
            None, [_points(pruned[8]), _points(sq)], pruned[8].accuracy > sq.accuracy, f"rates {pruned[8].rate:.1f} and {sq.rate:.1f}. {curve(found, 'prune')}",
        ),
        Claim(
            "Experiments: scalar quantisation falls off at high rates, because sums overflow", None, [_points(found["sq 8,12"]), _points(found["sq 2,4"]), _points(sq)],
            found["sq 8,12"].accuracy >= plain.accuracy - EQUAL > sq.accuracy and found["sq 2,4"].accuracy > (plain.accuracy + sq.accuracy) / 2,
            f"8 bits in words of 12, within one point of plain ({_points(plain)}); 2 bits in words of 4 and of 3. Overflow is the cause if one more bit a word, with the same"
            f" codes, takes back more than half of the loss; {100 * (sq.overflowed or 0):.1f} % of the sums overflow in words of 3",
        ),
    ]  # fmt: skip


def _rounds(found: Mapping[str, Found]) -> Claim:
    target = 0.95 * found["plain"].accuracy
    plain, pq = (found[name].run.rounds_to(target) for name in ("plain", "pq 8,64"))
    holds = plain is not None and pq is not None and pq <= FARTHER * plain
    return Claim(
        "Experiments: product quantisation needs about as many rounds as no compression", plain, pq, holds,
        f"rounds to 95 % of the plain accuracy ({100 * target:.1f} %), 8 entries and 64 codewords; at most {FARTHER:g} times. The left number is that of our plain training",
    )  # fmt: skip


def _refresh(found: Mapping[str, Found]) -> list[Claim]:
    def gap(name: str) -> float:
        return found[name].accuracy - found[f"{name} late"].accuracy

    small, large, wide, narrow = (round(100 * gap(name), 1) for name in ("pq 4,16", "pq 16,16", "sq 8,12", "sq 8,9"))
    fresh, fixed = found["prune 1/8 scaled"], found["prune 1/8 scaled fixed"]
    return [
        Claim(
            "Experiments: the period of refreshing a scale matters only if words are short for the codes", None, [wide, narrow],
            abs(wide) <= 100 * EQUAL < narrow, "points lost by fitting every 20 rounds instead of every round: 8 bits in words of 12, and of 9",
        ),
        Claim(
            "Experiments: the period of refreshing a codebook matters for large blocks or few codewords", None, [small, large],
            large > small and large > 100 * EQUAL, "points lost by fitting every 20 rounds instead of every round: 16 codewords of 4 entries, and of 16",
        ),
        Claim(
            "Experiments: new masks more often make pruning better", None, [_points(fresh), _points(fixed)], fresh.accuracy > fixed.accuracy,
            "1/8 of the entries, scaled: new ones every round, and always the same",
        ),
    ]  # fmt: skip


def _margin(found: Mapping[str, Found]) -> Claim:
    seen = {p: found[f"sq 8,{p}"] for p in (9, 10, 11, 12)}
    return Claim(
        "Experiments: some margin of words over codes helps", None, [_points(one) for one in seen.values()],
        max(one.accuracy for p, one in seen.items() if p > 9) > seen[9].accuracy + EQUAL,
        "codes of 8 bits in words of 9, 10, 11 and 12; overflowed sums: " + ", ".join(f"{100 * (one.overflowed or 0):.2f} %" for one in seen.values()),
    )  # fmt: skip


def curve(found: Mapping[str, Found], start: str) -> str:
    """Return accuracy and rate of one way to compress, in words: the paper's figure, whose numbers cannot be read."""
    some = {name: one for name, one in found.items() if name.startswith(start) and not name.endswith(("late", "fixed"))}
    return "; ".join(
        f"{name}: {_points(one)} at {one.rate:.1f}x" for name, one in sorted(some.items(), key=lambda row: row[1].rate)
    )


def _overflow(found: Mapping[str, Found]) -> Claim:
    """Judge whether overflow explains what short words lose."""
    some = {name: one for name, one in found.items() if name.startswith("sq") and not name.endswith("late")}
    told = "; ".join(
        f"{name}: {_points(one)}, {100 * (one.overflowed or 0):.2f} % overflowed, at most {100 * (one.clamped or 0):.1f} % clamped"
        for name, one in some.items()
    )
    most = max(some.values(), key=lambda one: one.overflowed or 0)
    return Claim(
        "Experiments: what costs accuracy under scalar quantisation is overflow", None, told,
        most.accuracy <= min(one.accuracy for one in some.values()) + EQUAL, "the configuration with most overflowed sums is the least accurate, within a point",
    )  # fmt: skip


def judge_without_enclave(task: CompressionTask) -> list[Claim]:
    """Judge what a block costs by shares and by keys of two servers; arithmetic that tests hold to measured bytes."""
    rows, n = [], task.cohort
    for d, k in ((8, 32), (8, 256), (16, 16), (16, 256)):
        enclave, shares, keys = (
            SecureIndexing(by, max_weight=1).block_bits(k, n) for by in ("enclave", "shares", "keys")
        )
        what = f"{d} entries, {k} codewords, {n} clients of equal weight"
        note = f"bits a block: {enclave} to an enclave, a rate of {32 * d / enclave:.1f}; {shares} as shares; {keys} as two keys; {32 * d} as floats"
        rows.append(
            Claim(
                f"Without a trusted environment: without an enclave, one-hot shares lose the compression: {what}",
                None,
                f"{32 * d / shares:.1f}x",
                32 * d / shares < 2,
                f"at most twice; {note}",
                part=_WITHOUT,
                basis="derived",
            )
        )
        rows.append(
            Claim(
                f"Without a trusted environment: keys of point functions are compact: {what}",
                None,
                f"{32 * d / keys:.1f}x",
                keys < shares,
                f"shorter than shares; {note}",
                part=_WITHOUT,
                basis="derived",
            )
        )
    return rows


def judge_quick(found: Mapping[str, Found]) -> list[Claim]:
    """Judge the few short trainings of the quick form."""
    sq, pq, plain = found["sq 8,12"], found["pq 8,32"], found["plain"]
    return [
        Claim("8 bits in words of 12 end within two points of no compression", None, [_points(sq), _points(plain)], sq.accuracy >= plain.accuracy - 0.02, "few clients, few rounds: a smoke test, no evidence"),
        Claim("8 entries a block and 32 codewords send less than a tenth of a plain reply, uncompressed biases included", None, f"{pq.rate:.1f}x", pq.rate > 10, "with the uncompressed biases"),
    ]  # fmt: skip


# ------------------------------------------------------------------ entries

_SOURCE = "Prasad et al., Reconciling Security and Communication Efficiency in Federated Learning, 2022"


def entry_of(
    name: str, task: CompressionTask, quick: CompressionTask, needs: str, data: tuple[str, ...], ours: str
) -> Entry:
    """Return the entry of a task.

    Args:
        name: of the entry.
        task: the full form.
        quick: the quick form.
        needs: what it needs, in words.
        data: the data sets.
        ours: the data and the model, in words.
    """

    def run(lab: Lab, short: bool) -> list[Claim]:
        if short:
            return judge_quick(sweep(lab, quick, ("sq 8,12", "prune 1/8 scaled", "pq 8,32")))
        return judge_all(task, sweep(lab, task))

    return Entry(
        name=name,
        title=f"Compression underneath secure sums, in place of {task.paper}: {ours}",
        source=_SOURCE,
        run=run,
        needs=needs,
        data=data,
    )


_CELEBA = CompressionTask(
    "celebrities", "CelebA", 30, {"name": "perceptron", "features": 39, "hidden": 64, "outputs": 2},
    {"lr": 0.1, "epochs": 1, "batch_size": 10}, cohort=50, rounds=60,
)  # fmt: skip
_CELEBA_QUICK = replace(_CELEBA, cohort=20, rounds=15, data={"public": 50, "clients": 300, "tests": 2000})

CELEBA_ENTRY = entry_of(
    "secure-compression-celeba", _CELEBA, _CELEBA_QUICK, "CelebA's attributes below ATOLL_DATA", ("celeba_attributes",),
    "attributes of 9,077 people, a perceptron of 2,690 parameters",
)  # fmt: skip


_FEMNIST = CompressionTask(
    "writers", "FEMNIST", 40, {"name": "perceptron", "features": 784, "hidden": 32, "outputs": 10},
    {"lr": 0.1, "epochs": 1, "batch_size": 10}, cohort=20, rounds=60,
)  # fmt: skip
_FEMNIST_QUICK = replace(
    _FEMNIST, model={**_FEMNIST.model, "hidden": 16}, cohort=10, rounds=10, data={"public": 10, "clients": 60, "tests": 2000}
)  # fmt: skip

FEMNIST_ENTRY = entry_of(
    "secure-compression-femnist", _FEMNIST, _FEMNIST_QUICK, "MNIST and its writers below ATOLL_DATA", ("qmnist_writers",),
    "digits by 509 writers, a perceptron of 25,450 parameters",
)  # fmt: skip


_SENT140 = CompressionTask(
    "tweets", "Sent140", 32, {"name": "characters", "embedding": 16, "hidden": 32},
    {"name": "FedAdam", "lr": 0.5, "server_lr": 0.01, "epochs": 1, "batch_size": 10}, cohort=20, rounds=80, more={"compile": "always"},
)  # fmt: skip
_SENT140_QUICK = replace(
    _SENT140, training={**_SENT140.training, "batch_size": 20}, cohort=4, rounds=3, data={"public": 5, "clients": 40, "tests": 500},
    more={"compile": "never"},
)  # fmt: skip

SENT140_ENTRY = entry_of(
    "secure-compression-sent140", _SENT140, _SENT140_QUICK, "the tweets of Sent140 below ATOLL_DATA", ("sentiment140",),
    "tweets of 475 clients, an LSTM over characters of 8,002 parameters",
)  # fmt: skip
