"""A project, a second one, and kits gone wrong in every way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from atoll.runtime.provision import Kit, ProjectConfig, provision

PROJECT = {
    "project": "lungs",
    "servers": [{"name": "server", "hosts": ["127.0.0.1", "localhost"]}],
    # A site whose name is a server's address would be taken for it by whoever compares common names.
    "sites": [{"name": name, "org": name.title()} for name in ("north", "south", "localhost")],
    "admins": [
        {"name": "anna", "org": "university"},
        {"name": "otto", "org": "university"},
        {"name": "ada", "org": "university", "role": "analyst"},
        {"name": "vera", "org": "ministry", "role": "auditor"},
    ],
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits in `ours`, of another authority in `foreign`, expired in `expired`, not begun in `early`, of another project in `hearts`."""
    base, now = tmp_path_factory.mktemp("kits"), datetime.now(UTC)
    project = ProjectConfig.model_validate(PROJECT)
    provision(project, base / "ours")
    provision(project, base / "foreign")
    for name, when in (("expired", now - timedelta(days=400)), ("early", now + timedelta(days=40))):
        shutil.copytree(base / "ours" / "ca", base / name / "ca")
        (base / name / "ca" / "issued.jsonl").write_bytes(b"")
        provision(project, base / name, now=when)
    _same_authority_other_project(base)
    return base


def _same_authority_other_project(base: Path) -> None:
    """The worst case: somebody used one authority's key for two projects."""
    from atoll.runtime.provision.certificates import Subject, certificates_in, make_certificate, pem_of
    from atoll.runtime.provision.keys import load_key, make_key, seal_key

    authority = certificates_in((base / "ours" / "ca" / "ca.pem").read_bytes(), "ca")[0]
    signer = load_key((base / "ours" / "ca" / "ca-key.pem").read_bytes(), None, "ca")
    for name, role in (("north", "site"), ("server", "server")):
        shutil.copytree(base / "ours" / name, base / "hearts" / name)
        key, hosts = make_key(), ("127.0.0.1", "localhost") if role == "server" else ()
        subject = Subject("hearts", role, name, "North", hosts)
        made = make_certificate(subject, key.public_key(), authority, signer, 9, datetime.now(UTC))
        (base / "hearts" / name / "certificate.pem").write_bytes(pem_of(made))
        (base / "hearts" / name / "key.pem").write_bytes(seal_key(key))
        settings = base / "hearts" / name / "kit.yaml"
        settings.write_text(settings.read_text().replace("project: lungs", "project: hearts"))


@pytest.fixture
def kit(folder: Path) -> Callable[[str], Kit]:
    """A kit by ``project/name``."""
    return lambda path: Kit.read(folder / path)
