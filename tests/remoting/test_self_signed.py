"""The certificate that a process makes for itself: what it consists of, as OpenSSL reads it."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

import pytest

from kourou.remoting import self_signed
from support.sites.certificates import needs_openssl


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("number", "x", "y"),
    [
        (
            2,
            0x7CF27B188D034F7E8A52380304B51AC3C08969E277F21B35A60B48FC47669978,
            0x07775510DB8ED040293D9AC69F7430DBBA7DADE63CE982299E04B79D227873D1,
        ),
        (
            112233445566778899,
            0x339150844EC15234807FE862A86BE77977DBFB3AE3D96F4C22795513AEAAB82F,
            0xB1C14DDFDC8EC1B2583F51E85A5EB3A155840F2034730E9B5ADA38B674336A21,
        ),
        (self_signed._ORDER - 1, self_signed._BASE[0], self_signed._FIELD - self_signed._BASE[1]),
    ],
)
def test_multiples_of_the_base_point_are_those_of_p_256(number, x, y):
    assert self_signed._times_base(number) == (x, y)


@needs_openssl
def test_openssl_accepts_key_and_signature_each_time_they_are_made(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    seen = set()
    for _ in range(20):  # numbers with and without a leading zero
        made = self_signed.self_signed_pair.__wrapped__()
        cert.write_bytes(made[0])
        key.write_bytes(made[1])
        assert "OK" in openssl("verify", "-x509_strict", "-check_ss_sig", "-CAfile", cert, cert)
        assert "valid" in openssl("ec", "-in", key, "-check", "-noout")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        seen.add(made)
    assert len(seen) == 20
    text = openssl("x509", "-in", cert, "-noout", "-text")
    for line in ("Version: 3", "ecdsa-with-SHA256", "NIST CURVE: P-256", "Not After : Dec 31 23:59:59 9999"):
        assert line in text


def test_the_key_is_in_no_file_system():
    with self_signed._as_file(b"a key") as path:
        assert os.readlink(path).startswith("/memfd:")
        assert Path(path).read_bytes() == b"a key"
    assert not os.path.exists(path)
