"""The waist: parties, islands, tasks, federations, messages, time. NumPy only; no learning, no network.

The names below are for rooms and users; a part is loaded when its name is first used. Other names belong to the waist itself, and
their modules are imported by name: trees are ``atoll.core.algebra.tree``, messages ``atoll.core.message``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .algebra.aggregate import Aggregate, Mean, Parts, Sum, Total, Vote
    from .algebra.rng import Rng
    from .errors import AtollError, CompositionError, ConfigError, DataError, PolicyError, QuorumError, TaskError
    from .execution.session import PeerChannel, Peers
    from .federation.ending import StopRun
    from .federation.federation import Federation, Program, run_program
    from .federation.reducer import Plain, Reducer, TreeReducer
    from .federation.reduction import Reduction
    from .job import Job, Prepared
    from .requests.chain import Chain
    from .requests.cohort import Cohort, Community
    from .requests.context import StageContext
    from .requests.island import Island
    from .requests.party import Parties, Party
    from .requests.request import Reduced
    from .requests.results import Combined, Exchanged, Replies
    from .requests.stage import Identity, Stage
    from .requests.task import Batch, Task, Work, Workload, task
    from .world import World
else:
    from .lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "algebra.aggregate": (
                "Aggregate",
                "Mean",
                "Parts",
                "Sum",
                "Total",
                "Vote",
            ),
            "algebra.rng": ("Rng",),
            "errors": (
                "AtollError",
                "CompositionError",
                "ConfigError",
                "DataError",
                "PolicyError",
                "QuorumError",
                "TaskError",
            ),
            "execution.session": (
                "PeerChannel",
                "Peers",
            ),
            "federation.ending": ("StopRun",),
            "federation.federation": (
                "Federation",
                "Program",
                "run_program",
            ),
            "federation.reducer": (
                "Plain",
                "Reducer",
                "TreeReducer",
            ),
            "federation.reduction": ("Reduction",),
            "job": (
                "Job",
                "Prepared",
            ),
            "requests.chain": ("Chain",),
            "requests.cohort": (
                "Cohort",
                "Community",
            ),
            "requests.context": ("StageContext",),
            "requests.island": ("Island",),
            "requests.party": (
                "Parties",
                "Party",
            ),
            "requests.request": ("Reduced",),
            "requests.results": (
                "Combined",
                "Exchanged",
                "Replies",
            ),
            "requests.stage": (
                "Identity",
                "Stage",
            ),
            "requests.task": (
                "Batch",
                "Task",
                "Work",
                "Workload",
                "task",
            ),
            "world": ("World",),
        },
    )

__all__ = [
    "Aggregate",
    "AtollError",
    "Batch",
    "Chain",
    "PeerChannel",
    "Cohort",
    "Combined",
    "Community",
    "CompositionError",
    "ConfigError",
    "DataError",
    "Exchanged",
    "Federation",
    "Identity",
    "Island",
    "Job",
    "Mean",
    "Parties",
    "Parts",
    "Party",
    "Peers",
    "Plain",
    "PolicyError",
    "Prepared",
    "Program",
    "QuorumError",
    "Reduced",
    "Reducer",
    "Reduction",
    "Replies",
    "Rng",
    "Stage",
    "StageContext",
    "StopRun",
    "Sum",
    "Task",
    "TaskError",
    "Total",
    "TreeReducer",
    "Vote",
    "Work",
    "Workload",
    "World",
    "run_program",
    "task",
]
