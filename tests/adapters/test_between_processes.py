"""A tuning between real processes over mutual TLS: the simulation's result, also where a site dies in the middle of a round, and replies that no server takes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import atoll
from atoll.adapters import Bottleneck, Encoder, FedExLoRA, Peft, Tuning
from atoll.adapters.images import images_below
from atoll.core.algebra.aggregate import Mean
from atoll.core.errors import AtollError
from atoll.core.federation.federation import run_program
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from tests.support.encoders import make_dual_encoder, make_encoder, make_pictures, make_reviews

LORA = Peft("LORA", {"r": 2, "target_modules": ["query", "value"]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    make_encoder(folder / "tiny")
    make_reviews(folder / "three", sites=3, rows=(12, 13, 14))
    make_reviews(folder / "two", sites=2, rows=(12, 13))
    make_reviews(folder / "uneven", sites=3, rows=(8, 8, 24))
    return folder


def reviews(folder: Path) -> Any:
    return atoll.data.from_csv_folder(folder, target="label", keep=["text"], features=[])


def tuning(place: Path, algorithm: Any, **more: Any) -> Tuning:
    return Tuning(encoder=str(place / "tiny"), method=LORA, rounds=2, length=8, algorithm=algorithm, **more)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.support.bridge import Bridge
    from tests.support.certificates import authority

    made = Bridge(tmp_path_factory.mktemp("bridge"), "tcp", authority())
    yield made
    made.close()


def live(job: Tuning, rows: Any, engine: Any) -> Any:
    """Return the outcome of a tuning between the sites of an engine, on a real clock."""
    prepared = job.prepare(rows)
    world = World(rows, engine, clock=Clock(virtual=False), sealing="real")
    world.install(prepared)
    return run(run_program(world, prepared.program), virtual=False)[0]


@dataclass(frozen=True, kw_only=True)
class Dying(atoll.FedAvg):
    """The site with the third file's rows dies before it replies, whatever the round."""

    here: int = 0
    doomed: int = 0

    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        if os.getpid() != self.here and float(work.examples) == self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().finish(local, broadcast, client, work)


@pytest.mark.network
def test_between_processes_it_is_the_simulation_and_a_killed_site_is_missed(place: Path, bridge: Any) -> None:
    rows, plain = reviews(place / "three"), atoll.FedAvg(lr=0.5, batch_size=None)
    job = tuning(place, plain, aggregation=FedExLoRA())
    here, there = atoll.simulate(job, rows, engine="inline"), live(job, rows, bridge.engine())
    assert there.history.column("bytes_up") == here.metrics.column("bytes_up")
    for name, value in here.params.items():
        np.testing.assert_allclose(there.params[name], value, rtol=1e-5, atol=1e-7)
    dying = tuning(
        place,
        Dying(lr=0.5, batch_size=None, here=os.getpid(), doomed=14),
        aggregation=FedExLoRA(),
        pacing=atoll.Synchronous(quorum=2),
    )
    left = live(dying, rows, bridge.engine(on_lost="drop"))
    assert left.history.column("replied") == [2, 2]
    for name, value in atoll.simulate(job, reviews(place / "two"), engine="inline").params.items():
        np.testing.assert_allclose(left.params[name], value, rtol=1e-5, atol=1e-7)


def pictures(folder: Path, rows: tuple[int, ...]) -> Any:
    """Return a population whose CSV files name their images in full: a site has no other setting of folders here."""
    make_pictures(folder, sites=len(rows), rows=rows)
    for file in folder.glob("*.csv"):
        head, *lines = file.read_text().splitlines()
        names = images_below(folder, [line.split(",")[0] for line in lines])
        file.write_text("\n".join([head, *(f"{n},{line.split(',')[1]}" for n, line in zip(names, lines, strict=True))]))
    return atoll.data.from_csv_folder(folder, target="label", keep=["image"], features=[])


@pytest.mark.network
def test_images_are_opened_at_their_site_alone_and_a_killed_site_is_missed(place: Path, bridge: Any) -> None:
    make_dual_encoder(place / "dual")
    rows, more = pictures(place / "of-three", (6, 6, 9)), {"pacing": atoll.Synchronous(quorum=2)}
    settings: dict[str, Any] = {
        "encoder": str(place / "dual"), "digest": Encoder.open(str(place / "dual")).digest, "method": Bottleneck(4), "image": "image",
        "length": 8, "rounds": 2,
    }  # fmt: skip
    job = Tuning(**settings, algorithm=atoll.FedAvg(lr=0.5, batch_size=None))
    here, there = atoll.simulate(job, rows, engine="inline"), live(job, rows, bridge.engine())
    assert there.history.column("bytes_up") == here.metrics.column("bytes_up")
    for name, value in here.params.items():
        np.testing.assert_allclose(there.params[name], value, rtol=1e-5, atol=1e-7)
    dying = Tuning(**settings, **more, algorithm=Dying(lr=0.5, batch_size=None, here=os.getpid(), doomed=9))
    left = live(dying, rows, bridge.engine(on_lost="drop"))
    assert left.history.column("replied") == [2, 2]
    two = atoll.simulate(job, pictures(place / "of-two", (6, 6)), engine="inline").params
    for name, value in two.items():
        np.testing.assert_allclose(left.params[name], value, rtol=1e-5, atol=1e-7)


@dataclass(frozen=True, kw_only=True)
class Cheating(atoll.FedAvg):
    """A client of three steps, the only one, sends something else."""

    how: str = ""
    stolen: ClassVar[Any] = None

    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        reply, client = super().finish(local, broadcast, client, work)
        if float(work.steps) < 3:
            return reply, client
        update = dict(reply["update"].value)
        name = next(iter(update))
        if self.how == "backbone":
            update["body.base_model.model.embeddings.word_embeddings.weight"] = Cheating.stolen
        elif self.how == "beside":
            return {**reply, "weights": Mean(Cheating.stolen)}, client
        elif self.how == "shape":
            update[name] = update[name][:1]
        elif self.how == "instead":
            update[next(name for name in update if ".lora_A." in name)] = Cheating.stolen
        else:
            update[name] = update[name] * float("nan")
        return {**reply, "update": Mean(update, examples=work.examples)}, client


@pytest.mark.network
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("backbone", "'update' is a dict of 7, but"),
        ("beside", "'weights', which nobody asked for"),
        ("shape", r"lora_A.* is of shape \(1, 16\), but"),
        ("instead", r"lora_A.* is of shape \(12, 16\), but"),
        ("nan", ""),
    ],
)
def test_a_reply_with_other_values_than_were_asked_for_is_refused_by_name(
    how: str, words: str, place: Path, bridge: Any
) -> None:
    weights = Encoder.open(str(place / "tiny")).model.embeddings.word_embeddings.weight
    Cheating.stolen = weights.detach().clone()
    more = {"aggregation": FedExLoRA("factors")} if how == "instead" else {}  # whose server takes single replies
    job = tuning(place, Cheating(lr=0.1, batch_size=8, how=how), pacing=atoll.Synchronous(quorum=2), **more)
    if words:
        with pytest.raises(AtollError, match=f"{words}.*site-3.*Remedy: "):
            live(job, reviews(place / "uneven"), bridge.engine())
    else:
        found = live(job, reviews(place / "uneven"), bridge.engine())
        assert found.history.column("replied") == [2, 2]
        assert found.history.column("rejected") == [1, 1]
