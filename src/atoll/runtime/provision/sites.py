"""The sites of a project as its server knows them: a list next to the revocation list, written whenever kits are made.

```
north
south
west gone
keys plays key holder
```

One name per line. ``gone`` follows the name of a site that once had a kit and has left the project or had its kit
revoked. ``plays`` follows the name of a helper.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.runtime.identity import SITES

if TYPE_CHECKING:
    from .ledger import IssueLedger
    from .project import ProjectConfig

__all__ = ["Listing", "SiteList", "site_list"]

_LOG = logging.getLogger("atoll.runtime")
_LINE = re.compile(r"(\S+)( gone)?(?: plays (.+))?")


@dataclass(frozen=True)
class Listing:
    """What a list of sites says.

    Attributes:
        named: site -> whether it is part of the project.
        plays: helper -> what it plays; those that are gone, too.
    """

    named: Mapping[str, bool] = field(default_factory=dict)
    plays: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Listing:
        """Read a list.

        Raises:
            ValueError: it is damaged.
        """
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        found = [match for match in map(_LINE.fullmatch, lines) if match is not None]
        if len(found) < len(lines):
            raise ValueError("it is damaged; copy it again")
        return cls({match[1]: match[2] is None for match in found}, {match[1]: match[3] for match in found if match[3]})

    def text(self) -> str:
        """The inverse of ``read``."""
        gone = {name: "" if there else " gone" for name, there in self.named.items()}
        plays = {name: f" plays {self.plays[name]}" if name in self.plays else "" for name in self.named}
        return "".join(f"{name}{gone[name]}{plays[name]}\n" for name in self.named)


def site_list(project: ProjectConfig, ledger: IssueLedger) -> bytes:
    """Return the list of all sites that were ever issued a kit.

    Args:
        project: who takes part now.
        ledger: who was issued what.
    """
    now = {site.name for site in project.sites} | set(project.helpers)
    issued = [latest for name in ledger.names if (latest := ledger.latest(name)) is not None and latest.role in SITES]
    named = {entry.name: entry.name in now and bool(ledger.valid(entry.name)) for entry in issued}
    return Listing(named, {entry.name: entry.plays for entry in issued if entry.plays}).text().encode()


class SiteList:
    """Follows the list of a server's kit without a restart. Without a list, or with a damaged one, it names no site.

    Args:
        path: ``project-sites.txt`` of a server's kit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._listing = Listing()
        self.changed()

    @property
    def plays(self) -> Mapping[str, str]:
        """Helper -> what it plays; those that are gone, too."""
        return self._listing.plays

    def changed(self) -> bool:
        """Read the file; return whether its names have changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen, before = stamp, self._listing
        self._listing = self._read()
        return self._listing != before

    def among(self, met: Iterable[str]) -> frozenset[str]:
        """Return the sites of the project, helpers included.

        Args:
            met: sites that have connected so far: the list may be older.
        """
        named = self._listing.named
        listed = {name for name, there in named.items() if there}
        gone = {name for name, there in named.items() if not there}
        return frozenset((set(met) | listed) - gone)

    def _read(self) -> Listing:
        try:
            return Listing.read(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Listing()
        except (OSError, ValueError) as error:
            _LOG.error("the list of sites %s is ignored: %s", self._path, error)
            return self._listing

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
