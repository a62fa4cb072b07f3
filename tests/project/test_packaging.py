"""What is packaged: extras, source distribution, container, compose file, chart and units say the same, and each starts the server by one command."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support.sources import PACKAGE, ROOT

PACKAGING = ROOT / "packaging"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OPTIONAL = {
    "duckdb",
    "encoders",
    "flower",
    "lightgbm",
    "mlflow",
    "monai",
    "nvflare",
    "postgres",
    "ray",
    "speech",
}  # the comments in pyproject.toml say why they are not part of `all`


def _clean_install() -> Any:
    spec = importlib.util.spec_from_file_location("clean_install", PACKAGING / "clean_install.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


CLEAN = _clean_install()


def _yaml(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


# ---------------------------------------------------------------------- extras and distributions


def test_all_has_every_extra_that_is_not_named_as_left_out() -> None:
    (whole,) = EXTRAS["all"]
    inside = set(whole.removeprefix("atoll[").removesuffix("]").split(","))
    assert inside == set(EXTRAS) - OPTIONAL - {"all"}


def test_every_hint_of_an_error_names_an_extra_that_exists() -> None:
    named = set()
    for file in PACKAGE.rglob("*.py"):
        named |= set(re.findall(r'pip install ["\']?atoll\[([\w,]+)\]', file.read_text(encoding="utf-8")))
        named |= set(re.findall(r'\bneed\("[\w.]+", "(\w+)"', file.read_text(encoding="utf-8")))
    assert named
    assert {extra for names in named for extra in names.split(",")} <= set(EXTRAS)


def test_what_is_installed_here_satisfies_each_extra() -> None:
    """Of the libraries that are here; the others are for the clean environments."""
    packaging = pytest.importorskip("packaging.requirements")
    for extra, requirements in EXTRAS.items():
        for text in requirements:
            requirement = packaging.Requirement(text)
            if requirement.name == "atoll" or (requirement.marker and not requirement.marker.evaluate()):
                continue
            try:
                found = importlib.metadata.version(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                assert extra in {*OPTIONAL, "trees"}, f"{requirement.name} of {extra} is not installed"
                continue
            assert requirement.specifier.contains(found, prereleases=True), f"{extra}: {text}, and {found} is installed"


def test_every_extra_is_tried_in_a_clean_environment() -> None:
    assert set(CLEAN.USES) == {*EXTRAS, ""}
    assert set(CLEAN.HEAVY) <= set(EXTRAS)


@pytest.mark.slow
@pytest.mark.parametrize("extra", [extra for extra in CLEAN.USES if extra not in CLEAN.HEAVY])
def test_the_wheel_installs_with_each_extra_alone(extra: str, tmp_path: Path) -> None:
    """Its quick siblings read what the extras say; this needs a package index."""
    wrong = CLEAN.tried(CLEAN.built(tmp_path, "wheel"), extra, tmp_path)
    if "No matching distribution" in wrong or "Could not find a version" in wrong:
        pytest.skip(f"no package index: {wrong}")
    assert wrong == ""


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "net"])
def test_the_source_distribution_installs(extra: str, tmp_path: Path) -> None:
    """As above, from sources: pip builds the wheel with a backend from the package index."""
    wrong = CLEAN.tried(CLEAN.built(tmp_path, "sdist"), extra, tmp_path)
    if "No matching distribution" in wrong or "Could not find a version" in wrong:
        pytest.skip(f"no package index: {wrong}")
    assert wrong == ""


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(tmp_path: Path) -> None:
    source = CLEAN.built(tmp_path, "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    again = "import hatchling.build as backend; backend.build_wheel('out')"
    subprocess.run([sys.executable, "-c", again], cwd=unpacked, check=True, capture_output=True)
    import zipfile

    first = zipfile.ZipFile(CLEAN.built(tmp_path, "wheel"))
    second = zipfile.ZipFile(next((unpacked / "out").glob("*.whl")))
    assert sorted(first.namelist()) == sorted(second.namelist())
    assert all(first.read(name) == second.read(name) for name in first.namelist() if not name.endswith("RECORD"))


# ---------------------------------------------------------------------- commands


def _instruction(name: str) -> list[str]:
    text = (PACKAGING / "container" / "Containerfile").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{name} (\[.*\])$", text, re.M)
    return [str(part) for part in json.loads(line)]


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = _yaml((PACKAGING / "compose.yaml").read_text(encoding="utf-8"))
    return found


def _unit(role: str) -> dict[str, list[str]]:
    lines = (PACKAGING / "systemd" / f"atoll-{role}@.service").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def _chart_arguments(role: str) -> list[str]:
    """The container's arguments as the chart renders them for a role with its default values."""
    values = _yaml((PACKAGING / "helm" / "values.yaml").read_text(encoding="utf-8"))
    text = (PACKAGING / "helm" / "templates" / "party.yaml").read_text(encoding="utf-8")
    block = text.split("          args:\n")[1].split("            {{- range .Values.options }}")[0]
    server, site = re.split(r"\{\{- else if [^}]+\}\}\n", block.split("{{- if $server }}\n")[1])
    lines = block.split("            {{- if $server }}")[0] + (server if role == "server" else site)
    told = re.findall(r"^ +- (.+)$", lines, re.M)
    filled = [
        one.replace("{{ .Values.role }}", role).replace("{{ .Values.server.port }}", str(values["server"]["port"]))
        for one in told
    ]
    return [one.replace("{{ .Values.site.data.path }}", "").replace("{{ . | quote }}", "label") for one in filled]


def _commands(role: str) -> dict[str, list[str]]:
    """What each way of starting runs: the arguments of ``atoll``."""
    container = {"container": _instruction("CMD")} if role == "server" else {}
    environment = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", part) for part in _compose()["services"][role]["command"]]
    (start,) = _unit(role)["ExecStart"]
    unit = start.replace("%i", "north").replace("$ATOLL_OPTIONS", "").split()[1:]
    return {**container, "compose": environment, "chart": _chart_arguments(role), "unit": unit}


WAYS = ("container", "compose", "chart", "unit")


@pytest.mark.parametrize("role", ["server", "site"])
def test_every_way_of_starting_uses_options_that_exist(role: str) -> None:
    from typer.main import get_command

    from atoll.cli.app import app
    from atoll.cli.commands import register

    register([role])
    command = get_command(app).commands[role]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    for way, arguments in _commands(role).items():
        assert arguments[0] == role, way
        assert {one for one in arguments if one.startswith("--")} <= known, way
        assert "--folder" in arguments, f"{way} would keep its jobs where a restart does not find them"


def test_the_container_runs_atoll_as_a_user_without_rights() -> None:
    text = (PACKAGING / "container" / "Containerfile").read_text(encoding="utf-8")
    assert _instruction("ENTRYPOINT") == ["atoll"]
    assert re.search(r"^USER 10001$", text, re.M)
    assert f"[{'$EXTRAS'}]" in text
    assert "ARG EXTRAS=net" in text
    for service in _compose()["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(one.endswith(":ro") for one in service["volumes"] if ":/kit" in one or ":/data" in one)


def test_only_the_server_opens_a_port() -> None:
    services = _compose()["services"]
    assert services["server"]["ports"] == ["8443:8443"]
    assert "ports" not in services["site"]
    assert "--listen" not in _chart_arguments("site")


def test_units_stop_in_order_and_do_not_forbid_the_sandbox_of_jobs() -> None:
    for role in ("server", "site"):
        unit = _unit(role)
        assert unit["User"] == ["atoll"]
        assert unit["RestartPreventExitStatus"] == ["2 11"]
        assert not {"RestrictNamespaces", "ProtectKernelTunables"} & set(unit)
        assert unit["StateDirectory"] == ["atoll/%i"]


def test_the_chart_has_the_version_of_the_package_and_values_that_its_schema_takes() -> None:
    chart = _yaml((PACKAGING / "helm" / "Chart.yaml").read_text(encoding="utf-8"))
    values = _yaml((PACKAGING / "helm" / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((PACKAGING / "helm" / "values.schema.json").read_text(encoding="utf-8"))
    assert chart["appVersion"] == PROJECT["version"]
    assert set(values) <= set(schema["properties"])
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(values, schema)
    for wrong, said in (
        ({"role": "client"}, "client"),
        ({"storage": {"size": "much"}}, "much"),
        ({"sever": {}}, "sever"),
    ):
        with pytest.raises(jsonschema.ValidationError, match=said):
            jsonschema.validate({**values, **wrong}, schema)


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("role", ["server", "site"])
def test_helm_lints_and_renders_the_chart(role: str) -> None:
    chart = str(PACKAGING / "helm")
    given = ["--set", f"role={role},kit=atoll-north,site.data.claim=rows,site.data.target=label"]
    subprocess.run(["helm", "lint", "--strict", chart, *given], check=True, capture_output=True)
    done = subprocess.run(["helm", "template", "north", chart, *given], check=True, capture_output=True, text=True)
    (party,) = (one for one in YAML(typ="safe").load_all(done.stdout) if one and one["kind"] == "StatefulSet")
    (container,) = party["spec"]["template"]["spec"]["containers"]
    assert container["args"] == _chart_arguments(role)


@pytest.mark.network
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("role", ["server", "site"])
def test_systemd_takes_the_units(role: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(PACKAGING / "systemd" / f"atoll-{role}@.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "atoll-" in line]
    assert [line for line in complaints if "/usr/local/lib/atoll/bin/atoll is not executable" not in line] == []


@pytest.mark.network
@pytest.mark.quick("container")
@pytest.mark.parametrize("way", WAYS)
def test_the_server_starts_by_the_command_of(way: str, tmp_path: Path) -> None:
    """The command of each way, with its folders below a temporary one: it listens, is healthy, and stops in order."""
    pytest.importorskip("cryptography")
    from atoll.runtime.provision import ProjectConfig, provision

    project = {
        "project": "trial",
        "servers": [{"name": "server", "hosts": ["127.0.0.1"], "port": 8443}],
        "sites": [{"name": "north", "org": "North"}],
        "admins": [{"name": "anna", "org": "State"}],
    }
    provision(ProjectConfig(**project), tmp_path / "kits")
    places = {"/kit": "kits/server", "/etc/atoll/north": "kits/server", "/var/lib/atoll": "work"}
    arguments = list(_commands("server")[way])
    for option, address in (("--listen", "127.0.0.1:0"), ("--metrics", "127.0.0.1:0")):
        if option in arguments:
            arguments[arguments.index(option) + 1] = address
        else:
            arguments += [option, address]
    for i, one in enumerate(arguments):
        for inside, here in places.items():
            if one == inside or one.startswith(inside + "/"):
                arguments[i] = str(tmp_path / here) + one.removeprefix(inside)
    with subprocess.Popen(
        [sys.executable, "-m", "atoll", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if "are served at" in line:
                break
        assert "listens at" in said, said
        (health,) = re.findall(r"are served at (http://127\.0\.0\.1:\d+)", said)
        with urllib.request.urlopen(f"{health}/healthz", timeout=20) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGTERM)
        rest = server.stdout.read()
        assert server.wait(timeout=60) == 0, said + rest
