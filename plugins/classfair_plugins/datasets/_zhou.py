"""The splits of K. Zhou et al. (Learning to Prompt for Vision-Language Models, IJCV 2022).

Each is a file ``split_zhou_NAME.json`` of three lists, ``train``, ``val`` and ``test``, of entries
``[file, label, class name]``. Users get it from the instructions of that paper's code, CoOp.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from classfair_plugins.datasets._files import Files, labelled
from classfair_plugins.datasets._layout import read_json
from classfair_registry.errors import DataBad
from classfair_registry.settings import setting

SOURCE = "the dataset instructions of https://github.com/KaiyangZhou/CoOp (the split file)"
_PARTS = ("train", "val", "test")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a data set is split; a recipe says it as ``data.split``."""

    split: Literal["official", "zhou"] = setting(
        "official", "the data set's own parts, or those that Zhou et al. use", source="our choice"
    )


def zhou_splits(path: Path, images: Path, official: Mapping[str, int]) -> dict[str, Files]:
    """Return the three splits of a file.

    Args:
        path: of the JSON file.
        images: the folder that its file names start from.
        official: label of every image of the data set by such a name. A file with other labels
            is refused: it would be another task.

    Raises:
        DataBad: naming the entry and what is wrong with it.
    """
    written = read_json(path)
    if not isinstance(written, dict) or not set(_PARTS) <= set(written):
        raise DataBad(f"{path}: not the three lists {', '.join(_PARTS)}")
    seen: dict[str, str] = {}
    splits = {}
    for part in _PARTS:
        entries = [_entry(entry, f"{path}, {part} {n}") for n, entry in enumerate(written[part])]
        for name, label in entries:
            _check(name, label, official, f"{path}, {part}")
            if name in seen:
                raise DataBad(f"{path}: {name} is in {seen[name]} and in {part}")
            seen[name] = part
        splits[part] = labelled(images, entries)
    return splits


def _entry(entry: Any, where: str) -> tuple[str, int]:
    if not isinstance(entry, list) or len(entry) < 2:
        raise DataBad(f"{where}: {entry!r} is not [file, label, class name]")
    name, label = entry[:2]
    if not isinstance(name, str) or type(label) is not int:
        raise DataBad(f"{where}: {entry!r} is not [file, label, class name]")
    return name, label


def _check(name: str, label: int, official: Mapping[str, int], where: str) -> None:
    if name not in official:
        raise DataBad(f"{where}: {name} is not one of the data set's images")
    if official[name] != label:
        hint = "; its labels seem to count from 1" if label == official[name] + 1 else ""
        raise DataBad(
            f"{where}: {name} has label {label} but is of class {official[name]} in the data set's "
            f"own annotations{hint}"
        )
