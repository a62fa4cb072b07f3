"""Named data sets in the folder that ATOLL_DATA names: small files of the same form, and the real ones if there."""

import gzip
import os
import struct

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import DataError

REAL = os.environ.get("ATOLL_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="ATOLL_DATA is not set: the real data are not here")


def write(folder, path, text):
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    raw = text if isinstance(text, bytes) else text.encode()
    target.write_bytes(gzip.compress(raw) if path.endswith(".gz") else raw)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def save(folder, path, **arrays):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    np.savez(folder / path, **arrays)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with a few made-up rows in each file."""
    rng = np.random.Generator(np.random.PCG64(0))
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    for part, n in (("train", 12), ("t10k", 4)):
        write(tmp_path, f"mnist/{part}-images-idx3-ubyte.gz", idx(rng.integers(0, 256, (n, 28, 28), np.uint8)))
        write(tmp_path, f"mnist/{part}-labels-idx1-ubyte.gz", idx(rng.integers(0, 10, n).astype(np.uint8)))
    save(
        tmp_path,
        "qmnist_writers/mnist_writer_ids.npz",
        train_writer=np.arange(12, dtype=np.int16) % 3,
        test_writer=np.full(4, 900, np.int16),
    )
    parts = {
        f"{a}_{part}": (rng.integers(0, 256, (n, 32, 32, 3), np.uint8) if a == "x" else np.arange(n, dtype=np.uint8))
        for part, n in (("train", 10), ("test", 5), ("holdout", 6))
        for a in "xy"
    }
    save(tmp_path, "cifar10_subset/cifar10_subset.npz", **parts)
    columns = "frequency_hz,angle_deg,chord_m,velocity_ms,thickness_m,spl_db"
    numbers = "\n".join(",".join(f"{v:.3f}" for v in row) for row in rng.random((20, 6)))
    write(tmp_path, "airfoil/airfoil_self_noise.csv.gz", f"{columns}\n{numbers}\n")
    columns = "CRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT,MEDV"
    numbers = "\n".join(",".join(f"{v:.3f}" for v in row) for row in rng.random((10, 14)))
    write(tmp_path, "boston_housing/boston_housing.csv.gz", f"{columns}\n{numbers}\n")
    save(
        tmp_path,
        "kddcup99/kddcup99_tcp_safa.npz",
        x=rng.random((10, 35), np.float32),
        y=np.array([-1, 1] * 5, np.int8),
    )
    columns = "AT,AP,AH,AFDP,GTEP,TIT,TAT,TEY,CDP,CO,NOX"
    for year in range(2011, 2016):
        numbers = "\n".join(",".join(f"{v:.3f}" for v in row) for row in rng.random((4, 11)))
        write(tmp_path, f"gas_turbine/gt_{year}.csv.gz", f"{columns}\n{numbers}\n")
    tweets = "tweet_id,airline,user_id,airline_sentiment,negativereason,tweet_created,text\n" + "\n".join(
        f'{k},{"Up" if k % 2 else "Away"},{k % 3},{("negative", "neutral", "positive")[k % 3]},,1/1/2015,"hi, {k}"'
        for k in range(10)
    )
    write(tmp_path, "airline_tweets/airline_tweets.csv.gz", tweets)
    tweets = "tweet_id,user_id,date,label,text\n" + "\n".join(f"{k},{k},today,{k % 2},word {k}" for k in range(10))
    write(tmp_path, "sent140/sent140_20k_with_users.csv.gz", tweets)
    write(tmp_path, "movielens_100k/u.data.gz", "1\t5\t3\t881250949\n2\t4\t5\t881250950\n")
    save(
        tmp_path,
        "celeba_attr/celeba_attr.npz",
        attr=rng.integers(0, 2, (9, 3), np.uint8),
        attr_names=np.array(["Male", "Smiling", "Young"]),
        identity=np.arange(9, dtype=np.int32) // 3,
    )
    write(tmp_path, "fate_vfl/breast_hetero_guest.csv.gz", "id,y,x0,x1\n7,1,0.5,1\n8,0,2,3.5\n")
    write(tmp_path, "fate_vfl/breast_hetero_host.csv.gz", "id,x0\n8,0.5\n7,2\n")
    write(tmp_path, "fate_vfl/motor_hetero_guest.csv.gz", "idx,motor_speed,pm\n1,0.25,1\n2,0.5,3.5\n")
    write(tmp_path, "fate_vfl/motor_hetero_host.csv.gz", "idx,u_d\n1,0.5\n2,2\n")
    write(tmp_path, "crowd_truth/dog_labels.csv.gz", "task,worker,label\n1,0,3\n1,1,2\n")
    write(tmp_path, "crowd_truth/dog_truth.csv.gz", "task,truth\n1,2\n")
    return tmp_path


FORMS = {
    "mnist": (12, 4, (1, 28, 28), "classification"),
    "qmnist_writers": (12, 4, (1, 28, 28), "classification"),
    "cifar10_subset": (10, 5, (3, 32, 32), "classification"),
    "airfoil": (16, 4, (5,), "regression"),
    "boston_housing": (7, 3, (13,), "regression"),
    "kddcup99_tcp": (7, 3, (35,), "binary"),
    "gas_turbine": (14, 6, (9,), "regression"),
    "airline_tweets": (8, 2, None, "classification"),
    "sentiment140": (8, 2, None, "binary"),
    "celeba_attributes": (8, 1, (2,), "binary"),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_set_has_its_form(folder, name):
    rows, test, shape, task = FORMS[name]
    data = atoll.data.open(name)
    assert (len(data), len(data.test)) == (rows, test)
    assert data.task == task
    assert data.name == name
    assert data.citation
    if shape is not None:
        assert data.x.shape[1:] == shape
        assert data.test.x.shape[1:] == shape


def test_every_named_set_is_tested_here_or_bundled():
    bundled = {"breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"}
    assert set(atoll.data.available()) == {*FORMS, *bundled, "movielens_100k", "digit_domains"}
    assert atoll.data.available()["mnist"].startswith("Load MNIST")


def test_writers_are_natural_clients(folder):
    islands = atoll.data.natural(atoll.data.qmnist_writers(), "writer")
    assert list(islands.names) == ["0", "1", "2"]
    assert islands.sizes.tolist() == [4, 4, 4]
    assert islands.test["writer"].tolist() == [900] * 4
    save(folder, "qmnist_writers/mnist_writer_ids.npz", train_writer=np.arange(5), test_writer=np.arange(4))
    with pytest.raises(DataError, match="5 writers for 12 digits"):
        atoll.data.qmnist_writers()


def test_options_reach_the_loaders(folder):
    assert atoll.data.mnist(scale=False, flat=True).x.dtype == np.uint8
    assert len(atoll.data.cifar10_subset(holdout=True).test) == 6
    assert atoll.data.cifar10_subset().about.labels[3] == "cat"
    assert atoll.data.boston_housing(drop=["B"]).x.shape == (7, 12)
    first = atoll.data.boston_housing(test=0.3, seed=None)
    assert np.array_equal(first.x, atoll.data.boston_housing(test=0).x[:7])
    both = atoll.data.gas_turbine(test=0)
    assert both.y.shape == (20, 2)
    assert sorted(set(both["year"].tolist())) == [2011, 2012, 2013, 2014, 2015]
    alone = atoll.data.gas_turbine(targets=["NOX"], test=0)
    assert alone.about.features == both.about.features
    assert np.array_equal(alone.y, both.y[:, 1])
    assert atoll.data.celeba_attributes(target="Male").about.features == ("Smiling", "Young")
    assert atoll.data.movielens_100k().x.tolist() == [[0, 4], [1, 3]]
    tweets = atoll.data.airline_tweets(test=0)
    assert tweets["text"][3] == "hi, 3"
    assert tweets.about.labels == ("negative", "neutral", "positive")
    assert list(atoll.data.natural(tweets, "airline").names) == ["Away", "Up"]


def test_a_folder_can_be_passed_instead(folder, monkeypatch):
    monkeypatch.delenv("ATOLL_DATA")
    assert len(atoll.data.mnist(folder=folder)) == 12


def test_vertical_pairs_share_their_ids(folder):
    guest, host = atoll.data.fate_vertical("breast")
    assert guest["id"].tolist() == [7, 8]
    assert host["id"].tolist() == [8, 7]
    assert (guest.task, host.task) == ("binary", "unlabelled")
    assert atoll.data.fate_vertical("motor")[0].task == "regression"
    with pytest.raises(DataError, match="no vertical example 'brest'"):
        atoll.data.fate_vertical("brest")
    write(folder, "fate_vfl/motor_hetero_host.csv.gz", "u_d\n0.5\n")
    with pytest.raises(DataError, match="no column id"):
        atoll.data.fate_vertical("motor")


def test_crowd_labels_come_with_their_truth(folder):
    labels, truth = atoll.data.crowd_labels("dog")
    assert labels["label"].tolist() == [3, 2]
    assert truth["truth"].tolist() == [2]
    with pytest.raises(DataError, match="no crowd labels 'cat'"):
        atoll.data.crowd_labels("cat")
    write(folder, "crowd_truth/dog_truth.csv.gz", "task,answer\n1,2\n")
    with pytest.raises(DataError, match="no column truth"):
        atoll.data.crowd_labels("dog")


def test_what_to_set_is_said(folder, monkeypatch):
    (folder / "airfoil" / "airfoil_self_noise.csv.gz").unlink()
    with pytest.raises(DataError, match="there is no airfoil/airfoil_self_noise"):
        atoll.data.airfoil()
    monkeypatch.setenv("ATOLL_DATA", str(folder / "nowhere"))
    with pytest.raises(DataError, match="which is not a folder"):
        atoll.data.airfoil()
    monkeypatch.delenv("ATOLL_DATA")
    with pytest.raises(DataError, match="ATOLL_DATA is not set") as caught:
        atoll.data.open("airfoil")
    assert "set ATOLL_DATA to the folder with airfoil/airfoil_self_noise.csv.gz" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnistt", {}, "no data set 'mnistt'. Did you mean 'mnist'"),
        ("mnist", {"flatt": True}, "no option 'flatt'. Did you mean 'flat'"),
        ("gas_turbine", {"targets": ["CO2"]}, "targets="),
        ("celeba_attributes", {"target": "Tall"}, "no attribute 'Tall'"),
    ],
)
def test_wrong_names_and_options_are_refused(folder, name, options, message):
    with pytest.raises(DataError, match=message):
        atoll.data.open(name, **options)


def test_a_broken_rating_file_is_refused(folder):
    write(folder, "movielens_100k/u.data.gz", "1,5,3\n")
    with pytest.raises(DataError, match="not user, item, rating, time"):
        atoll.data.movielens_100k()


# ---------------------------------------------------------------- the real data

# Published numbers of rows, and means stated by the publishers or in the seeds.
PUBLISHED = {
    "mnist": 70_000,
    "airfoil": 1503,
    "boston_housing": 506,
    "kddcup99_tcp": 186_479,  # the SAFA paper says 186,480
    "gas_turbine": 36_733,
    "cifar10_subset": 11_000,
    "airline_tweets": 14_640,
    "sentiment140": 19_999,
    "celeba_attributes": 202_599,
}


@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_sets_have_their_published_sizes(name):
    data = atoll.data.open(name)
    assert len(data) + len(data.test) == PUBLISHED[name]


@needs_data
def test_the_real_means():
    assert atoll.data.airfoil(test=0).y.mean(dtype=np.float64) == pytest.approx(124.8359, abs=1e-3)
    assert atoll.data.boston_housing(test=0).y.mean() == pytest.approx(22.5328, abs=1e-3)
    assert np.allclose(atoll.data.gas_turbine(test=0).y.mean(axis=0, dtype=np.float64), [2.3725, 65.293], atol=1e-3)


@needs_data
def test_the_real_writers():
    # Of MNIST's 60,000 training digits: 539 writers with 19 to 131 digits each, median 116 (QMNIST).
    sizes = atoll.data.natural(atoll.data.qmnist_writers(scale=False), "writer").sizes
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)
