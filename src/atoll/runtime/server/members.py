"""The sites of a project as its server knows them: those that its operator's list names, and those that have come."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from atoll.core.errors import ConfigError
from atoll.core.persistence.files import write_bytes
from atoll.runtime.jobs.terms import JobTerms
from atoll.runtime.provision.sites import Listing, SiteList
from atoll.runtime.scheduling.placing import place_helpers

__all__ = ["Members"]


class Members:
    """Sites with clients, and helpers with what they play.

    Args:
        listed: the operator's list; it may be older than those that come, or not be there.
        path: a file of the server's own, in which it writes down who has come.
    """

    def __init__(self, listed: SiteList, path: Path) -> None:
        self._listed = listed
        self._path = path
        self._met = Listing()
        if path.exists():
            with contextlib.suppress(ValueError):  # damaged: they come again
                self._met = Listing.read(path.read_text(encoding="utf-8"))

    @property
    def clients(self) -> list[str]:
        """Sites with clients."""
        return sorted(self._listed.among(self._met.named) - self._roles.keys())

    @property
    def plays(self) -> dict[str, str]:
        """Helper -> what it plays."""
        there = self._listed.among(self._met.named)
        return {name: role for name, role in self._roles.items() if name in there}

    @property
    def _roles(self) -> Mapping[str, str]:
        """The same, of those that are gone, too: they may have been part of an attempt."""
        return {**self._listed.plays, **self._met.plays}

    def meet(self, name: str, plays: str) -> None:
        """A site has come; ``plays`` as its certificate says.

        Raises:
            CheckpointError: it cannot be written down, which matters only while the site is away.
        """
        if name in self._met.named or (name in self.clients and not plays):
            return
        named = dict.fromkeys(sorted({*self._met.named, name}), True)
        self._met = Listing(named, {**self._met.plays, **({name: plays} if plays else {})})
        write_bytes(self._path, self._met.text().encode())

    def place(self, terms: JobTerms, there: Collection[str], before: Collection[str] = ()) -> dict[str, str]:
        """Which helper plays which part of a job: party -> helper.

        Args:
            terms: the job's.
            there: sites that are connected.
            before: the sites of its earlier attempts.

        Raises:
            ConfigError: nobody plays a role that it needs, or a helper stands among its sites.
        """
        helpers = self._roles
        wrong = [site for site in ([] if terms.sites == "all" else terms.sites) if site in helpers]
        if wrong:
            raise ConfigError(
                f"sites names {wrong[0]!r}, a helper ({helpers[wrong[0]]}), which has no clients",
                where=f"job {terms.name!r}",
                remedy="leave it out: what the job needs beside its clients is found by role",
            )
        try:
            return place_helpers(terms.helpers or {}, helpers if before else self.plays, there=there, before=before)
        except ConfigError as error:
            raise ConfigError(error.what, where=f"job {terms.name!r}, helpers", remedy=error.remedy) from error
