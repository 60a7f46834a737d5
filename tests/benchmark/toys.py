"""Matrices over the toy plugin, for tests that train nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from classfair.changes import Changes
from classfair.expand import expand
from classfair.matrix import Expansion
from classfair.yaml_strict import parse
from classfair_registry.files import file_digest
from classfair_registry.manager import Plugins
from classfair_registry.records import CellInfo, Cost, Record

TOY_PLUGIN = Path(__file__).with_name("toy_plugin.py")
TOY_ERM = Path(__file__).with_name("toy_erm.py")
TOY_RECIPE = """\
name: base
data: {name: toy}
backbone: {name: thin}
batch_size: 100
epochs: 4
"""
TOY_MATRIX = """\
name: toys
caption: Toys.
recipes: [base.yaml]
methods: [erm, {name: steep, slope: 2}]
seeds: [0, 1]
"""


def toy_plugins(cache: Path, *, file: Path = TOY_PLUGIN) -> Plugins:
    """Return plugins with the toys alone."""
    plugins = Plugins(strict=True, cache=cache)
    plugins.add_file(TOY_ERM)
    plugins.add_file(file)
    return plugins


def fingerprint(spec: Any, _data: Any, _root: Path | None) -> str:
    """Stand in for the stamps: what the data set says when it is opened."""
    return str(spec.open(None, None).fingerprint)


def expanded(
    folder: Path,
    matrix: str = TOY_MATRIX,
    recipe: str = TOY_RECIPE,
    **changes: tuple[str, ...],
) -> Expansion:
    """Return the cells of a matrix written into ``folder``, changed as on the command line."""
    (folder / "base.yaml").write_text(recipe)
    document = parse(matrix, "m.yaml")
    return expand(document, folder, toy_plugins(folder), fingerprint, Changes(**changes))


def finish(results: Path, cell: CellInfo, seconds: float = 2.0) -> Path:
    """Write the record that a cell would leave, and return its folder."""
    folder = results / cell.folder
    folder.mkdir(parents=True)
    cell.save(folder / "cell.json")
    (folder / "predictions.npz").write_bytes(b"none")
    record = Record(
        cell=cell,
        dataset={"name": "toy", "title": "Toy", "headline": "overall", "test": 40},
        metrics={"overall": 50.0},
        class_accuracy=[0.5] * 4,
        class_count=[10] * 4,
        selection={"rule": "last"},
        cost=Cost(
            images_forward=1,
            images_backward=1,
            steps=1,
            seconds={"train": seconds / 2, "evaluate": seconds / 2},
            peak_memory=0,
        ),
        machine={},
        provenance={},
        digests={"predictions.npz": file_digest(folder / "predictions.npz")},
        result_digest="",
    )
    record.sealed().save(folder / "record.json")
    return folder
