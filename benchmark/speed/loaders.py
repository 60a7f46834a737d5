"""Images a second along each way that a run reads them, beside torchvision's own loader."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from classfair.augment import parameter_table
from classfair.image_store import build, file_images, find_stored
from classfair.images import DeviceImages, Images, Look
from classfair.recipe import Augmentation, Evaluation
from classfair_plugins.datasets._files import Files, file_splits, labelled
from classfair_plugins.datasets._shards import samples
from classfair_registry.specs import Splits
from speed.figures import Row, Target
from speed.measure import Effort, Measured, compared, pairs

SIZE = (500, 375)
"""Of a photograph, as ImageNet has most."""
SIDE = 256
BATCH = 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROPS = Augmentation(name="random_resized_crop")
EVALUATION = Evaluation(name="centre", resize=256, size=224)
LOADER = "torchvision's ImageFolder and transforms in a DataLoader, from the same files"
SMALL = (
    ("none", "crop and flip"),
    ("randaugment", "crop, flip and RandAugment"),
    ("autoaugment_cifar10", "crop, flip and AutoAugment"),
)


def rows() -> list[Row]:
    """Return the rows."""
    told = f"{SIZE[0]} x {SIZE[1]}, random resized crop of 224"
    ways: tuple[tuple[str, str, Target, Callable[[Path], Images]], ...] = (
        ("files", f"JPEG files of {told}", Target(1.2), _from_files),
        ("shards", f"the same in WebDataset shards, {told}", Target(1.2), _from_shards),
        ("store", f"a store of short side {SIDE}, {told}", Target(2, "speedup"), _from_store),
    )
    return [
        *(
            Row(f"loader.{name}", figure, LOADER, target, _against_files(open_images))
            for name, figure, target, open_images in ways
        ),
        *(
            Row(
                f"loader.small.{policy}",
                f"images of 32 x 32 on the device, {what}, one thread",
                "torchvision's transforms on PIL images in this process",
                Target(2 if policy != "none" else 8, "speedup"),
                _small(policy),
                threads=1,
            )
            for policy, what in SMALL
        ),
    ]


# -- photographs -----------------------------------------------------------------------------------


def _against_files(open_images: Callable[[Path], Images]) -> Callable[[Effort], Measured]:
    def measure(effort: Effort) -> Measured:
        count = effort.pick(256, 64)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            _photographs(root, count)
            images = open_images(root)
            with _torchvision(root, effort.threads) as loader:
                timed = pairs(
                    lambda: _pass(images), lambda: list(loader), effort.pick(7, 2), warm=1
                )
        return _per_image(timed, count)

    return measure


def _per_image(timed: list[tuple[float, float]], count: int) -> Measured:
    found = compared(timed, units=count)
    rival = found.rival.median if found.rival else 0.0
    note = f"{1 / found.ours.median:,.0f} against {1 / rival:,.0f} images a second"
    return compared(timed, units=count, note=note)


def _photographs(root: Path, count: int) -> None:
    """Write JPEG files of two classes with as much detail as photographs have."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        path = root / "images" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize(SIZE, Image.Resampling.BICUBIC).save(path, quality=90)


def _splits(root: Path) -> Splits:
    files = sorted((root / "images").glob("*/*.jpg"))
    entries = [(f"{f.parent.name}/{f.name}", int(f.parent.name[-1])) for f in files]
    return file_splits(("a", "b"), {"train": labelled(root / "images", entries)})


def _read(split: Files, root: Path, side: int | None) -> Images:
    look = Look(MEAN, STD, EVALUATION, CROPS)
    stored = find_stored("speed", root, _splits(root).fingerprint, side)
    part = stored.parts["train"] if stored else None
    return file_images(split, np.arange(len(split.labels)), look, "cpu", side, part)


def _from_files(root: Path) -> Images:
    split = _splits(root)["train"]
    assert isinstance(split, Files)
    return _read(split, root, None)


def _from_store(root: Path) -> Images:
    build("speed", _splits(root), root, SIDE)
    split = _splits(root)["train"]
    assert isinstance(split, Files)
    return _read(split, root, SIDE)


def _from_shards(root: Path) -> Images:
    split = _splits(root)["train"]
    shard = root / "train-0000.tar"
    with tarfile.open(shard, "w") as archive:
        for number, label in enumerate(split.labels):
            name = root / f"{number}.cls"
            name.write_text(str(label))
            archive.add(name, name.name)
            archive.add(root / "images" / (split.names or [])[number], f"{number}.jpg")
    found = samples([shard])
    labels = np.array([sample.label for sample in found], np.int64)
    files = Files(labels, [sample.name for sample in found], [sample.place for sample in found])
    return _read(files, root, None)


def _pass(images: Images) -> float:
    """Read a pass in batches, as the trainer does."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    table = parameter_table(CROPS, len(images), generator)
    spans = [slice(n, n + BATCH) for n in range(0, len(order), BATCH)]
    return sum(float(b[0, 0, 0, 0]) for b in images.read((order[s], table[s]) for s in spans))


@contextlib.contextmanager
def _torchvision(root: Path, workers: int) -> Iterator[DataLoader[object]]:
    """Give torchvision's loader with its processes running."""
    usual = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    files: Dataset[object] = ImageFolder(str(root / "images"), usual)
    yield DataLoader(
        files, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


# -- small images ----------------------------------------------------------------------------------


def _small(policy: str) -> Callable[[Effort], Measured]:
    def measure(effort: Effort) -> Measured:
        count = effort.pick(1024, 128)
        pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        augmentation = Augmentation.model_validate({"name": "crop_flip", "policy": policy})
        images = DeviceImages(
            pixels, np.zeros(count, np.int64), MEAN, STD, augmentation=augmentation
        )
        pictures, usual = [Image.fromarray(image) for image in pixels], _usual(policy)
        index, generator = torch.arange(count), torch.Generator().manual_seed(0)

        def ours() -> torch.Tensor:
            return images.augmented(index, parameter_table(augmentation, count, generator))

        def rival() -> torch.Tensor:
            return torch.stack([usual(picture) for picture in pictures])

        return _per_image(pairs(ours, rival, effort.pick(9, 2)), count)

    return measure


def _usual(policy: str) -> transforms.Compose:
    named = {
        "none": [],
        "randaugment": [transforms.RandAugment()],
        "autoaugment_cifar10": [transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)],
    }
    return transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            *named[policy],
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
