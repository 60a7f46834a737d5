"""ImageNet (ILSVRC 2012): 1.28 million photographs of 1,000 things; its val part is the test.

Two forms are read, and have the same fingerprint if they hold the same files:

- folders ``train/nXXXXXXXX/*.JPEG`` and ``val/nXXXXXXXX/*.JPEG`` in ``imagenet``, ``ImageNet``,
  ``imagenet/images``, ``ILSVRC/Data/CLS-LOC`` or the data folder itself; neither the devkit nor
  torchvision's ``meta.bin`` is needed;
- WebDataset shards ``*train*.tar`` and ``*val*.tar`` in ``imagenet``, ``imagenet-shards`` or the
  data folder itself.

Labels are the place of a folder's WordNet number in sorted order, as everywhere. The file beside
this one lists the numbers with their names; names are for people: two classes are both cranes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from classfair_plugins.datasets._files import DECODE, Files, file_splits, labelled, paths
from classfair_plugins.datasets._shards import samples
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad, DataMissing
from classfair_registry.settings import NoSettings
from classfair_registry.specs import DatasetSpec, Manifest, Splits

_LISTED = [
    line.partition(" ")
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
]
WNIDS = tuple(number for number, _, _ in _LISTED)
"""WordNet numbers in the order of the labels."""

MANIFEST = Manifest(
    classes=tuple(name for _, _, name in _LISTED),
    counts={"train": 1_281_167, "test": 50_000},
    per_class={"train": (732, 1300), "test": (50, 50)},
    shape=(3, 0, 0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    licence="for research and teaching that is not commercial, under the terms of image-net.org",
    citation=(
        "O. Russakovsky et al. ImageNet Large Scale Visual Recognition Challenge. IJCV, 2015"
    ),
    sources=("https://image-net.org/download after registration, by hand",),
    decode=DECODE,
)
FOLDERS = ("imagenet", "ImageNet", "imagenet/images", "ILSVRC/Data/CLS-LOC", ".")
SHARDS = ("imagenet", "imagenet-shards", ".")
_PARTS = {"train": "train", "test": "val"}
_IMAGES = (".jpeg", ".jpg", ".png")
_SHARD = r".*{part}.*\d\.tar"


def open_imagenet(
    manifest: Manifest, wnids: Sequence[str], root: Path | None, _settings: NoSettings
) -> Splits:
    """List the images of the folders, or of the shards.

    Raises:
        DataMissing: with the folders wanted.
        DataBad: if folders have other names than the 1,000 numbers.
    """
    return file_splits(manifest.classes, dict(_splits(wnids, root)))


def files(wnids: Sequence[str], root: Path | None, _settings: NoSettings) -> Sequence[str | Path]:
    """Return every image, or every shard."""
    return paths([], dict(_splits(wnids, root)))


def _splits(wnids: Sequence[str], root: Path | None) -> Iterator[tuple[str, Files]]:
    if root is None:
        raise _missing("give the folder that they lie in with --data")
    folder = next((root / name for name in FOLDERS if _has_folders(root, name, wnids)), None)
    if folder is not None:
        for part, name in _PARTS.items():
            yield part, _of_folders(folder / name, wnids)
        return
    for holder in (root / name for name in SHARDS):
        found = {part: _shards(holder, name) for part, name in _PARTS.items()}
        if all(found.values()):
            for part, shards in found.items():
                yield part, _of_shards(shards, wnids)
            return
    raise _missing(f"looked for them in {root} and its folders {', '.join(FOLDERS[:-1])}")


def _has_folders(root: Path, name: str, wnids: Sequence[str]) -> bool:
    """Whether a folder has both parts; the data folder's own train/ may be another data set's."""
    parts = [root / name / part for part in _PARTS.values()]
    others = name == "." and not any((parts[0] / wnid).is_dir() for wnid in wnids)
    return all(part.is_dir() for part in parts) and not others


def _missing(where: str) -> DataMissing:
    return DataMissing(
        "imagenet needs folders train/ and val/ with one folder a class in each (n01440764 and so "
        "on; the devkit is not needed), or tar shards of both (imagenet-train-0000.tar and "
        f"imagenet-val-0000.tar and so on); {where}; people get them from {MANIFEST.sources[0]}"
    )


def _of_folders(folder: Path, wnids: Sequence[str]) -> Files:
    with os.scandir(folder) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir())
    if found != sorted(wnids):
        raise DataBad(_wrong_folders(folder, found, wnids))
    listed = []
    for label, wnid in enumerate(wnids):
        with os.scandir(folder / wnid) as entries:
            names = sorted(e.name for e in entries if e.name.lower().endswith(_IMAGES))
        listed += [(f"{wnid}/{name}", label) for name in names]
    return labelled(folder, listed)


def _wrong_folders(folder: Path, found: Sequence[str], wnids: Sequence[str]) -> str:
    """Say how a part's folders differ from what they should be, and what may have happened."""
    if not found:
        hint = "; sort its files into folders by class first, as the val files of the challenge are"
        return f"{folder}: has no folders, one a class{hint}"
    if all(name.isdecimal() for name in found):
        return (
            f"{folder}: its folders are numbers, whose order as text (1, 10, 100, 2) is not that "
            "of the labels; name them by WordNet number (n01440764 and so on)"
        )
    unknown, absent = sorted(set(found) - set(wnids)), sorted(set(wnids) - set(found))
    parts = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for names, what in ((absent, "are missing"), (unknown, "do not belong there"))
        if names
    ]
    return f"{folder}: has {len(found):,} folders, not the {len(wnids):,}: {'; '.join(parts)}"


def _shards(folder: Path, part: str) -> list[Path]:
    if not folder.is_dir():
        return []
    pattern = re.compile(_SHARD.format(part=part))
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


def _of_shards(shards: Sequence[Path], wnids: Sequence[str]) -> Files:
    """Return the images of shards in the order that folders have."""
    read = samples(shards)
    named = [(wnids[s.label] if 0 <= s.label < len(wnids) else "?", s) for s in read]
    named.sort(key=lambda pair: (pair[1].label, pair[1].name))
    return Files(
        np.array([sample.label for _, sample in named], np.int64),
        [f"{wnid}/{sample.name}" for wnid, sample in named],
        [sample.place for _, sample in named],
    )


def spec(manifest: Manifest = MANIFEST, wnids: Sequence[str] = WNIDS) -> DatasetSpec:
    """Return the data set; a test gives a manifest with fewer images, and fewer numbers."""
    return DatasetSpec(
        name="imagenet",
        title="ImageNet",
        open=functools.partial(open_imagenet, manifest, wnids),
        files=functools.partial(files, wnids),
        manifest=manifest,
        summary="1.28 million photographs of 1,000 things; the val part is the test",
    )


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide ImageNet."""
    return [spec()]
