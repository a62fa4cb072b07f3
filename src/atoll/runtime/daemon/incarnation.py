"""How a site finds a server that was started from a copy of its folder, or from a backup: it has forgotten what they did together.

A site says in its greeting that it keeps tokens. With each line and each deployment, the server draws a new token for the site, keeps it, and sends it with the one before,
which the site has. The site keeps the new one and says so. A server whose folder is older than what the site has seen
cannot name the site's token: the folder was copied, restored or lost. So whichever of two servers with one history a site
meets second, it refuses.

```
server                                               site
{"op": "incarnation", "was": [...], "now": token} ->  keeps it if ``was`` has its own
                                                  <-  {"op": "incarnation", "now": token}
```

A token that the site may have is forgotten only when the site has confirmed the next, so no kill of either, at any moment,
makes an honest pair refuse each other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from atoll.core.errors import CheckpointError, IdentityError, MessageError
from atoll.core.persistence.files import write_bytes

__all__ = ["KnownServer", "SiteTokens"]

_LOG = logging.getLogger("atoll.runtime")
_BYTES = 16


class SiteTokens:
    """A server's tokens for its sites. Threads may share it.

    Args:
        folder: the server's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "incarnations"
        self._one = threading.Lock()

    def offer(self, site: str) -> dict[str, Any]:
        """Return a frame's fields for a site, with a new token once the last is confirmed; durable when this returns."""
        with self._one:
            has, next_one = self._read(site)
            if not next_one:
                with contextlib.suppress(CheckpointError):  # on a full disk the site keeps the token that it has
                    drawn = secrets.token_hex(_BYTES)
                    self._write(site, has, drawn)
                    next_one = drawn
            return {"was": [token for token in (has, next_one) if token], "now": next_one or has}

    def confirm(self, site: str, token: str) -> None:
        """Note that a site has kept a token.

        Raises:
            CheckpointError: it cannot be noted; then the site is offered the same again.
        """
        with self._one:
            _, next_one = self._read(site)
            if token and token == next_one:
                self._write(site, token, "")

    def _read(self, site: str) -> tuple[str, str]:
        try:
            found = json.loads((self._folder / quote(site, safe="")).read_bytes())
            return str(found["has"]), str(found["next"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ""

    def _write(self, site: str, has: str, next_one: str) -> None:
        write_bytes(
            self._folder / quote(site, safe=""), json.dumps({"has": has, "next": next_one}).encode(), private=True
        )


class KnownServer:
    """The server as a site remembers it.

    Args:
        path: the site's file of the token that it has.
        accept_restored: take the next server as it is, once.
    """

    def __init__(self, path: Path, accept_restored: bool = False) -> None:
        self._path, self._accepts = path, accept_restored
        self._token = ""
        with contextlib.suppress(OSError):
            self._token = path.read_text(encoding="ascii", errors="replace").strip()
        self._shown = False

    def begin(self) -> None:
        """Begin a new line: the server has not shown yet that it is the one."""
        self._shown = False

    def require_shown(self) -> None:
        """Refuse to do what a server wants that has not shown that it is the one that this site knows.

        Raises:
            MessageError: it has not.
        """
        if self._token and not self._shown and not self._accepts:
            raise MessageError(
                "the server gives orders before it has shown that it is the one that this site knows",
                where="control",
                remedy="use the same version of Atoll at both ends",
            )

    def take(self, frame: Any) -> str:
        """Return the token to confirm, which is durable then; nothing if this site keeps the one that it has.

        Raises:
            IdentityError: the server does not know the token that this site has.
            MessageError: it sent no tokens.
        """
        was, now = frame.get("was"), frame.get("now")
        if not isinstance(was, list) or not isinstance(now, str) or len(now) != 2 * _BYTES or len(was) > 2:
            raise MessageError("no tokens of the server", where="control", remedy="check that server")
        if self._token and self._token not in was and not self._accepts:
            raise IdentityError(
                "the server has forgotten what it last did with this site: its folder is a copy, an older backup, or a new one",
                where="the server's incarnation",
                remedy="stop it and start the server with the newest folder; if that is lost for good, start each site once with --accept-restored-server",
            )
        self._shown, self._accepts = True, False
        if now != self._token:
            try:
                write_bytes(self._path, f"{now}\n".encode(), private=True)
            except CheckpointError as error:
                _LOG.warning("the server's token cannot be kept, and the last one stays: %s", error)
                return ""
            self._token = now
        return now
