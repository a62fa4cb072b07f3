"""Install the wheel in clean environments, one for each extra alone, and use what the extra is for.

    python packaging/clean_install.py              # the light extras; needs a package index
    python packaging/clean_install.py torch ray    # these
    python packaging/clean_install.py --sdist net  # from the source distribution

Prints a line an extra, and exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("all", "encoders", "flower", "mlflow", "monai", "nvflare", "ray", "torch", "trees")
"""Extras of hundreds of megabytes, or with pins of their own: only when they are named."""
PINNED = ("--constraint", str(ROOT / "constraints.txt"))
"""The versions that Atoll is tested with."""
BASE = """
import atoll
job = atoll.Training(model=atoll.models.linear(20, 2), algorithm=atoll.FedAvg(lr=0.05), selection=atoll.Uniform(6), rounds=3)
data = atoll.data.synthetic(alpha=0.5, beta=0.5, parties=12, seed=0)
result = atoll.simulate(job, data, engine="inline")
assert "site-packages" in atoll.__file__, atoll.__file__
"""
USES = {
    "": "from atoll.core.errors import MissingExtraError",
    "torch": "import torch; atoll.simulate(job.replace(model=atoll.models.mlp(20, 2), compile='never'), data)",
    "sklearn": "from sklearn.linear_model import SGDClassifier; atoll.simulate(job.replace(model=SGDClassifier(loss='log_loss'), algorithm=atoll.FedAvg()), data)",
    "dp": "from atoll.privacy import Budget; import dp_accounting; Budget(epsilon=1.0, method='dp-accounting-pld')",
    "trees": "import xgboost",
    "lightgbm": "from atoll.trees import Trees; atoll.simulate(Trees(scheme='lightgbm', rounds=1), data, engine='inline')",
    "compare": "import sklearn, statsmodels.api; from atoll.study.pooled import fit_pooled",
    "report": "assert '<svg' in result.report('report.html').read_text()",
    "arrow": "import pyarrow, pyarrow.parquet",
    "tensorboard": "from atoll.report.trackers import TensorBoard; atoll.simulate(job.replace(callbacks=[TensorBoard('logs')]), data)",
    "mlflow": "import mlflow; from atoll.report.trackers import MLflow",
    "he": "import tenseal",
    "secure": "from atoll.secure import Encrypted; atoll.simulate(job.replace(reducer=Encrypted('bfv'), selection=atoll.Everyone(), rounds=1), data, engine='inline')",
    "encoders": "import peft, transformers; from atoll.adapters import Peft; Peft(peft.LoraConfig(r=2))",
    "monai": "import monai; from atoll.bridges import monai_bundle",
    "ray": "import ray",
    "net": "import subprocess, sys; from atoll.runtime.provision import Kit; import cryptography",
    "speech": "from atoll.crossmodal import TextToPhone; assert len(TextToPhone.installed()('good bye').phones) == 5",
    "nvflare": "import nvflare.client",
    "duckdb": "import duckdb; assert duckdb.connect().execute('select 1').fetchone() == (1,)",
    "sql": "from pathlib import Path; import atoll.query; [(Path(n).mkdir(), Path(n, 't.csv').write_text('x\\n1\\n')) for n in 'ab']; db = atoll.query.connect(silos={'a': 'a', 'b': 'b'}, policy={'tables': {'t': {'columns': 'public'}}}); assert db.sql('select sum(x) from t').rows == [(2,)]",
    "postgres": "import psycopg; assert psycopg.pq.__impl__ == 'binary'",
    "flower": "import flwr",
    "grpc": "import grpc, cryptography; from atoll.runtime.transport import TRANSPORTS; TRANSPORTS['grpc']",
    "all": "import torch, sklearn, xgboost, matplotlib, pyarrow, tenseal, gmpy2, rbcl, grpc, dp_accounting",
}


def built(folder: Path, kind: str) -> Path:
    """Build the wheel or the source distribution, without a network."""
    make = f"import hatchling.build as backend; backend.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", make], cwd=ROOT, check=True, capture_output=True, text=True)
    return next(folder.glob("atoll-*.whl" if kind == "wheel" else "atoll-*.tar.gz"))


def tried(package: Path, extra: str, folder: Path) -> str:
    """Install the package with one extra in an environment of its own, and use it; return what went wrong, or nothing."""
    place = folder / (extra or "none")
    venv.create(place, with_pip=True)
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE"))}
    what = f"{package}[{extra}]" if extra else str(package)
    (place / "empty").mkdir()
    for step in (
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINNED, what],
        [python, "-m", "pip", "check", "--disable-pip-version-check"],
        [python, "-c", f"{BASE}\n{USES[extra]}"],
        [python, "-m", "atoll", "--version"],
    ):
        done = subprocess.run(step, cwd=place / "empty", env=clean, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    return ""


def main() -> int:
    """Install what is asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", help="extras; by default the light ones, and none")
    parser.add_argument("--sdist", action="store_true", help="install from the source distribution")
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        package = built(Path(name), "sdist" if asked.sdist else "wheel")
        for extra in asked.extras or [one for one in USES if one not in HEAVY]:
            wrong = tried(package, extra, Path(name))
            failed += bool(wrong)
            print(f"{package.name}[{extra}]: {wrong or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
