"""Small trees of files in the official layout of each data set, for tests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from small_datasets import CLASSES, SMALL, WNIDS

COLOURS = ((220, 30, 30), (30, 200, 40), (40, 60, 230), (230, 220, 40))


def picture(label: int, number: int, size: tuple[int, int] | None = None) -> Image.Image:
    """Return an image whose colour says its class, of a size of its own."""
    width, height = size or (22 + 3 * (number % 4), 20 + 5 * (number % 3))
    noise = np.random.default_rng([label, number]).integers(-30, 31, (height, width, 3))
    colour = np.array(COLOURS[label % len(COLOURS)])
    return Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8))


def jpeg(label: int, number: int) -> bytes:
    file = io.BytesIO()
    picture(label, number).save(file, "JPEG", quality=90)
    return file.getvalue()


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def labels_of(counts: Mapping[str, int], part: str, classes: int = CLASSES) -> list[int]:
    """Labels of a part, class by class in turn."""
    return [n % classes for n in range(counts[part])]


def pets(root: Path) -> Path:
    manifest = SMALL["oxford_pets"].manifest
    folder = root / "oxford-iiit-pet"
    for first, part in ((1, "trainval"), (101, "test")):
        counts = manifest.counts["train" if part == "trainval" else part]
        lines = []
        for n in range(counts):
            label = n % CLASSES
            stem = f"{manifest.classes[label].replace(' ', '_')}_{first + n}"
            write(folder / "images" / f"{stem}.jpg", jpeg(label, first + n))
            lines.append(f"{stem} {label + 1} 1 {label + 1}")
        write(folder / "annotations" / f"{part}.txt", "\n".join(lines) + "\n")
    zhou(folder / "split_zhou_OxfordPets.json", _listed(folder / "annotations"), manifest)
    return folder


def _listed(annotations: Path) -> list[tuple[str, int]]:
    lines = [
        line.split()
        for part in ("trainval", "test")
        for line in (annotations / f"{part}.txt").read_text().splitlines()
    ]
    return [(f"{stem}.jpg", int(label) - 1) for stem, label, _, _ in lines]


def zhou(path: Path, images: Sequence[tuple[str, int]], manifest, change=lambda split: split):
    """Write a split file of the form of Zhou et al. that deals out the images in order."""
    counts, start, split = manifest.splits["zhou"], 0, {}
    for part in ("train", "val", "test"):
        chosen = images[start : start + counts[part]]
        split[part] = [[name, label, manifest.classes[label]] for name, label in chosen]
        start += counts[part]
    write(path, json.dumps(change(split)))


def flowers(root: Path, *, shift: int = 1) -> Path:
    manifest = SMALL["flowers102"].manifest
    folder, labels, sets, number = root / "flowers-102", [], {}, 0
    for part, variable in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        sets[variable] = []
        for label in labels_of(manifest.counts, part):
            number += 1
            write(folder / "jpg" / f"image_{number:05}.jpg", jpeg(label, number))
            labels.append(label + shift)
            sets[variable].append(number)
    savemat(folder / "imagelabels.mat", {"labels": np.array(labels, np.uint8)[None]})
    savemat(folder / "setid.mat", {k: np.array(v, np.uint16)[None] for k, v in sets.items()})
    listed = [(f"image_{n + 1:05}.jpg", label - shift) for n, label in enumerate(labels)]
    zhou(folder / "split_zhou_OxfordFlowers.json", listed, manifest)
    return folder


def food(root: Path) -> Path:
    manifest = SMALL["food101"].manifest
    folder, everything = root / "food-101", []
    for first, part in ((1, "train"), (101, "test")):
        listed: dict[str, list[str]] = {}
        for n, label in enumerate(labels_of(manifest.counts, part)):
            name = manifest.classes[label].replace(" ", "_")
            listed.setdefault(name, []).append(f"{name}/{first + n}")
            write(folder / "images" / name / f"{first + n}.jpg", jpeg(label, first + n))
            everything.append((f"{name}/{first + n}.jpg", label))
        write(folder / "meta" / f"{part}.json", json.dumps(listed))
    zhou(folder / "split_zhou_Food101.json", everything, manifest)
    return folder


def aircraft(root: Path) -> Path:
    manifest = SMALL["fgvc_aircraft"].manifest
    folder = root / "fgvc-aircraft-2013b" / "data"
    write(folder / "variants.txt", "\n".join(manifest.classes) + "\n")
    counts, listed, first = manifest.splits["zhou"], {}, 1
    for part in ("train", "val", "test"):
        listed[part] = []
        for label in labels_of(counts, part):
            write(folder / "images" / f"{first:07}.jpg", jpeg(label, first))
            listed[part].append(f"{first:07} {manifest.classes[label]}")
            first += 1
    listed["trainval"] = listed["train"] + listed["val"]
    for part, lines in listed.items():
        write(folder / f"images_variant_{part}.txt", "\n".join(lines) + "\n")
    return folder


def cars(root: Path) -> Path:
    manifest = SMALL["stanford_cars"].manifest
    folder, everything = root / "stanford_cars", []
    (folder / "devkit").mkdir(parents=True)
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    for part, path in (
        ("train", folder / "devkit" / "cars_train_annos.mat"),
        ("test", folder / "cars_test_annos_withlabels.mat"),
    ):
        rows = []
        for n, label in enumerate(labels_of(manifest.counts, part)):
            name = f"{n + 1:05}.jpg"
            write(folder / f"cars_{part}" / name, jpeg(label, n + (part == "test") * 100))
            rows.append((5, label + 1, name))
            everything.append((f"cars_{part}/{name}", label))
        savemat(path, {"annotations": np.array(rows, dtype=kind)})
    car_names(folder, manifest.classes)
    zhou(folder / "split_zhou_StanfordCars.json", everything, manifest)
    return folder


def car_names(folder: Path, names: Sequence[str]) -> None:
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(names, object)})


def imagenet(root: Path) -> Path:
    folder = root / "imagenet"
    for path, content in imagenet_images():
        write(folder / path, content)
    return folder


def imagenet_images() -> Iterable[tuple[str, bytes]]:
    counts = SMALL["imagenet"].manifest.counts
    for part, folder in (("train", "train"), ("test", "val")):
        for n, label in enumerate(labels_of(counts, part)):
            name = f"{WNIDS[label]}_{n}" if part == "train" else f"ILSVRC2012_val_{n:08}"
            yield f"{folder}/{WNIDS[label]}/{name}.JPEG", jpeg(label, n + (part == "test") * 100)


def shards(root: Path, *, each: int = 5) -> Path:
    """Write the images of :func:`imagenet` as WebDataset shards, in another order."""
    folder = root / "imagenet-shards"
    folder.mkdir(parents=True)
    for part in ("train", "val"):
        images = [item for item in imagenet_images() if item[0].startswith(part)][::-1]
        for start in range(0, len(images), each):
            path = folder / f"imagenet-{part}-{start // each:04}.tar"
            with tarfile.open(path, "w") as archive:
                for name, content in images[start : start + each]:
                    _, wnid, file = name.split("/")
                    stem = file.removesuffix(".JPEG")
                    add(archive, f"{stem}.jpg", content)
                    add(archive, f"{stem}.cls", str(WNIDS.index(wnid)).encode())
    return folder


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def cifar(root: Path, name: str) -> Path:
    """Write pickles of CIFAR-10 or CIFAR-100."""
    manifest = SMALL[name].manifest
    fine = name == "cifar100"
    folder = root / ("cifar-100-python" if fine else "cifar-10-batches-py")
    key, classes = ("fine_labels", "fine_label_names") if fine else ("labels", "label_names")
    names = [c.replace(" ", "_") for c in manifest.classes]
    dump(folder / ("meta" if fine else "batches.meta"), {classes: names})
    train = ["train"] if fine else [f"data_batch_{n}" for n in range(1, 6)]
    for files, part in ((train, "train"), (["test" if fine else "test_batch"], "test")):
        labels = labels_of(manifest.counts, part, len(names))
        for number, file in enumerate(files):
            own = labels[number :: len(files)]
            rows = [
                np.asarray(picture(label, 10 * n + number + 7 * (part == "test"), (32, 32)))
                for n, label in enumerate(own)
            ]
            data = np.array(rows).transpose(0, 3, 1, 2).reshape(len(own), -1)
            stems = [f"{part}_{number}_{n}.png" for n in range(len(own))]
            dump(folder / file, {"data": data, key: own, "filenames": stems})
    return folder


def fashion(root: Path) -> Path:
    """Write the four idx files of Fashion-MNIST, gzipped."""
    counts = SMALL["fashion_mnist"].manifest.counts
    for part, stem in (("train", "train"), ("test", "t10k")):
        labels = np.array(labels_of(counts, part), np.uint8)
        images = np.array(
            [np.asarray(picture(int(k), n, (28, 28)))[..., 0] for n, k in enumerate(labels)]
        )
        for values, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            path = root / "fashion-mnist" / f"{stem}-{kind}-ubyte.gz"
            write(path, gzip.compress(header + values.tobytes()))
    return root / "fashion-mnist"


def dump(path: Path, value: object) -> Path:
    return write(path, pickle.dumps(value, protocol=2))


def checksums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def everything(root: Path) -> Path:
    """Write a tree of every data set that is found in a folder."""
    for make in (pets, flowers, food, aircraft, cars, imagenet, fashion):
        make(root)
    for name in ("cifar10", "cifar100"):
        cifar(root, name)
    return root
