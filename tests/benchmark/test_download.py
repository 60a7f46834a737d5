"""Downloads from a server of the test's own: whole and right, or not there."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import io
import socketserver
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trees
from classfair import download
from classfair.download import fetch
from classfair.prepare import FOLDER, obtain
from classfair.recipe import Data
from classfair_plugins.datasets import oxford_pets
from classfair_registry.errors import DataBad, DataMissing, UsageError
from classfair_registry.specs import Archive
from small_datasets import SMALL, small

CONTENT = bytes(range(256)) * 40
PAGE = b"<!DOCTYPE html><html>Quota exceeded</html>"


@dataclasses.dataclass
class Server:
    """What a server does: files by path, and faults in turn."""

    url: str
    files: dict[str, bytes]
    faults: list[str] = dataclasses.field(default_factory=list)
    asked: list[str] = dataclasses.field(default_factory=list)

    def archive(self, name: str = "file.bin", **changes: Any) -> Archive:
        md5 = hashlib.md5(self.files.get(name, CONTENT)).hexdigest()
        return Archive(f"{self.url}/{name}", **{"checksum": f"md5:{md5}", **changes})


def handler(server: Server) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            server.asked.append(asked)
            fault = server.faults.pop(0) if server.faults else ""
            content = server.files.get(self.path.removeprefix("/"))
            if fault == "page":
                return self.answer(200, PAGE, kind="text/html")
            if fault == "hidden page":
                return self.answer(200, PAGE)
            if content is None or fault.isdigit():
                return self.answer(int(fault or 404), b"no")
            start = int(asked.removeprefix("bytes=").rstrip("-") or 0)
            if asked and start >= len(content):
                return self.answer(416, b"")
            if asked and fault != "ignore range":
                return self.answer(206, content[start:], cut=fault == "cut")
            return self.answer(200, content, cut=fault == "cut")

        def answer(
            self, code: int, content: bytes, kind: str = "application/x-tar", cut: bool = False
        ) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)

        def log_message(self, *values: object) -> None:
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("", {"file.bin": CONTENT})
    # No HTTPServer: that one asks for the host's full name, which can take seconds.
    running = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler(made))
    made.url = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    running.shutdown()
    thread.join()
    running.server_close()


def quickly(archive: Archive, folder: Path, **options: Any) -> Path:
    return fetch(archive, folder, pause=lambda attempt: None, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_checked_and_not_fetched_twice(server, tmp_path):
    told: list[tuple[int, int]] = []
    archive = server.archive(size=len(CONTENT))
    path = fetch(archive, tmp_path, lambda *done: told.append(done))
    assert path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert fetch(archive, tmp_path) == path
    assert len(server.asked) == 1
    assert names(tmp_path) == ["file.bin"]
    sha = server.archive(checksum=f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert fetch(sha, tmp_path) == path


def test_a_transfer_that_breaks_off_goes_on_where_it_was(server, tmp_path):
    server.faults = ["cut", "cut", "503"]
    assert quickly(server.archive(), tmp_path).read_bytes() == CONTENT
    half = len(CONTENT) // 2
    three_quarters = half + half // 2
    later = f"bytes={three_quarters}-"
    assert server.asked == ["", f"bytes={half}-", later, later]


def test_a_server_that_cannot_go_on_begins_anew(server, tmp_path):
    server.faults = ["cut", "ignore range"]
    assert quickly(server.archive(), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_only_checked(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert quickly(server.archive(), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


def test_a_wrong_file_of_that_name_is_fetched_again(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(PAGE)
    assert quickly(server.archive(), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("fault", "says"),
    [("page", r"sent a web page \(text/html\)"), ("hidden page", "is a web page, not the file")],
)
def test_a_web_page_in_place_of_a_file_is_recognised_and_not_kept(fault, says, server, tmp_path):
    server.faults = [fault]
    with pytest.raises(DataBad, match=says):
        quickly(server.archive(), tmp_path)
    assert names(tmp_path) == []
    assert quickly(server.archive(), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"checksum": "md5:" + "0" * 32}, r"has md5:\w+, not md5:0+; it was deleted"),
        ({"checksum": "sha256:" + "0" * 64, "size": 7}, "has 10,240 bytes, not 7"),
    ],
)
def test_another_file_is_recognised_and_not_kept(changes, says, server, tmp_path):
    with pytest.raises(DataBad, match=says):
        quickly(server.archive(**changes), tmp_path)
    assert names(tmp_path) == []


def test_a_file_that_is_gone_is_missing_at_once(server, tmp_path):
    with pytest.raises(DataMissing, match=r"other\.bin: HTTP Error 404.*by hand"):
        quickly(server.archive("other.bin"), tmp_path)
    assert len(server.asked) == 1


def test_a_server_that_breaks_off_each_time_leaves_its_part_for_later(server, tmp_path):
    server.faults = ["cut"] * download.TRIES
    with pytest.raises(DataMissing, match=r"run this again, which goes on from .*file\.bin\.part"):
        quickly(server.archive(), tmp_path)
    assert names(tmp_path) == ["file.bin.part"]
    assert quickly(server.archive(), tmp_path).read_bytes() == CONTENT


def test_no_server_and_other_kinds_of_address_are_missing_data(tmp_path):
    closed = Archive("http://127.0.0.1:9/x.tar", "md5:" + "0" * 32)
    with pytest.raises(DataMissing, match="refused"):
        quickly(closed, tmp_path)
    with pytest.raises(DataMissing, match="neither http nor https"):
        quickly(Archive("file:///etc/passwd", "md5:" + "0" * 32), tmp_path)


@pytest.mark.parametrize("checksum", ["", "md5:12", "sha1:" + "0" * 40])
def test_an_archive_without_a_checksum_is_no_archive(checksum):
    with pytest.raises(ValueError, match="checksum must be"):
        Archive("https://somewhere/x.tar", checksum)


# -- whole data sets -------------------------------------------------------------------------------


def packed(folder: Path, *names_: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in names_:
            archive.add(folder / name, name)
    return content.getvalue()


@pytest.fixture
def pets(server, tmp_path) -> Any:
    folder = trees.pets(tmp_path / "published")
    server.files |= {
        "images.tar.gz": packed(folder, "images"),
        "annotations.tar.gz": packed(folder, "annotations"),
    }
    archives = tuple(
        server.archive(name, folder="oxford-iiit-pet")
        for name in ("annotations.tar.gz", "images.tar.gz")
    )
    return oxford_pets.spec(small(oxford_pets.MANIFEST, archives=archives))


PETS = Data(name="oxford_pets")


def test_a_data_set_is_downloaded_unpacked_and_put_in_its_place(pets, tmp_path):
    root, told = tmp_path / "new" / "root", []
    assert obtain(pets, PETS, root, lambda *done: told.append(done[0]))
    published = SMALL["oxford_pets"].open(tmp_path / "published", official())
    assert pets.open(root, official()).fingerprint == published.fingerprint
    assert names(root) == [FOLDER, "oxford-iiit-pet"]
    assert [name for name in names(root / FOLDER) if not name.endswith(".lock")] == []
    assert not obtain(pets, PETS, root)
    assert set(told) >= {"downloading images.tar.gz", "unpacking images.tar.gz"}


def official() -> Any:
    from classfair.stamps import dataset_settings

    return dataset_settings(SMALL["oxford_pets"], PETS)


def test_processes_that_prepare_at_once_download_once(pets, server, tmp_path):
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(obtain(pets, PETS, tmp_path / "root")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False, False, True]
    assert len(server.asked) == 2


def test_a_preparation_that_broke_off_is_done_again(pets, server, tmp_path):
    root = tmp_path / "root"
    server.faults = ["", "page"]
    with pytest.raises(DataBad, match="web page"):
        obtain(pets, PETS, root)
    assert (root / "oxford-iiit-pet" / "annotations" / "test.txt").exists()
    (root / "oxford-iiit-pet" / "images").mkdir(exist_ok=True)  # a list and a folder are there
    assert obtain(pets, PETS, root)
    pets.open(root, official()).fingerprint  # noqa: B018 - reads every file


def test_an_archive_that_is_none_is_named(pets, server, tmp_path):
    server.files["images.tar.gz"] = CONTENT
    spec = dataclasses.replace(
        pets,
        manifest=dataclasses.replace(pets.manifest, archives=(server.archive("images.tar.gz"),)),
    )
    with pytest.raises(DataBad, match=r"images\.tar\.gz: cannot be unpacked"):
        obtain(spec, PETS, tmp_path / "root")


def test_an_archive_that_leads_out_of_its_folder_is_refused(pets, server, tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        trees.add(archive, "../../escaped", b"x")
    server.files["images.tar.gz"] = content.getvalue()
    manifest = dataclasses.replace(pets.manifest, archives=(server.archive("images.tar.gz"),))
    with pytest.raises(DataBad, match="cannot be unpacked"):
        obtain(dataclasses.replace(pets, manifest=manifest), PETS, tmp_path / "root")
    assert not list(tmp_path.rglob("escaped"))


def test_what_is_not_downloaded_is_asked_for(pets, server, tmp_path):
    obtain(pets, PETS, tmp_path / "root")
    before = len(server.asked)
    with pytest.raises(DataMissing, match="split_zhou_OxfordPets"):
        obtain(pets, Data(name="oxford_pets", split="zhou"), tmp_path / "root")
    with pytest.raises(DataMissing, match="by hand"):
        obtain(SMALL["stanford_cars"], Data(name="stanford_cars"), tmp_path / "root")
    with pytest.raises(DataMissing, match="--data"):
        obtain(pets, PETS, None)
    assert len(server.asked) == before


def test_a_folder_that_cannot_be_written_is_a_mistake(pets, tmp_path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(UsageError, match="root"):
        obtain(pets, PETS, tmp_path / "root")


def test_the_archives_that_ship_have_addresses_and_digests():
    from classfair_plugins.datasets import cifar, fashion_mnist, fgvc_aircraft, flowers102, food101

    modules: list[Callable[[], Any]] = [
        module.classfair_datasets
        for module in (cifar, fashion_mnist, fgvc_aircraft, flowers102, food101, oxford_pets)
    ]
    for spec in (spec for provide in modules for spec in provide()):
        assert spec.manifest.archives, spec.name
        for archive in spec.manifest.archives:
            assert archive.url.startswith("http")
            assert archive.file
