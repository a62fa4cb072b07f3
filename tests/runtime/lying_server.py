"""``python -m lying_server``: the command line of Atoll, whose server hands out other keys for letters than the sites have sent.

The file named by `FILE` says what it does in the next job: see `LIES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.cli import main
from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.core.sealing.hpke import public_of
from atoll.runtime.daemon import control

FILE = "ATOLL_JOB_LIE"
"""The variable with the file's path."""

Keys = dict[str, dict[str, bytes]]
_first: Keys = {}


def swapped(keys: Keys) -> Keys:
    """Two sites' keys change places, each still signed by its owner."""
    one, other, *_ = sorted(keys)
    return {**keys, one: keys[other], other: keys[one]}


def stale(keys: Keys) -> Keys:
    """The keys of the first job, which the sites' kits have signed."""
    return _first


def unsigned(keys: Keys) -> Keys:
    """A key whose private half the server knows, under the site's own certificate and signature."""
    victim = min(keys)
    return {**keys, victim: {**keys[victim], "public": public_of(bytes(range(32)))}}


def absent(keys: Keys) -> Keys:
    """One site's key is left out."""
    return {name: key for name, key in keys.items() if name != min(keys)}


LIES: dict[str, Callable[[Keys], Keys]] = {each.__name__: each for each in (swapped, stale, unsigned, absent)}


def lie() -> None:
    """Change the frame in which a job's process tells a site the others' keys."""
    file, forward = Path(os.environ[FILE]), control._forward

    async def forwarded(source: Any, target: Any, moved: Any) -> Any:
        take = source.recv_block

        async def taken(*_: Any) -> Any:  # and passes nothing on by itself
            block = await take()
            told = file.read_text(encoding="utf-8")
            try:
                frame = M.decode(bytes(block.content))
            except MessageError:
                return block
            if not isinstance(frame, dict) or not {"roster", "letters"} <= frame.keys():
                return block
            _first.update(_first or frame["letters"])
            changed = {**frame, "letters": LIES[told](frame["letters"]) if told in LIES else frame["letters"]}
            return block._replace(content=M.encode(changed))

        source.recv_block = taken
        return await forward(source, target, moved)

    control._forward = forwarded


if __name__ == "__main__":
    lie()
    main()
