"""A site's consent: who may run what there, with how much, and when. It stands in the site's own file, which is read anew for every job.

```yaml
path: patients
target: diagnosis
consent:
  people:                     # who has signed the job: a name, else the first pattern that fits; others run nothing
    anna: any                 # any job, its own code too
    otto: [statistics, "ct_study:*"]   # these, as in a policy's `allow`
    "*@University": built-in  # no code but Atoll's
  resources: {cpus: 4, memory: 16GiB, gpus: 0}   # of all jobs together
  jobs: 1                     # at once
  hours: ["Mon-Fri 19:00-07:00", "Sat-Sun"]      # by this machine's clock
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError, model_validator

from atoll.core.errors import AtollError, ConfigError, PolicyError
from atoll.runs.schema import Section, collect, names_at, refused

from .bundle import JOB_FILE, SOURCE
from .identity import Peer
from .resources import Resources, bytes_of
from .terms import job_tree, problem

if TYPE_CHECKING:
    from .bundle import Verified

__all__ = ["Consent", "ConsentConfig", "Hours", "consent_of", "parse_consent"]


# ------------------------------------------------------------------ hours of a week, in words: ``Mon-Fri 19:00-07:00``, ``Sat-Sun``, ``08:00-18:00``


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = 24 * 60
_TEXT = re.compile(r"(?:(?P<days>[A-Z][a-z]{2}(?:-[A-Z][a-z]{2})?)\s*)?(?:(?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d))?")


@dataclass(frozen=True)
class Hours:
    """The same hours of some days.

    Attributes:
        days: numbers of the days on which they begin, 0 for Monday.
        begin: minutes after midnight.
        length: minutes; they may end on the next day.
        text: as they were written.
    """

    days: frozenset[int]
    begin: int
    length: int
    text: str

    @classmethod
    def of(cls, text: str) -> Hours:
        """Read hours.

        Raises:
            ConfigError: it is not written so.
        """
        found = _TEXT.fullmatch(text.strip())
        days = (found["days"] or "Mon-Sun").split("-") if found is not None else []
        if found is None or not text.strip() or not set(days) <= set(_DAYS):
            raise _wrong(text)
        first, last = _DAYS.index(days[0]), _DAYS.index(days[-1])
        among = {(first + i) % 7 for i in range((last - first) % 7 + 1)}
        begin, end = _minutes(found["begin"] or "00:00", text), _minutes(found["end"] or "24:00", text)
        return cls(frozenset(among), begin, (end - begin) % _DAY or _DAY, text.strip())

    def has(self, now: datetime) -> bool:
        """Tell whether a moment lies in them."""
        minute = now.hour * 60 + now.minute
        today = now.weekday() in self.days and self.begin <= minute < self.begin + self.length
        yesterday = (now.weekday() - 1) % 7 in self.days and minute + _DAY < self.begin + self.length
        return today or yesterday

    def __str__(self) -> str:
        return self.text


def _minutes(clock: str, text: str) -> int:
    hour, _, minute = clock.partition(":")
    if int(hour) * 60 + int(minute) > _DAY or int(minute) > 59:
        raise _wrong(text)
    return int(hour) * 60 + int(minute)


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} are no hours", where="hours", remedy="write 'Mon-Fri 19:00-07:00', 'Sat-Sun' or '08:00-18:00'"
    )


# ------------------------------------------------------------------ a site's consent
#
# A site's consent: who may run what there, with how much, and when. It stands in the site's own file, which is read anew for every job.


BUILT_IN = ("*",)
"""The names of a policy's ``allow`` that allow everything except code of a job's own."""


class MostConfig(Section):
    """What all jobs together may use at a site; None sets no limit beside that of ``atoll site``."""

    cpus: float | None = None
    memory: int | str | None = None
    gpus: int | None = None


class ConsentConfig(Section):
    """The section ``consent`` of a site's file."""

    people: dict[str, Literal["any", "built-in"] | list[str]] | None = None
    resources: MostConfig | None = None
    jobs: int | None = None
    hours: list[str] | None = None

    @model_validator(mode="after")
    def _possible(self) -> ConsentConfig:
        try:
            self.build("")
        except AtollError as error:
            raise problem("consent", f"cannot be kept: {error.what}", str(error.remedy)) from error
        return self

    def build(self, site: str) -> Consent:
        """Make the consent."""
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"jobs={self.jobs}", remedy="use at least 1; with `people: {}` nobody runs anything")
        said = self.resources or MostConfig()
        memory = None if said.memory is None else bytes_of(said.memory)
        Resources(said.cpus or 0.0, memory or 0, said.gpus or 0)
        words = {"any": None, "built-in": BUILT_IN}
        people = None if self.people is None else tuple(
            (who, words[may] if isinstance(may, str) else tuple(may)) for who, may in self.people.items()
        )  # fmt: skip
        if listed := [name for _, names in people or () for name in names or ()]:
            from atoll.runs.policy_names import require_known_names  # a site's front starts without it

            require_known_names(listed, "people")
        hours = None if self.hours is None else tuple(Hours.of(text) for text in self.hours)
        return Consent(site, people, (said.cpus, memory, said.gpus), self.jobs, hours)


@dataclass(frozen=True)
class Consent:
    """What a site consents to.

    Attributes:
        site: its name.
        people: (pattern of who has signed, names that may run, or None for anything; no names allow nothing); None lets every admin run anything.
        most: cores, bytes and devices that all jobs together may use; None sets no limit.
        jobs: most jobs at once.
        hours: when jobs run; None is always.
    """

    site: str
    people: tuple[tuple[str, tuple[str, ...] | None], ...] | None = None
    most: tuple[float | None, int | None, int | None] = (None, None, None)
    jobs: int | None = None
    hours: tuple[Hours, ...] | None = None

    def of(self, signer: Peer) -> tuple[str, ...] | None:
        """Return the names that a person may run; None for anything. A rule for the very name counts before patterns.

        Raises:
            PolicyError: this person runs nothing here.
        """
        rules = (("*", None),) if self.people is None else self.people
        names = {signer.name, f"{signer.name}@{signer.org}"}
        exact = [may for pattern, may in rules if pattern in names]
        for may in (*exact, *(may for pattern, may in rules if any(fnmatchcase(name, pattern) for name in names))):
            if may == ():
                break  # an empty list allows nothing; in a policy it would allow everything
            return may
        raise self._make_refusal(f"{signer} may run nothing here", f"let the site add {signer.name!r} to `people`")

    def admit(self, verified: Verified) -> tuple[str, ...] | None:
        """Refuse a signed job before any of it is unpacked.

        Returns:
            The names that may run, which the job's process compares with the kind of job and its algorithms; None for
            anything.

        Raises:
            PolicyError: its signer may run nothing here, or not the code that it has.
        """
        may = self.of(verified.signer)
        if may is not None:
            from atoll.core.requests.policy import SitePolicy

            from .worker.policies import LET_CONSENT, named_code

            policy = SitePolicy(allow=may)
            files = [PurePosixPath(file.path) for file in verified.manifest.files if file.path != JOB_FILE]
            for name in named_code(job_tree(verified.job), [path.relative_to(SOURCE) for path in files]):
                try:
                    policy.admit_code(name)
                except PolicyError as error:
                    raise self._make_refusal(
                        f"{error.what}, for {verified.signer}", f"{LET_CONSENT}, run the job without it"
                    ) from error
        return may

    def explain_closed(self, now: datetime) -> str:
        """Return why no job runs here now, or nothing.

        Args:
            now: by this machine's clock, in its own time zone.
        """
        if self.hours is None or any(hours.has(now) for hours in self.hours):
            return ""
        times = ", ".join(map(str, self.hours)) or "none"
        return f"site {self.site!r} is closed at {now:%a %H:%M}: its hours are {times}"

    def _make_refusal(self, what: str, remedy: str) -> PolicyError:
        return PolicyError(what, where=f"consent of site {self.site!r}", remedy=f"{remedy}, or leave the site out")


def parse_consent(tree: Any, site: str) -> Consent:
    """Check the section of a site's file.

    Raises:
        ConfigError: names the path, the value and the nearest valid key of every problem.
    """
    where = f"consent of site {site!r}"
    if tree is None:
        return Consent(site)
    # A setting of which nothing is left would set no limit, and let everybody run anything.
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if value is None:
            nobody = "; with `people: {}` nobody runs anything" if key == "people" else ""
            raise ConfigError(f"{key} has no value", where=where, remedy=f"give {key} a value, or leave it out{nobody}")
    try:
        return ConsentConfig.model_validate(tree).build(site)
    except ValidationError as error:
        raise refused(collect(error, tree, lambda loc: names_at(ConsentConfig, loc)), where) from error


def consent_of(given: Mapping[str, Any], site: str, helper: bool = False) -> Consent:
    """Return what a site consents to now, from its file; everything if its file says nothing.

    Args:
        given: the result of ``site_spec``; a helper may have none.
        site: its name.
        helper: whether it has no clients.

    Raises:
        AtollError: the file cannot be read, or says something that makes no sense.
    """
    from .worker.words import settings_of

    return parse_consent(settings_of(given, site, helper).get("consent") if given else None, site)
