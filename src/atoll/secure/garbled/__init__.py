"""Garbled circuits: two owners compute on what both have, and see the result alone.

`begin_garbling` gives each of two roles its side, and both run one program over it: `Gates.share`, circuits such as `less_wires` and `merge_rows`, and `Gates.reveal`. The parties follow the
protocol (*semi-honest*). `GateCounter` and `garbling_contract` say what a program sends, and who learns what, before anyone is contacted.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
