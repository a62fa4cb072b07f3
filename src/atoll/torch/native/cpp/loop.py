"""The C++ that every native program ends with: the loop over clients and their steps, and the threads that share it."""

from __future__ import annotations

__all__ = ["LOOP"]

LOOP = r"""
// The clients are cut into parts, each with sums of its own, so that what comes out depends on the cut and never on the threads, which take
// one part after the other. Every thread but the caller's begins and ends within the call: a process may fork between calls.
struct Job {
  char** given;
  const i64 *rows, *begins;  // numbers of the rows of every step; null where they are drawn
  const uint8_t* active;
  const Draws* draws;
  i64 longest;  // steps of a client
  const i64* parts;
  i64 count;
  i64 next, bad;  // shared by the threads
};

// What a thread works in: the scratch memory, and the rows of two clients, since the next one's are fetched while one is at its last step.
struct Workspace {
  Scratch& scratch;
  char* room;
  i64 side;
};

// The rows of a step, which belong to client `c` or, where it has no such step, to one behind it, whose mini-batches are then drawn.
struct Reader {
  Job& job;
  Workspace& space;
  i64 holder, base;
  i64* rows;
  float* weights;

  void read(i64 at, Fetched& to) {
    if (!job.draws) return fetch(job.given, to, job.rows + at * BATCH, nullptr);
    if (!rows || at >= job.begins[holder + 1]) {
      while (job.begins[holder + 1] <= at) ++holder;
      base = job.begins[holder];
      space.side = 1 - space.side;
      rows = (i64*)(space.room + space.side * drawn_room(job.longest));
      weights = (float*)(rows + job.longest * BATCH);
      draw(*job.draws, holder, job.begins[holder + 1] - base, rows, weights, space.room + 2 * drawn_room(job.longest));
    }
    const i64 step = at - base;
    fetch(job.given, to, rows + step * BATCH, weights + step * BATCH);
    // In a client's first pass nobody has read its rows before.
    if (step * BATCH < job.draws->sizes[holder] && at + 1 < job.begins[holder + 1]) expect(job.given, rows + (step + 1) * BATCH);
  }
};

// For every client: the beginning, its steps but those that it sits out, the end. Rows of the pool are fetched one step ahead: the processor
// then copies them while it computes, and what it wrote is in the cache before it is read.
static void run_part(Job& job, i64 part, Workspace& space) {
  char *p[COUNT], *mine[COUNT];
  Scratch& scratch = space.scratch;
  i64 bad = 0, side = 0;
  const i64 *begins = job.begins, last = job.parts[part + 1], end = begins[last];
  for (int i = 0; i < COUNT; ++i) {
    mine[i] = job.given[i] + part * PER_PART[i];
    if (PER_PART[i]) memset(mine[i], 0, PER_PART[i]);
  }
  hold(mine, scratch);
  const auto next = [&](i64 at) { while (job.active && at < end && !job.active[at]) ++at; return at; };
  Reader reader{job, space, job.parts[part], 0, nullptr, nullptr};
  i64 ready = next(begins[job.parts[part]]);
  if (ready < end) reader.read(ready, scratch.fetched[0]);
  for (i64 c = job.parts[part]; c < last; ++c) {
    for (int i = 0; i < COUNT; ++i) p[i] = mine[i] + c * PER_CLIENT[i];
    start(p, scratch, bad);
    for (i64 at = ready; at < begins[c + 1]; at = ready) {
      for (int i = 0; i < COUNT; ++i) if (PER_STEP[i]) p[i] = mine[i] + at * PER_STEP[i];
      ready = next(at + 1);
      if (ready < end) reader.read(ready, scratch.fetched[1 - side]);
      point(p, scratch.fetched[side]);
      step(p, scratch, bad);
      side = 1 - side;
    }
    finish(p, scratch, bad);
  }
  if (bad) __atomic_store_n(&job.bad, 1, __ATOMIC_SEQ_CST);
}

struct Hand {
  Job* job;
  char* room;
  pthread_t thread;
};

constexpr i64 FIXED = (sizeof(Scratch) + 63) / 64 * 64;

static void* work(void* given) {
  const Hand& hand = *(Hand*)given;
  Workspace space{*(Scratch*)hand.room, hand.room + FIXED, 0};
  for (i64 part; (part = __atomic_fetch_add(&hand.job->next, 1, __ATOMIC_SEQ_CST)) < hand.job->count;) run_part(*hand.job, part, space);
  return nullptr;
}

// Bytes that a thread needs, given the most steps and rows of a client whose mini-batches are drawn.
extern "C" i64 room(i64 steps, i64 rows) { return FIXED + 2 * drawn_room(steps) + order_room(rows); }

extern "C" i64 run(
    char** given, char* room, i64 apart, const i64* rows, const i64* begins, const uint8_t* active, const Draws* draws, i64 longest,
    const i64* parts, i64 count, i64 threads) {
  Job job{given, rows, begins, active, draws, longest, parts, count, 0, 0};
  Hand hands[MOST];
  int busy = 1;
  hands[0] = {&job, room, {}};
  // Where the system gives no thread, the others do its work.
  for (; busy < threads; ++busy) {
    hands[busy] = {&job, room + busy * apart, {}};
    if (pthread_create(&hands[busy].thread, nullptr, work, &hands[busy])) break;
  }
  work(&hands[0]);
  for (int i = 1; i < busy; ++i) pthread_join(hands[i].thread, nullptr);
  return job.bad;
}
"""
