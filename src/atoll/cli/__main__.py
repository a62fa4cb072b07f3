"""``python -m atoll.cli``: the same as ``atoll``."""

from . import main

main()
