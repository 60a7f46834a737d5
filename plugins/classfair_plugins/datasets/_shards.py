"""Tar archives of images in the manner of WebDataset: the files of a sample share a name.

``n01440764_10026.jpg`` beside ``n01440764_10026.cls``, which holds the label. An archive is walked
once, header by header; where its files lie is remembered by the archive's path, size and time, so
that later every image is read on its own, in any order.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from classfair_plugins.datasets._files import Member
from classfair_registry.errors import DataBad
from classfair_registry.files import digest, workers, write_json
from classfair_registry.manager import cache_folder

_IMAGES = (".jpg", ".jpeg", ".png")
_LABEL = ".cls"


class Sample(NamedTuple):
    """An image of a shard: its name without folders, its label, where its bytes are."""

    name: str
    label: int
    place: Member


def samples(shards: Sequence[Path]) -> list[Sample]:
    """Return the samples of some archives in order.

    Raises:
        DataBad: naming the archive that is damaged, or the sample without image or label.
    """
    with ThreadPoolExecutor(workers()) as pool:
        return [sample for found in pool.map(_of_shard, shards) for sample in found]


def _of_shard(shard: Path) -> list[Sample]:
    state = shard.stat()
    identity = [str(shard.absolute()), state.st_size, state.st_mtime_ns]
    remembered = cache_folder() / "shards" / f"{digest(identity)[:24]}.json"
    try:
        rows = json.loads(remembered.read_text())
    except (OSError, ValueError):
        rows = _walk(shard)
        _remember(remembered, rows)
    return [Sample(name, label, Member(str(shard), *place)) for name, label, *place in rows]


def _walk(shard: Path) -> list[list[str | int]]:
    """Return [name, label, offset, size] of each sample of an archive."""
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for item in archive:
                path = PurePosixPath(item.name)
                key, ending = str(path.with_suffix("")), path.suffix.lower()
                if ending in _IMAGES:
                    images[key] = item
                elif ending == _LABEL:
                    labels[key] = _label(archive, item, shard)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataBad(f"{shard}: not a whole tar archive ({error}); get it again") from error
    for one, two in ((images, labels), (labels, images)):
        if alone := sorted(set(one) - set(two)):
            raise DataBad(f"{shard}: {alone[0]} lacks its image or its label ({_LABEL})")
    return [
        [PurePosixPath(item.name).name, labels[key], item.offset_data, item.size]
        for key, item in images.items()
    ]


def _label(archive: tarfile.TarFile, item: tarfile.TarInfo, shard: Path) -> int:
    file = archive.extractfile(item)
    text = file.read().strip() if file else b""
    if not text.isdigit():
        raise DataBad(f"{shard}: {item.name} holds {text[:20]!r}, not a label")
    return int(text)


def _remember(path: Path, rows: Iterable[Sequence[str | int]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, list(rows), durable=False)
    except OSError:
        pass  # A cache that cannot be written costs the next start another walk.
