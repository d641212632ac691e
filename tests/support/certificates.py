"""Certificates of a test's own authority, in PEM."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """A certificate, its key in PKCS #8, and both in one file, as Kafka's brokers read them."""

    certificate_file: Path
    key_file: Path
    both_file: Path


class Authority:
    """A certificate authority. Its certificate is in `ca_file`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        self._certificate = (
            _valid(subject, subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = folder / f"{name.replace(' ', '-')}.pem"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: str = "") -> Certificate:
        """Return a certificate for a client or for a server on 127.0.0.1; the key is encrypted with the password."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        certificate = (
            _valid(_name(name), self._certificate.subject, key.public_key())
            .add_extension(hosts, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        key_text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        text = certificate.public_bytes(serialization.Encoding.PEM)
        files = Certificate(*(self._folder / f"{name}{suffix}" for suffix in (".pem", ".key", "-both.pem")))
        for path, content in zip((files.certificate_file, files.key_file, files.both_file),
                                 (text, key_text, key_text + text), strict=True):  # fmt: skip
            path.write_bytes(content)
        return files


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _valid(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
