"""Digits and Fashion-MNIST: what they hold, where they are found, what is wrong with bad files."""

import dataclasses
import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from classfair.split import check_splits
from classfair_plugins.datasets import digits, fashion_mnist
from classfair_plugins.datasets._arrays import ArraySplit, array_splits
from classfair_plugins.datasets._idx import read_idx
from classfair_registry.errors import DataBad, DataMissing
from classfair_registry.settings import NoSettings

NONE = NoSettings()
(DIGITS,) = digits.classfair_datasets()
(FASHION,) = fashion_mnist.classfair_datasets()


# -- digits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened_digits():
    return DIGITS.open(None, NONE)


def test_digits_are_what_their_manifest_says(opened_digits):
    check_splits(DIGITS, opened_digits)
    pixels = opened_digits["train"].images(np.arange(1198))
    assert pixels.shape == (1198, 8, 8, 1)
    assert pixels.dtype == np.uint8
    assert np.mean(pixels / 255) == pytest.approx(DIGITS.manifest.mean[0], abs=5e-5)
    assert np.std(pixels / 255) == pytest.approx(DIGITS.manifest.std[0], abs=5e-5)


def test_digits_are_scikit_learn_s_images_each_once_scaled_exactly(opened_digits):
    from sklearn.datasets import load_digits

    loaded = load_digits()
    scaled = np.floor(loaded.images * 255 / 16 + 0.5).astype(np.uint8)
    expected = sorted(zip(loaded.target.tolist(), map(bytes, scaled), strict=True))
    found = []
    for split in opened_digits.by_name.values():
        images = split.images(np.arange(len(split.labels)))
        found += zip(split.labels.tolist(), map(bytes, images), strict=True)
    assert sorted(found) == expected
    assert len({image for _, image in found}) == 1797
    assert len(np.unique(scaled)) == 17


def test_two_thirds_of_each_digit_are_for_training_for_ever(opened_digits):
    train, test = (np.bincount(opened_digits[name].labels) for name in ("train", "test"))
    assert train.tolist() == [119, 121, 118, 122, 121, 121, 121, 119, 116, 120]
    assert test.tolist() == [59, 61, 59, 61, 60, 61, 60, 60, 58, 60]
    assert opened_digits.fingerprint.startswith("2ab3728159e3b46a")


def test_the_file_of_digits_is_found_without_a_folder():
    (path,) = DIGITS.files(None, NONE)
    assert path.is_file()


@pytest.mark.parametrize("text", ["1,2,3\n", ",".join(["17"] * 64 + ["0"]) + "\n", "x\n"])
def test_another_file_in_place_of_the_digits_is_refused(tmp_path, monkeypatch, text):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(digits, "files", lambda root, settings: [path])
    with pytest.raises(DataBad, match=r"digits\.csv\.gz"):
        digits.open_digits(None, NONE)


def test_a_scikit_learn_without_digits_is_missing_data(tmp_path, monkeypatch):
    package = tmp_path / "sklearn"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataMissing, match="install scikit-learn again"):
        DIGITS.files(None, NONE)


# -- idx files -------------------------------------------------------------------------------------


def idx(array: np.ndarray, magic: bytes | None = None) -> bytes:
    """Return an array as the bytes of an idx file."""
    begin = bytes((0, 0, 8, array.ndim)) if magic is None else magic
    return begin + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_an_idx_file_is_read_back_exactly(tmp_path, name):
    assert (read_idx(write(tmp_path / name, idx(IMAGES)), (4, 5), 3) == IMAGES).all()
    labels = np.array([3, 0, 255], np.uint8)
    assert (read_idx(write(tmp_path / name, idx(labels)), (), 3) == labels).all()
    assert read_idx(write(tmp_path / name, idx(IMAGES[:0])), (4, 5), 3).shape == (0, 4, 5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "begins with nothing"),
        (b"\0\0", "begins with 0000, not 00000803"),
        (idx(IMAGES, b"\0\0\x0d\x03"), "begins with 00000d03"),
        (idx(IMAGES[0]), "begins with 00000802.*in 3 dimensions"),
        (b"<html><body>quota exceeded</body></html>", "begins with 3c68746d"),
        (idx(IMAGES)[:11], "truncated within its header"),
        (idx(IMAGES)[:-1], "truncated: 59 of 60 bytes"),
        (idx(IMAGES)[:16], "truncated: 0 of 60 bytes"),
        (idx(IMAGES) + b"\0", "goes on after the 60 bytes"),
        (idx(IMAGES.transpose(0, 2, 1).copy()), r"items of size \(5, 4\), not \(4, 5\)"),
        (idx(IMAGES).replace(b"\0\0\0\x03", b"\xff\xff\xff\xff"), "claims 4,294,967,295 items"),
    ],
)
@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_a_wrong_idx_file_is_named_with_its_fault(tmp_path, name, content, says):
    with pytest.raises(DataBad, match=f"{name}: .*{says}"):
        read_idx(write(tmp_path / name, content), (4, 5), 3)


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_gzip_file_that_ends_early_is_named_wherever_it_is_cut(tmp_path, length):
    whole = gzip.compress(idx(IMAGES))
    assert len(whole) > 60
    path = tmp_path / "file.gz"
    path.write_bytes(whole[:length])
    with pytest.raises(DataBad, match=r"file\.gz: "):
        read_idx(path, (4, 5), 3)


def test_a_gzip_file_with_a_flipped_byte_or_another_format_is_named(tmp_path):
    whole = bytearray(gzip.compress(idx(IMAGES)))
    whole[-6] ^= 1
    path = tmp_path / "file.gz"
    path.write_bytes(whole)
    with pytest.raises(DataBad, match=r"file\.gz: not a whole gzip file"):
        read_idx(path, (4, 5), 3)
    path.write_bytes(b"<html>")
    with pytest.raises(DataBad, match=r"file\.gz: not a whole gzip file"):
        read_idx(path, (4, 5), 3)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(DataBad, match="file: Is a directory"):
        read_idx(tmp_path / "file", (), 3)


# -- Fashion-MNIST ---------------------------------------------------------------------------------


def clothes(folder: Path, train=40, test=20, first=0, suffix="") -> Path:
    """Write a Fashion-MNIST of few images, whose labels begin with ``first``."""
    rng = np.random.default_rng(0)
    for name, n in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (n, 28, 28), np.uint8)
        labels = (np.arange(n) % 10 + first).astype(np.uint8)
        write(folder / f"{name}-images-idx3-ubyte{suffix}", idx(images))
        write(folder / f"{name}-labels-idx1-ubyte{suffix}", idx(labels))
    return folder


def with_counts(train: int, test: int):
    counts = {"train": train, "test": test}
    manifest = dataclasses.replace(FASHION.manifest, counts=counts, per_class={})
    return dataclasses.replace(FASHION, manifest=manifest)


@pytest.fixture(autouse=True)
def no_debian(tmp_path, monkeypatch, request):
    """Hide what Debian installed, except from the tests that are about it."""
    if request.node.get_closest_marker("fashion") is None:
        monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "debian")


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_is_found_in_every_layout(tmp_path, folder, suffix):
    clothes(tmp_path / folder, suffix=suffix)
    paths = FASHION.files(tmp_path, NONE)
    expected = [tmp_path / folder / f"{name}{suffix}" for name in fashion_mnist.FILES]
    assert list(paths) == expected
    check_splits(with_counts(40, 20), FASHION.open(tmp_path, NONE))


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path):
    clothes(tmp_path / "debian")
    assert FASHION.files(None, NONE)[0].parent == tmp_path / "debian"
    assert FASHION.files(tmp_path / "elsewhere", NONE)[0].parent == tmp_path / "debian"
    clothes(tmp_path / "elsewhere")
    assert FASHION.files(tmp_path / "elsewhere", NONE)[0].parent == tmp_path / "elsewhere"


def test_images_keep_their_order_and_get_a_channel(tmp_path):
    clothes(tmp_path)
    split = FASHION.open(tmp_path, NONE)["train"]
    images = np.frombuffer((tmp_path / fashion_mnist.FILES[0]).read_bytes()[16:], np.uint8)
    chosen = split.images(np.array([7, 2]))
    assert chosen.shape == (2, 28, 28, 1)
    assert (chosen[..., 0] == images.reshape(-1, 28, 28)[[7, 2]]).all()
    assert split.labels.dtype == np.int64
    assert split.labels[[7, 2]].tolist() == [7, 2]
    assert split.names is None


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    plain = FASHION.open(clothes(tmp_path / "plain"), NONE).fingerprint
    zipped = FASHION.open(clothes(tmp_path / "zipped", suffix=".gz"), NONE).fingerprint
    assert plain == zipped
    path = tmp_path / "plain" / fashion_mnist.FILES[2]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert FASHION.open(tmp_path / "plain", NONE).fingerprint != plain


def test_missing_files_are_named_with_the_folders_and_the_sources(tmp_path):
    clothes(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist" / fashion_mnist.FILES[3]).unlink()
    with pytest.raises(DataMissing) as caught:
        FASHION.files(tmp_path, NONE)
    said = str(caught.value)
    assert f"{tmp_path / 'fashion-mnist'} (lacks t10k-labels-idx1-ubyte)" in said
    assert f"{tmp_path / 'FashionMNIST' / 'raw'} (lacks all)" in said
    assert "dataset-fashion-mnist" in said
    assert "download=True" in said
    assert all(name in said for name in fashion_mnist.FILES)
    with pytest.raises(DataMissing, match="give the folder with --data"):
        FASHION.open(None, NONE)


def test_labels_that_count_from_one_are_refused(tmp_path):
    splits = FASHION.open(clothes(tmp_path, first=1), NONE)
    with pytest.raises(DataBad, match=r"fashion_mnist, train: .*from 1 to 10.*count from 1"):
        check_splits(with_counts(40, 20), splits)


def test_swapped_files_are_refused(tmp_path):
    splits = FASHION.open(clothes(tmp_path, train=20, test=40), NONE)
    with pytest.raises(DataBad, match="swapped"):
        check_splits(with_counts(40, 20), splits)


def test_a_part_of_the_images_is_refused(tmp_path):
    with pytest.raises(DataBad, match=r"found train 40, test 20; there must be train 60,000"):
        check_splits(FASHION, FASHION.open(clothes(tmp_path), NONE))


def test_labels_of_other_images_are_refused(tmp_path):
    clothes(tmp_path)
    write(tmp_path / fashion_mnist.FILES[1], idx(np.zeros(39, np.uint8)))
    with pytest.raises(DataBad, match=r"holds 40 images but .* 39 labels"):
        FASHION.open(tmp_path, NONE)


def fashion_root() -> Path | None:
    given = os.environ.get("CLASSFAIR_DATA")
    return Path(given) if given else None


@pytest.mark.fashion
def test_the_real_fashion_mnist_is_what_its_manifest_says():
    try:
        FASHION.files(fashion_root(), NONE)
    except DataMissing as missing:
        pytest.skip(str(missing))
    splits = FASHION.open(fashion_root(), NONE)
    check_splits(FASHION, splits)
    assert splits.fingerprint.startswith("f1685b376008a1b9")
    assert np.bincount(splits["train"].labels).tolist() == [6000] * 10
    assert np.bincount(splits["test"].labels).tolist() == [1000] * 10
    pixels = splits["train"].images(np.arange(60_000))
    share = np.bincount(pixels.ravel(), minlength=256) / pixels.size
    mean = (share * np.arange(256)).sum() / 255
    std = np.sqrt((share * (np.arange(256) / 255 - mean) ** 2).sum())
    assert mean == pytest.approx(FASHION.manifest.mean[0], abs=5e-5)
    assert std == pytest.approx(FASHION.manifest.std[0], abs=5e-5)


# -- what they share -------------------------------------------------------------------------------


def test_a_fingerprint_tells_labels_pixels_splits_and_classes_apart():
    pixels, labels = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1), np.array([0, 1, 0, 1])

    def of(classes=("a", "b"), pixels=pixels, labels=labels, cut=2):
        train = ArraySplit(pixels[:cut], labels[:cut])
        return array_splits(
            classes, {"train": train, "test": ArraySplit(pixels[cut:], labels[cut:])}
        ).fingerprint

    variants = [
        of(),
        of(classes=("a", "c")),
        of(pixels=pixels[::-1]),
        of(pixels=pixels.reshape(4, 4, 1, 1)),
        of(labels=labels[::-1]),
        of(cut=3),
    ]
    assert len(set(variants)) == len(variants)
    assert of(labels=labels.astype(">i4")) == of()


def test_data_sets_import_without_torch():
    program = (
        "import sys\nfrom classfair_plugins.datasets import digits, fashion_mnist\n"
        "assert not {'torch', 'torchvision', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
