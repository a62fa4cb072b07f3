"""Variables that stay at the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Guarding, Stage

__all__ = ["ExcludeVariables"]


@dataclass(frozen=True)
class ExcludeVariables(Stage, Guarding):
    """Send zeros in place of the variables whose paths match a pattern, so that the server keeps its own: ``ExcludeVariables(["head/*"])``.

    NVIDIA FLARE's ExcludeVars drops them from the message; here zeros travel, so that sums keep one form. It promises no privacy for the other variables,
    whose values may depend on those that are left out.

    Attributes:
        patterns: paths with ``*`` and ``?``; each must match a variable, or the client refuses to reply.
    """

    patterns: Sequence[str] = ()
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str) or not self.patterns:
            raise ConfigError(f"patterns={self.patterns!r}", where="ExcludeVariables", remedy='give a list: ["head/*"]')
        object.__setattr__(self, "patterns", tuple(self.patterns))

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Put zeros in place of the excluded variables."""
        del context
        paths = [path for path, _ in T.items(value)]
        for pattern in self.patterns:
            if not any(fnmatchcase(path, pattern) for path in paths):
                raise ConfigError(
                    f"no variable matches {pattern!r}",
                    where="ExcludeVariables",
                    remedy=f"the variables are {', '.join(paths[:20])}",
                )
        out = iter([any(fnmatchcase(path, pattern) for pattern in self.patterns) for path in paths])
        zeros = T.zeros_like(value)
        return T.map(lambda leaf, zero: zero if next(out) else leaf, value, zeros)

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """The same for a block: paths do not depend on the client."""
        return self.encode(block, context)

    def covers(self, other: Stage) -> bool:
        """Whether this stage excludes all that the other does."""
        return isinstance(other, ExcludeVariables) and set(other.patterns) <= set(self.patterns)

    def sensitivity(self, before: float | None) -> float | None:
        """Return that before it: fewer entries are not further apart."""
        return before
