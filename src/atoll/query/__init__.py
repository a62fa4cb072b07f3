"""Federated queries: SQL over tables that lie at several sites. Rows stay; the answer is that of all rows in one place, or it is refused.

Six nouns. A `Silo` (`databases`) is one site's tables with its `QueryPolicy` (`policy`), and a locked engine that runs local SQL. A **statement** (`statement`) is one SELECT with every name resolved
against the **catalog** of all sites; a **rule** (`rules`) writes out what a table function in its FROM stands for. A **plan** (`plan`) says what each site computes, what is combined and what leaves; a `Strategy` (`strategies`) makes one and carries it out, with an answer
as its result.

A statement walks so::

    text ── parse, write rules out, resolve, refuse ──► SqlStatement
    SqlStatement, catalog, strictest policy ── each Strategy.plan ──► plans, and why others cannot
    cheapest plan ── Strategy.run: local SQL at each silo ── combine ──► QueryAnswer
    Strategy.exposures ──► leakage: who learns what, assuming what

There is one planner: `choose_strategy` asks every registered strategy for a plan and takes the cheapest that is allowed. A strategy refuses by raising, and its reason is what
``rejected`` shows. What all of them share stands before it: the catalog, levels and releases (`policy`), which part of a statement is local (`scopes`), how aggregates become sums
(`aggregates`). `MaskedSums` answers aggregates over groups of public keys, by masked sums.
`Smcql` joins, groups and sorts rows of different sites under shares at three parties (`secure`, `column_codes`). `Hufu` finds the nearest points of all sites by counts within circles (`spatial`).

`Query` is the job, so a simulation, a configuration and the runtime run it as any other; every site makes the plan again, by its own policy. `connect` is for people.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
