"""A certificate authority for tests: parties of any role, valid, expired or of somebody else."""

from __future__ import annotations

import datetime as dt
import ipaddress
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.runtime.identity import Credentials
from atoll.runtime.provision.certificates import make_list

_NOW = dt.datetime.now(dt.UTC)
_DAY = dt.timedelta(days=1)


def _subject(name: str, org: str, plays: str = "") -> x509.Name:
    said = [(NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, org), (NameOID.ORGANIZATIONAL_UNIT_NAME, plays)]
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in said if value])


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Authority:
    """Makes the parties of a project."""

    def __init__(self, project: str = "study") -> None:
        self.project = project
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(f"{project} authority", "Hub")
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - _DAY)
            .not_valid_after(_NOW + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        role: str = "site",
        name: str = "north",
        *,
        expired: bool = False,
        org: str = "",
        project: str | None = None,
        dns: tuple[str, ...] = ("localhost",),
        usage: str | None = None,
        key: str = "ec",
        plays: str = "",
    ) -> Credentials:
        """Credentials of a party; ``usage`` ("server", "client" or "both") replaces what the role may do."""
        private = ec.generate_private_key(ec.SECP256R1()) if key == "ec" else rsa.generate_private_key(65537, 2048)
        usage = usage or ("server" if role == "server" else "client")
        serves = usage != "client"
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"atoll://{project or self.project}/{role}/{name}")
        ]
        if serves:
            names += [x509.DNSName(n) for n in dns] + [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] * serves + [ExtendedKeyUsageOID.CLIENT_AUTH] * (usage != "server")
        begin, end = (_NOW - 20 * _DAY, _NOW - 10 * _DAY) if expired else (_NOW - _DAY, _NOW + 10 * _DAY)
        made = (
            x509.CertificateBuilder()
            .subject_name(_subject(name, org or name.title(), plays))
            .issuer_name(self._name)
            .public_key(private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return Credentials(self.pem, made.public_bytes(serialization.Encoding.PEM), _pem(private))

    def revocation_list(self, *serials: int, number: int = 1) -> bytes:
        """A signed list of what was revoked."""
        return make_list([(serial, _NOW) for serial in serials], number, self._certificate, self._key, _NOW)


@cache
def authority(project: str = "study") -> Authority:
    """The authority of a project, made once."""
    return Authority(project)
