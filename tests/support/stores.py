"""Real servers for the tests of remote stores, on ports of the loopback, ended with the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from urllib.request import urlopen

import pytest

PATIENCE = 120.0
"""Seconds that a server may take to begin: the machine may be busy."""
S3_NAMES = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip


def need(program: str, package: str = "") -> str:
    """Return the path of a program; skip the test where it, or a package, isn't there."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{program} is not installed")
    need_package(package)
    return found


def need_package(package: str) -> None:
    if package and find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")


def free_port() -> int:
    """Return a port that the system gives to no connection before a server listens there."""
    while True:
        port = SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"no server on port {port}, {process.args}")


@contextmanager
def running(argv: list[str], port: int, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )  # type: ignore[call-overload]
    try:
        wait_for(port, process)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run Redis; yields the address of a store in it, and its process."""
    program, port = need("redis-server", "redis"), free_port()
    argv = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with running([*argv, *options], port) as process:
        yield f"redis://127.0.0.1:{port}/0", process


@contextmanager
def nginx_server(folder: Path, served: Path) -> Iterator[str]:
    """Run nginx for the files of a folder; yields its address."""
    program, port = need("nginx"), free_port()
    for name in ("temp", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    temporary = "".join(
        f"{kind}_temp_path {folder}/temp/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log {folder}/logs/error; events {{}}\n"
        f"http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port}; "
        f"root {served}; }} }}\n"
    )
    with running([program, "-p", str(folder), "-c", str(folder / "nginx.conf")], port) as process:
        yield f"http://127.0.0.1:{port}"
        process.terminate()  # its workers, too
        process.wait()


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an imitation of S3 with an empty bucket; yields a store's address, and the process."""
    need_package("s3fs")
    need_package("moto")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    for name, value in {**S3_NAMES, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    argv = [sys.executable, "-c", "from moto.server import main; main()", "-p", str(port)]
    with running(argv, port) as process:
        import urllib.request

        making = urllib.request.Request(f"{endpoint}/kernels", method="PUT")
        urlopen(making, timeout=PATIENCE).close()
        yield "s3://kernels/some/prefix", process


@contextmanager
def gcs_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run an emulator of Google Cloud Storage with an empty bucket; yields a store's address."""
    need_package("gcsfs")
    need_package("gcp_storage_emulator")
    from fsspec.config import conf

    port = free_port()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks servers of Google's
    monkeypatch.setitem(conf, "gs", {"token": "anon"})
    starting = "from gcp_storage_emulator.__main__ import main; main()"
    argv = [
        sys.executable, "-c", starting, "start", "--host=127.0.0.1", f"--port={port}",
        "--in-memory", "--default-bucket=kernels",
    ]  # fmt: skip
    with running(argv, port):
        yield "gs://kernels/some/prefix"
