"""A cell on each data set that ships, from small trees in the official layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small_datasets
import trees
from classfair import cell as cells
from classfair import image_store
from classfair.expand import expand
from classfair.keys import run_key
from classfair.recipe import Recipe
from classfair.resolve import resolve_recipe
from classfair.split import class_sizes
from classfair.stamps import dataset_settings, fingerprint, stamped
from classfair.yaml_strict import parse
from classfair_registry.errors import UsageError
from classfair_registry.manager import Plugins, discover
from classfair_registry.predictions import Predictions
from classfair_registry.records import CellInfo, Failure, MethodInfo, Record

PLUGIN = Path(small_datasets.__file__)
CPU = torch.device("cpu")
FILES = [name for name, spec in small_datasets.SMALL.items() if 0 in spec.manifest.shape]
FIXED = [name for name in small_datasets.SMALL if name not in FILES]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return trees.everything(tmp_path_factory.mktemp("data"))


@pytest.fixture
def plugins(root, tmp_path, monkeypatch) -> Plugins:
    monkeypatch.setenv("SMALL_ROOT", str(root))
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    return discover([PLUGIN])


def recipe_of(name: str, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "name": "tiny",
        "data": {"name": f"small_{name}"},
        "backbone": {"name": "resnet8"},
        "batch_size": 5,
        "epochs": 1,
        "trace": {"points": 1, "images": 8, "losses": 1},
        "augmentation": {"name": "crop_flip", "pad": 1},
    }
    if name in FILES:
        values["eval"] = {"name": "centre", "resize": 18, "size": 16}
        values["augmentation"] = {"name": "random_resized_crop"}
    return Recipe.model_validate(values | changes)


def prepared(folder: Path, recipe: Recipe, root: Path, plugins: Plugins) -> Path:
    """Write ``cell.json`` of an ERM run."""
    card = plugins.card("methods", "erm")
    spec = plugins.get("datasets", recipe.data.name)
    info = CellInfo(
        key="",
        method=MethodInfo(
            name="erm",
            label="erm",
            title="ERM",
            plugin=card.plugin.name,
            version="",
            revision=1,
            settings={},
            source=card.plugin.stamp,
        ),
        recipe=recipe.model_dump(mode="json"),
        recipe_name="tiny",
        recipe_key="0" * 64,
        fingerprint=fingerprint(spec, recipe.data, root),
        seed=0,
        paths={"data": str(root), "plugin 0": str(PLUGIN)},
    )
    folder.mkdir(exist_ok=True)
    info.model_copy(update={"key": run_key(info)}).save(folder / "cell.json")
    return folder


def finished(folder: Path) -> Record:
    cells.Cell(folder, CPU, lambda: False).run()
    return Record.load(folder / "record.json")


@pytest.mark.parametrize("name", [*FILES, *FIXED])
def test_a_cell_trains_on_each_data_set(name, root, plugins, tmp_path):
    record = finished(prepared(tmp_path / "cell", recipe_of(name), root, plugins))
    counts = small_datasets.SMALL[name].manifest.counts
    assert (record.dataset["train"], record.dataset["test"]) == (counts["train"], counts["test"])
    assert (
        record.dataset["train_counts"]
        == np.bincount(trees.labels_of(counts, "train", len(record.dataset["classes"]))).tolist()
    )
    judged = Predictions.load(tmp_path / "cell" / "predictions.npz")
    assert len(judged.label) == counts["test"]
    if name in FILES:
        assert len(set(judged.names.tolist())) == counts["test"]
    assert np.isfinite(record.metrics["overall"])


def test_imagenet_s_predictions_keep_the_names_of_files(root, plugins, tmp_path):
    finished(prepared(tmp_path / "cell", recipe_of("imagenet"), root, plugins))
    names = Predictions.load(tmp_path / "cell" / "predictions.npz").names.tolist()
    assert names[0] == "n01440764/ILSVRC2012_val_00000000.JPEG"


@pytest.mark.parametrize("name", [n for n in FILES if n != "imagenet"])
def test_a_cell_trains_on_the_split_of_zhou(name, root, plugins, tmp_path):
    recipe = recipe_of(name, data={"name": f"small_{name}", "split": "zhou"})
    record = finished(prepared(tmp_path / "cell", recipe, root, plugins))
    told = {part: record.dataset[part] for part in ("split", "train", "validation", "test")}
    assert told == {"split": "zhou", "train": 8, "validation": 4, "test": 8}


@pytest.mark.parametrize("policy", ["none", "randaugment", "autoaugment_cifar10"])
def test_a_store_and_the_number_of_workers_change_no_digest(
    policy, root, plugins, tmp_path, monkeypatch
):
    recipe = recipe_of(
        "oxford_pets",
        data={"name": "small_oxford_pets", "short_side": 18, "validation": 0.3},
        augmentation={"name": "random_resized_crop", "policy": policy},
    )
    decoded = finished(prepared(tmp_path / "one", recipe, root, plugins))
    spec = plugins.get("datasets", recipe.data.name)
    splits = spec.open(root, dataset_settings(spec, recipe.data))
    image_store.build(spec.name, splits, root, 18)
    monkeypatch.setenv("CLASSFAIR_WORKERS", "1")
    mapped = finished(prepared(tmp_path / "two", recipe, root, plugins))
    assert mapped.result_digest == decoded.result_digest
    assert mapped.cell.key == decoded.cell.key


def test_a_stopped_cell_on_files_goes_on_to_the_same_digest(root, plugins, tmp_path):
    recipe = recipe_of("food101", epochs=2)
    whole = finished(prepared(tmp_path / "whole", recipe, root, plugins))
    folder = prepared(tmp_path / "stopped", recipe, root, plugins)
    asked = iter([False, False, False, True])
    with pytest.raises(cells.Stopped):
        cells.Cell(folder, CPU, lambda: next(asked)).run()
    assert finished(folder).result_digest == whole.result_digest


def test_a_truncated_file_is_a_failure_of_the_data_that_names_it(plugins, tmp_path, monkeypatch):
    monkeypatch.setattr(cells.signal, "signal", lambda *arguments: None)
    folder = trees.pets(tmp_path / "bad")
    path = folder / "images" / "Bombay_4.jpg"
    path.write_bytes(path.read_bytes()[:-30])
    cell = prepared(tmp_path / "cell", recipe_of("oxford_pets"), tmp_path / "bad", plugins)
    assert cells.main([str(cell), "cpu"]) == 1
    failure = Failure.load(cell / "failure.json")
    assert failure.kind == "data"
    assert "Bombay_4.jpg: cannot be decoded" in failure.message


def test_a_file_that_changed_since_the_plan_is_a_failure_of_the_data(
    plugins, tmp_path, monkeypatch
):
    monkeypatch.setattr(cells.signal, "signal", lambda *arguments: None)
    folder = trees.pets(tmp_path / "root")
    cell = prepared(tmp_path / "cell", recipe_of("oxford_pets"), tmp_path / "root", plugins)
    trees.write(folder / "images" / "Bombay_4.jpg", trees.jpeg(3, 77))
    assert cells.main([str(cell), "cpu"]) == 1
    failure = Failure.load(cell / "failure.json")
    assert failure.kind == "data"
    assert "has changed since this cell was planned" in failure.message


# -- matrices --------------------------------------------------------------------------------------

MATRIX = """\
name: m
recipes: [pets.yaml, cars.yaml]
methods: [erm]
seeds: [0, 1]
"""
YAML = """\
name: {name}
data: {{name: small_{data}}}
backbone: {{name: resnet8}}
epochs: 1
eval: {{name: centre, resize: 18, size: 16}}
"""


def expanded(folder: Path, data: Path, plugins: Plugins, find: Any = fingerprint) -> Any:
    (folder / "pets.yaml").write_text(YAML.format(name="pets", data="oxford_pets"))
    (folder / "cars.yaml").write_text(YAML.format(name="cars", data="stanford_cars"))
    return expand(parse(MATRIX, "m.yaml"), folder, plugins, find, data=data)


def test_missing_data_skip_their_cells_and_leave_the_others(plugins, tmp_path):
    trees.pets(tmp_path / "root")
    matrix = expanded(tmp_path, tmp_path / "root", plugins).runnable()
    assert {cell.recipe_name for cell in matrix.cells} == {"pets"}
    assert [(s.recipe, s.seed) for s in matrix.skipped] == [("cars", 0), ("cars", 1)]
    assert all(s.why.startswith("data: stanford_cars needs devkit") for s in matrix.skipped)


def test_bad_data_skip_their_cells_and_leave_the_others(plugins, tmp_path):
    trees.pets(tmp_path / "root")
    folder = trees.cars(tmp_path / "root")
    (folder / "cars_test_annos_withlabels.mat").write_text("<html>quota</html>")
    matrix = expanded(tmp_path, tmp_path / "root", plugins).runnable()
    assert {cell.recipe_name for cell in matrix.cells} == {"pets"}
    assert all("web page" in skipped.why for skipped in matrix.skipped)


def test_a_plan_knows_the_fingerprint_only_once_it_was_stamped(root, plugins, tmp_path):
    before = expanded(tmp_path, root, plugins, stamped)
    assert {cell.fingerprint for cell in before.cells} == {""}
    known = expanded(tmp_path, root, plugins)
    after = expanded(tmp_path, root, plugins, stamped)
    assert [cell.key for cell in after.cells] == [cell.key for cell in known.cells]
    assert all(len(cell.fingerprint) == 64 for cell in after.cells)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("eval: {name: stored}", "small_oxford_pets|no common size; set eval.name"),
        ("eval: {name: centre, size: 300}", "size 300 cannot be cut out of resize 256"),
        ("data: {name: small_oxford_pets, split: zou}", "'zou' is not one of official, zhou"),
        ("data: {name: small_oxford_pets, counts: {shape: exp, ratio: 0.5}}", "ratio"),
        ("augmentation: {name: random_resized_crop, scale: [0.5, 0.1]}", "is no range above zero"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_before_anything_is_read(change, says, plugins):
    key = change.partition(":")[0]
    lines = YAML.format(name="pets", data="oxford_pets").splitlines()
    kept = [line for line in lines if not line.startswith(f"{key}:")]
    with pytest.raises(UsageError, match=says):
        resolve_recipe(parse("\n".join([*kept, change]), "r.yaml"), plugins)


def test_named_evaluations_are_written_out_in_the_key():
    clip = Recipe.model_validate(
        {**recipe_of("food101").model_dump(), "eval": {"name": "clip", "size": 192}}
    ).eval
    assert (clip.name, clip.resize, clip.size, clip.interpolation) == (
        "centre",
        224,
        192,
        "bicubic",
    )
    mae = type(clip).model_validate({"name": "mae"})
    assert (mae.resize, mae.size, mae.interpolation) == (256, 224, "bicubic")
    assert type(clip).model_validate({"name": "imagenet"}).interpolation == "bilinear"


# -- long tails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "images", "ratio", "total"),
    [
        (10, 5000, 100, 12_406),
        (100, 500, 100, 10_847),
        (10, 5000, 10, 20_431),
        (100, 500, 10, 19_573),
    ],
)
def test_long_tails_of_cifar_have_the_published_sizes(classes, images, ratio, total):
    tail = recipe_of("cifar10", data={"name": "x", "counts": {"shape": "exp", "ratio": ratio}})
    sizes = class_sizes([images] * classes, 1.0, 0.0, tail.data.counts)
    kept = [size for size, _ in sizes]
    assert sum(kept) == total
    assert (kept[0], kept[-1]) == (images, images // ratio)
    assert kept == sorted(kept, reverse=True)


def test_a_step_tail_halves_the_classes():
    counts = recipe_of(
        "x", data={"name": "x", "counts": {"shape": "step", "ratio": 10}}
    ).data.counts
    kept = [size for size, _ in class_sizes([40, 50, 30, 4, 40], 1.0, 0.1, counts)]
    assert kept == [36, 45, 27, 3, 4]


def test_a_cell_trains_on_a_long_tail(root, plugins, tmp_path):
    data = {"name": "small_cifar10", "counts": {"shape": "exp", "ratio": 2}}
    record = finished(prepared(tmp_path / "cell", recipe_of("cifar10", data=data), root, plugins))
    assert record.dataset["train_counts"] == [2, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert record.dataset["train"] == 11


def test_a_tail_that_leaves_a_class_without_images_is_refused(root, plugins, tmp_path):
    data = {"name": "small_cifar10", "counts": {"shape": "exp", "ratio": 50}}
    with pytest.raises(UsageError, match=r"class \d has 2 training images.*counts exp 50"):
        finished(prepared(tmp_path / "cell", recipe_of("cifar10", data=data), root, plugins))
