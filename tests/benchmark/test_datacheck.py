"""``data check``, ``prepare`` and ``list``: what they say of trees that are right and wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Commands

import small_datasets
import trees
from classfair.datacheck import check
from classfair.recipe import Data
from classfair.stamps import stamped
from small_datasets import COUNTS, SMALL

PLUGIN = ("--plugin", small_datasets.__file__)
MAKERS = {
    "oxford_pets": trees.pets,
    "flowers102": trees.flowers,
    "food101": trees.food,
    "fgvc_aircraft": trees.aircraft,
    "stanford_cars": trees.cars,
    "imagenet": trees.imagenet,
}
PETS = Data(name="oxford_pets")


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def images(folder: Path) -> list[Path]:
    return sorted((folder / "images").iterdir())


@pytest.mark.parametrize("name", MAKERS)
def test_a_good_tree_is_good_read_once_and_stamped(name, root):
    MAKERS[name](root)
    spec, told = SMALL[name], []
    report = check(spec, Data(name=name), root, lambda *done: told.append(done))
    assert report.good
    assert report.problems == report.notes == report.duplicates == ()
    assert report.counts == spec.manifest.counts
    assert told[-1] == (20, 20)
    assert stamped(spec, Data(name=name), root) == report.fingerprint
    json.dumps(report.to_json(), allow_nan=False)


def test_what_the_check_has_read_is_not_read_again_for_the_fingerprint(root, monkeypatch):
    trees.pets(root)
    spec = SMALL["oxford_pets"]
    read: list[str] = []
    original = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: (read.append(path.name), original(path))[1]
    )
    check(spec, PETS, root)
    assert sorted(n for n in read if n.endswith(".jpg")) == sorted(
        path.name for path in images(root / "oxford-iiit-pet")
    )


def test_every_bad_file_is_named_with_its_cause(root):
    folder = trees.pets(root)
    one, two, three, four = images(folder)[:4]
    one.write_bytes(one.read_bytes()[:-20])
    two.write_bytes(b"")
    three.write_bytes(b"<html>quota</html>")
    four.unlink()
    report = check(SMALL["oxford_pets"], PETS, root)
    assert not report.good
    assert report.fingerprint is None
    assert len(report.problems) == 4
    for path, cause in ((one, "truncated"), (two, "empty"), (three, "web page"), (four, "No such")):
        assert any(f"{path}: " in p and cause in p for p in report.problems)
    assert report.counts == COUNTS
    assert stamped_or_none(root) is None


def stamped_or_none(root: Path) -> Any:
    from classfair_registry.errors import DataMissing

    try:
        return stamped(SMALL["oxford_pets"], PETS, root)
    except DataMissing:
        return None


def test_images_in_two_parts_are_found_by_their_pixels(root):
    from PIL import Image

    folder = trees.pets(root)
    train, test = folder / "images" / "Abyssinian_1.jpg", folder / "images" / "Bengal_102.jpg"
    with Image.open(train) as image:
        image.load()
    image.save(train.with_suffix(".png"))
    train.with_suffix(".png").replace(test)  # other bytes, the same pixels
    report = check(SMALL["oxford_pets"], PETS, root)
    assert report.duplicates == (("train Abyssinian_1.jpg", "test Bengal_102.jpg"),)
    (problem,) = report.problems
    assert problem.startswith("1 image is in an earlier part too")
    assert "--allow-duplicates" in problem
    allowed = check(SMALL["oxford_pets"], PETS, root, allow_duplicates=True)
    assert allowed.good
    assert allowed.notes == ("1 image is in an earlier part too",)
    assert allowed.fingerprint == report.fingerprint


def test_where_checksums_show_the_published_files_duplicates_are_only_told(root, monkeypatch):
    from classfair_plugins.datasets import cifar

    folder = trees.cifar(root, "cifar100")
    from classfair_plugins.datasets._pickles import read_pickle

    train, test = read_pickle(folder / "train"), read_pickle(folder / "test")
    test["data"][3] = train["data"][7]
    trees.dump(folder / "test", test)
    spec = cifar.cifar100(SMALL["cifar100"].manifest, trees.checksums(folder))
    report = check(spec, Data(name="cifar100"), root)
    assert report.good
    assert report.notes == ("1 image is in an earlier part too",)
    assert report.duplicates[0][0].startswith("train train_0_7")


def test_swapped_parts_and_labels_from_one_are_both_told(root):
    trees.flowers(root, shift=2)
    folder = root / "flowers-102"
    from scipy.io import loadmat, savemat

    sets = loadmat(folder / "setid.mat")
    swapped = {"trnid": sets["tstid"], "valid": sets["valid"], "tstid": sets["valid"]}
    savemat(folder / "setid.mat", {**swapped, "trnid": sets["trnid"][:, :4]})
    report = check(SMALL["flowers102"], Data(name="flowers102"), root)
    assert "found train 4, val 4, test 4" in report.problems[0]
    assert sum("count from 1" in problem for problem in report.problems) >= 1


def test_a_list_that_cannot_be_read_is_the_only_problem(root):
    folder = trees.aircraft(root)
    (folder / "variants.txt").write_text("Boeing 707\n")
    report = check(SMALL["fgvc_aircraft"], Data(name="fgvc_aircraft"), root)
    (problem,) = report.problems
    assert "families (70)" in problem
    assert report.counts == {}


# -- the command line ------------------------------------------------------------------------------


def test_check_says_what_is_wrong_and_ends_with_one(command: Commands, root):
    folder = trees.pets(root)
    asked = ("data", "check", "small_oxford_pets", "--root", str(root), *PLUGIN)
    out = command.out(*asked)
    assert "small_oxford_pets, split official: train 12, test 8; is what it should be." in out
    assert "Fingerprint: " in out
    assert "train 8, val 4, test 8" in command.out(*asked, "--split", "zhou")
    images(folder)[2].write_bytes(b"")
    code, out, _ = command(*asked)
    assert code == 1
    assert f"PROBLEM: {images(folder)[2]}: empty, 0 bytes" in out
    assert "is not what it should be" in out
    code, out, _ = command(*asked, "--json")
    assert code == 1
    told = json.loads(out)
    assert told["good"] is False
    assert len(told["problems"]) == 1


def test_a_missing_data_set_is_exit_code_two_with_what_is_wanted(command: Commands, root):
    said = command.mistake("data", "check", "stanford_cars", "--root", str(root))
    for wanted in ("devkit/cars_train_annos.mat", "cars_train/", "by hand", "dead", str(root)):
        assert wanted in said
    said = command.mistake("data", "prepare", "imagenet", "--root", str(root))
    assert "train/ and val/" in said
    assert "image-net.org" in said


def test_mistakes_are_told_before_anything_is_read(command: Commands, root, tmp_path):
    gone = str(tmp_path / "gone")
    assert "no such folder" in command.mistake("data", "check", "digits", "--root", gone)
    assert "did you mean oxford_pets" in command.mistake("data", "check", "oxford_pet")
    said = command.mistake("data", "check", "digits", "--split", "zhou")
    assert "no split 'zhou'" in said
    assert "no store" in command.mistake(
        "data", "prepare", "digits", "--root", str(root), "--cache", "32"
    )


def test_prepare_checks_and_stores_the_images_of_a_data_set_that_is_there(command: Commands, root):
    trees.pets(root)
    asked = ("data", "prepare", "small_oxford_pets", "--root", str(root), "--cache", "20", *PLUGIN)
    told = command.json(*asked)
    assert Path(told["stored"]).is_dir()
    assert Path(told["stored"]).parent.parent == root
    assert told["good"]
    assert command.json(*asked)["stored"] == told["stored"]


def test_list_says_which_data_sets_are_there(command: Commands, root):
    trees.pets(root)
    folder = trees.aircraft(root)
    (folder / "variants.txt").write_text("Boeing 707\n")
    command.out("data", "check", "small_oxford_pets", "--root", str(root), *PLUGIN)
    command.out("data", "check", "digits")
    listed = {e["name"]: e for e in command.json("data", "list", "--root", str(root), *PLUGIN)}
    assert listed["small_oxford_pets"]["state"] == "checked"
    assert listed["digits"]["state"] == "checked"
    assert listed["oxford_pets"]["state"] == "there"
    assert listed["small_fgvc_aircraft"]["state"] == "bad"
    assert listed["imagenet"]["state"] == "missing"
    assert listed["imagenet"]["counts"] == {"train": 1_281_167, "test": 50_000}
    assert listed["flowers102"]["splits"] == ["official", "zhou"]
    assert "12 train / 8 test" in command.out("data", "list", *PLUGIN)


def test_data_verbs_need_no_torch(root):
    program = (
        "import sys; from classfair.cli import run\n"
        f"assert run(['data', 'list', '--root', {str(root)!r}]) == 0\n"
        "assert run(['data', 'check', 'digits']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {**os.environ, "CLASSFAIR_CACHE": str(root / "cache")}
    subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL
    )
