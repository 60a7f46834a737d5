"""Data sets in their official layout, right and wrong, as small trees."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

import trees
from classfair.recipe import Data
from classfair.split import check_splits
from classfair.stamps import dataset_settings
from classfair_plugins.datasets import (
    cifar,
    fgvc_aircraft,
    flowers102,
    food101,
    imagenet,
    oxford_pets,
    stanford_cars,
)
from classfair_plugins.datasets._pickles import read_pickle
from classfair_registry.errors import DataBad, DataMissing
from classfair_registry.specs import DatasetSpec, Splits
from small_datasets import COUNTS, PARTS, SMALL, WNIDS, small

MAKERS = {
    "oxford_pets": trees.pets,
    "flowers102": trees.flowers,
    "food101": trees.food,
    "fgvc_aircraft": trees.aircraft,
    "stanford_cars": trees.cars,
    "imagenet": trees.imagenet,
}
WITH_ZHOU = [name for name in MAKERS if name != "imagenet"]
SHIPPED = {
    spec.name: spec
    for module in (
        *(cifar, fgvc_aircraft, flowers102, food101, imagenet, oxford_pets, stanford_cars),
    )
    for spec in module.classfair_datasets()
}


def opened(spec: DatasetSpec, root: Path | None, split: str = "official") -> Splits:
    """Open and check a data set as the engine does."""
    found = spec.open(root, dataset_settings(spec, Data(name=spec.name, split=split)))
    check_splits(spec, found, split)
    return found


def files(name: str, root: Path, split: str = "official") -> list[Any]:
    spec = SMALL[name]
    return list(spec.files(root, dataset_settings(spec, Data(name=name, split=split))))


# -- what is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_a_tree_in_the_official_layout_opens_with_images_of_the_right_class(name, tmp_path):
    MAKERS[name](tmp_path)
    spec = SMALL[name]
    splits = opened(spec, tmp_path)
    assert {
        part: len(split.labels) for part, split in splits.by_name.items()
    } == spec.manifest.counts
    for split in splits.by_name.values():
        assert len(set(split.names)) == len(split.names)
        for n, label in enumerate(split.labels):
            colour = split.image(n).reshape(-1, 3).mean(0)
            assert np.abs(colour - trees.COLOURS[label]).max() < 45
    listed = {str(path) for path in files(name, tmp_path)}
    images = {place for split in splits.by_name.values() for place in split.places}
    assert images < listed or name == "imagenet"
    assert all(Path(path).is_file() for path in listed)


@pytest.mark.parametrize("name", WITH_ZHOU)
def test_the_split_of_zhou_is_read_from_its_file(name, tmp_path):
    MAKERS[name](tmp_path)
    splits = opened(SMALL[name], tmp_path, "zhou")
    assert {part: len(split.labels) for part, split in splits.by_name.items()} == PARTS
    seen = [name for split in splits.by_name.values() for name in split.names]
    assert len(set(seen)) == sum(PARTS.values())
    assert all(Path(path).is_file() for path in files(name, tmp_path, "zhou"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_manifest_that_ships_is_whole(name):
    manifest = SHIPPED[name].manifest
    assert {10, 37, 100, 101, 102, 196, 1000} >= {len(manifest.classes)}
    for split in ("official", *manifest.splits):
        for part, (fewest, most) in manifest.per_class_of(split).items():
            total = manifest.counts_of(split)[part]
            assert fewest * len(manifest.classes) <= total <= most * len(manifest.classes)
    assert all("{}" in prompt for prompt in manifest.prompts)
    assert manifest.licence
    assert manifest.sources
    assert manifest.citation


@pytest.mark.parametrize(
    ("name", "classes", "total"),
    [
        ("cifar10", 10, 60_000),
        ("cifar100", 100, 60_000),
        ("imagenet", 1000, 1_331_167),
        ("stanford_cars", 196, 16_185),
        ("oxford_pets", 37, 7349),
        ("flowers102", 102, 8189),
        ("food101", 101, 101_000),
        ("fgvc_aircraft", 100, 10_000),
    ],
)
def test_the_manifests_have_the_published_classes_and_numbers(name, classes, total):
    manifest = SHIPPED[name].manifest
    assert len(manifest.classes) == classes
    for split in ("official", *manifest.splits):
        assert sum(manifest.counts_of(split).values()) == total


def test_class_names_are_those_that_torchvision_knows():
    from torchvision.datasets import Flowers102
    from torchvision.models._meta import _IMAGENET_CATEGORIES

    assert imagenet.MANIFEST.classes == tuple(_IMAGENET_CATEGORIES)
    known = [name.strip("?") for name in Flowers102.classes]
    same = [a == b for a, b in zip(known, flowers102.MANIFEST.classes, strict=True)]
    assert sum(same) >= 98  # A few flowers have two names.
    assert list(imagenet.WNIDS) == sorted(set(imagenet.WNIDS))
    assert imagenet.MANIFEST.classes.count("crane") == 1
    assert len(imagenet.WNIDS) == 1000


@pytest.mark.parametrize("name", [*MAKERS, "cifar10", "cifar100"])
def test_a_data_set_that_is_not_there_says_what_is_wanted_and_where_people_get_it(name, tmp_path):
    spec = SMALL[name]
    settings = dataset_settings(spec, Data(name=name))
    for call in (spec.files, spec.open):
        with pytest.raises(DataMissing) as caught:
            call(tmp_path, settings)
        said = str(caught.value)
        assert said.startswith(f"{name} needs ")
        assert str(tmp_path) in said
        assert spec.manifest.sources[0] in said
        with pytest.raises(DataMissing, match="--data"):
            call(None, settings)


def test_the_readme_tells_where_the_files_of_each_data_set_lie():
    text = (Path(cifar.__file__).parent / "README.md").read_text()
    for name in SHIPPED:
        assert f"| `{name}` |" in text


def test_data_sets_import_quickly_without_heavy_packages():
    program = (
        "import sys\nfrom classfair_plugins.datasets import cifar, imagenet, flowers102\n"
        "assert not {'torch', 'torchvision', 'scipy', 'PIL', 'sklearn'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_ZHOU)
def test_a_missing_list_is_named(name, tmp_path):
    folder = MAKERS[name](tmp_path)
    gone = Path(files(name, tmp_path)[0])
    gone.unlink()
    with pytest.raises(DataMissing, match=rf"which lacks {gone.relative_to(folder)};.* people get"):
        opened(SMALL[name], tmp_path)


@pytest.mark.parametrize("name", ["oxford_pets", "flowers102", "food101", "stanford_cars"])
def test_without_its_file_only_the_split_of_zhou_is_missing(name, tmp_path):
    folder = MAKERS[name](tmp_path)
    (found,) = folder.glob("split_zhou_*.json")
    found.unlink()
    opened(SMALL[name], tmp_path)
    with pytest.raises(DataMissing, match=f"lacks {found.name}.*CoOp"):
        opened(SMALL[name], tmp_path, "zhou")


def rewrite_zhou(folder: Path, change) -> None:
    (path,) = folder.glob("split_zhou_*.json")
    written = json.loads(path.read_text())
    change(written)
    path.write_text(json.dumps(written))


def shift_labels(split):
    for part in split.values():
        for entry in part:
            entry[1] += 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (shift_labels, "count from 1"),
        (lambda split: split["val"].append(split["train"][0]), "is in train and in val"),
        (lambda split: split["train"].pop(), "there must be train 8, val 4, test 8"),
        (lambda split: split["train"][0].__setitem__(0, "other.jpg"), "not one of the data set's"),
        (lambda split: split["train"][0].__setitem__(1, "0"), r"train 0: .*is not \[file, label"),
        (lambda split: split["train"].__setitem__(0, 7), r"train 0: 7 is not \[file, label"),
        (lambda split: split.pop("val"), "not the three lists"),
    ],
)
def test_another_file_in_place_of_the_split_of_zhou_is_refused(change, says, tmp_path):
    rewrite_zhou(trees.pets(tmp_path), change)
    with pytest.raises(DataBad, match=says):
        opened(SMALL["oxford_pets"], tmp_path, "zhou")


@pytest.mark.parametrize("page", ["<html>quota exceeded</html>", ""])
@pytest.mark.parametrize("name", WITH_ZHOU)
def test_a_web_page_in_place_of_a_list_is_recognised(name, page, tmp_path):
    MAKERS[name](tmp_path)
    listed = Path(files(name, tmp_path)[0])
    listed.write_text(page)
    with pytest.raises(DataBad, match=listed.name) as caught:
        opened(SMALL[name], tmp_path)
    if page and listed.suffix in (".mat", ".json"):
        assert "web page" in str(caught.value)


def test_pets_in_another_class_order_are_refused(tmp_path):
    folder = trees.pets(tmp_path)
    path = folder / "annotations" / "trainval.txt"
    lines = [line.split() for line in path.read_text().splitlines()]
    order = {"1": "4", "2": "1", "3": "2", "4": "3"}
    path.write_text("".join(f"{a} {order[b]} {c} {d}\n" for a, b, c, d in lines))
    with pytest.raises(DataBad, match=r"trainval\.txt: Abyssinian_1 has class 4.*another order"):
        opened(SMALL["oxford_pets"], tmp_path)


def test_pets_whose_labels_count_from_zero_are_refused(tmp_path):
    folder = trees.pets(tmp_path)
    for path in (folder / "annotations").iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        path.write_text("".join(f"{a} {int(b) - 1} {c} {d}\n" for a, b, c, d in lines))
    with pytest.raises(DataBad, match="another number"):
        opened(SMALL["oxford_pets"], tmp_path)


def test_flowers_with_train_and_test_swapped_are_refused(tmp_path):
    folder = trees.flowers(tmp_path)
    from scipy.io import loadmat

    sets = loadmat(folder / "setid.mat")
    swapped = {"trnid": sets["tstid"], "valid": sets["valid"], "tstid": sets["trnid"]}
    savemat(folder / "setid.mat", swapped)
    spec = flowers102.spec(
        small(flowers102.MANIFEST, counts={"train": 8, "val": 4, "test": 9}), checksums={}
    )
    with pytest.raises(DataBad, match="found train 8, val 4, test 8; there must be"):
        opened(spec, tmp_path)
    uneven = {"trnid": sets["trnid"][:, :4], "valid": sets["valid"], "tstid": sets["tstid"]}
    savemat(folder / "setid.mat", {**uneven, "trnid": sets["tstid"], "tstid": sets["valid"]})
    spec = flowers102.spec(
        small(flowers102.MANIFEST, counts={"train": 4, "val": 4, "test": 8}), checksums={}
    )
    with pytest.raises(DataBad, match="test and train seem to be swapped"):
        opened(spec, tmp_path)


@pytest.mark.parametrize(("shift", "says"), [(0, "1 was subtracted"), (2, "count from 1")])
def test_flowers_whose_labels_do_not_count_from_one_are_refused(shift, says, tmp_path):
    trees.flowers(tmp_path, shift=shift)
    with pytest.raises(DataBad, match=f"flowers102, train: labels run from .*{says}"):
        opened(SMALL["flowers102"], tmp_path)


def test_flowers_with_lists_other_than_the_published_ones_are_refused(tmp_path):
    trees.flowers(tmp_path)
    spec = flowers102.spec(small(flowers102.MANIFEST, counts=PARTS))
    with pytest.raises(DataBad, match=r"imagelabels\.mat: its md5 is .*get it again"):
        opened(spec, tmp_path)


def test_flowers_of_a_set_beyond_the_labels_are_refused(tmp_path):
    folder = trees.flowers(tmp_path)
    savemat(folder / "setid.mat", {"trnid": [99], "valid": [1], "tstid": [2]})
    with pytest.raises(DataBad, match="trnid names images 99 to 99"):
        opened(SMALL["flowers102"], tmp_path)


def test_aircraft_by_family_are_refused(tmp_path):
    folder = trees.aircraft(tmp_path)
    names = folder / "variants.txt"
    variants = names.read_text()
    names.write_text("Boeing 707\nBoeing 727\nBoeing 737\n")
    with pytest.raises(DataBad, match=r"variants\.txt: has 3 names, not 4 variants; families"):
        opened(SMALL["fgvc_aircraft"], tmp_path)
    names.write_text(variants)
    listed = folder / "images_variant_test.txt"
    listed.write_text(listed.read_text().replace("737-200", "Boeing 737"))
    with pytest.raises(DataBad, match=r"variant_test\.txt: .*Boeing 737.*list of families"):
        opened(SMALL["fgvc_aircraft"], tmp_path)


def test_aircraft_labels_do_not_depend_on_the_order_of_the_names(tmp_path):
    folder = trees.aircraft(tmp_path)
    first = opened(SMALL["fgvc_aircraft"], tmp_path)["test"].labels.tolist()
    names = (folder / "variants.txt").read_text().splitlines()
    (folder / "variants.txt").write_text("\n".join(reversed(names)))
    assert opened(SMALL["fgvc_aircraft"], tmp_path)["test"].labels.tolist() == first


def test_food_with_unknown_classes_or_images_of_another_class_is_refused(tmp_path):
    folder = trees.food(tmp_path)
    path = folder / "meta" / "train.json"
    listed = json.loads(path.read_text())
    path.write_text(json.dumps({**listed, "0": listed["apple_pie"]}))
    with pytest.raises(DataBad, match=r"classes 0 are not known and \(none\) are missing"):
        opened(SMALL["food101"], tmp_path)
    listed["baklava"][0] = listed["apple_pie"][0]
    path.write_text(json.dumps(listed))
    with pytest.raises(DataBad, match=r"apple_pie/1\.jpg is listed under baklava"):
        opened(SMALL["food101"], tmp_path)
    path.write_text("[]")
    with pytest.raises(DataBad, match="not a list of images for each class"):
        opened(SMALL["food101"], tmp_path)


def test_cars_without_devkit_are_missing_and_say_that_the_links_are_dead(tmp_path):
    folder = trees.cars(tmp_path)
    (folder / "devkit" / "cars_train_annos.mat").rename(folder / "cars_train_annos.mat")
    with pytest.raises(DataMissing, match=r"lacks devkit/cars_train_annos\.mat.*by hand.*dead"):
        opened(SMALL["stanford_cars"], tmp_path)


def test_cars_with_a_test_list_without_labels_are_refused(tmp_path):
    folder = trees.cars(tmp_path)
    kind = [("bbox_x1", "O"), ("fname", "O")]
    rows = np.array([(5, "00001.jpg"), (5, "00002.jpg")], dtype=kind)
    savemat(folder / "cars_test_annos_withlabels.mat", {"annotations": rows})
    with pytest.raises(DataBad, match="not fname and class; the devkit's own test list"):
        opened(SMALL["stanford_cars"], tmp_path)


def test_cars_classes_may_be_spelt_a_little_otherwise_but_not_be_in_another_order(tmp_path):
    folder = trees.cars(tmp_path)
    names = list(SMALL["stanford_cars"].manifest.classes)
    trees.car_names(folder, [names[0].replace("General", "Gen."), *names[1:]])
    opened(SMALL["stanford_cars"], tmp_path)
    trees.car_names(folder, sorted(names, reverse=True))
    with pytest.raises(DataBad, match="another order"):
        opened(SMALL["stanford_cars"], tmp_path)
    trees.car_names(folder, names[:3])
    with pytest.raises(DataBad, match="has 3 classes, not 4"):
        opened(SMALL["stanford_cars"], tmp_path)


@pytest.mark.parametrize("place", ["imagenet", "ImageNet", "imagenet/images", "."])
def test_imagenet_is_found_in_plain_folders_without_devkit(place, tmp_path):
    made, target = trees.imagenet(tmp_path / "made"), (tmp_path / "root" / place).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    made.rename(target)
    assert opened(SMALL["imagenet"], tmp_path / "root")["test"].names[0].startswith("n01440764/")


def test_imagenet_in_shards_is_the_same_data_set_as_in_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    trees.imagenet(tmp_path / "folders")
    trees.shards(tmp_path / "shards")
    one = opened(SMALL["imagenet"], tmp_path / "folders")
    two = opened(SMALL["imagenet"], tmp_path / "shards")
    assert one.fingerprint == two.fingerprint
    for part in one.by_name:
        assert one[part].labels.tolist() == two[part].labels.tolist()
        for n in range(len(one[part].labels)):
            assert (one[part].image(n) == two[part].image(n)).all()
    assert len(files("imagenet", tmp_path / "shards")) == 5


@pytest.mark.parametrize("part", ["train", "val"])
def test_imagenet_in_folders_sorted_as_text_is_refused(part, tmp_path):
    folder = trees.imagenet(tmp_path) / part
    for label, wnid in enumerate(WNIDS):
        (folder / wnid).rename(folder / str(label))
    with pytest.raises(DataBad, match=f"{part}: its folders are numbers, whose order as text"):
        opened(SMALL["imagenet"], tmp_path)


def test_imagenet_with_other_folders_or_unsorted_val_files_is_refused(tmp_path):
    folder = trees.imagenet(tmp_path)
    (folder / "train" / WNIDS[0]).rename(folder / "train" / "tench")
    said = rf"has 4 folders, not the 4: 1 are missing \({WNIDS[0]}\); 1 do not belong .*tench"
    with pytest.raises(DataBad, match=said):
        opened(SMALL["imagenet"], tmp_path)
    (folder / "train" / "tench").rename(folder / "train" / WNIDS[0])
    for path in list((folder / "val").glob("*/*")):
        path.rename(folder / "val" / path.name)
    for path in [path for path in (folder / "val").iterdir() if path.is_dir()]:
        path.rmdir()
    with pytest.raises(DataBad, match=r"val: has no folders.*sort its files"):
        opened(SMALL["imagenet"], tmp_path)


def test_a_class_with_too_few_images_is_named(tmp_path):
    trees.imagenet(tmp_path)
    manifest = dataclasses.replace(SMALL["imagenet"].manifest, per_class={"test": (3, 50)})
    with pytest.raises(
        DataBad, match=r"test: a class must have 3 to 50 images; class 0 \(tench\) 2"
    ):
        opened(imagenet.spec(manifest, WNIDS), tmp_path)


# -- CIFAR -----------------------------------------------------------------------------------------


def cifar_spec(root: Path, name: str, checksums: dict[str, str] | None = None) -> DatasetSpec:
    folder = trees.cifar(root, name)
    make = {"cifar10": cifar.cifar10, "cifar100": cifar.cifar100}[name]
    digests = trees.checksums(folder) if checksums is None else checksums
    return make(SMALL[name].manifest, digests)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_s_pickles_become_images_of_the_right_class(name, tmp_path):
    spec = cifar_spec(tmp_path, name)
    splits = opened(spec, tmp_path)
    for part, split in splits.by_name.items():
        images = split.images(np.arange(len(split.labels)))
        assert images.shape == (spec.manifest.counts[part], 32, 32, 3)
        colours = images.mean((1, 2))
        wanted = np.array(trees.COLOURS)[split.labels % 4]
        assert np.abs(colours - wanted).max() < 45
        assert len(set(split.names)) == len(split.names)
    assert len(list(spec.files(tmp_path, None))) == (7 if name == "cifar10" else 3)


def test_a_partial_cifar_file_is_never_opened(tmp_path, monkeypatch):
    spec = cifar_spec(tmp_path, "cifar100")
    path = tmp_path / "cifar-100-python" / "train"
    path.write_bytes(path.read_bytes()[:-10])
    monkeypatch.setattr(cifar, "read_pickle", lambda path: pytest.fail(f"{path} was opened"))
    with pytest.raises(DataBad, match=r"meta: no md5 is known for it"):
        cifar_spec(tmp_path / "b", "cifar100", checksums={}).open(tmp_path / "b", None)
    monkeypatch.undo()
    with pytest.raises(DataBad, match=r"train: its md5 is .*partial, damaged or another"):
        spec.open(tmp_path, None)


def test_cifar_with_the_published_checksums_refuses_made_files(tmp_path):
    trees.cifar(tmp_path, "cifar10")
    with pytest.raises(DataBad, match=r"batches\.meta: its md5 is"):
        cifar.cifar10().open(tmp_path, None)


def test_cifar_with_other_classes_or_shapes_is_refused(tmp_path):
    cifar_spec(tmp_path, "cifar100")
    folder = tmp_path / "cifar-100-python"

    def refused(says: str) -> None:
        spec = cifar.cifar100(SMALL["cifar100"].manifest, trees.checksums(folder))
        with pytest.raises(DataBad, match=says):
            opened(spec, tmp_path)

    train = read_pickle(folder / "train")
    trees.dump(folder / "train", {**train, "data": train["data"][:, :100]})
    refused("train: data are uint8 .*not 32 x 32")
    trees.dump(folder / "train", {"data": train["data"]})
    refused("train: has no 'fine_labels', but data")
    trees.dump(folder / "train", {**train, "fine_labels": [n + 1 for n in train["fine_labels"]]})
    refused("cifar100, train: labels run from 1 to 4.*count from 1")
    trees.dump(folder / "meta", {"fine_label_names": ["a", "b", "c", "d"]})
    refused("meta: its classes are not those known")


class Harmful:
    def __reduce__(self):
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize("value", [{"data": Harmful()}, {"data": pickle.Unpickler}, [1], 7])
def test_a_pickle_that_asks_for_anything_but_arrays_is_refused_and_does_nothing(
    value, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = trees.write(tmp_path / "file", pickle.dumps(value))
    with pytest.raises(DataBad, match=r"file: (not a pickle of arrays|holds a)"):
        read_pickle(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_are_read_from_pickles_of_every_protocol(protocol, tmp_path):
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "name": "x"}
    found = read_pickle(trees.write(tmp_path / "file", pickle.dumps(value, protocol)))
    assert found["data"].tolist() == value["data"].tolist()
    assert found["labels"] == [1, 2]


def test_a_pickle_of_the_first_numpy_is_read(tmp_path):
    content = pickle.dumps({"data": np.zeros(2, np.uint8)}, 2).replace(
        b"numpy._core", b"numpy.core"
    )
    assert b"numpy.core" in content
    found = read_pickle(trees.write(tmp_path / "file", content))
    assert found["data"].tolist() == [0, 0]


def test_the_small_data_sets_have_few_images():
    assert sum(COUNTS.values()) == sum(PARTS.values()) == 20
