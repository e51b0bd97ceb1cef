"""The certificates of a hub and the key of a site, made without other programs.

A hub has a certificate authority of its own. The sites trust this authority alone, so that the certificate of the hub's
address can be replaced at any time without a word to them.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.base.disk import unlinked, write_text
from coterie.errors import ConfigError

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
KEY = "key"
_YEARS, _SPARE = 5, 60  # how long a certificate is valid; days before its end when it is replaced
_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
    "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def make_authority(folder: Path, name: str) -> None:
    """A certificate authority, valid for four times as long as what it signs."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"coterie hub {name}"[:64])])
    made = _started(subject, subject, key.public_key(), 4 * _YEARS)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    write_text(folder / AUTHORITY_KEY, _pem(key), private=True)
    write_text(folder / AUTHORITY, made.sign(key, SHA256()).public_bytes(Encoding.PEM).decode())


def make_certificate(folder: Path, host: str, years: float = _YEARS) -> None:
    """A certificate for the hub's address and for loopback, signed by the authority in the folder."""
    signer = load_pem_private_key(unlinked(folder / AUTHORITY_KEY).read_bytes(), None)
    authority = read_certificate((folder / AUTHORITY).read_text())
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    names = [_named(n) for n in dict.fromkeys((host, "localhost", "127.0.0.1"))]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # type: ignore[arg-type]
    made = _started(subject, authority.subject, key.public_key(), years)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(_usage("digital_signature"), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(issuer, critical=False)
    write_text(folder / CERTIFICATE_KEY, _pem(key), private=True)
    signed = made.sign(signer, SHA256())  # type: ignore[arg-type]
    write_text(folder / CERTIFICATE, signed.public_bytes(Encoding.PEM).decode())


def renewed(folder: Path, host: str) -> bool:
    """Whether the certificate was about to end, or had ended, and was replaced."""
    if read_certificate((folder / CERTIFICATE).read_text()).not_valid_after_utc - now() > datetime.timedelta(_SPARE):
        return False
    make_certificate(folder, host)
    return True


def read_certificate(text: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(text.encode())
    except ValueError:
        raise ConfigError(
            "A certificate is damaged. Bring it back from a copy, or make the hub's folder again."
        ) from None


def site_key(folder: Path, name: str) -> str:
    """The public line of the site's own key, which is made at its first start and never leaves the folder."""
    file = unlinked(folder / KEY)
    if not file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        write_text(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode(), private=True)
    try:
        public = load_ssh_private_key(file.read_bytes(), None).public_key()
    except ValueError:
        raise ConfigError(
            f"{file} is no key of OpenSSH. Bring it back from a copy, or ask for a new invitation."
        ) from None
    return f"{public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {name}"


def _started(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, years: float
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now() - datetime.timedelta(days=1))
    made = made.not_valid_after(now() + datetime.timedelta(days=365 * years))
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _usage(*which: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in which for use in _USES})


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
