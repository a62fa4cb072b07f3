"""The tasks of FedProf's and HybridFL's chapters on generated files of the same form: who has which data, and short trainings."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from atoll.core.errors import ConfigError
from atoll.models import mlp
from atoll.reproduce import Lab, NotKept, entries
from atoll_papers.fedprof import entries as fedprof_entries
from atoll_papers.fedprof import quality, rivals, tasks, trainings
from atoll_papers.fedprof.tasks import GROUPS, IMAGES
from atoll_papers.hybridfl import trainings as hybrid
from atoll_papers.hybridfl.paper import AEROFOIL, DIGITS

SENSORS = "AT,AP,AH,AFDP,GTEP,TIT,TAT,TEY,CDP,CO,NOX"
FOIL = "frequency_hz,angle_deg,chord_m,velocity_m_s,thickness_m,spl_db"


def _idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes(), 1)


def _csv(header: str, rows: np.ndarray) -> bytes:
    lines = [header, *(",".join(f"{value:.5g}" for value in row) for row in rows)]
    return gzip.compress("\n".join(lines).encode(), 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sensors whose targets are linear and positive, a foil alike, digits of noise, and a few coloured images."""
    tmp_path, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("gas_turbine", "airfoil", "mnist", "cifar10_subset"):
        (tmp_path / name).mkdir()
    for year in range(2011, 2016):
        x = rng.normal(size=(300, 9))
        y = np.exp(0.3 * x[:, :2]) * [2.0, 60.0]
        (tmp_path / "gas_turbine" / f"gt_{year}.csv.gz").write_bytes(_csv(SENSORS, np.hstack([x, y])))
    x = rng.normal(size=(300, 5))
    (tmp_path / "airfoil" / "airfoil_self_noise.csv.gz").write_bytes(_csv(FOIL, np.hstack([x, 120 + 5 * x[:, :1]])))
    for part, n in (("train", 6000), ("t10k", 20)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (n, 28, 28), np.uint8)),
            ("labels-idx1", (np.arange(n) % 10).astype(np.uint8)),
        ):
            (tmp_path / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(_idx(array))
    parts = {"train": 400, "test": 20, "holdout": 20}
    np.savez(
        tmp_path / "cifar10_subset" / "cifar10_subset.npz",
        **{f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in parts.items()},
        **{f"y_{part}": (np.arange(n) % 10).astype(np.uint8) for part, n in parts.items()},
    )
    caches = (fedprof_entries.lone, tasks.islands, hybrid.islands, hybrid.digits, quality.qualities)
    for kept in caches:
        kept.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_DATA", str(tmp_path))
        yield tmp_path
    for kept in caches:
        kept.cache_clear()


class Plain(Lab):
    """Trains for a few rounds, client by client: on so few rows, to find out what would be faster takes longer than all steps."""

    def train(self, settings):
        rounds = min(settings["rounds"], max(2, settings["evaluation"]["every"] if "evaluation" in settings else 2))
        return super().train({**settings, "rounds": rounds, "engine": "inline", "compile": "never"})


def kinds(made) -> dict[str, int]:
    tags = [made.tags[i] for i in range(len(made))]
    return {tag: tags.count(tag) for tag in sorted(set(tags))}


def test_who_has_which_data(folder):
    turbine = tasks.islands("gasturbine")
    assert kinds(turbine) == {"": 25, "fake": 5, "noise": 20}  # 10 % without valid data, 40 % noisy
    assert len(turbine) == 50
    assert sum(turbine.sizes) == 1050
    assert np.asarray(turbine.test.y).min() > 0
    images = tasks.islands("images")
    assert kinds(images) == {"": 400, "blur": 200, "irrelevant": 150, "salt_and_pepper": 250}
    good = [i for i in range(1000) if images.tags[i] == ""][:50]
    shares = [np.mean(np.asarray(images.shard(i).y) == i % 10) for i in good]
    assert np.mean(shares) == pytest.approx(0.6, abs=0.05)
    coloured = tasks.islands("cifar10", clients=20)
    assert np.asarray(tasks.coloured().x).std() == pytest.approx(1, abs=1e-4)
    assert kinds(coloured) == {"": 8, "blur": 4, "irrelevant": 3, "salt_and_pepper": 5}
    assert len(tasks.islands("images", rows=500, clients=10)) == 10
    with pytest.raises(ConfigError, match="task='words'"):
        tasks.islands("words")


def test_scaled_targets_keep_the_accuracy(folder):
    """Dividing targets by a constant changes nothing in ``|y - z| / max(y, z)``."""
    from atoll.data import gas_turbine

    raw, made = gas_turbine(), tasks.scaled_targets(gas_turbine())
    factor = np.asarray(raw.y).mean(axis=0)
    np.testing.assert_allclose(np.asarray(made.y) * factor, raw.y, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(made.test.y) * factor, raw.test.y, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(made.x).std(axis=0), 1, rtol=1e-3)


def test_hybridfl_data(folder):
    foil = hybrid.islands("aerofoil")
    assert len(foil) == 15
    assert sum(foil.sizes) == 240
    values = np.asarray(foil.pooled().y)
    assert 0 < values.min() < 0.01
    assert values.max() == pytest.approx(1.0)
    digits = hybrid.islands("mnist", rows=5000)
    shares = [np.mean(np.asarray(digits.shard(i).y) == i % 10) for i in range(0, 500, 25)]
    assert len(digits) == 500
    assert np.mean(shares) == pytest.approx(0.75, abs=0.06)
    with pytest.raises(ConfigError, match="task='words'"):
        hybrid.islands("words")


def test_models():
    import torch

    assert tasks.perceptron()()(torch.zeros(2, 9)).shape == (2, 2)
    assert hybrid.feed_forward()()(torch.zeros(2, 5)).shape == (2, 1)
    lecun = tasks.lenet(dense=120)()
    assert lecun(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert sum(p.numel() for p in lecun.parameters()) == 61_706  # LeNet-5 with full connections between its maps
    assert tasks.lenet(3, 32)()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.slow
def test_fedprof_runs(folder, tmp_path):
    protocol = trainings.FedProfProtocol("gasturbine", rounds=2, seeds=1, shares=(0.2,))
    groups = {"full": ("FedAvg",), "partial": ("FedAvg-RP", "FedProx", "FedAdam")}
    trained = trainings.runs(Lab(tmp_path / "runs"), protocol, groups)
    found = trainings.cells("gasturbine", trained, target=-9.0)
    assert len(found) == 4
    for cell in found.values():
        assert cell.best <= 1.0
        assert cell.rounds == 1
        assert 36.0 < cell.seconds < 110.0  # one round of ten clients: 36 s at the mean bandwidth
        assert 0.03 < cell.watt_hours < 0.08
    never = trainings.cells("gasturbine", trained, target=2.0)
    assert never["full", "FedAvg", 0.2].rounds is None


@pytest.mark.slow
def test_hybridfl_runs(folder, tmp_path):
    """All three methods on one drawing of devices; HybridFL's rounds are shorter, and a target is counted in federated rounds."""
    protocol = hybrid.HybridProtocol("aerofoil", rounds=10, drops=(0.6,), shares=(0.3,), seeds=1)
    found = hybrid.cells(Lab(tmp_path / "runs"), protocol)
    lengths = {method: found[method, 0.6, 0.3].length for method in ("FedAvg", "HierFAVG", "HybridFL")}
    assert 30.0 < lengths["HybridFL"] < min(lengths["FedAvg"], lengths["HierFAVG"])
    assert max(lengths.values()) < 90.41 + 0.36
    assert all(cell.best < 1.0 for cell in found.values())
    again = hybrid.cells(Lab(tmp_path / "again"), protocol, ("HybridFL",))
    assert again["HybridFL", 0.6, 0.3] == found["HybridFL", 0.6, 0.3]  # the first model follows the seed
    both = hybrid.cells(Lab(tmp_path / "again"), replace(protocol, seeds=2), ("HybridFL",))
    assert both["HybridFL", 0.6, 0.3].length != found["HybridFL", 0.6, 0.3].length  # and so do the devices


def test_configurations(folder):
    """What each method's configuration says."""
    protocol = trainings.FedProfProtocol("images", shares=(0.05,))
    assert trainings.settings(protocol, "full", "FedAvg", 0.05, 0)["selection"] == {"name": "Uniform", "count": 50}
    assert trainings.settings(protocol, "full", "FedAvg", 0.05, 0)["rounds"] == 300
    assert trainings.settings(protocol, "partial", "FedProf", 0.05, 0)["selection"]["alpha"] == 10.0
    assert trainings.settings(protocol, "partial", "FedAvg-RP", 0.05, 0)["aggregation"] == "Rescaled"
    assert trainings.settings(protocol, "partial", "FedProx", 0.05, 0)["algorithm"]["name"] == "FedProx"
    for task, model in (("gasturbine", tasks.perceptron()), ("images", tasks.lenet())):
        fleet = trainings.settings(trainings.FedProfProtocol(task), "partial", "FedProf", 0.2, 0)["devices"]
        profile, weights = 8 * tasks.setting_of(task).width, 4 * sum(p.numel() for p in model().parameters())
        assert profile + 256 < fleet["model_over"] < weights  # a profile in its envelope is no model, a model is one
    with pytest.raises(ConfigError, match="method='FedSGD'"):
        trainings.selection("FedSGD", 5)
    parts = hybrid.system("HybridFL", DIGITS, 0)
    groups = parts["topology"]["groups"]
    assert [client for group in groups for client in group] == list(range(500))
    assert len(groups) == 10
    assert parts["pacing"]["deadline"] == pytest.approx(378.0188, abs=1e-4)
    assert hybrid.system("HierFAVG", AEROFOIL, 0)["topology"]["every"] == 10
    assert hybrid.settings(hybrid.HybridProtocol("aerofoil"), "HierFAVG", 0.1, 0.3)["rounds"] == 600  # of the clients
    with pytest.raises(ConfigError, match="method='FedSGD'"):
        hybrid.system("FedSGD", AEROFOIL, 0)


@pytest.mark.quick("FedProf")
@pytest.mark.parametrize("method", ["FedAvg-RP", "FedProf"])
@pytest.mark.network
def test_participation_by_quality(folder, tmp_path, method):
    """Two seeds of two rounds of ten clients: 20 clients in all; the survey before FedProf's first round is none of them."""
    protocol = trainings.FedProfProtocol("gasturbine", rounds=2, seeds=2, shares=(0.2,))
    trained = trainings.runs(Lab(tmp_path / "runs"), protocol, {"partial": (method,)})
    counted = trainings.taken_part(protocol, trained["partial", method, 0.2])
    clients = kinds(tasks.islands("gasturbine"))
    assert set(counted) == {"", "fake", "noise"}
    assert sum(counted[tag] * clients[tag] for tag in counted) == pytest.approx(20)
    for run in trained["partial", method, 0.2]:
        # The survey: fifty models down and a pass over the data each, 0.085 Wh; with profiles charged as models it would be 0.25.
        more = run.rows[0]["energy_wh"] - run.rows[1]["energy_wh"]
        assert abs(more - (0.085 if method == "FedProf" else 0.0)) < 0.03


def test_what_is_trained_small(folder):
    """The small tasks: as many clients with digits as wished, and rounds by group."""
    digits = hybrid.digits(0, 1000, 50, 10)
    assert (len(digits), sum(digits.sizes), len(digits.test)) == (50, 1000, 10)
    assert trainings.settings(trainings.SMALL, "full", "FedAvg", 0.1, 0)["rounds"] == 76
    assert trainings.settings(trainings.SMALL, "partial", "FedProf", 0.1, 0)["selection"]["count"] == 5
    assert trainings.settings(trainings.SMALL, "partial", "FedProf", 0.1, 0)["rounds"] == 12


def test_conditions_of_the_data(folder):
    """Figure 5.1: who is noisy, whose classes are skewed, and what the verdicts say of the wished and of the opposite."""
    made = {name: quality.qualities(name, 0, 2000, 20) for name in quality.CONDITIONS}
    assert [kinds(made[name]).get("noise", 0) for name in quality.CONDITIONS] == [0, 0, 13, 13]
    most = [np.mean([np.bincount(np.asarray(m.shard(i).y)).max() / 100 for i in range(20)]) for m in made.values()]
    assert max(most[0], most[2]) < 0.3
    assert min(most[1], most[3]) > 0.5
    with pytest.raises(ConfigError, match="condition='good'"):
        quality.qualities("good")
    runs = ([(0.5, 0.9)], [(0.4, 0.8)], [(0.4, 0.8)], [(0.2, 0.7)])
    wished = dict(zip(quality.CONDITIONS, runs, strict=True))
    assert all(claim.holds for claim in quality.judge_conditions(wished))
    assert not any(claim.holds for claim in quality.judge_conditions({**wished, "original": [(0.1, 0.2)]}))
    middle = quality.judge_conditions({name: [traces[0], (0.1, 0.2), (0.9, 1.0)] for name, traces in wished.items()})
    assert all(claim.holds for claim in middle)
    assert middle[0].ours.startswith("best 0.800 (0.200 to 1.000) against 0.900 (0.200 to 1.000), mean")


def test_shapes_of_representations(folder):
    """Moments in closed form, laws of sums, and a network whose neurons are seen before their activation."""
    rng = np.random.default_rng(0)
    exponential = quality.shape_of(rng.exponential(size=200_000))
    assert (exponential.skewness, exponential.kurtosis) == (pytest.approx(2, abs=0.1), pytest.approx(6, abs=0.7))
    uniform = quality.shape_of(rng.random(200_000))
    assert (uniform.skewness, uniform.kurtosis) == (pytest.approx(0, abs=0.02), pytest.approx(-1.2, abs=0.02))
    assert quality.shape_of([3.0, 3.0]) == quality.Shape(0.0, 0.0)
    found = quality.fan_in()
    assert found[64].kurtosis / found[4].kurtosis < 0.15  # 1/16 but for the weights' own spread and 4,000 draws
    trained = quality.shapes((0, 1), rows=200)
    assert [len(trained[epoch]) for epoch in (0, 1)] == [128, 128]
    assert quality.judge_shapes(found, trained)[0].holds
    assert not quality.judge_shapes(dict(zip((4, 16, 64, 256), reversed(found.values()), strict=True)), trained)[
        0
    ].holds
    assert quality.shapes((0, 1), rows=200) == trained  # follows its seed


@pytest.mark.every(2)
@pytest.mark.quick("fedprof-gasturbine")
@pytest.mark.parametrize("name", ["hybridfl-aerofoil", "hybridfl-mnist", "fedprof-gasturbine", "fedprof-images"])
def test_entries(name, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "lenet", lambda channels=1, size=28, dense=128: mlp(channels * size**2, 10, [8]))
    claims = entries()[name].run(Plain(tmp_path), True)
    assert len(claims) >= 18
    assert (
        sum(claim.holds is True for claim in claims) > len(claims) / 3
    )  # nothing can be learned from digits that are noise
    assert not all(claim.holds for claim in claims)


def test_what_is_not_kept_is_not_run(folder, tmp_path, monkeypatch):
    """Nothing may be trained: cells have the seeds before the first that is missing, and rivals without a training are named."""
    monkeypatch.setattr(tasks, "lenet", lambda channels=1, size=28, dense=128: mlp(channels * size**2, 10, [8]))
    made = replace(trainings.SMALL, rows=200, clients=10, seeds=3, lengths={"full": 1, "partial": 1})
    lab = Plain(tmp_path)
    for method, seeds in (("FedProf", (0, 1)), ("AFL", (0, 2))):
        for seed in seeds:
            lab.train(trainings.settings(made, "partial", method, 0.1, seed))
    trained = trainings.runs(Plain(tmp_path, kept=True), made)
    assert {key[:2]: len(runs) for key, runs in trained.items()} == {
        ("partial", "FedProf"): 2,
        ("partial", "AFL"): 1,
    }
    assert trainings.seeds_of(trained) == "1 or 2"
    missing = rivals.not_trained(IMAGES, trained, GROUPS, 0.1)
    assert [claim.verdict for claim in missing] == ["not run"] * 5  # all but AFL, in both groups
    assert not any("AFL" in claim.claim for claim in missing)
    bare = quality.judge_conditions(quality.conditions(Plain(tmp_path, kept=True), 2))
    assert [claim.verdict for claim in bare] == ["not run"] * 3
    with pytest.raises(NotKept, match="cifar10-lone"):
        entries()["fedprof-cifar"].run(Plain(tmp_path, kept=True), True)


@pytest.mark.slow
def test_coloured_images(folder, tmp_path, monkeypatch):
    """The lone client's images are held apart from the test's; the target is rounded down; four rivals in accuracy and in rounds, and who is trainings."""
    monkeypatch.setattr(tasks, "lenet", lambda channels=1, size=28, dense=128: mlp(channels * size**2, 10, [8]))
    alone = fedprof_entries.lone_settings(fedprof_entries.COLOUR, 0)
    assert alone["data"]["source"]["rows"] == 1000  # ten clients with 100 images each
    assert alone["rounds"] * 1000 == fedprof_entries.COLOUR.length("partial") * 5 * 100  # as many local steps
    assert (len(fedprof_entries.lone(0, 50)), len(fedprof_entries.lone(0, 50).shard(0))) == (1, 50)
    reached = [SimpleNamespace(best=lambda best=best: best) for best in (0.1, 0.3, 0.349, 0.9, 0.301)]
    assert fedprof_entries.target_of(reached) == fedprof_entries.target_of(reached[1:2]) == 0.3
    assert fedprof_entries.target_of(reached[2:3]) == 0.3
    claims = entries()["fedprof-cifar"].run(Plain(tmp_path), True)
    assert len(claims) == 4 + 4 + 2 + 2
    assert all(claim.claim.startswith("cifar10") and claim.paper is None for claim in claims)
    assert all("a lone client with clean images reaches 0." in claim.note for claim in claims)
