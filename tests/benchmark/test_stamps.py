"""Fingerprints that are remembered by path, size and time of the files they were taken from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from classfair.recipe import Data
from classfair.stamps import fingerprint, stamped
from classfair_registry.errors import DataMissing, UsageError
from classfair_registry.files import file_digest
from classfair_registry.specs import DatasetSpec, Manifest, Splits

DATA = Data(name="made")
MANIFEST = Manifest(
    classes=("a", "b"),
    counts={"train": 2, "test": 2},
    shape=(1, 2, 2),
    mean=(0.5,),
    std=(0.5,),
    licence="none",
    citation="none",
    sources=("none",),
)


class Reading:
    """A data set of one file whose fingerprint is the file's hash; counts how often it is read."""

    def __init__(self, name="made"):
        self.times = 0
        self.meanwhile = lambda: None
        self.spec = DatasetSpec(name, "Made", self.open, self.files, MANIFEST, "Made up")

    def open(self, root, settings):
        self.times += 1
        found = file_digest(root / "data")
        self.meanwhile()
        return Splits({}, found)

    def files(self, root, settings):
        if not (root / "data").exists():
            raise DataMissing("made: no data")
        return [root / "data"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "data").write_text("one")
    return folder


def test_a_data_set_is_read_once_and_its_fingerprint_remembered(root):
    made = Reading()
    assert stamped(made.spec, DATA, root) is None
    first = fingerprint(made.spec, DATA, root)
    assert first == file_digest(root / "data")
    assert fingerprint(made.spec, DATA, root) == first
    assert stamped(made.spec, DATA, root) == first
    assert made.times == 1


def test_a_changed_file_has_no_stamp(root):
    made = Reading()
    first = fingerprint(made.spec, DATA, root)
    (root / "data").write_text("another")
    assert stamped(made.spec, DATA, root) is None
    assert fingerprint(made.spec, DATA, root) != first


def test_a_touched_file_has_no_stamp_though_its_size_is_the_same(root):
    made = Reading()
    fingerprint(made.spec, DATA, root)
    os.utime(root / "data", ns=(0, 1))
    assert stamped(made.spec, DATA, root) is None


def test_a_file_that_changes_while_it_is_read_is_not_stamped(root):
    made = Reading()
    made.meanwhile = lambda: (root / "data").write_text("changed")
    fingerprint(made.spec, DATA, root)
    assert stamped(made.spec, DATA, root) is None


def test_two_folders_keep_a_stamp_each(root, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "data").write_text("two")
    made = Reading()
    for folder in (root, other, root, other):
        assert fingerprint(made.spec, DATA, folder) == file_digest(folder / "data")
    assert made.times == 2


def test_data_sets_of_two_names_do_not_share_a_stamp(root):
    fingerprint(Reading().spec, DATA, root)
    assert stamped(Reading("other").spec, DATA, root) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '"x"', "\x00"])
def test_a_torn_stamp_is_no_stamp(root, cache, text):
    made = Reading()
    first = fingerprint(made.spec, DATA, root)
    (stamp,) = (cache / "stamps").iterdir()
    stamp.write_text(text)
    assert stamped(made.spec, DATA, root) is None
    assert fingerprint(made.spec, DATA, root) == first
    assert stamped(made.spec, DATA, root) == first


def test_a_cache_that_cannot_be_written_costs_only_time(root, cache):
    cache.write_text("a file where the folder should be")
    made = Reading()
    assert fingerprint(made.spec, DATA, root) == fingerprint(made.spec, DATA, root)
    assert made.times == 2


def test_missing_files_and_unknown_splits_are_told_without_reading(root):
    made = Reading()
    with pytest.raises(UsageError, match="no split 'zhou'"):
        stamped(made.spec, Data(name="made", split="zhou"), root)
    (root / "data").unlink()
    with pytest.raises(DataMissing):
        stamped(made.spec, DATA, root)
    with pytest.raises(DataMissing):
        fingerprint(made.spec, DATA, root)
    assert made.times == 0


def test_a_plugin_that_names_a_file_that_is_not_there_is_told_as_missing_data(root):
    made = Reading()
    made.files = lambda folder, settings: [folder / "gone"]
    spec = DatasetSpec("made", "Made", made.open, made.files, MANIFEST, "Made up")
    with pytest.raises(DataMissing, match="gone: No such file"):
        stamped(spec, DATA, root)


def test_stamps_need_neither_torch_nor_scikit_learn(root):
    program = (
        "import sys; from classfair.stamps import fingerprint, stamped\n"
        "from classfair.recipe import Data\n"
        "from classfair_plugins.datasets import digits, fashion_mnist\n"
        "(spec,) = digits.classfair_datasets()\n"
        "assert stamped(spec, Data(name='digits'), None) is None\n"
        "found = fingerprint(spec, Data(name='digits'), None)\n"
        "assert stamped(spec, Data(name='digits'), None) == found\n"
        "assert not {'torch', 'torchvision', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
