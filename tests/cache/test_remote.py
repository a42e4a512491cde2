"""The remote tier of the caches, on real servers, and on such as hang, lie and break off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cache_site import TARGET, NodeContext
from stores import gcs_server, need_package, nginx_server, redis_server, s3_server
from waiting import PATIENCE

from atc.cache import blobs, open_remote, remote, why
from atc.cache.algo import open_algo_cache
from atc.cache.manage import cache_stats
from atc.cache.remote import object_name, sealed, unsealed
from atc.cache.remote_url import parse_remote
from atc.cache.report import run_text, stats_text, why_text
from atc.cache.secret import find_secret
from atc.errors import OptionError

KEY = "0123456789abcdef0123456789abcdef"
ALL = ["add", "conv", "pool"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for servers as long as they take where others work; tests of trouble say how long."""
    monkeypatch.setattr(remote, "PATIENCE", PATIENCE)
    monkeypatch.setattr(remote, "IN_ALL", 2 * PATIENCE)
    monkeypatch.setattr(blobs, "TIMEOUT", PATIENCE)


def machine(tmp_path: Path, name: str, url: str, **settings: str) -> NodeContext:
    """Return the cache of one of several machines, empty at first."""
    environ = {"ATC_CACHE_KEY": KEY, "HOME": str(tmp_path / name)}
    return NodeContext(tmp_path / name / "cache", environ, remote=url, **settings)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environ, s3_server(environ) as (url, _):
        yield url


@pytest.fixture(scope="module")
def google_bucket() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environ, gcs_server(environ) as url:
        yield url


@pytest.fixture(params=["file", "redis", "s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "file":
            yield f"file://{tmp_path}/share"
        elif request.param == "redis":
            yield stack.enter_context(redis_server(tmp_path))[0]
        else:
            bucket = {"s3": "bucket", "gs": "google_bucket"}[request.param]
            yield f"{request.getfixturevalue(bucket)}/{tmp_path.name}"


@pytest.mark.few(1)
def test_what_one_machine_compiled_another_takes_from_the_store(store: str, tmp_path: Path) -> None:
    first = machine(tmp_path, "first", store).compile()
    second_machine = machine(tmp_path, "second", store)
    second = second_machine.compile()
    assert (first.compiled, second.compiled) == (ALL, [])
    assert second.objects == first.objects
    assert (first.stats.remote_counts.stored, second.stats.remote_counts.hits) == (3, 3)
    assert second_machine.warnings == []
    third = machine(tmp_path, "second", "").compile()  # it lies on the disk now
    assert (third.compiled, third.objects) == ([], first.objects)


@pytest.mark.few(1)
def test_a_store_that_is_read_is_not_written(store: str, tmp_path: Path) -> None:
    reader = machine(tmp_path, "reader", store, access="read")
    assert reader.compile().stats.remote_counts.stored == 0
    other = machine(tmp_path, "other", store)
    assert other.compile().compiled == ALL
    assert other.warnings == []


@pytest.mark.few(1)
def test_force_replaces_what_the_store_has(store: str, tmp_path: Path) -> None:
    site = machine(tmp_path, "a", store)
    site.compile()
    run = site.compile("force")
    assert (run.compiled, run.stats.remote_counts.stored) == (ALL, 3)


def test_a_web_server_is_read(tmp_path: Path) -> None:
    machine(tmp_path, "first", f"file://{tmp_path}/share/atc").compile()
    with nginx_server(tmp_path / "nginx", tmp_path / "share") as base:
        reader = machine(tmp_path, "second", f"{base}/atc")
        assert reader.compile(names=[*ALL, "new"]).compiled == ["new"]
        assert reader.warnings == []
        with pytest.raises(OptionError, match="can only be read"):
            machine(tmp_path, "third", f"{base}/atc", access="readwrite").open()


def test_another_key_s_entries_are_refused_and_replaced(store: str, tmp_path: Path) -> None:
    machine(tmp_path, "first", store).compile()
    second = machine(tmp_path, "second", store)
    second.environ = {**second.environ, "ATC_CACHE_KEY": KEY[::-1]}
    run = second.compile()
    assert (run.compiled, run.stats.remote_counts.damaged) == (ALL, 3)
    (warning,) = second.warnings
    assert "not signed with the key in use" in warning


@pytest.mark.parametrize("url", ["redis://localhost:1/0", "s3://b/p", "http://localhost:1/x"])
def test_without_a_key_a_store_of_others_is_refused(url: str, tmp_path: Path) -> None:
    site = machine(tmp_path, "a", url)
    del site.environ["ATC_CACHE_KEY"]
    assert site.compile().compiled == ALL
    (warning,) = set(site.warnings)
    assert "others may write to it" in warning
    assert "--op_compiler_cache_trust=store" in warning


def test_without_a_key_a_store_is_believed_where_the_user_says_so(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        sites = [machine(tmp_path, name, url, trust="store") for name in ("a", "b")]
        for site in sites:
            del site.environ["ATC_CACHE_KEY"]
        assert [site.compile().compiled for site in sites] == [ALL, []]


def test_a_private_folder_needs_no_key_and_an_open_one_does(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir(mode=0o700)
    site = machine(tmp_path, "a", f"file://{share}")
    del site.environ["ATC_CACHE_KEY"]
    again = replace(site, root=tmp_path / "a/other", warnings=[])
    assert (site.compile().compiled, again.compile().compiled) == (ALL, [])
    share.chmod(0o777)
    third = replace(site, root=tmp_path / "a/third", warnings=[])
    assert third.compile().compiled == ALL
    assert "others may write to" in third.warnings[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:-1],
        lambda blob: blob[:40],
        lambda blob: b"",
        lambda blob: blob[:-3] + b"\0\0\0",
        lambda blob: blob.replace(b'"key"', b'"kez"'),
        lambda blob: b"<html>no</html>",
        lambda blob: bytes(100_000),
    ],
)
def test_rubbish_is_never_used(damage, tmp_path: Path) -> None:
    first = machine(tmp_path, "first", f"file://{tmp_path}/share")
    objects = first.compile().objects
    for path in (tmp_path / "share/objects" / TARGET).iterdir():
        path.write_bytes(damage(path.read_bytes()))
    second = machine(tmp_path, "second", f"file://{tmp_path}/share")
    run = second.compile()
    assert (run.compiled, run.objects) == (ALL, objects)
    assert (run.stats.remote_counts.damaged, len(second.warnings)) == (3, 1)
    assert machine(tmp_path, "third", f"file://{tmp_path}/share").compile().compiled == []


def test_an_entry_under_another_s_name_is_not_used(tmp_path: Path) -> None:
    site = machine(tmp_path, "first", f"file://{tmp_path}/share")
    site.compile()
    places = [
        tmp_path / "share/objects" / TARGET / site.key(name).digest() for name in ("add", "conv")
    ]
    os.replace(*places)
    second = machine(tmp_path, "second", f"file://{tmp_path}/share")
    run = second.compile()
    assert run.compiled == ["add", "conv"]
    assert run.objects == {n: b"object of " + site.key(n).encoded() for n in ALL}


def test_a_whole_entry_without_its_key_holds_only_for_who_trusts_the_store() -> None:
    blob = sealed("objects/t/d", b"payload", None)
    assert unsealed("objects/t/d", blob, None) == b"payload"
    with pytest.raises(remote.Damaged, match="not signed"):
        unsealed("objects/t/d", blob, find_secret({"ATC_CACHE_KEY": KEY}))
    with pytest.raises(remote.Damaged, match="sha256"):
        unsealed("objects/t/e", blob, None)


# ------------------------------------------------------------------------- stores in trouble


class Server:
    """A server whose connections do as asked, and what it saw."""

    def __init__(self, answer) -> None:
        self._answer, self._over = answer, False
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._one, args=[connection], daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            self._answer(connection, self)

    @property
    def over(self) -> bool:
        return self._over

    def close(self) -> None:
        self._over = True
        self._socket.close()


def hang(connection: socket.socket, server: Server) -> None:
    while not server.over:
        time.sleep(0.05)


def trickle(connection: socket.socket, server: Server) -> None:
    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not server.over:
        connection.sendall(b"x")
        time.sleep(0.05)


def endless(connection: socket.socket, server: Server) -> None:
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    while not server.over:
        connection.sendall(bytes(1 << 16))


def cut_off(connection: socket.socket, server: Server) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf of it")


def failing(connection: socket.socket, server: Server) -> None:
    connection.sendall(b"HTTP/1.0 500 Out of order\r\n\r\n")


def rubbish(connection: socket.socket, server: Server) -> None:
    connection.sendall(os.urandom(1000))


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", ["http", "redis"])
@pytest.mark.parametrize("answer", [hang, trickle, endless, cut_off, failing, rubbish])
def test_a_store_in_trouble_costs_one_warning_and_little_time(
    answer, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scheme == "redis":
        need_package("redis")
    monkeypatch.setattr(remote, "LARGEST", 1 << 20)
    server = Server(answer)
    site = machine(tmp_path, "a", f"{scheme}://127.0.0.1:{server.port}/0")
    begin = time.monotonic()
    with contextlib.closing(server), site.open() as cache:
        cache._remote._patience = 0.5  # type: ignore[union-attr]
        for name in ALL:
            assert cache.get(site.key(name), name) is None
            cache.put(site.key(name), name, b"object")
    assert time.monotonic() - begin < 40
    assert len(site.warnings) == 1, site.warnings
    assert site.stored(ALL) == ALL


def test_a_store_that_is_away_costs_one_warning(tmp_path: Path) -> None:
    for url in ("redis://127.0.0.1:1/0", "http://127.0.0.1:1/x", f"file://{tmp_path}/f"):
        (tmp_path / "f").write_bytes(b"")  # a file where a folder should be
        if url.startswith("redis"):
            need_package("redis")
        site = machine(tmp_path, url[:4], url)
        assert site.compile().compiled == ALL
        assert len(site.warnings) == 1, site.warnings


def test_a_store_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, process):
        machine(tmp_path, "first", url).compile()
        site = machine(tmp_path, "second", url)
        with site.open() as cache:
            assert cache.get(site.key("add"), "add") is not None
            process.kill()
            process.wait()
            for name in ("conv", "pool"):
                assert cache.get(site.key(name), name) is None
                cache.put(site.key(name), name, b"object")
        assert len(site.warnings) == 1


def test_a_store_that_stops_and_goes_on_is_not_waited_for(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, process):
        site = machine(tmp_path, "a", url)
        with site.open() as cache:
            cache._remote._patience = 0.5  # type: ignore[union-attr]
            process.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            assert cache.get(site.key("add"), "add") is None
            cache.put(site.key("add"), "add", b"object")
        process.send_signal(signal.SIGCONT)
        assert time.monotonic() - begin < 40
        assert len(site.warnings) == 1


def test_whoever_is_interrupted_does_not_wait_for_a_store(tmp_path: Path) -> None:
    need_package("redis")
    server = Server(hang)
    site = machine(tmp_path, "a", f"redis://127.0.0.1:{server.port}/0")
    begin = time.monotonic()

    def build() -> None:
        with site.open() as cache:
            cache.put(site.key("add"), "add", b"object")
            raise KeyboardInterrupt

    with contextlib.closing(server), pytest.raises(KeyboardInterrupt):
        build()
    assert time.monotonic() - begin < 40


def test_a_store_that_is_full_is_still_read(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, _):
        machine(tmp_path, "first", url).compile()
        import redis

        with redis.Redis.from_url(url) as client:
            client.config_set("maxmemory", 1)
        site = machine(tmp_path, "second", url)
        assert site.compile(names=[*ALL, "new"]).compiled == ["new"]
        (warning,) = site.warnings
        assert "is not written any more" in warning


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    need_package("redis")
    site = machine(tmp_path, "a", "redis://user:hunter22@127.0.0.1:1/0")
    run = site.compile()
    reported = " ".join([*site.warnings, run_text(run.stats)])
    assert "127.0.0.1" in reported
    assert "hunter22" not in reported


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "s3"])
def test_two_hundred_clients_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"kernel{k}" for k in range(5)]
    server = redis_server(tmp_path) if kind == "redis" else s3_server(monkeypatch)
    with server as (url, _):
        first = machine(tmp_path, "first", url).compile(names=names)

        def client(k: int):
            site = machine(tmp_path, f"client{k}", url)
            extra = [f"own{k}", "everybody's"]
            return site.compile(names=[*names, *extra]), site.warnings

        monkeypatch.setattr(remote, "AT_A_TIME", 2)
        with ThreadPoolExecutor(200) as pool:
            found = list(pool.map(client, range(200)))
    assert all(not warnings for _, warnings in found)
    for run, _ in found:
        assert not set(run.compiled) & set(names)
        assert {n: run.objects[n] for n in names} == first.objects


# ----------------------------------------------------------------------- what is reported


def test_statistics_distinguish_the_tiers(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/share"
    machine(tmp_path, "first", url).compile()
    second = machine(tmp_path, "second", url)
    run = second.compile(names=[*ALL, "new"])
    assert "3 of the hits, 1 not there, 1 stored, 0 refused" in run_text(run.stats)
    second.compile()
    text = stats_text(cache_stats(second.root, environ=second.environ))
    assert "local: 3 hits; 1 compiled" in text
    assert "remote: 3 hits, 1 misses, 0 refused, 1 stored" in text


def test_why_asks_both_tiers(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/share"
    first, second = (machine(tmp_path, n, url) for n in ("first", "second"))
    first.compile()
    (tmp_path / "share/objects" / TARGET / first.key("conv").digest()).write_bytes(b"rubbish")

    def asked(site: NodeContext, query: str) -> str:
        tier = open_remote(
            parse_remote(url), environ=site.environ, warn=lambda text: None, access="read"
        )
        found = why(site.root, query, TARGET, environ=site.environ, remote=tier)
        return why_text(found)

    assert "remote: good" in asked(first, "add")
    assert "remote: not used" in asked(first, "conv")
    reported = asked(second, first.key("add").digest())
    assert "not on this machine" in reported
    assert "void add(void);" in reported
    assert "no entry" in asked(second, first.key("conv").digest())


def test_measured_times_go_through_the_store(store: str, tmp_path: Path) -> None:
    def times(name: str, host: str = "board"):
        tier = open_remote(
            parse_remote(store), environ={"ATC_CACHE_KEY": KEY}, warn=warnings.append
        )
        return open_algo_cache(tmp_path / name, host, warnings.append, tier)

    warnings: list[str] = []
    first = times("first")
    first.put("matmul", {"a": 10.5, "b": None})
    first.put("late", {"a": 1.0, "b": -2e10})
    first.close()
    second, other = times("second"), times("other", "another board")
    for algo in (second, other):
        algo.fetch([("matmul", ["a", "b"]), ("late", ["a", "b"]), ("new", ["a"])])
        algo.close()
    assert [second.get("matmul", c) for c in "ab"] == [(True, 10.5), (True, None)]
    assert second.get("late", "a") == (False, None)  # a limit of one run is none of another's
    assert other.get("matmul", "a") == (False, None)
    assert warnings == []


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"a": "x"}', b'{"a": -1}', b'{"a": NaN}'])
def test_times_that_are_none_are_not_used(payload: bytes, tmp_path: Path) -> None:
    url, warnings = parse_remote(f"file://{tmp_path}/share"), []
    environ = {"ATC_CACHE_KEY": KEY}
    tier = open_remote(url, environ=environ, warn=warnings.append)
    assert tier is not None
    tier.put(remote.times_name("board", "w", ["a"]), payload)
    tier.close()
    tier = open_remote(url, environ=environ, warn=warnings.append)
    algo = open_algo_cache(None, "board", warnings.append, tier)
    algo.fetch([("w", ["a"])])
    assert algo.get("w", "a") == (False, None)
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host/x", "no remote store has the scheme"),
        ("kernels", "no remote store has the scheme"),
        ("s3://", "names no place"),
        ("file://relative/path", "names no place"),
        ("file:///a/../b", "names no place"),
        ("redis://host:x/0", "can't be read"),
        ("http://ho st/", "holds a blank"),
    ],
)
def test_wrong_addresses(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_remote(text)


def test_entries_are_what_the_format_says(tmp_path: Path) -> None:
    site = machine(tmp_path, "a", f"file://{tmp_path}/share")
    site.compile(names=["add"])
    digest = site.key("add").digest()
    blob = (tmp_path / "share" / object_name(TARGET, digest)).read_bytes()
    header, head, _ = blob.split(b"\n", 2)
    assert header.startswith(b"atc-cache-entry 1 ")
    assert json.loads(head) == {"key": len(site.key("add").encoded()), "label": "add"}


@pytest.mark.slow
def test_a_folder_is_read_by_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"ATC_CACHE_KEY": KEY}
    url = parse_remote(f"file://{tmp_path}/share")
    readers = set()

    def read(self: object, name: str, limit: int) -> bytes | None:
        readers.add(threading.get_ident())
        time.sleep(0.01)
        return None

    monkeypatch.setattr("atc.cache.blobs._Shared.read", read)
    store = open_remote(url, environ=environ, warn=pytest.fail)
    assert store is not None
    names = [object_name(TARGET, f"{k:064x}") for k in range(20)]
    store.prefetch(names)
    assert [store.get(name) for name in names] == [None] * 20
    store.close()
    assert 1 <= len(readers) <= remote.OF_FOLDERS
