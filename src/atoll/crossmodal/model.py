"""`SideModel`: what a party keeps of a job, which predicts from its own modality alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CheckpointError, DataError
from atoll.core.persistence.files import read_message, write_message
from atoll.core.persistence.named_results import NamedResults

from .parties import SideTraining
from .utterances import Utterances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .job import Crossmodal

__all__ = ["SideModel"]

_KEPT = (
    "classes",
    "vocabulary",
    "width",
    "seed",
    "split",
    "table",
    "own",
    "shared",
    "modality",
    "phone_names",
    "identity",
    "inputs",
)


class SideModel:
    """A trained party: its own network, its copy of the shared one, and what joins their decisions.

    A text side needs texts alone, a speech side sound alone: phones are made of the same input.

    Args:
        job: the settings that it was trained with, which say how its networks are built.
        kept: what the party left under the job's label.

    Raises:
        CheckpointError: ``kept`` is of other settings, or of something else.

    Attributes:
        modality: ``"speech"``, ``"text"`` or ``"vector"``.
        classes: the classes, in the order of columns of `predict_proba`.
    """

    def __init__(self, job: Crossmodal, kept: Mapping[str, Any]) -> None:
        self._kept = {name: kept[name] for name in _KEPT if name in kept}
        try:
            self.modality, self.classes = str(kept["modality"]), tuple(map(str, kept["classes"]))
            self._phones = tuple(map(str, kept["phone_names"]))
            self._training = self._code(job, self._empty())
            self._nets = self._training.networks(np.asarray(kept["table"], dtype=np.float32))
            self._nets.load_own(kept["own"])
            self._nets.load_shared(kept["shared"])
            known, present = str(kept["identity"]), self._training.own.identity
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"this is no side of such a job: {str(error).splitlines()[0]}",
                where="SideModel",
                remedy="give what the job has left at the party, and the settings of that job",
            ) from error
        if known != present:
            raise CheckpointError("this side was trained on another pretrained network", where="SideModel", remedy="put the encoder's folder of the training in its place, or train again")  # fmt: skip
        self._job = job

    @classmethod
    def of(cls, job: Crossmodal, party: str, results: str | Path) -> SideModel:
        """Read what a job has left at a party.

        Args:
            job: the job.
            party: its name.
            results: the folder of named results, of ``simulate(job, parties, results=folder)`` or of a site.

        Raises:
            ConfigError: the party has nothing of this job.
        """
        return cls(job, NamedResults(Path(results)).get(party, job.label))

    def save(self, path: str | Path) -> None:
        """Write the networks into a file, for `load`."""
        write_message(Path(path), self._kept)

    @classmethod
    def load(cls, path: str | Path, job: Crossmodal) -> SideModel:
        """Read a file of `save`.

        Raises:
            CheckpointError: it is none, or of other settings.
        """
        told = read_message(Path(path))
        return cls(job, told if isinstance(told, Mapping) else {})

    def predict_proba(self, rows: Utterances, *, alone: bool = False) -> NDArray[np.float64]:
        """Return the probability of each class, ``(rows, classes)``.

        Args:
            rows: utterances of the party's own modality; their labels do not matter.
            alone: whether to ask the own network without phones.

        Raises:
            DataError: they have another modality, another set of phones, or frames of another width.
        """
        if rows.modality != self.modality or rows.phone_names != self._phones:
            what = "other phones" if rows.modality == self.modality else f"{rows.modality} at a side that knows {self.modality}"  # fmt: skip
            raise DataError(what, where="SideModel", remedy="read rows as those of the training were read")
        width = int(self._kept["inputs"])
        if not len(rows):
            return np.zeros((0, len(self.classes)))
        if rows.width != width:
            raise DataError(f"frames of {rows.width} numbers instead of {width}", where="SideModel", remedy="use the descriptors of the training")  # fmt: skip
        blank = Utterances(rows.modality, rows.inputs, rows.phones, [self.classes[0]] * len(rows), phone_names=rows.phone_names)  # fmt: skip
        logits = self._nets.logits(self._training.code(blank), alone=alone).astype(np.float64)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        found: NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
        return found

    def predict(self, rows: Utterances, *, alone: bool = False) -> list[str]:
        """Return the most probable class of each utterance; the arguments are those of `predict_proba`."""
        return [self.classes[place] for place in self.predict_proba(rows, alone=alone).argmax(axis=1)]

    def _empty(self) -> Utterances:
        """One row of no meaning, from which networks take their shapes."""
        blank: Any = ("",) if self.modality == "text" else np.zeros((1, int(self._kept["inputs"])), dtype=np.float32)
        return Utterances(self.modality, [blank], [[0]], [self.classes[0]], phone_names=self._phones)  # type: ignore[arg-type]

    def _code(self, job: Crossmodal, rows: Utterances) -> SideTraining:
        return SideTraining(job, rows, rows, rows, self.classes, self._kept["vocabulary"], int(self._kept["width"]), int(self._kept["seed"]), int(Rng(0).key))  # fmt: skip
