"""What a party does: it says what it has, sends or takes the acoustic table, and in each round trains, posts its copy of the shared network, and takes the mean of all copies."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError, LetterError, PolicyError
from atoll.core.extras import need
from atoll.core.requests.stage import StageContext
from atoll.core.requests.task import Task
from atoll.learn.local.examples import ExampleSteps, SecretStream, StepSecrets
from atoll.secure.keystream import NoiseStream
from atoll.stages import Nearest

from .table import TableShare, join_table
from .utterances import Utterances, score_f1

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .layers import CodedRows
    from .networks import OwnNetwork
    from .settings import CrossmodalSettings
    from .training import SideNetworks

__all__ = ["CopyCoder", "SideSteps", "SideTraining", "average_copies", "own_utterances", "read_copy"]

_RESTART = "begin the job anew: this party was not there when it was opened, or its own network has changed"
_REPEATED = "look at the server: it repeats a step"
_MOST_ROWS = 2**31
"""Rows that a peer may claim to have: its copy counts by them."""
_LARGEST = 1e6
"""The largest weight of a copy: networks that learn have none near it, and one of 1e38 would leave every party with numbers that are none."""


def own_utterances(data: Any) -> Utterances:
    """Return a party's data as utterances.

    Raises:
        DataError: they are something else.
    """
    if isinstance(data, Utterances):
        return data
    raise DataError(f"a {type(data).__name__} is no Utterances", where="crossmodal", remedy="give atoll.crossmodal.read_speech(folder) or read_texts(file); a site names one of them as its factory")  # fmt: skip


# ------------------------------------------------------------------ letters


class CopyCoder:
    """How the copies of a shared network travel: as they are, or each array rounded to the nearest multiple of its own step (`atoll.stages.Nearest`). What is rounded depends on what is sent alone, so no promise changes.

    Args:
        shapes: array -> its shape.
        bits: bits of a number; 32 rounds nothing.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], bits: int) -> None:
        self.shapes = dict(shapes)
        self._stage = None if bits == 32 else Nearest(levels=2 ** (bits - 1) - 1)
        self._form = self._pack({name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()})

    def _pack(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(values) if self._stage is None else dict(self._stage.encode(dict(values), StageContext.of(Rng(0))))

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a letter holds of a copy."""
        return {name: part for name, part in self._pack(values).items() if name != "like"}

    def decode(self, told: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arrays in a letter of rounded ones, in place of their form, which all parties know; ``None`` if it has another."""
        if self._stage is None:
            return dict(told)
        form = {name: part for name, part in self._form.items() if name != "like"}
        if set(told) != set(form) or any(np.shape(told[name]) != part.shape or np.asarray(told[name]).dtype != part.dtype for name, part in form.items()):  # fmt: skip
            return None
        return dict(self._stage.decode({**told, "like": self._form["like"]}, None, 1))


def read_copy(told: Any, coder: CopyCoder, sender: str, *, alike: bool = False) -> tuple[int, dict[str, NDArray[np.float32]]]:  # fmt: skip
    """Return the rows and the copy of the shared network in a letter.

    Args:
        told: the letter.
        coder: how copies travel.
        sender: who wrote it.
        alike: whether all copies count alike, so that each has 1 row.

    Raises:
        DataError: the letter has anything else in it, another form, more rows than may count, or numbers that are not finite or too large for weights.
    """
    fields, shapes = dict(told) if isinstance(told, Mapping) else {}, coder.shapes
    rows, values = fields.pop("rows", None), fields.pop("values", None)
    if isinstance(values, Mapping) and all(isinstance(value, np.ndarray) for value in values.values()):
        values = coder.decode(values)
    problem = ""
    if fields or not isinstance(values, Mapping):
        problem = f"also holds {sorted(map(str, fields))[0]!r}" if fields else "holds no copy"
    elif not isinstance(rows, int | np.integer) or isinstance(rows, bool) or not 0 < rows < (2 if alike else _MOST_ROWS):  # fmt: skip
        problem = f"claims {rows!r} rows" + (", where all copies count alike" if alike else "")
    elif set(values) != set(shapes):
        strange = sorted(set(map(str, values)) ^ set(shapes))[0]
        problem = f"has {strange!r} too much" if strange in values else f"lacks {strange!r}"
    else:
        wrong = next((name for name, shape in shapes.items() if not _fits(values[name], shape)), None)
        problem = (
            f"has another shape of {wrong!r}, or numbers that are not finite or above {_LARGEST:g}" if wrong else ""
        )
    if problem:
        raise DataError(f"the copy of {sender!r} {problem}", where="crossmodal", remedy="let all parties run the same job; only the shared network travels")  # fmt: skip
    return int(rows), {name: np.asarray(values[name], dtype=np.float32) for name in shapes}


def _fits(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array of weights."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != shape:
        return False
    return bool((np.abs(value.astype(np.float64)) <= _LARGEST).all())


def _letter_of(island: Any, sender: str) -> Any:
    """The letter of a party that is said to have posted one.

    Raises:
        LetterError: there is none.
    """
    letters = island.inbox
    if sender not in letters:
        raise LetterError(f"no letter of {sender} has arrived", where="crossmodal", remedy=f"look at {sender}, or at the server that carries letters")  # fmt: skip
    return letters[sender]


def average_copies(copies: Mapping[str, tuple[int, Mapping[str, Any]]]) -> dict[str, NDArray[np.float32]]:
    """Return ``sum_k N_k theta_k / sum_k N_k`` (equation 42), the same bits at all parties: added up in order of name, in float64.

    Args:
        copies: party -> its rows, and its copy by name of the array.
    """
    order = sorted(copies)
    total = sum(copies[name][0] for name in order)
    first = copies[order[0]][1]
    found = {}
    for leaf in first:
        mixed = np.zeros(np.shape(first[leaf]))
        for name in order:
            rows, values = copies[name]
            mixed += rows / total * np.asarray(values[leaf], dtype=np.float64)
        found[leaf] = mixed.astype(np.float32)
    return found


# ------------------------------------------------------------------ one party's training, here or in a comparison


def split_rows(job: CrossmodalSettings, rows: Utterances, seed: int) -> tuple[Utterances, Utterances, Utterances]:
    """Rows to train on, those that choose the round, and those held out: the job's shares of each class."""
    rng = Rng(seed)
    rest, held_out = rows.split(job.test, rng.child("test"))
    training, valid = rest.split(job.valid, rng.child("valid"))
    if not len(training):
        raise DataError(f"no rows of {len(rows)} are left to train on", where="crossmodal", remedy="hold fewer out: a smaller test= or valid=")  # fmt: skip
    return training, valid, held_out


def _own_network(job: CrossmodalSettings, rows: Utterances) -> OwnNetwork:
    """What the side of these rows reads them with."""
    networks: dict[str, OwnNetwork] = {"speech": job.speech, "text": job.text, "vector": job.vector}
    return networks[rows.modality]


def count_noisily(rows: int, noise: float, stream: NoiseStream) -> int:
    """Return a number of rows with Gaussian noise, of which one row more or less moves one deviation over ``noise``; at least 1."""
    return max(1, round(rows + float(stream.normal(1, None, noise)[0])))


def vocabulary_of(rows: Utterances, own: OwnNetwork | None = None) -> list[str]:
    """The words that at least two rows of text have, in order. All others are one word, which training so learns to do without; if it met none, those of later texts would mean whatever weights began with."""
    if rows.modality != "text" or (own is not None and not own.reads_words):
        return []
    counts = Counter(word for text in rows.inputs for word in set(text))
    return sorted(word for word, count in counts.items() if count > 1)


@dataclass
class SideTraining:
    """One party's rows, coded, and its networks.

    Args:
        job: the settings.
        rows: rows to train on.
        valid: rows on which the round is chosen; may be none.
        held_out: rows to measure on.
        classes: the classes of all parties.
        words: the vocabulary of a side of text.
        width: numbers of a vector of the table.
        seed: of the shared network, at all parties.
        own_seed: of the own one.
    """

    job: CrossmodalSettings
    rows: Utterances
    valid: Utterances
    held_out: Utterances
    classes: tuple[str, ...]
    words: Sequence[str]
    width: int
    seed: int
    own_seed: int

    def __post_init__(self) -> None:
        self.vocabulary = {str(word): place + 2 for place, word in enumerate(self.words)}
        self.own = _own_network(self.job, self.rows)

    # Rows are coded when they are asked for: a request reads some of them alone, and a pretrained network takes its time.

    @cached_property
    def train_rows(self) -> CodedRows:
        """The rows to train on, as the own network reads them; so the others."""
        return self.code(self.rows)

    @cached_property
    def valid_rows(self) -> CodedRows:
        """The rows on which the round is chosen."""
        return self.code(self.valid)

    @cached_property
    def test_rows(self) -> CodedRows:
        """The rows to measure on."""
        return self.code(self.held_out)

    def code(self, rows: Utterances) -> CodedRows:
        """Rows of this side as its own network reads them."""
        coded: CodedRows = need("atoll.crossmodal.layers", "torch", "Crossmodal").CodedRows.of(rows, self.classes, self.vocabulary, self.own)  # fmt: skip
        return coded

    def networks(self, table: NDArray[np.float32]) -> SideNetworks:
        """The networks with their first weights."""
        module = need("atoll.crossmodal.training", "torch", "Crossmodal")
        words = self.rows.modality == "text" and self.own.reads_words
        inputs = len(self.vocabulary) + 2 if words else int(self.train_rows.inputs.shape[-1])
        made: SideNetworks = module.SideNetworks(
            self.job, self.own, inputs, words=words, classes=len(self.classes), phones=len(self.rows.phone_names), table=table, seeds=(self.seed, self.own_seed)
        )  # fmt: skip
        return made

    def batches(self, count: int, rng: Rng) -> list[NDArray[Any]]:
        """Mini-batches for so many steps: each row once, then each again."""
        draw, size, n = rng.generator(), min(self.job.batch, len(self.rows)), len(self.rows)
        order = np.concatenate([draw.permutation(n) for _ in range(-(-count * size // n) + 1)])
        return [order[i * size : (i + 1) * size] for i in range(count)]

    def measure(self, nets: SideNetworks, *, alone: bool = False, valid: bool = False) -> dict[str, float]:
        """F1 and accuracy on the rows held out, or on those that choose the round; of the fused decision or of the own network alone."""
        rows = self.valid_rows if valid else self.test_rows
        return score_decisions(nets.logits(rows, alone=alone), rows.labels.numpy(), len(self.classes))


def score_decisions(logits: NDArray[Any], true: NDArray[Any], classes: int) -> dict[str, float]:
    """F1 and accuracy of decisions; NaN without rows."""
    if not len(true):
        return {"f1": math.nan, "accuracy": math.nan}
    said = logits.argmax(axis=1)
    return {"f1": score_f1(said, true, classes), "accuracy": float((said == true).mean())}


# ------------------------------------------------------------------ the tasks


class SideSteps:
    """The tasks of one job. Both ends make them of its settings; no code travels.

    Args:
        job: the settings.
        parties: the names of all parties.
    """

    def __init__(self, job: CrossmodalSettings, parties: Sequence[str]) -> None:
        self.job, self.parties = job, tuple(parties)
        self.describe = Task("atoll.crossmodal.parties:describe", self._describe)
        self.open = Task("atoll.crossmodal.parties:open", self._open)
        self.begin = Task("atoll.crossmodal.parties:begin", self._begin)
        self.train = Task("atoll.crossmodal.parties:train", self._train)
        self.mix = Task("atoll.crossmodal.parties:mix", self._mix)
        self.close = Task("atoll.crossmodal.parties:close", self._close)
        self.tasks = (self.describe, self.open, self.begin, self.train, self.mix, self.close)

    def _describe(self, island: Any, message: Any) -> dict[str, Any]:
        """The modality, the width of frames, the phones, whether there are no rows, and the classes where they are not agreed."""
        rows = own_utterances(island.data)
        if len(rows) == 1:
            raise DataError("1 utterances", where=f"crossmodal at {island.name}", remedy="give a party at least two, or none: then it stays out")  # fmt: skip
        told: dict[str, Any] = {"modality": rows.modality, "width": rows.width, "phones": list(rows.phone_names), "empty": not len(rows)}  # fmt: skip
        return {**told, "classes": sorted(rows.counts)} if message["classes"] else told

    def _training(self, island: Any) -> SideTraining:
        state, rows = island.state, own_utterances(island.data)
        if _own_network(self.job, rows).identity != state["identity"]:
            raise PolicyError(f"the pretrained network of {island.name} is another than when the job was opened", where="crossmodal", remedy=_RESTART)  # fmt: skip
        parts = split_rows(self.job, rows, int(state["split"]))  # the same at each request
        return SideTraining(self.job, *parts, tuple(map(str, state["classes"])), state["vocabulary"], int(state["width"]), int(state["seed"]), int(state["split"]))  # fmt: skip

    def _open(self, island: Any, message: Any) -> None:
        """Hold rows out; a speech side posts its share of the table."""
        classes = [str(name) for name in message["classes"]]
        rows = own_utterances(island.data)
        strange = sorted(set(rows.labels) - set(classes))
        if strange:
            raise DataError(f"a label that is none of the {len(classes)} classes", where=f"crossmodal at {island.name}", remedy="name all classes in classes=, or leave it out")  # fmt: skip
        if island.state is not None:  # another table, and another number of rows with noise, would cost epsilon again
            raise PolicyError(f"{island.name} has opened this job before", where="crossmodal", remedy=_REPEATED)
        split, own = int(island.rng.key), _own_network(self.job, rows)
        training, _, _ = split_rows(self.job, rows, split)
        size, event = len(training), self.job.size_event
        if event is not None:
            size = count_noisily(size, event.noise_multiplier, NoiseStream(island.secret.bytes(32)))
            island.spend(event)
        start = {"size": size, "classes": classes, "width": int(message["width"]), "seed": int(message["seed"]), "split": split, "vocabulary": vocabulary_of(training, own), "trained": 0, "copies": 0, "identity": own.identity}  # fmt: skip
        island.state = start
        if rows.modality != "speech":
            return
        plan = self.job.table_plan
        share = plan.build(training, NoiseStream(island.secret.bytes(32)) if plan.noise else None)
        island.spend(plan.event)
        self._post(island, 0, message, share.message())
        # What is noisy is read back as it was sent, so that all parties have one table.
        island.state = {**start, "share": share.message()}

    def _post(self, island: Any, number: int, message: Any, letter: Any) -> None:
        """Post a letter to each peer that has rows, bound to this round."""
        island.bind_letters(self._context(island.state, number))
        there = set(map(str, message["parties"]))
        for name in self.parties:
            if name in there and name != island.name:
                island.post(name, letter)

    def _begin(self, island: Any, message: Any) -> int:
        """Take the table, and make the networks, of which a speech side trains its own first; return the numbers of the shared one."""
        state = self._own_state(island)
        if "shared" in state:
            raise PolicyError(f"{island.name} has begun this job before", where="crossmodal", remedy=_REPEATED)
        training, plan = self._training(island), self.job.table_plan
        island.bind_letters(self._context(state, 0), self.open.name)
        phones, width = len(training.rows.phone_names), training.width
        speaking = sorted(str(name) for name in message["senders"])
        told = {name: TableShare.read(_letter_of(island, name), phones, width, name, plan) for name in speaking if name != island.name}  # fmt: skip
        if island.name in speaking:
            told[island.name] = TableShare.read(state["share"], phones, width, island.name, plan)
        table = join_table([told[name] for name in sorted(told)], phones, width)
        nets = training.networks(table)
        nets.fit_scales(training.train_rows)
        if self.job.pretrain and training.rows.modality == "speech":
            nets.train_own(training.train_rows, training.batches(self.job.pretrain, island.rng.child("first")), int(island.rng.child("steps").key) % 2**31)  # fmt: skip
        kept, shared = {name: value for name, value in state.items() if name != "share"}, nets.pack_shared()
        island.state = {
            **kept,
            "table": table,
            "speaking": speaking,
            "own": nets.pack_own(),
            "shared": shared,
            "best": {},
        }
        return sum(value.size for value in shared.values())

    # ------------------------------------------------------------------ a round

    def _own_state(self, island: Any) -> Any:
        state = island.state
        if not isinstance(state, Mapping) or "classes" not in state:
            raise PolicyError(f"{island.name} has not opened this job", where="crossmodal", remedy=_RESTART)
        return state

    def _loaded(self, island: Any) -> tuple[SideTraining, SideNetworks]:
        """The party's training as its state has it."""
        state, training = self._own_state(island), self._training(island)
        if "shared" not in state:
            raise PolicyError(f"{island.name} has no table yet", where="crossmodal", remedy=_RESTART)
        nets = training.networks(np.asarray(state["table"]))
        nets.load_own(state["own"])
        nets.load_shared(state["shared"])
        return training, nets

    def _context(self, state: Any, number: int) -> bytes:
        """What letters are bound to: they open in no other round and no other job, and at no party that was told other classes, widths, first weights or senders of the table."""
        agreed = [list(state["classes"]), int(state["width"]), int(state["seed"]), list(state.get("speaking", []))]
        return hashlib.sha256(M.encode(["atoll crossmodal", number, list(self.parties), agreed])).digest()

    def _train(self, island: Any, message: Any) -> None:
        """Make the steps of a round, and post the copy of the shared network."""
        state, number = self._own_state(island), int(message["round"])
        # One that it missed is past; a second copy of one round would cost epsilon again.
        if number <= state["trained"]:
            raise PolicyError(f"round {number} after round {state['trained']}", where="crossmodal", remedy=_REPEATED)
        training, nets = self._loaded(island)
        job, count, size, noise = self.job, self.job.iterations, int(state["size"]), None
        if job.epsilon is not None:
            noise = StepSecrets(self._steps(size), len(training.rows), count, SecretStream(island.secret))
        batches = training.batches(count, island.rng.child("rows")) if noise is None else noise.rows
        island.spend(job.step_event(size))
        nets.train(training.train_rows, batches, noise, int(island.rng.child("steps").key) % 2**31)
        shared = nets.pack_shared()
        if any(not (np.abs(value) <= _LARGEST).all() for value in shared.values()):
            raise DataError(f"the shared network's weights are not finite, or above {_LARGEST:g}", where=f"crossmodal at {island.name}", remedy="use a smaller lr= or shared_lr=")  # fmt: skip
        coder = self._coder(shared)
        sent = coder.encode(shared)
        # The party's own copy counts as its peers read it, so that all have the same mean.
        kept = {"own": nets.pack_own(), "shared": coder.decode(sent), "trained": number, "copies": state["copies"] + 1}
        island.state = {**state, **kept}
        self._post(island, number, message, {"rows": self._weight(training, size), "values": sent})

    def _coder(self, shared: Mapping[str, Any]) -> CopyCoder:
        return CopyCoder({name: np.shape(value) for name, value in shared.items()}, self.job.bits)

    def _weight(self, training: SideTraining, size: int) -> int:
        """How much the copy counts."""
        return {"rows": len(training.rows), "noisy": size, "equal": 1}[self.job.weighing]

    def _steps(self, size: int) -> ExampleSteps:
        """How mini-batches and noise are drawn by a party that plans by so many rows."""
        job = self.job
        moved = job.clip / job.batch
        return ExampleSteps(job.batch, job.rate_of(size), deviation=job.noise_multiplier(size) * moved, sensitivity=moved)  # fmt: skip

    def _mix(self, island: Any, message: Any) -> dict[str, Any]:
        """Take the mean of the announced copies, and measure it here."""
        state, number = self._own_state(island), int(message["round"])
        if number != state["trained"]:
            raise PolicyError(f"copies of round {number} after training in round {state['trained']}", where="crossmodal", remedy="look at the server: it repeats a round, or asks a party that was away")  # fmt: skip
        island.bind_letters(self._context(state, number), self.train.name)
        training, nets = self._loaded(island)
        coder = self._coder(state["shared"])
        senders = [str(name) for name in message["senders"]]
        alike = self.job.weighing == "equal"
        copies: dict[str, tuple[int, Mapping[str, Any]]] = {name: read_copy(_letter_of(island, name), coder, name, alike=alike) for name in senders if name != island.name}  # fmt: skip
        if island.name in senders:
            copies[island.name] = (self._weight(training, int(state["size"])), state["shared"])
        mixed = average_copies(copies)
        nets.load_shared(mixed)
        found = training.measure(nets, valid=True)
        best = state["best"]
        if not best or not found["f1"] <= best["f1"]:  # without rows to choose by, the last round counts
            best = {"f1": found["f1"], "round": number, "own": state["own"], "shared": mixed}
        island.state = {**state, "shared": mixed, "best": best}
        return found

    def _close(self, island: Any, message: Any) -> dict[str, Any]:
        """Measure, say what was spent, and leave the networks here under a name."""
        training, nets = self._loaded(island)
        state = island.state
        best = state["best"] or {"round": 0, "own": state["own"], "shared": state["shared"]}
        nets.load_own(best["own"])
        nets.load_shared(best["shared"])
        if message["label"]:
            kept = {**{name: state[name] for name in ("classes", "vocabulary", "width", "seed", "split", "table", "identity")}, "inputs": training.rows.width, "own": best["own"], "shared": best["shared"]}  # fmt: skip
            island.leave(str(message["label"]), {**kept, "modality": training.rows.modality, "phone_names": list(training.rows.phone_names)})  # fmt: skip
        rows = own_utterances(island.data)
        spent = self.job.spent(int(state["size"]), training.rows.modality, int(state["copies"]))
        told = {"unknown": rows.unknown, "words": rows.words} if self.job.weighing == "rows" else {}
        return {**training.measure(nets), "alone": training.measure(nets, alone=True)["f1"], "modality": training.rows.modality, "epsilon": spent, "best_round": int(best["round"]), **told}  # fmt: skip
