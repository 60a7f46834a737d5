"""How image files become pixels, and splits made of files: in folders and in archives."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

import trees
from classfair_plugins.datasets._files import Files, Member, decode, file_splits, labelled
from classfair_plugins.datasets._shards import samples
from classfair_registry.errors import DataBad
from classfair_registry.specs import FileSplit

RAMP = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3) * 3


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def decoded(image: Image.Image, form: str = "PNG", **options) -> np.ndarray:
    return decode(encoded(image, form, **options), "here")


def test_colour_is_as_stored():
    assert (decoded(Image.fromarray(RAMP)) == RAMP).all()


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_grey_and_palettes_become_three_channels(mode):
    image = Image.fromarray(RAMP).convert(mode)
    found = decoded(image)
    assert found.shape == (6, 4, 3)
    assert (found == np.asarray(image.convert("RGB"))).all()
    if mode != "P":
        assert (found == found[..., :1]).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_is_laid_on_white_and_hides_its_colour(mode):
    image = Image.fromarray(RAMP).convert(mode)
    alpha = Image.fromarray(np.array([[0, 255, 128, 0]] * 6, np.uint8))
    image.putalpha(alpha)
    found = decoded(image)
    plain = np.asarray(Image.fromarray(RAMP).convert(mode).convert("RGB")).astype(int)
    assert (found[:, [0, 3]] == 255).all()
    assert (found[:, 1] == plain[:, 1]).all()
    half = (plain[:, 2] * 128 + 255 * 127) / 255
    assert np.abs(found[:, 2] - half).max() <= 1


def test_a_transparent_palette_colour_is_laid_on_white():
    image = Image.new("P", (3, 2), 1)
    image.putpalette([0, 0, 0, 200, 10, 10])
    image.putpixel((0, 0), 0)
    found = decoded(image, transparency=0)
    assert found[0, 0].tolist() == [255, 255, 255]
    assert found[1, 2].tolist() == [200, 10, 10]


def test_of_sixteen_bits_the_upper_eight_are_taken():
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    found = decoded(Image.fromarray(values))
    assert found[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    assert (found == found[..., :1]).all()


def test_sixteen_bit_colour_is_treated_as_sixteen_bit_grey_is():
    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    row = np.array([[0, 255, 256], [32768, 65535, 65280]], ">u2").tobytes()
    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    content += chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    assert decode(content, "here").tolist() == [[[0, 0, 1], [128, 255, 255]]]


def test_cmyk_is_converted():
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red = decoded(image, "JPEG", quality=95)[4, 4]
    assert red[0] > 245
    assert red[1:].max() < 10


def test_the_camera_s_orientation_is_left_alone_unless_asked():
    image = Image.fromarray(RAMP)
    exif = image.getexif()
    exif[274] = 6
    content = encoded(image, exif=exif)
    assert (decode(content, "here") == RAMP).all()
    assert (decode(content, "here", upright=True) == np.rot90(RAMP, -1)).all()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty, 0 bytes"),
        (b"<!DOCTYPE html><html>quota</html>", "no image; it is a web page"),
        (b"GIF", "no image; it begins with 474946"),
        (trees.jpeg(0, 0)[:-1], "cannot be decoded: .*truncated"),
        (trees.jpeg(0, 0)[:500], "cannot be decoded: Truncated"),
        (encoded(Image.fromarray(RAMP))[:50], "cannot be decoded"),
        (encoded(Image.new("F", (2, 2)), "TIFF"), "mode F"),
        (encoded(Image.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF"), "not of 16 bits"),
    ],
)
def test_a_file_that_is_no_whole_image_is_named_with_its_fault(content, says):
    with pytest.raises(DataBad, match=f"there/x.jpg: .*{says}"):
        decode(content, "there/x.jpg")


def test_a_switch_that_hides_truncated_files_is_refused(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DataBad, match="LOAD_TRUNCATED_IMAGES"):
        decode(trees.jpeg(0, 0), "here")


# -- splits ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in range(5):
        trees.write(tmp_path / "images" / f"{n}.jpg", trees.jpeg(n % 2, n))
    return tmp_path / "images"


def split_of(folder: Path, n: int = 5) -> Files:
    return labelled(folder, [(f"{i}.jpg", i % 2) for i in range(n)])


def test_a_split_of_files_gives_each_image_in_its_own_size(folder):
    split = split_of(folder)
    assert isinstance(split, FileSplit)
    assert split.labels.tolist() == [0, 1, 0, 1, 0]
    for n in range(5):
        content = (folder / f"{n}.jpg").read_bytes()
        assert (split.image(n) == np.asarray(Image.open(io.BytesIO(content)))).all()
    with pytest.raises(DataBad, match="cannot be put together"):
        split.images(np.arange(5))
    assert split.images(np.array([2, 2])).shape == (2, *split.image(2).shape)


def test_a_missing_file_and_a_damaged_one_are_named(folder):
    (folder / "1.jpg").unlink()
    (folder / "3.jpg").write_bytes(b"")
    split = split_of(folder)
    with pytest.raises(DataBad, match=r"images/1\.jpg: No such file"):
        split.image(1)
    with pytest.raises(DataBad, match=r"images/3\.jpg: empty"):
        split.image(3)


def fingerprint(split: Files, classes=("a", "b")) -> str:
    return file_splits(classes, {"train": split, "test": split}).fingerprint


def test_the_fingerprint_covers_bytes_labels_names_and_classes_and_not_the_place(folder, tmp_path):
    first = fingerprint(split_of(folder))
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert fingerprint(split_of(moved)) == first
    assert fingerprint(split_of(moved), ("a", "c")) != first
    assert fingerprint(split_of(moved, 4)) != first
    relabelled = split_of(moved)
    relabelled.labels[0] = 1
    assert fingerprint(relabelled) != first
    turned = split_of(moved)
    turned.upright = True
    assert fingerprint(turned) != first
    trees.write(moved / "0.jpg", trees.jpeg(1, 0))
    assert fingerprint(split_of(moved)) != first


def test_a_fingerprint_is_found_only_when_asked_for_and_examined_files_are_not_read_again(folder):
    split = split_of(folder)
    splits = file_splits(("a", "b"), {"train": split})
    for n in range(5):
        digest, image = split.examined(n)
        assert digest == split.digest(n)
        assert (image == split.image(n)).all()
        (folder / f"{n}.jpg").unlink()
    assert len(splits.fingerprint) == 64


# -- archives --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            trees.add(tar, name, content)
    return path


def test_an_archive_s_images_are_read_from_where_they_lie(tmp_path, cache):
    content = {n: trees.jpeg(n, n) for n in range(3)}
    files = {
        f"x/{n}.{end}": c for n in content for end, c in (("cls", b"%d" % n), ("jpg", content[n]))
    }
    shard = archive(tmp_path / "a.tar", files)
    for _ in range(2):  # the second time from what was remembered
        found = samples([shard])
        assert [(s.name, s.label) for s in found] == [("0.jpg", 0), ("1.jpg", 1), ("2.jpg", 2)]
    split = Files(np.arange(3), [s.name for s in found], [s.place for s in found])
    assert (split.image(1) == decode(content[1], "")).all()
    assert list((cache / "shards").iterdir())


def test_an_archive_that_changed_is_walked_again(tmp_path):
    shard = archive(tmp_path / "a.tar", {"0.cls": b"0", "0.jpg": b"one"})
    assert samples([shard])[0].place.size == 3
    archive(shard, {"0.cls": b"5", "0.jpg": b"longer"})
    assert (samples([shard])[0].label, samples([shard])[0].place.size) == (5, 6)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"0.jpg": b"x"}, "0 lacks its image or its label"),
        ({"0.cls": b"1"}, "0 lacks its image or its label"),
        ({"0.jpg": b"x", "0.cls": b"cat"}, "0.cls holds b'cat', not a label"),
    ],
)
def test_an_archive_whose_samples_are_not_whole_is_named(tmp_path, files, says):
    with pytest.raises(DataBad, match=rf"a\.tar: {says}"):
        samples([archive(tmp_path / "a.tar", files)])


def test_an_archive_that_is_none_or_ends_early_is_named(tmp_path):
    page = trees.write(tmp_path / "a.tar", b"<html>quota</html>" * 99)
    with pytest.raises(DataBad, match=r"a\.tar: not a whole tar archive"):
        samples([page])
    whole = archive(tmp_path / "b.tar", {"0.jpg": b"x" * 2000, "0.cls": b"0"}).read_bytes()
    cut = trees.write(tmp_path / "c.tar", whole[:1500])
    with pytest.raises(DataBad, match=r"c\.tar"):
        samples([cut])
    short = Files(np.zeros(1, int), ["0.jpg"], [Member(str(cut), 512, 2000)])
    with pytest.raises(DataBad, match=r"c\.tar, 0\.jpg: the archive ends after 988"):
        short.image(0)
