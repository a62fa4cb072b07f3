"""FedTruthFinder, Figures 6 and 8: traffic lights found by taxis that stop, whose connections are lost.

Source: "FedTruthFinder", section 6.2: 96 events, each a place where a traffic light is or is not; taxis that stop nearby report, with an error rate from 0 to .5 each, on a random fifth of the events; 60 taxis, each connection lost for good with probability .05, LOGISTIC, threshold of half of the taxis.

The paper's places are labelled by hand on the paths of taxis of San Francisco (CRAWDAD epfl/mobility), which are not public any more. Two stand-ins are here: a generator, in which a taxi reports on 19 random events; and taxis of Beijing (T-Drive's format, one day), in which a taxi reports on at most 19 of the
places where it stopped. In both a light is there with probability one half. Campaigns are played by the models' own three functions, for all repetitions at once, and by the job `atoll.truth.Truth` beside; `atoll.secure.rank_parties` and `atoll.secure.shares` are measured as a user of 60 runs them.
"""

from __future__ import annotations

import csv
import gzip
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from atoll.core import Community
from atoll.core.requests.island import Secret
from atoll.data.folder import locate
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure import rank_parties
from atoll.secure.shares import Field, correct_shamir, split_shamir
from atoll.simulation import simulate
from atoll.truth import Logistic, Shamir, Truth, TruthModel, TruthResult, Virtual, WeightedSum, split_by_worker
from atoll.truth.protocols import TruthProtocol
from atoll.truth.reports import CodedReports, TaskLayout

__all__ = ["ENTRY", "STAND_IN", "draw_reports", "play_campaigns"]

EVENTS, REPORTED, ITERATIONS, USERS, LOSS = 96, 19, 10, 60, 0.05
ALPHAS = (None, 1, 2, 3)
"""Without the adaptive update, and with it."""
STAND_IN = {
    (20, 0.05, "logistic"): (0.801, 0.826, 0.835, 0.839),
    (60, 0.05, "logistic"): (0.953, 0.957, 0.962, 0.967),
    (60, 0.05, "sum"): (0.934, 0.938, 0.943, 0.948),
    (100, 0.05, "logistic"): (0.986, 0.988, 0.990, 0.993),
    (60, 0.01, "logistic"): (0.980, 0.980, 0.980, 0.980),
    (60, 0.10, "logistic"): (0.892, 0.926, 0.951, 0.961),
    (60, 0.15, "logistic"): (0.810, 0.908, 0.950, 0.956),
}
"""Accuracy in an earlier sketch of the generator, 200 seeds, by users, loss and function -> by alpha."""
MODELS: dict[str, TruthModel] = {"logistic": Logistic(tolerance=0), "sum": WeightedSum(tolerance=0)}

Bools = NDArray[np.bool_]
Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
Sampler = Callable[[int, np.random.Generator], list[Codes]]
"""``(users, rng) -> the events that each user reports on``."""

_TABLE, _FIGURE_6, _BEIJING, _FIGURE_8 = (
    "The stand-in table",
    "Figure 6: accuracy",
    "Taxis of Beijing that stop",
    "Figure 8: what a participant sends and computes",
)


# ------------------------------------------------------------------ campaigns


def draw_events(users: int, rng: np.random.Generator) -> list[Codes]:
    """Each user reports on 19 random events of 96."""
    return list(np.argsort(rng.random((users, EVENTS)), axis=1)[:, :REPORTED])


def draw_reports(users: int, seeds: Sequence[int], sample: Sampler = draw_events) -> tuple[CodedReports, Bools]:
    """Draw a campaign for each seed; all of them lie side by side as one, which no report joins.

    Returns:
        The reports, of ``len(seeds) users`` users on ``96 len(seeds)`` tasks, and the truth of each task.
    """
    tasks, workers, labels, truths = [], [], [], []
    for place, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        truth, errors = rng.random(EVENTS) < 0.5, rng.uniform(0, 0.5, users)
        for user, events in enumerate(sample(users, rng)):
            wrong = rng.random(len(events)) < errors[user]
            tasks.append(place * EVENTS + events)
            workers.append(np.full(len(events), place * users + user))
            labels.append(truth[events] ^ wrong)
        truths.append(truth)
    layout = TaskLayout(tuple(f"e{i}" for i in range(EVENTS * len(seeds))), ("0", "1"), workers=users * len(seeds))
    task = np.concatenate(tasks)
    cell = 2 * task + np.concatenate(labels)
    names = tuple(f"u{i}" for i in range(users * len(seeds)))
    return CodedReports(layout, names, task, np.concatenate(workers), cell), np.concatenate(truths)


def play_campaigns(
    model: TruthModel, reports: CodedReports, truth: Bools, users: int, loss: float, alpha: int | None, *, connections: int = 1, forget: bool = False, seed: int = 0
) -> Floats:  # fmt: skip
    """Play campaigns of 10 iterations and return the accuracy of each.

    Before an iteration each user that is left is lost with ``1 - (1 - loss)^connections``, for good. With an ``alpha`` the truth moves by ``(alive / users)^alpha`` of the way (equation 27). An event on which nobody who is
    left reported keeps its confidence; with ``forget`` it becomes one half, which the formulas say if nothing is decided.
    """
    rng, campaigns = np.random.default_rng(seed), len(truth) // EVENTS
    state, broadcast = model.start_workers(reports.layout, campaigns * users), model.start(reports.layout)
    alive = np.ones((campaigns, users), dtype=bool)
    for _ in range(ITERATIONS):
        alive &= rng.random(alive.shape) < (1 - loss) ** connections
        there = alive.ravel()[reports.worker]
        left = replace(reports, task=reports.task[there], worker=reports.worker[there], cell=reports.cell[there])
        sums = model.contribute("truth", state, left, broadcast)
        found = model.combine("truth", reports.layout, sums, broadcast)["truth"]
        if forget:
            found = np.where(np.bincount(left.task, minlength=len(truth)) > 0, found, 0.5)
        weight = 1.0 if alpha is None else np.repeat(alive.mean(axis=1) ** alpha, EVENTS)
        broadcast = {"truth": weight * found + (1 - weight) * broadcast["truth"]}
        state = model.learn("truth", state, left, broadcast)
    right = (broadcast["truth"] >= 0.5) == truth
    return np.asarray(right.reshape(campaigns, EVENTS).mean(axis=1))


def _accuracies(users: int, loss: float, name: str, seeds: int, sample: Sampler = draw_events, **more: Any) -> list[float]:  # fmt: skip
    """The mean accuracy for each alpha, of the same reports and the same losses."""
    reports, truth = draw_reports(users, range(seeds), sample)
    return [float(play_campaigns(MODELS[name], reports, truth, users, loss, alpha, **more).mean()) for alpha in ALPHAS]


def run_campaign(seed: int, protocol: TruthProtocol, loss: float = 0.0) -> tuple[TruthResult, float]:
    """Run the job itself among 60 users, each a party; return its result and accuracy. Who is lost is lost before it contributes or before it adds up."""
    reports, truth = draw_reports(USERS, [seed])
    said = zip(reports.task.tolist(), reports.worker.tolist(), reports.label.tolist(), strict=True)
    parties = split_by_worker([(f"e{task}", f"u{worker}", str(label)) for task, worker, label in said])
    job = Truth(model=MODELS["logistic"], protocol=protocol, tasks=reports.layout.tasks, classes=("0", "1"), loss=loss, returns=0.0)  # fmt: skip
    result = cast("TruthResult", simulate(job, parties, seed=seed, progress=False))
    right = [result.truth[f"e{i}"] == str(int(known)) for i, known in enumerate(truth.tolist())]
    return result, float(np.mean(right))


# ------------------------------------------------------------------ taxis of Beijing


def read_stops() -> list[Codes]:
    """Read where taxis stop: cells of about 500 m, of which the 96 with the most taxis are events. Return the events of each taxi."""
    visits: dict[tuple[int, int], set[str]] = defaultdict(set)
    with gzip.open(locate(None, "geo", "beijing_taxi_traces.csv.gz"), "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lat, lon = float(row["lat"]), float(row["lon"])
            if (
                float(row["speed"]) == 0 and 39 < lat < 41 and 115.5 < lon < 117.5
            ):  # outside are coordinates that no taxi had
                visits[int(lat // 0.0045), int(lon // 0.006)].add(row["taxi_id"])
    events = sorted(visits.items(), key=lambda item: (-len(item[1]), item[0]))[:EVENTS]
    taxis = sorted({taxi for _, there in events for taxi in there})
    return [np.array([at for at, (_, there) in enumerate(events) if taxi in there]) for taxi in taxis]


def _stopping(stops: Sequence[Codes]) -> Sampler:
    def sample(users: int, rng: np.random.Generator) -> list[Codes]:
        chosen = rng.permutation(len(stops))[:users]
        return [np.sort(rng.permutation(stops[i])[:REPORTED]) for i in chosen.tolist()]

    return sample


# ------------------------------------------------------------------ statements


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{x:.3f}" for x in values)


def _table(seeds: int) -> list[Claim]:
    made = []
    for (users, loss, name), beside in STAND_IN.items():
        ours = _accuracies(users, loss, name, seeds, forget=True)
        gap = max(abs(a - b) for a, b in zip(ours, beside, strict=True))
        bound = 0.01 if users >= 60 else 0.03
        made.append(Claim(f"{users} users, loss {loss:g}, {name}: accuracy without adaptive update, and with alpha 1, 2, 3", _shown(beside), _shown(ours), gap <= bound, f"an earlier sketch with other seeds, in which an event without reports becomes one half; within {bound:g}; {seeds} seeds", _TABLE))  # fmt: skip
    return made


def _figure_6(seeds: int) -> list[Claim]:
    by_users = {n: _accuracies(n, LOSS, "logistic", seeds) for n in (20, 40, 60, 80, 100)}
    by_loss = {loss: _accuracies(USERS, loss, "logistic", seeds) for loss in (0.0, 0.05, 0.1, 0.15)}
    made = [Claim.figure(f"{n} users, loss .05: without, alpha 1, 2, 3", _shown(row), "", _FIGURE_6) for n, row in by_users.items()]  # fmt: skip
    made += [Claim.figure(f"60 users, loss {loss:g}: without, alpha 1, 2, 3", _shown(row), "", _FIGURE_6) for loss, row in by_loss.items()]  # fmt: skip
    cells = [*by_users.values(), *(row for loss, row in by_loss.items() if loss)]
    best = sum(max(row) == row[3] for row in cells)
    made.append(Claim("alpha = 3 performs best", "in all settings", f"in {best} of {len(cells)}", best == len(cells), "by users and by losses above 0", _FIGURE_6))  # fmt: skip
    better = sum(row[3] > row[0] for row in cells)
    made.append(Claim("the adaptive update improves the accuracy", "in all settings", f"in {better} of {len(cells)}", better == len(cells), "alpha = 3", _FIGURE_6))  # fmt: skip
    gains = [row[3] - row[0] for row in by_loss.values()]
    made.append(Claim("it improves more with more losses", "grows", _shown(gains), gains == sorted(gains), "loss 0 to .15", _FIGURE_6))  # fmt: skip
    crowd = [row[3] - row[0] for row in by_users.values()]
    made.append(Claim("it improves more with more participants", "grows", _shown(crowd), crowd == sorted(crowd), "20 to 100 users: with many the accuracy nears 1, and nothing is left to gain", _FIGURE_6))  # fmt: skip
    accuracy = [row[3] for row in by_loss.values()]
    made.append(Claim("with more losses the accuracy falls gradually", "falls", _shown(accuracy), accuracy == sorted(accuracy, reverse=True), "alpha = 3, loss 0 to .15", _FIGURE_6))  # fmt: skip
    other = _accuracies(USERS, LOSS, "sum", seeds)
    made.append(Claim("LOGISTIC is better than SUM", "better", f"{by_loss[LOSS][3]:.3f} against {other[3]:.3f}", by_loss[LOSS][3] > other[3], "60 users, loss .05, alpha = 3", _FIGURE_6))  # fmt: skip
    silent = _accuracies(USERS, 0.15, "logistic", seeds, forget=True)
    made.append(Claim.figure("60 users, loss .15: events on which nobody who is left reported become one half, or keep their confidence (without adaptive update)", f"{silent[0]:.3f}, {by_loss[0.15][0]:.3f}", "the paper does not say which; with the update it matters less", _FIGURE_6))  # fmt: skip
    masks = _accuracies(USERS, LOSS, "logistic", seeds, connections=2)
    made.append(Claim("one connection an iteration finds more truth than the two of masks", "more", f"{by_loss[LOSS][0]:.3f} against {masks[0]:.3f}", by_loss[LOSS][0] > masks[0], "60 users, loss .05, without adaptive update", _FIGURE_6))  # fmt: skip
    return made


def _beijing(seeds: int) -> list[Claim]:
    stops = read_stops()
    made, gains = [], []
    for loss in (0.05, 0.1, 0.15):
        row = _accuracies(len(stops), loss, "logistic", seeds, _stopping(stops))
        gains.append(row[3] - row[0])
        made.append(Claim.figure(f"loss {loss:g}: without, alpha 1, 2, 3", _shown(row), f"{len(stops)} taxis, {sum(min(len(one), REPORTED) for one in stops)} reports on {EVENTS} places", _BEIJING))  # fmt: skip
    made.append(Claim("the adaptive update improves the accuracy, and more with more losses", "grows", _shown(gains), min(gains) > 0 and gains == sorted(gains), "alpha = 3; few taxis stop at most places", _BEIJING))  # fmt: skip
    return made


def _figure_8(repeats: int) -> list[Claim]:
    """A user's bytes by arithmetic on elements of 8 bytes, and its processor seconds as measured here."""
    field, secret, threshold = Field(), Secret(), USERS // 2
    values = field.random(secret, (EVENTS,))
    share = _seconds(lambda: split_shamir(values, USERS, threshold, field, secret), repeats)
    shares = dict(enumerate(split_shamir(values, USERS, threshold, field, secret)))
    add = _seconds(lambda: field.total(np.stack(list(shares.values()))), repeats)
    opened = _seconds(lambda: correct_shamir(shares, threshold, field, secret), max(1, repeats // 5))
    rank = _rank_seconds()
    up, down = USERS * EVENTS * 8, EVENTS * 8
    return [
        Claim("a participant sends little: bytes of shares up, and of confidences down, an iteration", "small", f"{up:,}, {down:,}", (up, down) == (46_080, 768), "60 users, 96 events, elements of 8 bytes, without envelopes", _FIGURE_8, "derived"),
        Claim.figure("milliseconds of a participant to share, and to add up, an iteration", f"{1e3 * share:.2f}, {1e3 * add:.2f}", "processor time here", _FIGURE_8),
        Claim.figure("milliseconds of the server to open all sums and look for wrong ones", f"{1e3 * opened:.2f}", "processor time here", _FIGURE_8),
        Claim("the ranking takes a participant about 0.01 s", 0.01, f"{rank:.4f}", rank < 0.03, "processor time here with seals, letters and relay of all 60 in one process, divided by 60; t = 10; holds below 0.03", _FIGURE_8),
    ]  # fmt: skip


def _jobs(seeds: int, quick: bool) -> list[Claim]:
    """The job under the protocol that only counts, and once with real letters."""
    part = "The job itself"
    pairs = []
    for seed in range(seeds):
        reports, truth = draw_reports(USERS, [seed])
        arithmetic = float(play_campaigns(MODELS["logistic"], reports, truth, USERS, LOSS, 3, seed=seed)[0])
        pairs.append((run_campaign(seed, Virtual(of=Shamir(seeds=False)), LOSS)[1], arithmetic))
    gaps = np.array([job - other for job, other in pairs])
    error = float(gaps.std(ddof=1) / np.sqrt(seeds))
    ours, beside = (float(np.mean(column)) for column in zip(*pairs, strict=True))
    whole, accuracy = run_campaign(0, Virtual(of=Shamir(seeds=False)))
    reports, truth = draw_reports(USERS, [0])
    alone = float(play_campaigns(MODELS["logistic"], reports, truth, USERS, 0.0, 3)[0])
    made = [
        Claim("without losses the job finds what the arithmetic finds", f"{alone:.4f}", f"{accuracy:.4f}", accuracy == alone, "60 users, 10 iterations, threshold 30", part),
        Claim("with losses of .05 it is as accurate", f"{beside:.3f}", f"{ours:.3f}", abs(float(gaps.mean())) < 3 * error + 0.005, f"{seeds} seeds, others are lost; within three standard errors and .005, since half of those that are lost have contributed before", part),
        Claim.figure("bytes of the busiest participant up and down, an iteration, with envelopes, sums and confidences", f"{whole.bytes_up:,}, {whole.bytes_down:,}", "46,080 each way are shares of 8 bytes", part),
    ]  # fmt: skip
    if not quick:
        began = time.process_time()
        sealed, also = run_campaign(0, Shamir(seeds=False))
        seconds = time.process_time() - began
        same = (sealed.bytes_up, sealed.bytes_down, also) == (whole.bytes_up, whole.bytes_down, accuracy)
        made.append(Claim("letters that are shared and opened give the same truth for the same bytes", "the same", "the same" if same else "others", same, "protocol Shamir against Virtual", part))  # fmt: skip
        made.append(Claim.figure("milliseconds of a participant and its relay, an iteration", f"{1e3 * seconds / (USERS * ITERATIONS):.1f}", "processor time here, all of them in one process", part))  # fmt: skip
    return made


def _seconds(work: Callable[[], Any], repeats: int) -> float:
    """The least processor time of some runs."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def _rank_seconds() -> float:
    async def program(fed: Any) -> Any:
        return await rank_parties(fed, fed.parties, 10, at=0)

    scores = np.random.default_rng(0).uniform(0.1, 1.0, USERS).tolist()
    return _seconds(lambda: simulate(program, Community(scores), engine="inline", progress=False), 1) / USERS


@keeping_nothing("fedtruth-traffic")
def _run(quick: bool) -> list[Claim]:
    seeds = 60 if quick else 200
    made = [*_table(200), *_figure_6(seeds), *_figure_8(5 if quick else 50), *_jobs(5 if quick else 30, quick)]
    return made if quick else [*made, *_beijing(400)]


ENTRY = Entry(
    name="fedtruth-traffic",
    title="FedTruthFinder: traffic lights found by taxis whose connections are lost",
    source="FedTruthFinder, Figures 6 and 8",
    run=_run,
    needs="paths of taxis below ATOLL_DATA, but for --quick",
    data=("geo:taxis",),
    quick_data=(),
)
