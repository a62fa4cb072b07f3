"""The report: whole in itself, true to the records, safe against what people name their things."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import CheckpointError, ConfigError, MissingExtraError
from atoll.core.persistence.files import as_json
from atoll.devices.presets import mec
from atoll.report import cite, partition_facts, write_comparison, write_report
from atoll.report.facts import facts_of
from atoll.report.figures import INK, SERIES, accuracies_by_epsilon, devices_figure, figure, lorenz
from atoll.report.page import compare_runs, human_bytes, verdict
from atoll.runs import RunFolder, execute, parse_config
from tests.support.small_run import small

VOID = {"meta", "link", "br", "img", "input", "circle", "hr"}


class Page(HTMLParser):
    """Collects tags, checks that they close, and every address the page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.figures: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        for key in ("src", "href", "xlink:href", "data", "action"):
            if named.get(key) and not str(named[key]).startswith(("#", "data:")):
                self.addresses.append(str(named[key]))
        if tag == "svg" and named.get("aria-label"):
            self.figures.append(str(named["aria-label"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with clients evaluated, and its report."""
    folder = tmp_path_factory.mktemp("finished") / "done"
    execute(parse_config({**small(), "evaluation": {"clients": -1}}), RunFolder(folder))
    return folder


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> RunFolder:
    """A copy of it, which a test may change."""
    return RunFolder(shutil.copytree(finished, tmp_path / "done"))


def read(folder: RunFolder) -> Page:
    return Page(folder.report_file.read_text(encoding="utf-8"))


def test_a_page_needs_nothing_else(done: RunFolder) -> None:
    text = done.report_file.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.addresses == []
    assert not re.search(r"url\((?!#)|@import|<script", text)
    # Addresses that are left name vocabularies; nothing is fetched from them.
    assert set(re.findall(r"https?://[^\"' )<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 600_000


def test_it_shows_what_was_recorded(done: RunFolder) -> None:
    page, rows = read(done), done.metrics()
    who = ["accuracy over clients", "participation of devices", "partition of the data"]
    assert page.figures == ["learning curves", *who, "bytes sent"]
    flat = " ".join(page.text.split())
    assert f"{100 * rows[-1]['test/accuracy']:.1f} %" in flat
    assert f"{100 * rows[-1]['clients/accuracy/worst_decile']:.1f} %" in flat
    assert human_bytes(sum(row["bytes_up"] for row in rows)) in flat
    assert "iris, iid" in flat
    assert "McMahan" in flat
    assert "Fisher" in flat or "iris" in flat.lower()
    for name, version in done.manifest()["versions"].items():
        assert f"{name}{version}" in page.text.replace("\n", "")
    assert "lr: 0.1" in page.text


def test_figures_follow_the_theme_and_do_not_share_ids(done: RunFolder) -> None:
    text = done.report_file.read_text(encoding="utf-8")
    assert not any(colour in text for colour in (INK, *SERIES))
    assert "var(--ink)" in text
    assert "var(--s1)" in text
    ids = re.findall(r'<(?:g|path|clipPath|rect|defs|use|text)[^>]* id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= set(ids)


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(done: RunFolder, tmp_path: Path) -> None:
    first = write_report(done, tmp_path / "first.html").read_bytes()
    assert write_report(str(done.path), tmp_path / "second.html").read_bytes() == first


def test_names_cannot_break_the_page(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "<b>run & co")
    execute(parse_config({**settings, "name": "<script>alert(1)</script>"}), folder)
    assert "<script" not in folder.report_file.read_text(encoding="utf-8")
    assert "<b>run & co" in read(folder).text


@pytest.mark.slow
def test_what_sites_say_is_shown_as_their_word(done: RunFolder, tmp_path: Path) -> None:
    """In a job between sites, the server has measured the test set and nothing else."""
    assert "as the sites say" not in done.path.joinpath("report.html").read_text()
    assert "as the sites say" not in write_report(done, tmp_path / "simulated.html").read_text()
    job = RunFolder(shutil.copytree(done.path, tmp_path / "job"))
    job.config_file.write_text(job.config_file.read_text() + "\nsites: [north, south]\n")
    facts = facts_of(job)
    names = ["test/accuracy", "test/loss", "loss", "clients/accuracy", "clients/accuracy/worst_decile"]
    assert [bool(facts.word_of(name)) for name in names] == [False, False, True, True, True]
    page = write_report(job, tmp_path / "between.html").read_text()
    assert "All else is what the sites say of their own rows" in page
    assert "local training, as the sites say" in page
    assert "test set, as the sites say" not in page


def test_a_failed_run_says_why(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "failed")
    bad = parse_config({**settings, "loss": "nll"})
    with pytest.raises(ConfigError, match=r"loss='nll'"):
        execute(bad, folder)
    text = " ".join(Page(write_report(folder).read_text(encoding="utf-8")).text.split())
    assert "ConfigErrorloss='nll'" in text.replace(" ", "")
    assert "Remedy: use " in text


def test_a_regression_is_reported_by_its_error(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "regression")
    data = {"source": "diabetes", "partition": {"name": "iid", "parties": 6}}
    model = {"name": "linear", "features": 10, "outputs": 1, "loss": "mse"}
    config = {**settings, "data": data, "model": model, "algorithm": {"name": "FedAvg", "lr": 0.01}}
    execute(parse_config(config), folder)
    text = " ".join(read(folder).text.split())
    assert "test RMSE" in text
    assert "Error by round" in text


def test_a_result_in_memory_has_a_report(tmp_path: Path) -> None:
    islands = atoll.data.iid(atoll.data.iris(), parties=5)
    job = atoll.Training(model=atoll.models.linear(4, 3), selection=atoll.Everyone(), rounds=3)
    page = atoll.simulate(job, islands, engine="inline").report(tmp_path / "mine.html")
    flat = " ".join(Page(page.read_text(encoding="utf-8")).text.split())
    assert "all 3 rounds are done" in flat
    assert "algorithm: FedAvg(" in flat
    with pytest.raises(ConfigError, match="a report of a dict"):
        write_report({})


@pytest.mark.slow
def test_who_took_part_is_drawn_where_it_differs(tmp_path: Path) -> None:
    islands = atoll.data.iid(atoll.data.iris(), parties=12, seed=0)
    job = atoll.Training(model=atoll.models.linear(4, 3), selection=atoll.Uniform(3), rounds=4)
    result = atoll.simulate(job, islands, devices=mec("gas-turbine", 0.2, regions=2), engine="inline")
    page = Page(result.report(tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "participation of devices" in page.figures
    assert f"spent {100 * result.devices.share():.1f} % of the energy" in page.text
    assert "region 1" in page.text
    alike = atoll.simulate(job.replace(selection=atoll.Everyone()), islands, engine="inline")
    assert devices_figure(facts_of(alike)) is None
    shares, reached = lorenz(result.devices, "energy")
    assert (shares[0], reached[0], shares[-1], reached[-1]) == (0.0, 0.0, 1.0, pytest.approx(1.0))
    assert reached[1] == pytest.approx(result.devices.share("energy", top=1 / 12))
    assert (np.diff(shares) >= 0).all()


def test_a_page_that_cannot_be_written(done: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"could not write .* name a file in another folder"):
        write_report(done, tmp_path / "file" / "page.html")


@pytest.mark.slow
def test_is_federating_worth_it(done: RunFolder) -> None:
    from atoll.report.facts import facts_of

    found = {
        "alone": {"accuracy": 0.4, "values": [0.3, 0.5]},
        "federated": {"accuracy": 0.9},
        "pooled": {"accuracy": 0.92},
    }
    (done.path / "comparison.json").write_text(as_json(found))
    facts = facts_of(done)
    assert verdict(facts).startswith(
        "Yes: the federation gains 50.0 points over an island alone, and ends 2.0 points below"
    )
    write_report(done)
    assert read(done).figures[0] == "alone, federated and pooled"
    found["federated"]["accuracy"] = 0.405
    (done.path / "comparison.json").write_text(as_json(found))
    assert verdict(facts_of(done)).startswith("Not here: an island alone reaches 40.0 %, the federation 40.5 %")


def test_without_matplotlib_the_extra_is_named(done: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingExtraError, match=r'needs matplotlib, which is not installed .*pip install "atoll\[report\]"'
    ):
        figure("nothing", lambda axes: None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        write_report(done)


def test_a_training_is_not_lost_because_nothing_can_draw_it(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    folder = RunFolder(tmp_path / "plain")
    execute(parse_config(settings), folder)
    assert folder.status() == "finished"
    assert not folder.report_file.exists()
    assert 'pip install \\"atoll[report]\\"' in folder.log_file.read_text()


def test_citations_are_those_of_the_parts_each_once() -> None:
    from atoll.learn.wrapped import Wrapped
    from tests.support.parts_of_mine import Halved

    islands = atoll.data.iid(atoll.data.iris(), parties=3)
    job = atoll.Training(model=atoll.models.linear(4, 3), algorithm=Wrapped(base=Halved()), uplink=[atoll.Clip()])
    found = cite(job, islands)
    assert found.count("Nobody, Halving, 2020.") == 1
    assert islands.about.citation in found
    assert cite(atoll.Training(model=None))[0] == atoll.FedAvg.citation


def test_the_facts_of_a_partition_are_its_numbers() -> None:
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=80, alpha=0.3, seed=1)
    facts = partition_facts(islands)
    assert sum(facts["size_counts"]) == facts["clients"] == 80
    assert facts["rows"] == islands.sizes.sum()
    assert np.shape(facts["class_counts"]) == (60, 10)
    edges = np.asarray(facts["size_edges"])
    widths = np.diff(edges)
    assert (widths == widths[0]).all()
    assert float(widths[0]).is_integer()
    assert edges[0] < islands.sizes.min() <= islands.sizes.max() < edges[-1]
    from atoll.core.requests.cohort import Community

    assert partition_facts(Community([1, 2])) == {"clients": 2}


def test_runs_side_by_side(done: RunFolder, settings: dict[str, Any], tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "other")
    execute(parse_config({**settings, "algorithm": {"name": "FedAvg", "lr": 0.3}, "seed": 2}), other, report=False)
    page = Page(write_comparison([done, other], tmp_path / "both.html").read_text(encoding="utf-8"))
    flat = " ".join(page.text.split())
    assert page.open == page.addresses == []
    assert "They differ in algorithm.lr, evaluation.clients, seed" in flat
    assert page.figures == ["Test accuracy", "Test loss", "Worst tenth of the clients"]
    with pytest.raises(ConfigError, match="1 run to compare"):
        write_comparison([done], tmp_path / "one.html")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1234567, "1.23 MB"), (5.5e9, "5.5 GB")]
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert human_bytes(count) == text


def private(**more: Any) -> Any:
    """A small training with noise at clients."""
    islands = atoll.data.iid(atoll.data.iris(test=0.2), parties=4, seed=0)
    return islands, atoll.Training(
        model=atoll.models.linear(4, 3), selection=atoll.Everyone(), rounds=4,
        uplink=[atoll.stages.Clip(1.0), atoll.stages.GaussianNoise(2.0)], **more,
    )  # fmt: skip


@pytest.mark.slow
def test_a_private_run_shows_epsilon_by_round_against_accuracy_and_says_what_it_means(tmp_path: Path) -> None:
    islands, job = private()
    result = atoll.simulate(job, islands, folder=tmp_path / "run", progress=False)
    for source in (result, tmp_path / "run"):
        page = Page(write_report(source, tmp_path / "page.html").read_text(encoding="utf-8"))
        assert "privacy spent" in page.figures
        assert "Epsilon by round, against the server" in page.text
        assert "Accuracy by epsilon" in page.text
        assert (
            "counted by exact at delta 1e-05. It protects one user (replace-one neighbours) against the server."
            in page.text
        )


def test_a_mechanism_says_what_it_claims_in_the_report(tmp_path: Path) -> None:
    islands, job = private()
    job = job.replace(uplink=[], privacy=atoll.mechanisms.CentralDP(noise=2.0, delta=1e-4, clip=1.0, adversary="model"))
    atoll.simulate(job, islands, folder=tmp_path / "run", progress=False)
    page = Page(write_report(tmp_path / "run", tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "at delta 0.0001. It protects one user" in page.text
    assert "against whoever gets the model. CentralDP: noise multiplier 2" in page.text


def test_a_run_without_privacy_has_no_section_of_it(tmp_path: Path) -> None:
    islands, job = private()
    result = atoll.simulate(job.replace(uplink=[]), islands, progress=False)
    page = Page(write_report(result, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "privacy spent" not in page.figures


@pytest.mark.slow
def test_runs_are_compared_by_epsilon(tmp_path: Path) -> None:
    islands, job = private()
    quiet = job.replace(uplink=[atoll.stages.Clip(1.0), atoll.stages.GaussianNoise(8.0)])
    for name, one in (("loud", job), ("quiet", quiet), ("open", job.replace(uplink=[]))):
        atoll.simulate(one, islands, folder=tmp_path / name, progress=False)
    folders = [RunFolder(tmp_path / name) for name in ("loud", "quiet", "open")]
    rows = {row["run"]: row for row in compare_runs(folders)}
    assert rows["loud"]["epsilon"] == pytest.approx(
        atoll.privacy.exact_epsilon(4 * 4 / 4, 1e-5)
    )  # a user is replaced: the server sees who takes part
    assert rows["quiet"]["epsilon"] == pytest.approx(atoll.privacy.exact_epsilon(4 * 4 / 64, 1e-5))
    assert rows["open"]["epsilon"] is None
    page = Page(write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "Accuracy by epsilon" in page.figures
    assert "Epsilons compare only where unit, neighbours, adversary and delta are the same." in page.text


def test_epsilons_are_carried_to_the_next_accuracy_and_infinite_ones_left_out() -> None:
    rows = [
        {"round": 1, "test/accuracy": 0.1},
        {"round": 2, "epsilon": 1.0},
        {"round": 3, "test/accuracy": 0.4},
        {"round": 4, "epsilon": float("inf"), "test/accuracy": 0.9},
    ]
    assert accuracies_by_epsilon(rows) == [(1.0, 0.4)]
