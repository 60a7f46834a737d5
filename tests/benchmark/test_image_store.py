"""Stores of decoded images: whole, of the right images, and made once."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trees
from classfair import image_store
from classfair.data import open_data
from classfair.geometry import with_short_side
from classfair.recipe import Data, Evaluation
from classfair.stamps import dataset_settings
from classfair_registry.errors import DataBad, UsageError
from small_datasets import SMALL


@pytest.fixture
def pets(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    trees.pets(tmp_path / "root")
    return tmp_path / "root"


def _official() -> Any:
    return dataset_settings(SMALL["oxford_pets"], Data(name="oxford_pets"))


def test_a_store_holds_the_images_of_every_part_at_their_short_side(pets):
    splits = SMALL["oxford_pets"].open(pets, _official())
    told = []
    folder = image_store.build("oxford_pets", splits, pets, 20, lambda *done: told.append(done))
    assert told[-1] == (20, 20)
    stored = image_store.find_stored("oxford_pets", pets, splits.fingerprint, 20)
    assert stored is not None
    assert stored.folder == folder
    for name, split in splits.by_name.items():
        for n in range(len(split.labels)):
            small = with_short_side(split.image(n), 20)
            assert min(small.shape[:2]) == 20
            assert (stored.parts[name].image(n) == small).all()
    before = (folder / "pixels").stat().st_mtime_ns
    assert image_store.build("oxford_pets", splits, pets, 20) == folder
    assert (folder / "pixels").stat().st_mtime_ns == before
    assert {p.name for p in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_a_store_of_other_images_or_another_size_is_not_read(pets):
    splits = SMALL["oxford_pets"].open(pets, _official())
    image_store.build("oxford_pets", splits, pets, 20)
    find = image_store.find_stored
    assert find("oxford_pets", pets, splits.fingerprint, 21) is None
    assert find("oxford_pets", pets, "0" * 64, 20) is None
    assert find("oxford_pets", pets, splits.fingerprint, None) is None
    assert find("oxford_pets", None, splits.fingerprint, 20) is None


def test_a_damaged_store_is_named(pets):
    splits = SMALL["oxford_pets"].open(pets, _official())
    folder = image_store.build("oxford_pets", splits, pets, 20)
    with (folder / "pixels").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataBad, match=f"{folder.name}: not a whole store.*delete it"):
        open_data(
            SMALL["oxford_pets"],
            Data(name="oxford_pets", short_side=20),
            pets,
            evaluation=Evaluation(name="centre", resize=20, size=16),
        )


def test_processes_that_make_a_store_at_once_make_it_once(pets):
    splits = SMALL["oxford_pets"].open(pets, _official())
    made, told = [], []

    def build() -> None:
        made.append(image_store.build("x", splits, pets, 20, lambda *done: told.append(done)))

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert told.count((20, 20)) == 1


def test_a_store_whose_making_fails_leaves_nothing_and_clears_what_others_left(pets):
    splits = SMALL["oxford_pets"].open(pets, _official())
    fingerprint = splits.fingerprint
    broken = dataclasses.replace(splits, digest=fingerprint)
    path = Path(splits["test"].places[3])
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(DataBad, match="empty"):
        image_store.build("x", broken, pets, 20)
    holder = pets / image_store.FOLDER
    assert all(left.name.endswith(".lock") for left in holder.iterdir())
    path.write_bytes(whole)
    (lock,) = holder.iterdir()
    leftover = holder / f"{lock.name.removesuffix('.lock')}-abc.part"
    leftover.mkdir()
    image_store.build("x", broken, pets, 20)
    assert not leftover.exists()


def test_small_images_of_one_size_need_no_store(tmp_path):
    from classfair_plugins.datasets import digits
    from classfair_registry.settings import NoSettings

    splits = digits.open_digits(None, NoSettings())
    with pytest.raises(UsageError, match="digits: its images are small"):
        image_store.build("digits", splits, tmp_path, 20)
    with pytest.raises(UsageError, match="gone"):
        image_store.build("x", _empty_files(), tmp_path / "gone" / "away", 20)


def _empty_files():
    from classfair_plugins.datasets._files import Files
    from classfair_registry.specs import Splits

    return Splits({"train": Files(np.zeros(0, int), [], [])}, "0")
