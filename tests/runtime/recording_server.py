"""``python -m recording_server``: the command line of Atoll, whose server writes down every block that it passes on, as somebody who owns its machine could."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from atoll.cli import main
from atoll.runtime.daemon import control

FILE = "ATOLL_JOB_RECORD"
"""The variable with the file's path."""


def record() -> None:
    """Write down what is forwarded."""
    file, forward = Path(os.environ[FILE]).open("ab"), control._forward  # noqa: SIM115 - as long as the process

    async def forwarded(source: Any, target: Any, moved: Any) -> Any:
        take = source.recv_block

        async def taken(*_: Any) -> Any:  # and passes nothing on by itself
            block = await take()
            file.write(block.content)
            file.flush()
            return block

        source.recv_block = taken
        return await forward(source, target, moved)

    control._forward = forwarded


if __name__ == "__main__":
    record()
    main()
