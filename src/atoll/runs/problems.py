"""Problems of a configuration, in messages that name the place, the value and the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from atoll.core.errors import ConfigError

__all__ = ["Problem", "closest", "collect", "refused"]

Loc = tuple[Any, ...]


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        loc: path of keys and indices.
        text: what is wrong there.
        remedy: what to do.
    """

    loc: Loc
    text: str
    remedy: str

    def below(self, loc: Loc) -> Problem:
        """The same problem, with a path from further up."""
        return replace(self, loc=(*loc, *self.loc))

    def named(self, part: str) -> Problem:
        """The same problem, with the name of the part that the setting belongs to."""
        return replace(self, remedy=self.remedy.replace("{owner}", part))

    @property
    def path(self) -> str:
        """``algorithm.lr`` or ``uplink[0].bound``."""
        text = ""
        for step in self.loc:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
        return text


def closest(wrong: str, valid: Sequence[str]) -> str | None:
    """The valid word that was probably meant, by spelling or by the initials of its words (learning_rate: lr)."""
    initials = "".join(word[0] for word in wrong.split("_") if word)
    if len(initials) > 1 and initials in valid:
        return initials
    found = difflib.get_close_matches(wrong.lower(), list(valid), n=1, cutoff=0.5)
    return found[0] if found else None


def collect(error: ValidationError, given: Any, names: Callable[[Loc], list[str]]) -> list[Problem]:
    """Translate pydantic's errors.

    Args:
        error: pydantic's error.
        given: the value that was checked.
        names: valid keys at a path.
    """
    problems: dict[Loc, Problem] = {}
    rows = error.errors(include_url=False)
    parts = {_real(row["loc"], given) for row in rows if "problems" in row.get("ctx", {})}
    for row in rows:
        loc = _real(row["loc"], given, row["type"] == "missing")
        inner = row.get("ctx", {}).get("problems")
        if inner is None and loc in parts and isinstance(row["input"], dict):
            continue  # a number would also be valid, but a part was meant
        if inner is not None:
            problems.update({p.loc: p for p in (q.below(loc) for q in inner)})
        elif row["type"] == "extra_forbidden":
            problems[loc] = _unknown(loc, row["input"], names(loc[:-1]))
        elif row["type"] == "missing":
            problems[loc] = Problem(loc, "is missing", f"add {loc[-1]}: ... to {{owner}}")
        else:
            text = row["msg"].removeprefix("Input ").removeprefix("Value error, ")
            before = problems.get(loc)
            said = (
                f"={row['input']!r} {text}"
                if before is None
                else f"{before.text}, or {text.removeprefix('should be ')}"
            )
            problems[loc] = Problem(loc, said, "correct the value")
    return list(problems.values())


def _real(loc: Loc, given: Any, missing: bool = False) -> Loc:
    """A path without the tags of alternatives that pydantic adds; for a missing key, with that key."""
    path: list[Any] = []
    for number, step in enumerate(loc, 1):
        if isinstance(given, dict):
            if step in given:
                path.append(step)
                given = given[step]
            elif missing and number == len(loc):
                path.append(step)
        elif isinstance(given, list | tuple) and isinstance(step, int):
            path.append(step)
            given = given[step]
        else:
            break
    return tuple(path)


def _unknown(loc: Loc, value: Any, valid: list[str]) -> Problem:
    meant = closest(str(loc[-1]), valid)
    hint = f". Did you mean {meant!r}?" if meant else ""
    listed = ", ".join(sorted(valid)) or "none"
    return Problem(loc, f"={value!r} is not a setting{hint}", f"the settings of {{owner}} are: {listed}")


def refused(problems: Sequence[Problem], where: str) -> ConfigError:
    """Make one error of all problems, the first problem's remedy first."""
    said = [f"{p.path or 'the configuration'}{'' if p.text[0] in '=:' else ' '}{p.text}" for p in problems]
    remedies = list(dict.fromkeys(p.named("this section").remedy for p in problems))
    return ConfigError("; ".join(said), where=where, remedy="; ".join(remedies))
