"""The benchmark workloads as data: every peer loads the same arrays and follows the same plan.

A workload fixes the data, the initial weights, which clients take part in each round, and the
order of examples in every (round, client, epoch). All of it comes from one seeded NumPy generator
and is stored as `.npy` files in `benchmarks/.data/<name>/`, which peers open memory-mapped: no peer pays for making
data, and pages shared between processes are counted once.

    python benchmarks/workloads.py [NAME ...]     # write the files (a no-op if they exist)
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).resolve().parent / ".data"
SEED = 20240607
TEST_EXAMPLES = 2000
# Raise it when the generator changes, so that old files are not reused.
FORMAT = 1


@dataclass(frozen=True)
class Workload:
    """One federated job: FedAvg with plain SGD and equal client weights.

    `model` is "lr" (one linear layer), "mlp" (one hidden layer of `hidden`) or "cnn" (conv 3x3-32,
    conv 3x3-64, max-pool 2, dense 128, output; valid padding, ReLU). `rounds` is how many rounds a run times,
    `rounds_slow` if a peer needs minutes for that, `rounds_fast` if it needs milliseconds. `gate_rounds` is the number
    of rounds after which final weights are compared with the bare PyTorch loop's: few if ReLU and max-pooling amplify
    rounding differences, many if the problem is convex. `signal` is how far apart the classes are (see `_make`).
    """

    name: str
    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    examples: int
    cohort: int
    epochs: int
    batch: int
    lr: float
    rounds: int
    rounds_slow: int
    rounds_fast: int
    gate_rounds: int
    signal: float
    hidden: int = 0
    dropout: bool = False

    @property
    def planned(self) -> int:
        """Return the rounds that the plan covers."""
        return max(self.rounds, self.rounds_slow, self.rounds_fast)

    @property
    def steps(self) -> int:
        """Return the SGD steps that one client takes in one round."""
        return self.epochs * math.ceil(self.examples / self.batch)


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            name="lr",
            title="LR 60-10, 1,000 x 50, cohort 50, 5 epochs",
            model="lr",
            shape=(60,),
            classes=10,
            clients=1000,
            examples=50,
            cohort=50,
            epochs=5,
            batch=10,
            lr=0.1,
            rounds=60,
            rounds_slow=20,
            rounds_fast=200,
            gate_rounds=20,
            signal=3.0,
        ),
        Workload(
            name="mlp",
            title="MLP 784-196-62, 500 x 50, cohort 20, 2 epochs",
            model="mlp",
            shape=(784,),
            classes=62,
            hidden=196,
            clients=500,
            examples=50,
            cohort=20,
            epochs=2,
            batch=10,
            lr=0.1,
            rounds=40,
            rounds_slow=10,
            rounds_fast=100,
            gate_rounds=4,
            signal=10.0,
        ),
        Workload(
            name="cnn",
            title="CNN 28x28-62, 100 x 50, cohort 10, 1 epoch",
            model="cnn",
            shape=(1, 28, 28),
            classes=62,
            clients=100,
            examples=50,
            cohort=10,
            epochs=1,
            batch=10,
            lr=0.1,
            rounds=10,
            rounds_slow=10,
            rounds_fast=20,
            gate_rounds=1,
            signal=10.0,
        ),
        Workload(
            name="pfl",
            title="pfl's CNN 32x32x3-10, 1,000 x 50, cohort 50, 1 epoch",
            model="cnn",
            shape=(3, 32, 32),
            classes=10,
            clients=1000,
            examples=50,
            cohort=50,
            epochs=1,
            batch=10,
            lr=0.1,
            rounds=4,
            rounds_slow=4,
            rounds_fast=8,
            gate_rounds=1,
            signal=10.0,
        ),
        Workload(
            name="silos",
            title="Silos: LR 784-10, 10 x 600, all take part, 20 rounds",
            model="lr",
            shape=(784,),
            classes=10,
            clients=10,
            examples=600,
            cohort=10,
            epochs=1,
            batch=10,
            lr=0.03,
            rounds=20,
            rounds_slow=20,
            rounds_fast=20,
            gate_rounds=20,
            signal=5.0,
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """A workload's arrays, in memory-mapped form.

    Shapes: `x` [clients, examples, *shape] float32, `y` [clients, examples] int64, `schedule`
    [rounds, cohort] int64 (client numbers), `order` [rounds, cohort, epochs, examples] int16
    (a permutation of the examples), `initial` the parameters in PyTorch's order and layout.
    """

    workload: Workload
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    schedule: NDArray[np.int64]
    order: NDArray[np.int16]
    initial: list[NDArray[np.float32]]


def _layers(w: Workload) -> list[tuple[int, ...]]:
    """Return the weight shapes of the layers, outermost dimension first as in PyTorch."""
    if w.model == "lr":
        return [(w.classes, w.shape[0])]
    if w.model == "mlp":
        return [(w.hidden, w.shape[0]), (w.classes, w.hidden)]
    side = (w.shape[1] - 4) // 2
    return [(32, w.shape[0], 3, 3), (64, 32, 3, 3), (128, 64 * side * side), (w.classes, 128)]


def _initial(w: Workload, rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Return Glorot-uniform weights and zero biases, alternating as PyTorch lists them."""
    out: list[NDArray[np.float32]] = []
    for shape in _layers(w):
        window = math.prod(shape[2:])
        bound = math.sqrt(6.0 / ((shape[0] + shape[1]) * window))
        out.append(rng.uniform(-bound, bound, size=shape).astype(np.float32))
        out.append(np.zeros(shape[0], np.float32))
    return out


def _examples(
    w: Workload, count: int, prototypes: NDArray[np.float32], rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return noisy copies of class prototypes: learnable, but not perfectly."""
    y = rng.integers(0, w.classes, size=count)
    x = rng.standard_normal((count, *w.shape), dtype=np.float32)
    x += prototypes[y]
    x *= 0.5
    return x, y


def _make(w: Workload, folder: Path) -> None:
    rng = np.random.Generator(np.random.Philox(SEED))
    # Two classes are about sqrt(2) * signal noise deviations apart.
    scale = w.signal / math.sqrt(math.prod(w.shape))
    prototypes = (scale * rng.standard_normal((w.classes, *w.shape))).astype(np.float32)
    total = w.clients * w.examples
    x, y = _examples(w, total, prototypes, rng)
    np.save(folder / "x.npy", x.reshape(w.clients, w.examples, *w.shape))
    np.save(folder / "y.npy", y.reshape(w.clients, w.examples))
    x, y = _examples(w, TEST_EXAMPLES, prototypes, rng)
    np.save(folder / "x_test.npy", x)
    np.save(folder / "y_test.npy", y)
    clients = np.tile(np.arange(w.clients), (w.planned, 1))
    np.save(folder / "schedule.npy", rng.permuted(clients, axis=1)[:, : w.cohort].copy())
    order = np.arange(w.examples, dtype=np.int16)
    order = np.tile(order, (w.planned, w.cohort, w.epochs, 1))
    np.save(folder / "order.npy", rng.permuted(order, axis=-1))
    np.savez(folder / "initial.npz", *_initial(w, rng))


def prepare(name: str) -> Path:
    """Write the files of workload `name` unless they exist; return their folder."""
    w = WORKLOADS[name]
    folder = DATA / name
    stamp = folder / "workload.json"
    wanted = json.dumps({"format": FORMAT, "seed": SEED, **asdict(w)}, indent=1)
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*"):
        stale.unlink()
    _make(w, folder)
    stamp.write_text(wanted)
    return folder


def load(name: str, mode: Literal["r", "c"] = "c") -> Plan:
    """Open the arrays of workload `name`, memory-mapped: copy-on-write, or for reading only."""
    folder = prepare(name)
    arrays = {
        key: np.load(folder / f"{key}.npy", mmap_mode=mode)
        for key in ("x", "y", "x_test", "y_test", "schedule", "order")
    }
    with np.load(folder / "initial.npz") as archive:
        initial = [archive[key] for key in archive.files]
    return Plan(workload=WORKLOADS[name], initial=initial, **arrays)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or WORKLOADS:
        print(prepare(chosen))
