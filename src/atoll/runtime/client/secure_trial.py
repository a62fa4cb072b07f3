"""What `atoll poc --secure` compares: the masked run between real processes, one of which was killed, and the plain run of the same rounds in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.errors import JobError
from atoll.core.federation.reducer import Plain
from atoll.learn.selection.uniform import Schedule
from atoll.simulation import simulate

if TYPE_CHECKING:
    from atoll.data import Islands

__all__ = ["SECURE_TERMS", "compared", "survivors_of"]

SECURE_TERMS = {"on_lost": "drop", "patience": 20}
"""Terms of the job: it goes on without a site that is lost."""


def survivors_of(rows: Sequence[dict[str, Any]], names: Sequence[str], victim: str) -> list[list[int]]:
    """The positions of the clients in each round's sum: all of them, and all but the victim once it is lost.

    Raises:
        JobError: a round has lost others than the victim.
    """
    everyone = list(range(len(names)))
    left = [i for i in everyone if names[i] != victim]
    found: list[list[int]] = []
    for row in rows:
        replied = int(row["replied"])
        if replied not in (len(everyone), len(left)):
            raise JobError(
                f"{replied} of {len(everyone)} sites were in round {row['round']}, though one was killed",
                where="atoll poc --secure",
                remedy="look at daemons.log: the machine may be too busy",
            )
        found.append(everyone if replied == len(everyone) else left)
    return found


def compared(job: Any, islands: Islands, rounds: list[list[int]], params: Any, seed: int) -> dict[str, float]:
    """The largest difference between a parameter of the masked run and of the plain run, and how large rounding may make it.

    In every round fixed point moves a parameter of the sum by at most half a unit a client, and the model keeps it in single precision. ``bound`` is that
    much in every round, each carried to the end as far as a simulation carries a change of this size from the beginning.

    Args:
        job: the masked training.
        islands: the rows of the sites, under their names.
        rounds: the clients of each round's sum.
        params: the parameters of the masked run.
        seed: of the run.
    """
    plain = job.replace(reducer=Plain(), selection=Schedule(rounds), rounds=len(rounds), callbacks=())

    def train_model(change: float) -> Any:
        made = simulate(
            plain.replace(model=_Moved(plain.model, change)) if change else plain,
            islands,
            engine="inline",
            seed=seed,
            progress=False,
        )
        return made.params

    want = train_model(0.0)
    step = _rounding(want)
    moved = max(_apart(want, train_model(step)), step)
    return {"difference": _apart(want, params), "bound": len(rounds) * moved}


def _rounding(params: Any) -> float:
    """Half a unit in the last place of the largest parameter in single precision; the words of a secure sum are finer."""
    return float(max(np.spacing(np.abs(np.asarray(leaf)).max().astype(np.float32)) for leaf in T.leaves(params)))


def _apart(a: Any, b: Any) -> float:
    pairs = zip(T.leaves(a), T.leaves({name: b[name] for name in a}), strict=True)
    return float(max(np.abs(np.asarray(x, dtype=np.float64) - np.asarray(y)).max() for x, y in pairs))


class _Moved:
    """A model whose first parameters are moved up and down by a small change.

    Args:
        model: the model.
        change: by how much, alternating in sign.
    """

    def __init__(self, model: Any, change: float) -> None:
        self.model, self.change = model, change

    def learner(self, settings: Any, data: Any) -> Any:
        """The model's own learner, with another beginning."""
        from atoll.learn.learner import adapt

        made: Any = adapt(self.model, settings, data)
        begin = made.init

        def move_params(rng: Any) -> Any:
            def move(leaf: Any) -> Any:
                flat = np.array(leaf, copy=True)
                signs = np.where(np.arange(flat.size) % 2, -1.0, 1.0).reshape(flat.shape)
                return (flat + self.change * signs).astype(flat.dtype)

            return T.map(move, begin(rng))

        made.init = move_params
        return made
