"""The sites of a project as its server knows them: a list next to the revocation list, written whenever kits are made.

```
north
south
west gone
```

One name per line. ``gone`` follows the name of a site that once had a kit and has left the project or had its kit
revoked.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ledger import IssueLedger
    from .project import ProjectConfig

__all__ = ["SiteList", "site_list"]

_LOG = logging.getLogger("atoll.runtime")
_LINE = re.compile(r"(\S+)( gone)?")


def site_list(project: ProjectConfig, ledger: IssueLedger) -> bytes:
    """Return the list of all sites that were ever issued a kit.

    Args:
        project: who takes part now.
        ledger: who was issued what.
    """
    now = {site.name for site in project.sites}
    lines = []
    for name in ledger.names:
        latest = ledger.latest(name)
        if latest is not None and latest.role == "site":
            lines.append(name if name in now and ledger.valid(name) else f"{name} gone")
    return "".join(f"{line}\n" for line in lines).encode()


class SiteList:
    """Follows the list of a server's kit without a restart. Without a list, or with a damaged one, it names no site.

    Args:
        path: ``project-sites.txt`` of a server's kit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._named: dict[str, bool] = {}
        self.changed()

    def changed(self) -> bool:
        """Read the file; return whether its names have changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen, before = stamp, self._named
        self._named = self._read()
        return self._named != before

    def among(self, met: frozenset[str]) -> frozenset[str]:
        """Return the sites of the project.

        Args:
            met: sites that have connected so far: the list may be older.
        """
        listed = {name for name, there in self._named.items() if there}
        gone = {name for name, there in self._named.items() if not there}
        return frozenset((met | listed) - gone)

    def _read(self) -> dict[str, bool]:
        try:
            lines = [line for line in self._path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            _LOG.error("the list of sites %s is ignored: %s", self._path, error)
            return self._named
        found = [_LINE.fullmatch(line.strip()) for line in lines]
        if None in found:
            _LOG.error("the list of sites %s is ignored: it is damaged; copy it again", self._path)
            return self._named
        return {match[1]: match[2] is None for match in found if match is not None}

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
