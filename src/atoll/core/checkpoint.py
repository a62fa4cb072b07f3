"""Checkpoints: one atomic generation at a time.

A generation is a manifest file, ``generation-00000012.msg``, that holds every scope's state, clock, meters, requests in flight and counters, and
names the segments of private state that belong to it. Segments are written first, the manifest last, by a rename: before the rename
the old generation counts, after it the new one. Two generations are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .files import read_message, write_message

__all__ = ["CheckpointStore"]

FORMAT = 1


class CheckpointStore:
    """Generations in a folder, or in memory.

    Args:
        folder: where they go; ``None`` keeps the newest in memory, which serves tests and notebooks.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.generation = 0
        self.slots: dict[str, dict[str, Any]] = {}
        self.segments: dict[str, list[str]] = {}
        self.choices: dict[str, Any] = {}
        self._old: set[str] = set()

    def open(self, *, resume: bool) -> None:
        """Read the newest generation, or make sure that there is none to overwrite.

        Raises:
            CheckpointError: the folder holds a run and ``resume`` is false, or the newest generation is damaged and no older one is whole.
        """
        if self.folder is None:
            return
        found = sorted(self.folder.glob("generation-*.msg"), reverse=True)
        if resume and (self.folder / "choices.msg").exists():
            self.choices = read_message(self.folder / "choices.msg")
        if found and not resume:
            raise CheckpointError(
                f"the folder already holds {len(found)} generation(s) of a run",
                where=str(self.folder),
                remedy="resume it (--resume), or choose another folder",
            )
        first: CheckpointError | None = None
        for path in found:
            try:
                self._load(read_message(path), path)
            except CheckpointError as error:
                first = first or error
            else:
                self._clean()
                return
        if first is not None:
            raise first

    def _load(self, manifest: Any, path: Path) -> None:
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise CheckpointError(
                "the checkpoint has another format",
                where=str(path),
                remedy="resume with the version of Atoll that wrote it",
            )
        self.generation = manifest["generation"]
        self.slots = manifest["slots"]
        self.segments = {slot: list(names) for slot, names in manifest["segments"].items()}
        self.choices = {**manifest["choices"], **self.choices}
        missing = [n for names in self.segments.values() for n in names if not (path.parent / n).exists()]
        if missing:
            raise CheckpointError(
                f"the generation names missing segment {missing[0]!r}", where=str(path), remedy="restore the folder"
            )

    def _clean(self) -> None:
        """Remove what no kept generation names: the remains of a crash."""
        if self.folder is None:
            return
        manifests = sorted(self.folder.glob("generation-*.msg"))
        newest = [p for p in manifests if int(p.stem.split("-")[1]) <= self.generation][-2:]
        for path in manifests:
            if path not in newest:
                path.unlink()
        named = {n for names in self.segments.values() for n in names}
        for path in newest[:-1]:
            named |= {n for names in read_message(path)["segments"].values() for n in names}
        for path in [*self.folder.glob("state-*.msg"), *self.folder.glob("records-*.msg")]:
            if path.name not in named:
                path.unlink()

    def write(self, slot: str, content: dict[str, Any], segments: list[str], choices: dict[str, Any]) -> None:
        """Make the next generation: one slot changes, the others stay as they were.

        Args:
            slot: the scope.
            content: its state and all that belongs to it.
            segments: every segment that belongs to the slot now, oldest first.
            choices: what the engine decided.

        Raises:
            CheckpointError: it cannot be written; the previous generation is untouched.
        """
        before = set(self._named())
        slots = {**self.slots, slot: content}
        named = {**self.segments, slot: segments}
        manifest = {
            "format": FORMAT,
            "generation": self.generation + 1,
            "slots": slots,
            "segments": named,
            "choices": choices,
        }
        if self.folder is not None:
            write_message(self.folder / f"generation-{self.generation + 1:08d}.msg", manifest)
            old = self.folder / f"generation-{self.generation - 1:08d}.msg"
            old.unlink(missing_ok=True)
        self.generation += 1
        self.slots, self.segments, self.choices = slots, named, dict(choices)
        # What the generation before last named and neither kept one names is garbage.
        for name in self._old - before - set(self._named()):
            if self.folder is not None:
                (self.folder / name).unlink(missing_ok=True)
        self._old = before

    def _named(self) -> list[str]:
        return [name for names in self.segments.values() for name in names]

    def remember(self, choices: dict[str, Any]) -> None:
        """Write down what the engine decided, before any result depends on it."""
        self.choices = dict(choices)
        if self.folder is not None:
            write_message(self.folder / "choices.msg", self.choices)

    def drop(self, slot: str) -> None:
        """Forget a slot that ended; takes effect with the next generation."""
        self.slots = {k: v for k, v in self.slots.items() if k != slot and not k.startswith(slot + "/")}
        self.segments = {k: v for k, v in self.segments.items() if k != slot and not k.startswith(slot + "/")}
