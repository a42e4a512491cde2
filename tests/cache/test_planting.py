"""What somebody else puts into a cache is never used, found by `verify`, and replaced.

Planted as another user where the tests run as root: with files that are right but for the key.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atc.cache import (
    TEMPLATES,
    ContentStore,
    clear_cache,
    make_key,
    open_cache,
    open_content_store,
    verify_cache,
    verify_text,
)
from atc.cache.entry import Descriptor, store
from atc.cache.folder import open_folder
from atc.cache.secret import Secret, find_secret
from atc.templates import keeping_templates
from atc.templates.compiled import StoredBytecode, _key

OTHER = 65534
CODE = b"an object of somebody else"
FOREIGN = Secret(b"a key of somebody else")
KEY = make_key(source="void conv(void);\n", flags="-O2")
GROUP = {"ATC_CACHE_KEY": "what only the group knows"}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="atc-planted-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def environ(place: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(place / "config")}


def copied_as_another(source: Path, destination: Path) -> None:
    """Copy the files of a folder as another user, over those that are there."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    source.chmod(0o755)
    script = 'cd "$1" && for f in *; do cp "$f" "$2/new" && mv -f "$2/new" "$2/$f"; done'
    try:
        subprocess.run(
            ["sh", "-ec", script, "sh", str(source), str(destination)],
            user=OTHER, group=OTHER, extra_groups=[], check=True,
        )  # fmt: skip
    except PermissionError:
        pytest.skip("root may not become another user here")


def opened(place: Path, environ: dict[str, str], warnings: list[str]):
    return open_cache(
        "enable", place / "cache", "c99", versions={"v": "1"}, environ=environ,
        warn=warnings.append,
    )  # fmt: skip


def filled(place: Path, environ: dict[str, str]) -> Path:
    """Store an entry and return the folder it lies in."""
    with opened(place, environ, []) as cache:
        cache.put(KEY, "conv", b"our object")
    return place / "cache/kernel_cache/c99"


def forged(place: Path, form: int) -> Path:
    """Return a folder with an entry of the same key that everything but the signature agrees to."""
    folder = place / "forged"
    folder.mkdir(exist_ok=True)
    with open_folder(folder) as made:
        store(made, KEY, "conv", CODE, FOREIGN)
    if form == 1:  # of versions that didn't sign
        path = folder / f"{KEY.digest()}.json"
        reported = json.loads(path.read_text())
        del reported["signature"]
        path.write_text(json.dumps({**reported, "format": 1}))
    return folder


def loosen(*folders: Path) -> None:
    for folder in folders:
        folder.chmod(0o777)


@pytest.mark.parametrize("form", [1, 2])
def test_an_object_of_another_user_is_not_linked(place, environ, form):
    folder = filled(place, environ)
    folders = (folder.parents[1], folder.parent, folder)
    loosen(*folders)
    copied_as_another(forged(place, form), folder)
    assert (folder / f"{KEY.digest()}.o").read_bytes() == CODE
    warnings: list[str] = []
    with opened(place, environ, warnings) as cache:
        assert cache.get(KEY, "conv") is None
        cache.put(KEY, "conv", b"our object")
    assert (folder / f"{KEY.digest()}.o").read_bytes() == CODE  # as it was: the cache is off
    assert len(warnings) == 1
    assert f"others may write to '{folder.parents[1]}'" in warnings[0]
    report = verify_cache(place / "cache", environ=environ)
    assert [flaw.digest for flaw in report.flaws] == [KEY.digest()]
    assert "others may write" in report.open_to_others
    for each in folders:  # as the line says; what was planted stays behind
        each.chmod(0o755)
    with opened(place, environ, warnings) as cache:
        assert cache.get(KEY, "conv") is None
        assert cache.stats.damaged == 1
        cache.put(KEY, "conv", b"our object")
        assert cache.get(KEY, "conv") == b"our object"
    assert len(warnings) == 1
    assert verify_cache(place / "cache", environ=environ).good


@pytest.mark.parametrize("file", ["o", "json", "o json", "o json key"])
def test_in_a_groups_cache_nobody_without_the_key_replaces_an_object(place, environ, file):
    environ |= GROUP
    folder = filled(place, environ)
    for each in (folder.parents[1], folder.parent, folder):
        each.chmod(0o770)
        if os.geteuid() == 0:
            os.chown(each, -1, OTHER)
    source = forged(place, 2)
    for path in list(source.iterdir()):
        if path.suffix[1:] not in file.split():
            path.unlink()
    copied_as_another(source, folder)
    warnings: list[str] = []
    with opened(place, environ, warnings) as cache:
        assert cache.get(KEY, "conv") is None
        assert cache.stats.damaged == 1
    assert warnings == []
    report = verify_cache(place / "cache", environ=environ)
    assert [flaw.digest for flaw in report.flaws] == [KEY.digest()]
    assert verify_cache(place / "cache", environ=environ | {"ATC_CACHE_KEY": "z" * 16}).flaws


def test_who_has_the_groups_key_shares_its_objects(place, environ):
    filled(place, environ | GROUP)
    with opened(place, {"HOME": str(place / "another")} | GROUP, []) as cache:
        assert cache.get(KEY, "conv") == b"our object"


def test_a_cache_made_by_another_user_in_advance_is_not_used(place, environ):
    place.chmod(0o1777)
    (place / "made").mkdir()
    made = forged(place, 2)
    script = 'umask 0; mkdir -p "$1/cache/kernel_cache/c99"'
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    try:
        subprocess.run(
            ["sh", "-ec", script, "sh", str(place)],
            user=OTHER, group=OTHER, extra_groups=[], check=True,
        )  # fmt: skip
    except PermissionError:
        pytest.skip("root may not become another user here")
    copied_as_another(made, place / "cache/kernel_cache/c99")
    warnings: list[str] = []
    with opened(place, environ, warnings) as cache:
        assert not cache.active
        assert cache.get(KEY, "conv") is None
    assert f"'{place / 'cache'}' belongs to the user" in warnings[0]


def test_a_label_of_somebody_elses_is_not_shown(place, environ):
    folder = filled(place, environ)
    path = folder / f"{KEY.digest()}.json"
    reported = json.loads(path.read_text())
    reported["name"] = "\x1b[2J"
    path.write_text(json.dumps(reported))
    assert "\x1b" not in verify_text(verify_cache(place / "cache", environ=environ))
    with opened(place, environ, []) as cache:
        assert cache.get(KEY, "conv") is None


@pytest.mark.parametrize("size", [0, 1 << 40])
def test_a_size_of_somebody_elses_is_not_believed(place, environ, size):
    folder = filled(place, environ)
    path = folder / f"{KEY.digest()}.json"
    reported = json.loads(path.read_text())
    reported["object"]["size"] = size
    path.write_text(json.dumps(reported))
    with opened(place, environ, []) as cache:
        assert cache.get(KEY, "conv") is None


# ------------------------------------------------------------------------------------ templates


def template_code(place: Path) -> tuple[str, bytes, bytes, Path]:
    """Return what a store is asked for and code in its form that says that it ran in a file."""
    import jinja2
    from jinja2.bccache import Bucket, bc_magic

    marker = place / "ran"
    cache = StoredBytecode()
    environment = jinja2.Environment(loader=jinja2.DictLoader({"a.j2": "text"}))
    bucket: Bucket = cache.get_bucket(environment, "a.j2", None, "text")
    run = compile(f"open({str(marker)!r}, 'w').close()", "a.j2", "exec")
    bucket.code = environment.compile("text", "a.j2", None)
    whole = bucket.bytecode_to_string()
    assert whole.startswith(bc_magic)
    head = whole[: len(whole) - len(marshal.dumps(bucket.code))]
    return bucket.key, _key(bucket), head + marshal.dumps(run), marker


def rendered(place: Path, environ: dict[str, str]) -> str:
    import jinja2

    files = open_content_store(place / "cache", TEMPLATES, environ)
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({"a.j2": "text"}), bytecode_cache=StoredBytecode()
    )
    with keeping_templates(files):
        return environment.get_template("a.j2").render()


def planted_template(place: Path, secret: Secret | None) -> Path:
    """Plant a template's code, signed, or in the form of versions that didn't sign."""
    name, key, code, marker = template_code(place)
    if secret is None:
        digest = hashlib.sha256(len(key).to_bytes(8, "little") + key + code).digest()
        path = place / "planted" / TEMPLATES / name
        path.parent.mkdir(parents=True)
        path.write_bytes(digest + code)
    else:
        ContentStore(place / "planted", TEMPLATES, secret).put(name, key, code)
    return marker


def test_planted_code_would_run_with_the_right_key(place, environ):
    """So the tests below would fail if signatures weren't asked for."""
    marker = planted_template(place, find_secret(environ))
    shutil.copytree(place / "planted", place / "cache")
    with pytest.raises(Exception):  # noqa: B017, PT011 - it is no template
        rendered(place, environ)
    assert marker.exists()


@pytest.mark.parametrize("secret", [None, FOREIGN])
@pytest.mark.parametrize("mended", [False, True])
def test_a_template_of_another_user_does_not_run(place, environ, secret, mended):
    marker = planted_template(place, secret)
    folder = place / "cache" / TEMPLATES
    filled(place, environ)
    folder.mkdir()
    loosen(folder)
    copied_as_another(place / "planted" / TEMPLATES, folder)
    if mended:
        folder.chmod(0o755)
    assert rendered(place, environ) == "text"
    assert not marker.exists()
    report = verify_cache(place / "cache", environ=environ)
    assert report.good == mended  # where the folder is right, the file has been replaced
    assert [flaw.target for flaw in report.flaws] == ([] if mended else [TEMPLATES])
    clear_cache(place / "cache")
    assert list(folder.iterdir()) == []


def test_verify_finds_a_planted_template(place, environ):
    filled(place, environ)
    planted_template(place, FOREIGN)
    shutil.copytree(place / "planted" / TEMPLATES, place / "cache" / TEMPLATES)
    report = verify_cache(place / "cache", environ=environ)
    assert [(f.target, f.reason) for f in report.flaws] == [
        (TEMPLATES, "not signed with the key in use")
    ]
    assert "1 entries checked, 0 damaged; 1 small files checked, 1 damaged" in verify_text(report)
    assert verify_cache(place / "cache", "c99", environ=environ).good


# --------------------------------------------------------------------------------- older versions


def test_entries_of_a_version_that_did_not_sign_go_at_the_first_run(place, environ):
    folder = filled(place, environ)
    shutil.copytree(forged(place, 1), folder, dirs_exist_ok=True)
    planted_template(place, None)
    shutil.copytree(place / "planted" / TEMPLATES, place / "cache" / TEMPLATES)
    ini = place / "cache" / "op_cache.ini"
    ini.write_text(ini.read_text().replace("cache_format=2\n", ""))
    warnings: list[str] = []
    with opened(place, environ, warnings) as cache:
        assert cache.get(KEY, "conv") is None
        assert cache.stats.damaged == 0
        assert "another format" in cache.stats.events[0].reason
    assert list(folder.glob("*.o")) == list((place / "cache" / TEMPLATES).iterdir()) == []
    assert warnings == []
    assert "cache_format=2\n" in ini.read_text()


def test_the_signature_is_of_all_that_a_descriptor_says():
    parts = Descriptor("d" * 64, "name", 3, "s" * 64).signed_parts
    others = [
        Descriptor("e" * 64, "name", 3, "s" * 64), Descriptor("d" * 64, "other", 3, "s" * 64),
        Descriptor("d" * 64, "name", 4, "s" * 64), Descriptor("d" * 64, "name", 3, "t" * 64),
    ]  # fmt: skip
    assert all(other.signed_parts != parts for other in others)
