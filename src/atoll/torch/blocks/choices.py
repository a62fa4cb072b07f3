"""How a cohort runs: one client at a time or a block at once, in what machine code, in which shapes.

A decision is a plain dict, so that a run can record it and repeat it when it resumes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from atoll.core.errors import ConfigError

__all__ = ["Choices", "Shapes"]

_MODES = ("vector", "single", "each")
_CODE = ("ahead", "compiled", "layers", "steps")


@dataclass(frozen=True)
class Shapes:
    """The shapes of the programs that a cohort runs in.

    Attributes:
        widths: mini-batch sizes that programs are made for, others run without; ``None`` for all.
        stretch: how many times its own size a client's mini-batch may be padded to, to fit a program.
        uneven: whether clients differ in their numbers of examples or steps.
        trimmed: whether rows that only pad a client's last mini-batch are left out; that step then runs without a program.
        unroll: local steps in one call of a program; more than one only if it is compiled.
        channels_last: whether images and filters keep the channel innermost, as PyTorch's convolutions like it: a step of a ResNet on 16 images took 24 ms
            for 30. Native layers want it outermost.
    """

    widths: tuple[int, ...] | None = None
    stretch: int = 2
    uneven: bool = False
    trimmed: bool = False
    unroll: int = 1
    channels_last: bool = False


@dataclass(frozen=True)
class Choices:
    """How a cohort runs.

    Attributes:
        mode: "vector" (a block of clients in one program), "single" (one client after another through one
            program), "each" (the plain loop, for models that cannot be traced).
        block: clients in a block; 1 unless vector.
        code: what runs as machine code where it can be. On a CPU ``"steps"``: whole local updates in native code; where these cannot be, ``"ahead"``:
            what follows from a step's rows and keys alone, such as views of them; and ``"layers"``: convolutions, group normalisation and
            maximum pooling. On a GPU ``"compiled"``: programs by PyTorch's code generator.
        shapes: of the programs.
        threads: threads that share a cohort in native code; results do not depend on it.
        reason: why, for the record.
    """

    mode: str
    block: int = 1
    code: tuple[str, ...] = ()
    shapes: Shapes = field(default_factory=Shapes)
    threads: int = 1
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """Return a plain dict."""
        widths = self.shapes.widths
        shapes = {**asdict(self.shapes), "widths": None if widths is None else list(widths)}
        return {**asdict(self), "code": list(self.code), "shapes": shapes}

    @classmethod
    def of(cls, record: dict[str, Any], device: str = "cpu") -> Choices:
        """Make choices from a plain dict, of today or of an earlier version, which had all fields side by side.

        Args:
            record: the dict.
            device: the kind of device that the clients train on. What PyTorch's code generator compiled for a CPU runs in native code now.

        Raises:
            ConfigError: an unknown mode or field.
        """
        given = dict(record)
        code = set(given.pop("code", ()))
        flat = {name: given.pop(name, False) for name in ("compiled", "native", "ahead", "layers")}
        flat["steps"] = flat.pop("native") or flat["compiled"]
        flat["compiled"] = flat["compiled"] and device != "cpu"
        code |= {name for name, wanted in flat.items() if wanted}
        shapes = {**given.pop("shapes", {}), **{f.name: given.pop(f.name) for f in fields(Shapes) if f.name in given}}
        known = set(given) <= {"mode", "block", "threads", "reason"} and set(shapes) <= {f.name for f in fields(Shapes)}
        if not known or not code <= set(_CODE) or given.get("mode") not in _MODES or int(given.get("block", 1)) < 1:
            raise ConfigError(
                f"choices {record} are not of this version",
                where="local training",
                remedy="leave them out, and they are made again",
            )
        widths = shapes.get("widths")
        shapes["widths"] = None if widths is None else tuple(int(w) for w in widths)
        return cls(**given, code=tuple(sorted(code)), shapes=Shapes(**shapes))
