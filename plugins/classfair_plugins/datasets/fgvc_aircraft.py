"""FGVC-Aircraft: 10,000 photographs of aircraft of 100 variants.

Below the data folder, in ``fgvc-aircraft-2013b/data`` (where torchvision puts it) or
``fgvc_aircraft``: ``images/*.jpg``, ``variants.txt`` and ``images_variant_PART.txt``. The level is
always the variant (100 classes), never the family (70) or the manufacturer (30).

``official`` trains on trainval; ``zhou`` has train and val apart, as Zhou et al. use it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from classfair_plugins.datasets._files import DECODE, Files, file_splits, labelled, paths
from classfair_plugins.datasets._layout import Layout, lines, names
from classfair_plugins.datasets._zhou import Settings
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad
from classfair_registry.specs import Archive, DatasetSpec, Manifest, Splits

_URL = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz"
MANIFEST = Manifest(
    classes=names("""
    707-320, 727-200, 737-200, 737-300, 737-400, 737-500, 737-600, 737-700, 737-800, 737-900,
    747-100, 747-200, 747-300, 747-400, 757-200, 757-300, 767-200, 767-300, 767-400, 777-200,
    777-300, A300B4, A310, A318, A319, A320, A321, A330-200, A330-300, A340-200, A340-300,
    A340-500, A340-600, A380, ATR-42, ATR-72, An-12, BAE 146-200, BAE 146-300, BAE-125,
    Beechcraft 1900, Boeing 717, C-130, C-47, CRJ-200, CRJ-700, CRJ-900, Cessna 172, Cessna 208,
    Cessna 525, Cessna 560, Challenger 600, DC-10, DC-3, DC-6, DC-8, DC-9-30, DH-82, DHC-1,
    DHC-6, DHC-8-100, DHC-8-300, DR-400, Dornier 328, E-170, E-190, E-195, EMB-120, ERJ 135, ERJ
    145, Embraer Legacy 600, Eurofighter Typhoon, F-16A/B, F/A-18, Falcon 2000, Falcon 900,
    Fokker 100, Fokker 50, Fokker 70, Global Express, Gulfstream IV, Gulfstream V, Hawk T1,
    Il-76, L-1011, MD-11, MD-80, MD-87, MD-90, Metroliner, Model B200, PA-28, SR-20, Saab 2000,
    Saab 340, Spitfire, Tornado, Tu-134, Tu-154, Yak-42
    """),
    counts={"train": 6667, "test": 3333},
    splits={"zhou": {"train": 3334, "val": 3333, "test": 3333}},
    per_class={
        "train": (66, 67),
        "test": (33, 34),
        "zhou/train": (33, 34),
        "zhou/val": (33, 34),
        "zhou/test": (33, 34),
    },
    shape=(3, 0, 0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    licence="for research that is not commercial",
    citation=(
        "S. Maji, E. Rahtu, J. Kannala, M. Blaschko and A. Vedaldi. Fine-Grained Visual "
        "Classification of Aircraft. arXiv:1306.5151, 2013"
    ),
    sources=(_URL,),
    headline="mean_class",
    decode=DECODE,
    prompts=("a photo of a {}, a type of aircraft.",),
    archives=(
        Archive(
            _URL,
            "sha256:e4e323d410e29f0370c81eabdcbb0e2b813acea1de22891b70b58ff41bfc9834",
            2_753_340_328,
        ),
    ),
)
_LISTS = {
    "official": {"train": "trainval", "test": "test"},
    "zhou": {"train": "train", "val": "val", "test": "test"},
}


def open_aircraft(manifest: Manifest, root: Path | None, settings: Settings) -> Splits:
    """Read the lists.

    Raises:
        DataMissing: with the files wanted.
        DataBad: if a list is of another level, or not what it should be.
    """
    return file_splits(manifest.classes, _splits(manifest, root, settings))


def files(manifest: Manifest, root: Path | None, settings: Settings) -> Sequence[str | Path]:
    """Return the lists and every image that they name."""
    folder = _layout(settings).find(root)
    lists = [folder / "variants.txt", *_lists(folder, settings).values()]
    return paths(lists, _splits(manifest, root, settings))


def _layout(settings: Settings) -> Layout:
    parts = (f"images_variant_{part}.txt" for part in _LISTS[settings.split].values())
    entries = ("images/", "variants.txt", *parts)
    folders = ("fgvc-aircraft-2013b/data", "fgvc_aircraft")
    return Layout("fgvc_aircraft", folders, entries, MANIFEST.sources, downloads=True)


def _lists(folder: Path, settings: Settings) -> dict[str, Path]:
    parts = _LISTS[settings.split]
    return {part: folder / f"images_variant_{listed}.txt" for part, listed in parts.items()}


def _splits(manifest: Manifest, root: Path | None, settings: Settings) -> dict[str, Files]:
    folder = _layout(settings).find(root)
    labels = _labels(folder / "variants.txt", manifest.classes)
    return {
        part: labelled(folder / "images", _entries(path, labels))
        for part, path in _lists(folder, settings).items()
    }


def _labels(path: Path, classes: Sequence[str]) -> dict[str, int]:
    """Return the label of each variant, whatever the order in the file."""
    written = lines(path)
    if len(written) != len(classes) or set(written) != set(classes):
        unknown = sorted(set(written) - set(classes))
        raise DataBad(
            f"{path}: has {len(written)} names, not {len(classes)} variants; families (70) and "
            "manufacturers (30) are other tasks"
            + (f"; not variants: {', '.join(unknown[:5])}" if unknown else "")
        )
    return {name: label for label, name in enumerate(classes)}


def _entries(path: Path, labels: dict[str, int]) -> list[tuple[str, int]]:
    """Return (file, label) of a list whose lines are an image's number and its variant."""
    found = []
    for line in lines(path):
        number, _, variant = line.partition(" ")
        if variant not in labels:
            raise DataBad(
                f"{path}: {line!r} does not end with a variant; is it a list of families or "
                "manufacturers?"
            )
        found.append((f"{number}.jpg", labels[variant]))
    return found


def spec(manifest: Manifest = MANIFEST) -> DatasetSpec:
    """Return the data set; a test gives a manifest with fewer images or classes."""
    return DatasetSpec(
        name="fgvc_aircraft",
        title="FGVCAircraft",
        open=functools.partial(open_aircraft, manifest),
        files=functools.partial(files, manifest),
        manifest=manifest,
        summary="10,000 photographs of aircraft of 100 variants",
        settings=Settings,
    )


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide FGVC-Aircraft."""
    return [spec()]
