"""Keys for letters between organisations: a site has one for each job, signs it with its kit, and verifies the keys of other sites itself.

The server relays signed keys. It cannot forge one, move one to another job, project or site, or pass on one whose owner
was revoked: the signature, the authority in the site's own kit, or the newest revocation list that the site knows would
not match. All parties of a site share its key, so you trust a party as far as its site, as everywhere between
organisations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from atoll.core import message as M
from atoll.core.errors import CheckpointError, IdentityError, LetterError, MessageError
from atoll.core.sealing import RealSealing
from atoll.core.sealing.hpke import KEY, public_of
from atoll.core.time.meter import Effort
from atoll.engines.link import LinkClosed

from ..confinement.folders import HeldFolder
from ..identity import HELPER, Credentials, admit, fits, require_issued, sign
from ..provision.certificates import read_list

__all__ = ["KEY_FILE", "LetterKey", "SignedKey", "SiteKeys", "pulsing"]


# ------------------------------------------------------------------ signs of life: a process that works uses processor time


_EVERY = 1.0  # seconds


@contextlib.asynccontextmanager
async def pulsing(
    send: Callable[[], Awaitable[None]], every: float = _EVERY, spent: Callable[[], float] | None = None
) -> AsyncIterator[None]:
    """Send a sign now and then while a process uses processor time; run long work in a thread meanwhile.

    Args:
        send: sends it.
        every: seconds between two checks.
        spent: the processor time so far, in seconds; by default that of this process and its descendants.
    """
    effort = Effort() if spent is None else Effort(spent, started=None)

    async def beat() -> None:
        while True:
            await asyncio.sleep(every)
            if effort.moved():
                await send()

    async def quiet() -> None:
        with contextlib.suppress(LinkClosed):
            await beat()

    task = asyncio.create_task(quiet())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# ------------------------------------------------------------------ keys for letters between organisations
#
# Keys for letters between organisations: a site has one for each job, signs it with its kit, and verifies the keys of other sites itself.


KEY_FILE = "letters.key"
"""The private key's file, in the daemon's record of the job, where no job writes: checkpoints hold letters, so the key outlives attempts, and is deleted with the job."""
_PURPOSE = b"atoll letters key 1\n"
_LONGEST = {"public": KEY, "certificate": 1 << 16, "signature": 1 << 10}


@dataclass(frozen=True)
class SignedKey:
    """A site's public key for the letters of one job, as it travels.

    Attributes:
        public: the key.
        certificate: of the site's kit, PEM.
        signature: of the kit's key over project, job, site and public key.
    """

    public: bytes
    certificate: bytes
    signature: bytes

    def pack(self) -> dict[str, bytes]:
        """Return it as a message."""
        return {"public": self.public, "certificate": self.certificate, "signature": self.signature}

    @staticmethod
    def unpack(tree: Any, where: str) -> SignedKey:
        """Return the inverse of ``pack``.

        Raises:
            MessageError: it has the wrong form.
        """
        known = isinstance(tree, dict) and set(tree) == set(_LONGEST)
        if not known or not all(isinstance(tree[n], bytes) and len(tree[n]) <= most for n, most in _LONGEST.items()):
            raise MessageError(
                "no signed key for letters", where=where, remedy="use the same version of Atoll everywhere"
            )
        return SignedKey(**tree)


@dataclass(frozen=True)
class LetterKey:
    """A site's own key for the letters of one job, and what it needs to trust those of others.

    Attributes:
        project: the project.
        job: the job's id.
        site: the site's name.
        ca: the authorities in its kit, PEM.
        revoked: the newest revocation list that it knows; empty if it knows none.
        signed: the public key, signed.
        private: the private key.
    """

    project: str
    job: str
    site: str
    ca: bytes
    revoked: bytes
    signed: SignedKey
    private: bytes = field(repr=False)

    @classmethod
    def make_key(
        cls, credentials: Credentials, *, project: str, job: str, site: str, state: Path, revoked: bytes
    ) -> LetterKey:
        """Return the key of a job, drawn at its first attempt and signed again in each, as a kit may have been renewed.

        Args:
            credentials: of the site.
            project: the project.
            job: the job's id.
            site: the site's name.
            state: the daemon's folder of the job, where no job writes.
            revoked: the newest revocation list.

        Raises:
            IdentityError: the kit's key cannot sign.
            CheckpointError: the key cannot be kept.
        """
        private = _read_or_draw(state)
        public = public_of(private)
        signed = SignedKey(
            public, credentials.certificate, sign(_PURPOSE, _text(project, job, site, public), credentials)
        )
        return cls(project, job, site, credentials.ca, revoked, signed, private)

    def order(self) -> dict[str, Any]:
        """Return what a job's process receives; it reads the private key itself."""
        words = {"project": self.project, "job": self.job, "site": self.site, "ca": self.ca, "revoked": self.revoked}
        return {**words, "signed": self.signed.pack()}

    @classmethod
    def read_order(cls, order: Mapping[str, Any], key: Path) -> LetterKey:
        """Return the inverse of ``order``, with the private key of a file."""
        words = {name: order[name] for name in ("project", "job", "site", "ca", "revoked")}
        signed = SignedKey.unpack(order["signed"], "order")
        return cls(**words, signed=signed, private=key.read_bytes())

    def sealing(
        self, told: Mapping[str, SignedKey], helpers: Mapping[str, tuple[str, str]] | None = None
    ) -> RealSealing:
        """Return what seals and opens at this site.

        Args:
            told: site -> its key, as the server sent it.
            helpers: party without clients -> its site, as the server says, and its role, as the job says.
        """
        return RealSealing(SiteKeys(self, told, helpers), f"project {self.project} job {self.job}")


class SiteKeys:
    """The keys of a job as one site has them; see `atoll.core.sealing.Keys`. A key of another site is verified when it is first needed.

    Whether a site may play a helper's party stands in its certificate: there the server's word is not enough.

    Args:
        own: the site's own.
        told: site -> its key, as the server sent it.
        helpers: party without clients -> its site and its role.
    """

    def __init__(
        self, own: LetterKey, told: Mapping[str, SignedKey], helpers: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        self._own = own
        self._told = told
        self._helpers = dict(helpers or {})
        self._verified: dict[tuple[str, str], bytes] = {}
        self.certified = True  # an authority says whose the keys are

    def private(self, party: str) -> bytes:
        """Return the site's own key, for its own parties."""
        if self._home(party)[0] != self._own.site:
            raise LetterError(
                f"{party} is not a party of site {self._own.site!r}", remedy="check who relayed the letter"
            )
        return self._own.private

    def public(self, party: str) -> bytes:
        """Return the key of a party's site.

        Raises:
            LetterError: the site has sent none, or it is refused.
        """
        site, role = self._home(party)
        if site == self._own.site:
            return self._own.signed.public
        if (site, role) not in self._verified:
            self._verified[site, role] = self._find_trusted(site, role)
        return self._verified[site, role]

    def organisation(self, party: str) -> str:
        """Return the site whose key it is."""
        return self._home(party)[0]

    def _home(self, party: str) -> tuple[str, str]:
        """The site of a party, and what it plays: a helper's; else its own name, or what stands before the stroke. No site's name has one."""
        return self._helpers.get(party, (party.partition("/")[0], ""))

    def _find_trusted(self, site: str, role: str) -> bytes:
        own, told = self._own, self._told.get(site)
        if told is None:
            raise LetterError(
                f"no key of site {site!r} is known in this job",
                where="letters",
                remedy="only sites that the job began with get letters: see its `sites`",
            )
        if not own.revoked:
            _refuse(
                site,
                "this site knows no revocation list of the project",
                "copy the newest kit, or ask the server's operator",
            )
        try:
            revoked = read_list(own.revoked, own.ca, "the newest revocation list").serials
            kind = (HELPER,) if role else ("site",)
            gone = revoked.__contains__
            admit(told.certificate, project=own.project, roles=kind, name=site, plays=role, revoked=gone)
            require_issued(told.certificate, own.ca)
            text = _text(own.project, own.job, site, told.public)
            good = fits(_PURPOSE, text, told.signature, told.certificate)
        except IdentityError as error:
            _refuse(site, error.what, error.remedy or "ask the project's provisioner", error)
        if not good:
            _refuse(site, "its kit has not signed this key for this job", "check the server that sent it")
        return told.public


def _read_or_draw(folder: Path) -> bytes:
    """Return the private key in a folder, drawn if there is none."""
    import secrets

    try:
        with HeldFolder.open(folder, make=True) as held:
            if held.fault_of(KEY_FILE):
                with contextlib.suppress(FileExistsError):
                    held.create(KEY_FILE, secrets.token_bytes(KEY))
            return held.read(KEY_FILE, KEY)
    except OSError as error:
        raise CheckpointError(
            f"the key for letters cannot be kept: {error.strerror or error}",
            where=str(folder / KEY_FILE),
            remedy="free space or fix the permissions of the site's folder",
        ) from error


def _text(project: str, job: str, site: str, public: bytes) -> bytes:
    """Return the text to sign."""
    return M.encode([project, job, site, public])


def _refuse(site: str, why: str, remedy: str, cause: Exception | None = None) -> NoReturn:
    raise LetterError(f"the key of site {site!r} is refused: {why}", where="letters", remedy=remedy) from cause
