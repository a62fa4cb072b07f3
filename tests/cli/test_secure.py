"""``atoll secure``: plans and sums, as people and scripts type them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atoll.cli.app import run


@pytest.fixture
def folder(tmp_path):
    for i, row in enumerate(np.random.default_rng(0).normal(size=(6, 50))):
        np.save(tmp_path / f"party-{i}.npy", row)
    return tmp_path


def answer(capsys, *words, code=0):
    assert run(["secure", *map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_plan_is_the_golden_one(capsys):
    found = answer(capsys, "plan", "--parties", 1000, "--loss", 0.1, "--corrupt", 0.05)
    assert (found["neighbours"], found["threshold"]) == (40, 19)


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        ("secagg", ()),
        ("secagg", ("--active",)),
        ("multi-round", ("--active",)),
        ("secagg+", ("--neighbours", 4, "--threshold", 3)),
        ("plain", ()),
    ],
)
def test_a_sum_is_exact_within_its_bound(capsys, folder, protocol, more):
    drop = () if protocol == "plain" else ("--drop", "masked:1")
    found = answer(
        capsys, "sum", folder, "--protocol", protocol, "--bits", 16, "--out", folder / "s.npz.npy", *more, *drop
    )
    kept = [np.load(folder / f"{name}.npy") for name in found["senders"]]
    assert found["survivors"] == len(kept) == (6 if protocol == "plain" else 5)
    total = np.load(folder / "s.npz.npy")
    assert np.abs(total - np.sum(kept, axis=0)).max() == pytest.approx(found["max_error"])
    assert (found["max_error"] <= found["bound"]) or protocol == "plain"
    assert found["max_error"] > 0 or protocol == "plain"
    assert (found["modulus_bits"], found["clamped"], found["overflowed"]) == (19, 0.0, 0.0)
    assert found["bits_per_weight"] * 50 * found["survivors"] / 8 <= found["bytes_up"]
    assert found["seconds"] > 0


def test_a_bounded_sum_names_who_is_beyond_the_norm_and_adds_up_the_others(capsys, folder):
    long = np.load(folder / "party-2.npy")
    norm = max(np.linalg.norm(np.load(file)) for file in folder.glob("*.npy"))
    np.save(folder / "party-2.npy", long * 10 * norm / np.linalg.norm(long))
    words = ("--protocol", "bounded", "--norm", norm, "--drop", "masked:1", "--seed", 1)
    found = answer(capsys, "sum", folder, *words, "--out", folder / "sum.out.npy")
    (who, why), *others = found["rejected"].items()
    assert (who, others) == ("party-2", [])
    assert why.startswith(f"its update is longer than norm={norm:g}")
    assert "party-2" not in found["senders"]
    assert found["survivors"] == 4
    total = np.sum([np.load(folder / f"{name}.npy") for name in found["senders"]], axis=0)
    assert np.abs(np.load(folder / "sum.out.npy") - total).max() == pytest.approx(found["max_error"])
    assert 0 < found["max_error"] <= found["bound"] < 1e-6
    assert (found["modulus_bits"], found["clamped"], found["overflowed"]) == (64, 0.0, 0.0)


@pytest.mark.parametrize("protocol", ["bfv", "ckks", "paillier", "batchcrypt"])
def test_an_encrypted_sum_is_exact_within_its_bound(capsys, folder, protocol):
    words = ("--protocol", protocol, "--bits", 12, "--drop", "masked:2")
    found = answer(capsys, "sum", folder, *words, "--out", folder / "sum.out.npy")
    kept = [np.load(folder / f"{name}.npy") for name in found["senders"]]
    assert found["survivors"] == len(kept) == 4
    total = np.load(folder / "sum.out.npy")
    assert np.abs(total - np.sum(kept, axis=0)).max() == pytest.approx(found["max_error"])
    assert 0 < found["max_error"] <= found["bound"]
    assert (found["modulus_bits"], found["clamped"], found["overflowed"]) == (15, 0.0, 0.0)
    keys = {
        "survivors",
        "max_error",
        "bound",
        "modulus_bits",
        "overflowed",
        "clamped",
        "bits_per_weight",
        "bytes_up",
        "seconds",
    }
    assert keys <= set(found)


def test_a_threshold_of_the_parties_opens_a_sum_of_paillier(capsys, folder, monkeypatch):
    from atoll.secure.encrypted import Paillier

    weak = Paillier(key_bits=256, insecure=True)
    monkeypatch.setattr("atoll.secure.encrypted.reducer.scheme_named", lambda scheme: weak)
    found = answer(capsys, "sum", folder, "--protocol", "paillier", "--threshold", 3, "--drop", "masked:1,reveal:2")
    assert found["survivors"] == 5
    assert found["max_error"] <= found["bound"]
    lost = answer(capsys, "sum", folder, "--protocol", "paillier", "--threshold", 3, "--drop", "reveal:4", code=7)
    assert set(lost) == {"error"}


def test_each_step_may_lose_parties(capsys, folder):
    found = answer(capsys, "sum", folder, "--drop", "share:1,masked:1,reveal:0", "--threshold", 4)
    assert found["survivors"] == 4
    found = answer(capsys, "sum", folder, "--drop", "share:1,reveal:1", "--threshold", 0.5)
    assert found["survivors"] == 5


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--threshold", 5, "--drop", "masked:2"), 7, "4 parties sent masked words, fewer than 5"),
        (("--threshold", 5, "--drop", "reveal:2"), 7, "fewer than the quorum of 5"),
        (("--bits", 20, "--modulus-bits", 16), 4, "words of 16 bits cannot hold a sum of 6 values of 20 bits"),
        (("--protocol", "magic"), 2, "protocol 'magic'"),
        (("--encode", "magic"), 2, "encoding 'magic'"),
        (("--drop", "lunch:1"), 2, "--drop lunch:1"),
        (("--drop", "masked:9"), 2, "--drop of 9 parties"),
        (("--protocol", "bfv", "--threshold", 3), 2, "keys='threshold' with scheme='bfv'"),
        (("--protocol", "bfv", "--drop", "masked:5"), 7, "fewer than the quorum of 2"),
        (("--protocol", "bounded", "--bits", 16), 2, "--bits 16"),
        (("--protocol", "bounded", "--encode", "sq"), 2, "--encode sq with --protocol bounded"),
        (("--protocol", "bounded", "--norm", 0), 2, "norm=0.0"),
        (("--protocol", "bounded", "--norm", 0.1), 7, "0 parties within norm=0.1, fewer than 2"),
        (("--threshold", "many"), 2, "--threshold many"),
        (("--threshold", 4, "--active"), 4, "a threshold of 4 of 6 holders against an active server"),
    ],
)
def test_an_abort_has_an_error_and_no_sum(capsys, folder, words, code, what):
    found = answer(capsys, "sum", folder, "--out", folder / "sum.out.npy", *words, code=code)
    assert set(found) == {"error"}
    assert what in found["error"]["what"]
    assert found["error"]["remedy"]
    assert not (folder / "sum.out.npy").exists()


def test_a_party_with_nan_drops_out_by_name(capsys, folder):
    row = np.load(folder / "party-2.npy")
    row[7] = np.nan
    np.save(folder / "party-2.npy", row)
    found = answer(capsys, "sum", folder)
    assert found["survivors"] == 5
    assert list(found["rejected"]) == ["party-2"]
    assert found["max_error"] <= found["bound"]


def test_a_folder_without_parties_is_refused(capsys, tmp_path):
    np.save(tmp_path / "one.npy", np.ones(3))
    assert "1 .npy files" in answer(capsys, "sum", tmp_path, code=3)["error"]["what"]
    np.save(tmp_path / "two.npy", np.ones(4))
    assert "shape (4,), but one has (3,)" in answer(capsys, "sum", tmp_path, code=3)["error"]["what"]
    (tmp_path / "two.npy").write_bytes(b"not an array")
    assert "cannot be read" in answer(capsys, "sum", tmp_path, code=3)["error"]["what"]


# ---------------------------------------------------------------------- compressed


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    made = tmp_path_factory.mktemp("golden")
    for i, row in enumerate(np.random.default_rng(0).normal(size=(37, 4096))):
        np.save(made / f"party-{i:02}.npy", row)
    return made


@pytest.mark.parametrize(("modulus_bits", "overflowed"), [(9, 12.96), (10, 0.24), (11, 0.0)])
def test_the_golden_shares_of_overflowed_sums(capsys, golden, modulus_bits, overflowed):
    found = answer(
        capsys, "sum", golden, "--protocol", "enclave", "--encode", "sq", "--bits", 8, "--modulus-bits", modulus_bits
    )
    assert round(100 * found["overflowed"], 2) == overflowed
    assert found["clamped"] == 0.0
    assert (found["max_error"] <= found["bound"]) == (overflowed == 0)
    assert found["bits_per_weight"] == modulus_bits


@pytest.mark.parametrize(
    ("protocol", "codewords", "bits"), [("enclave", 32, 0.625), ("two-servers", 32, 24.0), ("two-servers", 128, 96.0)]
)
def test_indices_are_added_up_as_counts(capsys, golden, protocol, codewords, bits):
    more = ("--encode", "pq", "--block", 8, "--codewords", codewords, "--drop", "masked:2")
    found = answer(capsys, "sum", golden, "--protocol", protocol, *more)
    assert found["survivors"] == 35
    assert found["max_error"] <= found["bound"]
    assert found["bits_per_weight"] == pytest.approx(bits)
    assert found["bits_per_weight"] * 4096 * 35 / 8 <= found["bytes_up"]


def test_pruned_entries_count_as_zero(capsys, folder):
    found = answer(
        capsys, "sum", folder, "--encode", "prune", "--keep", 0.5, "--bits", 16, "--out", folder / "s.out.npy"
    )
    total = np.load(folder / "s.out.npy")
    whole = np.sum([np.load(folder / f"{name}.npy") for name in found["senders"]], axis=0)
    kept = total != 0
    assert kept.sum() == 25
    assert np.abs(total - whole)[kept].max() < 0.01
    assert found["max_error"] <= found["bound"]
    assert found["bits_per_weight"] == 0.5 * found["modulus_bits"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--encode", "pq"), "--encode pq with --protocol secagg"),
        (("--encode", "sq", "--bits", 8, "--modulus-bits", 8), "modulus_bits=8 for codes of 8 bits"),
        (("--encode", "sq", "--bits", 17), "bits=17"),
        (("--encode", "prune", "--keep", 1.5), "fraction=1.5"),
    ],
)
def test_encodings_that_cannot_be_are_refused(capsys, folder, words, what):
    assert what in answer(capsys, "sum", folder, *words, code=2)["error"]["what"]


def archive(file):
    np.savez(file.with_suffix(".npz"), x=np.ones(3))
    file.with_suffix(".npz").rename(file)


@pytest.mark.parametrize(
    ("save", "what"),
    [
        (lambda file: file.write_bytes(b""), "an array that cannot be read"),
        (archive, "an archive of arrays"),
        (lambda file: np.save(file, np.ones(3, complex)), "an array of complex128"),
        (lambda file: np.save(file, np.array(["1", "2", "3"])), "an array of <U1"),
        (lambda file: np.save(file, np.zeros(3, "datetime64[D]")), "an array of datetime64"),
        (lambda file: np.save(file, np.zeros(3, [("a", "f8"), ("b", "i4")])), "an array of [('a'"),
        (lambda file: np.save(file, np.full(3, 1.7e308)), "above the largest double"),
    ],
)
def test_a_file_without_real_numbers_is_refused_by_name(capsys, tmp_path, save, what):
    np.save(tmp_path / "one.npy", np.full(3, 1e308))
    save(tmp_path / "two.npy")
    assert what in answer(capsys, "sum", tmp_path, code=3)["error"]["what"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([np.float64(k) for k in range(3)], ()),
        ([np.arange(4), np.arange(4, dtype=np.uint8), np.array([True, False, True, True])], ()),
        ([np.zeros((0, 3))] * 2, ()),
        ([np.full(3, 1e-310), np.full(3, 2e-310)], ()),
        ([np.full(3, 1e300), np.full(3, -1e300)], ()),
        ([np.linspace(-1, 1, 50) / 3] * 3, ("--bits", 62)),
        ([np.linspace(-1, 1, 50) / 3] * 4, ("--bits", 55)),
        ([np.linspace(-1, 1, 50) / 3] * 4, ("--bits", 2)),
    ],
)
def test_odd_arrays_have_a_sum_within_its_bound(capsys, tmp_path, arrays, words):
    for name, array in zip("abcd", arrays, strict=False):
        np.save(tmp_path / f"{name}.npy", array)
    found = answer(capsys, "sum", tmp_path, *words)
    assert found["max_error"] <= found["bound"]
    assert found["survivors"] == len(arrays)


def test_the_file_of_the_sum_is_named_as_it_is_written_and_is_no_party(capsys, folder):
    for _ in range(2):
        found = answer(capsys, "sum", folder, "--out", folder / "total")
        assert (found["out"], found["parties"]) == (str(folder / "total.npy"), 6)
    assert np.load(folder / "total.npy").shape == np.load(folder / "party-0.npy").shape
    refused = answer(capsys, "sum", folder, "--out", folder / "none" / "total.npy", code=2)
    assert "a folder that does not exist" in refused["error"]["what"]


@pytest.mark.parametrize(
    ("protocol", "encode"),
    [("secagg+", "sq"), ("oneshot", "prune"), ("enclave", "pq"), ("two-servers", "pq"), ("bfv", "fixed")],
)
def test_every_protocol_has_the_steps_where_parties_drop_out(capsys, folder, protocol, encode):
    more = ("--encode", encode, "--drop", "share:1,masked:0,reveal:1", "--block", 4, "--codewords", 4)
    found = answer(capsys, "sum", folder, "--protocol", protocol, *more)
    assert found["survivors"] == 5
    assert found["max_error"] <= found["bound"]


@pytest.mark.parametrize(
    ("protocol", "encode"), [("secagg", "sq"), ("enclave", "pq"), ("secagg", "prune"), ("plain", "fixed")]
)
def test_a_party_with_nan_drops_out_under_every_encoding(capsys, folder, protocol, encode):
    """Also if it is the first, to whose array codebooks are fitted."""
    row = np.load(folder / "party-0.npy")
    np.save(folder / "party-0.npy", np.full_like(row, np.nan))
    found = answer(capsys, "sum", folder, "--protocol", protocol, "--encode", encode, "--block", 4, "--codewords", 4)
    assert (found["survivors"], list(found["rejected"])) == (5, ["party-0"])
    assert found["max_error"] <= found["bound"]


def test_an_array_without_axes_is_quantised_too(capsys, tmp_path):
    for k in range(3):
        np.save(tmp_path / f"p{k}.npy", np.float64(k - 0.7))
    found = answer(capsys, "sum", tmp_path, "--encode", "sq")
    assert found["max_error"] <= found["bound"]


def test_an_attack_says_what_each_move_has_come_to(capsys):
    found = answer(capsys, "attack", "--protocol", "two-servers", "--move", "repeat", "--move", "below-least")
    assert found["protocols"] == {"two-servers": {"repeat": "refused", "below-least": "refused"}}
    assert (found["moves"], found["learned"]) == (2, 0)
    assert found["reasons"]["two-servers"]["below-least"]
    assert run(["secure", "attack", "--protocol", "two-servers", "--move", "below-least"]) == 0
    assert "below-least" in capsys.readouterr().out


def test_an_attack_that_succeeds_has_an_exit_code_of_its_own(capsys):
    from atoll.testing.lying.guards import without_guard

    with without_guard("second"):
        found = answer(capsys, "attack", "--protocol", "enclave", "--move", "smaller-sum", code=1)
    assert (found["protocols"], found["learned"]) == ({"enclave": {"smaller-sum": "learned"}}, 1)


@pytest.mark.parametrize("words", [("--protocol", "secag"), ("--move", "shout")])
def test_an_attack_of_another_name_is_refused(capsys, words):
    found = answer(capsys, "attack", *words, code=2)
    assert words[1] in found["error"]["what"]
