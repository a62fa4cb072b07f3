"""Flower, deployed: an 18 MB model to 10 SuperNodes over TLS and back.

python benchmarks/network/flwr_roundtrip.py
python benchmarks/network/flwr_roundtrip.py --variant tuned
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from deployment import HERE, NUMBERS, Deployment, arguments, free_ports, transport_security

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
# Caps every wait in Flower's processes; most waits are fixed in its source.
CEILING = """import time as _time
_sleep = _time.sleep
_time.sleep = lambda seconds: _sleep(min(seconds, 0.05))
"""


@dataclass(frozen=True)
class Variant:
    """A Flower setup: environment variables, and whether its fixed waits are cut short."""

    env: Mapping[str, str] = field(default_factory=dict)
    cut_waits: bool = False


TUNING = {
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "8",
    "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "8",
}
VARIANTS = {
    "default": Variant(),
    "tuned": Variant(TUNING),
    "cut-waits": Variant(TUNING, cut_waits=True),
}


def certify(folder: Path) -> None:
    """Write a certificate authority's `ca.crt` and the SuperLink's `server.crt` and `server.key`."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench CA")])
    now = datetime.now(UTC)

    def builder(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(ca).public_key(public)
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=1))

    authority = builder(ca, ca_key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    authority = authority.add_extension(identifier, critical=False)
    server = builder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")]), key.public_key())
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    server = server.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = server.add_extension(issuer, critical=False)
    for name, unsigned in (("ca", authority), ("server", server)):
        signed = unsigned.sign(ca_key, hashes.SHA256())
        (folder / f"{name}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_key(folder / "server.key", key)


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key as OpenSSH (what Flower's nodes read) or PEM (what TLS reads)."""
    style = serialization.PrivateFormat
    kind = style.OpenSSH if file.suffix == "" else style.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    file.write_bytes(secret)
    file.chmod(0o600)


def identify(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a SuperNode's key pair; return the private and the public file."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    write_key(private, key)
    style = serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, style))
    return private, public


def connection(folder: Path, port: int) -> None:
    """Write the configuration by which the `flwr` command finds the SuperLink."""
    text = f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{port}"\n'
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(f'{text}root-certificates = "{folder / "ca.crt"}"\n')


def start_superlink(run: Deployment, port: int) -> None:
    """Start the server, which accepts only registered SuperNodes."""
    command = ["flower-superlink", "--port", str(port), "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(run.folder / "ca.crt")]
    command += ["--ssl-certfile", str(run.folder / "server.crt")]
    command += ["--ssl-keyfile", str(run.folder / "server.key")]
    run.start("superlink", [*command, "--disable-runtime-dependency-installation"])
    run.await_port(port)


def start_supernode(run: Deployment, number: int, superlink: int, port: int, more: str = "") -> None:
    """Register a client's key, then start the client."""
    name = f"node-{number}"
    private, public = identify(run.folder, name)
    run.call(["flwr", "supernode", "register", str(public), "bench"])
    command = ["flower-supernode", "--superlink", f"127.0.0.1:{superlink}", "--port", str(port)]
    command += ["--root-certificates", str(run.folder / "ca.crt")]
    command += ["--auth-supernode-private-key", str(private)]
    run.start(name, [*command, "--node-config", f"partition-id={number}{more}"])


def main() -> None:
    """Certify, start, run the app, print the line."""
    args = arguments(__doc__ or "", list(VARIANTS))
    variant = VARIANTS[args.variant]
    ports = free_ports(args.clients + 1)
    with Deployment("flower", {**QUIET, **variant.env}, args.keep) as run:
        run.env["FLWR_HOME"] = str(run.folder / "home")
        if variant.cut_waits:
            (run.folder / "site").mkdir()
            (run.folder / "site" / "sitecustomize.py").write_text(CEILING)
            run.env["PYTHONPATH"] = str(run.folder / "site")
        certify(run.folder)
        connection(run.folder, ports[0])
        start_superlink(run, ports[0])
        run.security = f"http, {transport_security(ports[0])}; requests signed by registered node keys"
        for i in range(args.clients):
            start_supernode(run, i, ports[0], ports[i + 1])
        record = run.folder / "record.json"
        config = f'rounds={args.rounds} clients={args.clients} layers={args.layers} numbers={NUMBERS} record="{record}"'
        run.call(["flwr", "run", str(HERE / "flwr_app"), "bench", "--run-config", config])
        result = run.await_file(record, "superlink", args.timeout)
        version = run.call([str(run.python), "-c", "import flwr; print(flwr.__version__)"])
        print(run.line("flwr", version.strip(), result, args), flush=True)


if __name__ == "__main__":
    main()
