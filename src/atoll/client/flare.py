"""`atoll.bridges.nvflare` under its old address: ``python -m atoll.client.flare SCRIPT ARGUMENTS``."""

import sys

from atoll.bridges.nvflare import FlareApi, main

__all__ = ["FlareApi", "main"]

if __name__ == "__main__":
    main(sys.argv[1:])
