"""What the two sides can do without each other, and what they could do in one place: the arms beside a federated result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra.rng import Rng

from .parties import SideTraining, average_copies, score_decisions, split_rows, vocabulary_of
from .table import join_table
from .utterances import Utterances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .job import Crossmodal
    from .phones import TextToPhone
    from .training import SideNetworks

__all__ = ["train_aligned", "train_alone", "train_together"]


def _side(job: Crossmodal, rows: Utterances, classes: tuple[str, ...], width: int, seed: int, place: int) -> SideTraining:  # fmt: skip
    own = Rng(seed).child("side", place).key
    parts = split_rows(job, rows, own)
    return SideTraining(job, *parts, classes, vocabulary_of(parts[0], job.text), width, seed, own)


def _begin(side: SideTraining, table: NDArray[np.float32]) -> SideNetworks:
    nets = side.networks(table)
    nets.fit_scales(side.train_rows)
    return nets


class _Best:
    """The measures on held-out rows at the round that rows for choosing it liked best."""

    def __init__(self) -> None:
        self._valid, self.found = -np.inf, dict[str, float]()

    def look(self, measure: Callable[..., dict[str, float]]) -> None:
        valid = measure(valid=True)["f1"]
        if not valid <= self._valid:
            self._valid, self.found = valid, measure(valid=False)


def train_alone(job: Crossmodal, rows: Utterances, seed: int = 0) -> dict[str, float]:
    """Return F1 and accuracy of a party's own network alone, trained with as many steps as in the job: the mono-modal baseline.

    Args:
        job: the settings.
        rows: the party's rows.
        seed: of the weights, the rows held out and the mini-batches.
    """
    side = _side(job, rows, tuple(job.classes) or tuple(rows.counts), 1, seed, 0)
    nets, best = _begin(side, join_table([], len(rows.phone_names), 1)), _Best()
    first = job.pretrain if rows.modality == "speech" else 0
    for number in range(job.rounds):
        rng = Rng(seed).child("alone", number)
        count = job.iterations + (first if number == 0 else 0)
        nets.train_own(side.train_rows, side.batches(count, rng), int(rng.child("steps").key) % 2**31)  # fmt: skip
        best.look(partial(side.measure, nets, alone=True))
    return best.found


def train_together(job: Crossmodal, parties: Mapping[str, Utterances], seed: int = 0) -> dict[str, dict[str, float]]:
    """Return F1 and accuracy of each party if all rows were in one place: copies are averaged after every step, nothing has noise, and the table is exact. The shared part follows the loss that the job's does.

    Each side predicts from its own modality. `train_aligned` is the paper's oracle, for rows that are there as speech and as text.

    Args:
        job: the settings.
        parties: party -> its rows.
        seed: of the weights, the rows held out and the mini-batches.
    """
    best = {name: _Best() for name in parties}
    for sides, nets in _train_rounds(job, parties, seed, {name: place for place, name in enumerate(sorted(parties))}):
        for name, side in sides.items():
            best[name].look(partial(side.measure, nets[name]))
    return {name: one.found for name, one in best.items()}


def train_aligned(job: Crossmodal, rows: Utterances, seed: int = 0, *, phones: TextToPhone | None = None) -> dict[str, float]:  # fmt: skip
    """Return F1 and accuracy of the paper's oracle: each utterance is there as speech and as text, all in one place, and both decisions are joined.

    Both modalities train as in `train_together`, on the same rows; the joint decision is the mean of both logits.

    Args:
        job: the settings.
        rows: speech with its `Utterances.texts`.
        seed: of the weights, the rows held out and the mini-batches.
        phones: what turns texts into phones; by default the installed dictionary.

    Raises:
        DataError: the rows are no speech, or some have no text.
    """
    pair = {"speech": rows, "text": rows.written(phones)}
    best = _Best()
    for sides, nets in _train_rounds(job, pair, seed, dict.fromkeys(pair, 0)):
        best.look(partial(_measure_joint, sides, nets))
    return best.found


def _measure_joint(sides: Mapping[str, SideTraining], nets: Mapping[str, SideNetworks], *, valid: bool) -> dict[str, float]:  # fmt: skip
    rows = {name: side.valid_rows if valid else side.test_rows for name, side in sides.items()}
    logits = sum(nets[name].logits(part) for name, part in rows.items())
    first = next(iter(sides.values()))
    return score_decisions(np.asarray(logits), next(iter(rows.values())).labels.numpy(), len(first.classes))


def _train_rounds(job: Crossmodal, parties: Mapping[str, Utterances], seed: int, places: Mapping[str, int]) -> Iterator[tuple[dict[str, SideTraining], dict[str, SideNetworks]]]:  # fmt: skip
    """Train all parties in one place; gives the sides and their networks after each round. Parties of one place hold the same rows out."""
    plain = replace(job, epsilon=None, shared_loss="fused" if job.fused else "phones", table="exact")
    classes = tuple(plain.classes) or tuple(sorted({name for rows in parties.values() for name in rows.counts}))
    speech = [name for name in sorted(parties) if parties[name].modality == "speech"]
    width = parties[speech[0]].width if speech else 1
    sides = {name: _side(plain, parties[name], classes, width, seed, places[name]) for name in sorted(parties)}
    phones = len(next(iter(parties.values())).phone_names)
    table = join_table([plain.table_plan.build(sides[name].rows) for name in speech], phones, width)
    nets = {name: _begin(side, table) for name, side in sides.items()}
    for name in speech:
        if plain.pretrain:
            rng = Rng(seed).child("first", name)
            nets[name].train_own(sides[name].train_rows, sides[name].batches(plain.pretrain, rng), int(rng.child("steps").key) % 2**31)  # fmt: skip
    for number in range(plain.rounds):
        batches = {name: side.batches(plain.iterations, Rng(seed).child("together", name, number)) for name, side in sides.items()}  # fmt: skip
        movers = {name: net.mover() for name, net in nets.items()}
        for step in range(plain.iterations):
            for name, side in sides.items():
                nets[name].train(side.train_rows, [batches[name][step]], None, int(Rng(seed).child("step", name, number, step).key) % 2**31, mover=movers[name])  # fmt: skip
            mixed = average_copies({name: (len(side.rows), nets[name].pack_shared()) for name, side in sides.items()})
            for net in nets.values():
                net.load_shared(mixed)
        yield sides, nets
