"""The program around the translated phases: memory of a client, of a thread and of a part of the clients, and the loop over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .native_ops import C_TYPES
from .native_source import PREAMBLE
from .native_values import Body

__all__ = ["MOST", "Column", "program"]

MOST = 64  # threads of one call


@dataclass(frozen=True)
class Column:
    """Memory that native code reads or writes.

    Attributes:
        example: a tensor with the shape and type of one entry.
        per: one entry in all (``"job"``), one a ``"client"``, one a ``"step"``, or a pool of single rows of which a step takes some (``"row"``;
            the example is one mini-batch, with an axis of one step); one a ``"part"`` of the clients, zero at its beginning; or one a
            ``"thread"``, which nobody but the code sees.
    """

    example: torch.Tensor
    per: str


def program(columns: Sequence[Column], bodies: dict[str, Body], used: list[bool]) -> str:
    """The C++ text, given the columns, the translated phases and which columns they use."""
    sizes = [max(1, math.prod(c.example.shape)) * c.example.element_size() for c in columns]
    pooled = [i for i, c in enumerate(columns) if c.per == "row"]
    batch = columns[pooled[0]].example.shape[1]
    taken = [i for i in pooled if used[i]]
    own = [i for i, c in enumerate(columns) if c.per == "thread"]
    scratch, functions = _phases(columns, bodies)
    return "\n".join(
        [
            PREAMBLE,
            f"constexpr int COUNT = {len(columns)}, MOST = {MOST};",
            *[_table(name, columns, sizes, used) for name in ("CLIENT", "STEP", "PART")],
            "struct Fetched {",
            *[f"alignas(64) char g{i}[{sizes[i]}];" for i in taken],
            "};",
            "struct alignas(64) Scratch {",
            *scratch,
            *[f"alignas(64) char h{i}[{sizes[i]}];" for i in own],
            "Fetched fetched[2];",
            "};",
            f"constexpr i64 BATCH = {batch};",
            "static void fetch(char** given, Fetched& to, const i64* rows) {",
            "(void)given; (void)to; (void)rows;",
            *[_fetch(i, sizes[i] // batch, batch) for i in taken],
            "}",
            "static void point(char** p, Fetched& from) {",
            "(void)p; (void)from;",
            *[f"p[{i}] = from.g{i};" for i in taken],
            "}",
            "static void hold(char** p, Scratch& scratch) {",
            "(void)p; (void)scratch;",
            *[f"p[{i}] = scratch.h{i};" for i in own],
            "}",
            *functions,
            EPILOGUE,
        ]
    )


def _table(per: str, columns: Sequence[Column], sizes: list[int], used: list[bool]) -> str:
    """How far apart the entries of each column are, of those that have one a client, a step or a part."""
    made = [
        size if c.per == per.lower() and (u or per != "STEP") else 0
        for c, size, u in zip(columns, sizes, used, strict=True)
    ]
    return f"constexpr i64 PER_{per}[COUNT] = {{{', '.join(map(str, made))}}};"


def _phases(columns: Sequence[Column], bodies: dict[str, Body]) -> tuple[list[str], list[str]]:
    """Declarations of the phases' buffers, and their functions."""
    begin = [
        f"{C_TYPES.get(c.example.dtype, 'char')}* __restrict x{i} = ({C_TYPES.get(c.example.dtype, 'char')}*)p[{i}]; (void)x{i};"
        for i, c in enumerate(columns)
    ]
    scratch, functions = [], []
    for name in ("start", "step", "finish"):
        body = bodies.get(name, Body())
        # The phases' buffers lie behind one another in the scratch memory, so their names must differ.
        scratch += [line.replace(" t", f" {name}_t") for line in body.buffers]
        names = [line.split()[-1].partition("[")[0] for line in body.buffers]
        functions += [
            f"static void {name}(char** p, Scratch& scratch, i64& bad) {{",
            "(void)p; (void)scratch; (void)bad;",
            *(begin if body.lines else []),
            *[f"auto& {t} = scratch.{name}_{t};" for t in names],
            *body.lines,
            "}",
        ]
    return scratch, functions


def _fetch(i: int, size: int, batch: int) -> str:
    """Copy one mini-batch's rows of a column to where the step reads them."""
    return (
        f"for (int b = 0; b < {batch}; ++b) std::memcpy(to.g{i} + b * {size}, given[{i}] + rows[b] * {size}, {size});"
    )


EPILOGUE = r"""
// The clients are cut into parts, each with sums of its own, so that what comes out depends on the cut and never on the threads, which take
// one part after the other. Every thread but the caller's begins and ends within the call: a process may fork between calls.
struct Job {
  char** given;
  const i64 *rows, *begins;
  const uint8_t* active;
  const i64* parts;
  i64 count;
  std::atomic<i64> next, bad;
};

// For every client: the beginning, its steps but those that it sits out, the end. Rows of the pool are fetched one step ahead: the processor
// then copies them while it computes, and what it wrote is in the cache before it is read.
static void run_part(Job& job, i64 part, Scratch& scratch) {
  char *p[COUNT], *mine[COUNT];
  i64 bad = 0, side = 0;
  const i64 *begins = job.begins, last = job.parts[part + 1], end = begins[last];
  for (int i = 0; i < COUNT; ++i) {
    mine[i] = job.given[i] + part * PER_PART[i];
    if (PER_PART[i]) std::memset(mine[i], 0, PER_PART[i]);
  }
  hold(mine, scratch);
  const auto next = [&](i64 at) { while (job.active && at < end && !job.active[at]) ++at; return at; };
  i64 ready = next(begins[job.parts[part]]);
  if (ready < end) fetch(job.given, scratch.fetched[0], job.rows + ready * BATCH);
  for (i64 c = job.parts[part]; c < last; ++c) {
    for (int i = 0; i < COUNT; ++i) p[i] = mine[i] + c * PER_CLIENT[i];
    start(p, scratch, bad);
    for (i64 at = ready; at < begins[c + 1]; at = ready) {
      for (int i = 0; i < COUNT; ++i) if (PER_STEP[i]) p[i] = mine[i] + at * PER_STEP[i];
      ready = next(at + 1);
      if (ready < end) fetch(job.given, scratch.fetched[1 - side], job.rows + ready * BATCH);
      point(p, scratch.fetched[side]);
      step(p, scratch, bad);
      side = 1 - side;
    }
    finish(p, scratch, bad);
  }
  if (bad) job.bad = 1;
}

struct Hand {
  Job* job;
  char* room;
  pthread_t thread;
};

static void* work(void* given) {
  const Hand& hand = *(Hand*)given;
  for (i64 part; (part = hand.job->next++) < hand.job->count;) run_part(*hand.job, part, *(Scratch*)hand.room);
  return nullptr;
}

extern "C" const i64 ROOM = sizeof(Scratch);  // of one thread

extern "C" i64 run(
    char** given, char* room, const i64* rows, const i64* begins, const uint8_t* active, const i64* parts, i64 count, i64 threads) {
  Job job{given, rows, begins, active, parts, count, {0}, {0}};
  Hand hands[MOST];
  int busy = 1;
  hands[0] = {&job, room, {}};
  // Where the system gives no thread, the others do its work.
  for (; busy < threads; ++busy) {
    hands[busy] = {&job, room + busy * ROOM, {}};
    if (pthread_create(&hands[busy].thread, nullptr, work, &hands[busy])) break;
  }
  work(&hands[0]);
  for (int i = 1; i < busy; ++i) pthread_join(hands[i].thread, nullptr);
  return job.bad;
}
"""
