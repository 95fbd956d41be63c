"""Certificates for tests, made by the `openssl` command: authorities, and what they sign."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

PASSWORD = "kourou-test"

needs_openssl = pytest.mark.openssl


class Certificate(NamedTuple):
    """The files of one certificate, in PEM."""

    cert: str
    key: str
    encrypted_key: str  # with PASSWORD


class Authority:
    """Somebody who signs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._key, self.cert = str(directory / f"{name}.key"), str(directory / f"{name}.pem")
        files = ("-keyout", self._key, "-out", self.cert)
        _openssl("req", "-x509", *_NEW_KEY, *files, "-days", "30", "-subj", f"/CN={name}")

    def sign(self, name: str) -> Certificate:
        """A new certificate."""
        base = self._directory / f"{self._name}-{name}"
        request, cert, key, encrypted = (f"{base}.{end}" for end in ("csr", "pem", "key", "enc.key"))
        _openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial",
            "-days", "30", "-out", cert,
        )  # fmt: skip
        _openssl("pkcs8", "-topk8", "-in", key, "-out", encrypted, "-passout", f"pass:{PASSWORD}")
        return Certificate(cert, key, encrypted)


class Certificates(NamedTuple):
    """All that the tests need; made once for each process."""

    authority: Authority
    stranger: Authority
    server: Certificate
    renewed: Certificate  # another one of the same server
    client: Certificate
    strange_client: Certificate


@functools.cache
def certificates() -> Certificates:
    """Certificates of two authorities that do not know each other."""
    directory = Path(tempfile.mkdtemp(prefix="kourou-certificates-"))
    atexit.register(shutil.rmtree, directory)
    authority, stranger = Authority(directory, "authority"), Authority(directory, "stranger")
    return Certificates(
        authority,
        stranger,
        authority.sign("server"),
        authority.sign("renewed"),
        authority.sign("client"),
        stranger.sign("client"),
    )


class RenewedFiles:
    """The certificate of a server, in files that change."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key = directory / "server.pem", directory / "server.key"
        self.put(certificates().server)

    def put(self, certificate: Certificate) -> None:
        shutil.copyfile(certificate.cert, self.cert)
        shutil.copyfile(certificate.key, self.key)


def fingerprint(pem: str | Path) -> str:
    """What tells one certificate from another, of its text or of its file."""
    text = pem.read_text() if isinstance(pem, Path) else pem
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
