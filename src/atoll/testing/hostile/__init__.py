"""A site that misbehaves: try a job, and your own policies, against it before a stranger does.

`play` runs a job to its end with one hostile site, in this process. ``python -m atoll.testing.hostile KIT --data FILE`` joins a real project as such a
site; the name of a job says which attack it carries out.
"""

from __future__ import annotations

from .attack import ATTACKS, Attack
from .local_job import Outcome, play

__all__ = ["ATTACKS", "Attack", "Outcome", "play"]
