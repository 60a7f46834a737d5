"""Which images of a data set a cell trains on, and whether its labels are what they should be.

Nothing here needs torch, so that ``plan`` and ``data check`` can use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import numpy.typing as npt

from classfair.recipe import Counts
from classfair_registry.errors import DataBad, UsageError
from classfair_registry.specs import DatasetSpec, Splits

Indices = npt.NDArray[np.int64]


def cut(
    labels: Indices,
    num_classes: int,
    *,
    fraction: float,
    validation: float,
    seed: int,
    counts: Counts | None = None,
) -> tuple[Indices, Indices]:
    """Cut the training split of a data set, class by class.

    The images of a class are put into an order that depends on (seed, class) alone, so a smaller
    fraction or a shorter tail is part of a larger one and no class moves another.

    Args:
        labels: [n] labels of the whole training split, 0 .. K-1.
        num_classes: K.
        fraction: share of each class's images that is used; see :func:`sizes`.
        validation: share of each class's used images set aside.
        seed: of the cut.
        counts: a long tail, or None.

    Returns:
        The positions in ``labels`` to train on and those set aside, each ascending.

    Raises:
        UsageError: if a class would be left without training images.
    """
    train, validate = [], []
    images = np.bincount(labels, minlength=num_classes).tolist()
    wanted = class_sizes(images, fraction, validation, counts)
    for label, (kept, aside) in enumerate(wanted):
        members = _shuffled(np.flatnonzero(labels == label), seed, label)
        if kept < 1:
            tail = f", counts {counts.shape} {counts.ratio:g}" if counts else ""
            raise UsageError(
                f"class {label} has {len(members)} training images, of which fraction "
                f"{fraction}{tail} and validation {validation} leave none; use a larger fraction "
                "or a smaller validation"
            )
        train.append(members[:kept])
        validate.append(members[kept : kept + aside])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(validate))


def sizes(images: int, fraction: float, validation: float) -> tuple[int, int]:
    """Return how many of a class's images are trained on and how many are set aside.

    Shares round half up, in decimals as they are written (0.285 of 100 is 29 though the float is
    below), and no share above zero is less than one image: each class can be validated.
    """
    return class_sizes([images], fraction, validation)[0]


def class_sizes(
    images: Sequence[int], fraction: float, validation: float, counts: Counts | None = None
) -> list[tuple[int, int]]:
    """Return :func:`sizes` of each class, long-tailed where ``counts`` says so.

    Args:
        images: of each class.
        fraction: share of each class that is used.
        validation: share of what is used that is set aside.
        counts: the tail; its largest class is the largest one here, and none grows.
    """
    used = [min(_share(n, fraction), n) for n in images]
    if counts is not None:
        most = max(used)
        used = [
            min(n, int(most * counts.ratio ** -_depth(counts, label, len(used))))
            for label, n in enumerate(used)
        ]
    aside = [_share(n, validation) for n in used]
    return [(n - held, held) for n, held in zip(used, aside, strict=True)]


def _depth(counts: Counts, label: int, num_classes: int) -> float:
    """Return how far down the tail a class is: 0 keeps all, 1 keeps one in ``ratio``."""
    if counts.shape == "step":
        return float(label >= num_classes / 2)
    return label / max(num_classes - 1, 1)


def check_labels(labels: Indices, num_classes: int, where: str, *, every: bool = True) -> None:
    """Raise DataBad unless labels run from 0 to K-1 and, with ``every``, no class is absent.

    A label outside its range ends a CUDA process with an assertion that names nothing, so this
    comes before anything reaches a device.

    Args:
        labels: [n] labels of a split.
        num_classes: K.
        where: the place to name, such as ``digits, train``.
        every: False for splits on which a class may be absent.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataBad(f"{where}: labels are {labels.dtype} {labels.shape}, not a list of integers")
    if not labels.size:
        raise DataBad(f"{where}: there are no labels")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise DataBad(
            f"{where}: labels run from {low} to {high}, but {num_classes} classes are labelled "
            f"0 to {num_classes - 1}{_base_hint(low, high, num_classes)}"
        )
    absent = np.flatnonzero(np.bincount(labels, minlength=num_classes) == 0)
    if every and absent.size:
        named = ", ".join(str(label) for label in absent[:10])
        more = f" and {absent.size - 10} more" if absent.size > 10 else ""
        raise DataBad(f"{where}: no image of class {named}{more}; labels run from {low} to {high}")


def check_splits(spec: DatasetSpec, splits: Splits, split: str = "official") -> None:
    """Raise DataBad unless each part has the images and labels that the manifest says.

    A swapped, foreign or incomplete split gives other numbers, which nobody could compare.

    Args:
        spec: the data set.
        splits: what it opened as.
        split: the way it is split.
    """
    for problem in split_problems(spec, splits, split):
        raise DataBad(problem)


def split_problems(spec: DatasetSpec, splits: Splits, split: str = "official") -> Iterator[str]:
    """Yield what is wrong with the images and labels of each part, one sentence each."""
    manifest = spec.manifest
    counts = {name: len(part.labels) for name, part in splits.by_name.items()}
    expected = dict(manifest.counts_of(split))
    if counts != expected:
        yield (
            f"{spec.name}: found {_listed(counts)}; there must be {_listed(expected)} images in "
            f"split {split!r}; {_split_hint(counts, expected)}"
        )
    bounds = manifest.per_class_of(split)
    for name, part in splits.by_name.items():
        where = f"{spec.name}, {name}"
        try:
            check_labels(part.labels, len(manifest.classes), where, every=name == "train")
        except DataBad as error:
            yield str(error)
            continue
        if name in bounds and counts == expected:
            yield from _class_problems(part.labels, manifest.classes, bounds[name], where)


def _class_problems(
    labels: Indices, classes: Sequence[str], bounds: tuple[int, int], where: str
) -> Iterator[str]:
    """Yield a sentence if some classes have more or fewer images than the manifest says."""
    fewest, most = bounds
    counts = np.bincount(labels, minlength=len(classes))
    wrong = np.flatnonzero((counts < fewest) | (counts > most))
    if wrong.size:
        named = ", ".join(f"{label} ({classes[label]}) {counts[label]}" for label in wrong[:5])
        more = f" and {wrong.size - 5} more" if wrong.size > 5 else ""
        wanted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        yield f"{where}: a class must have {wanted} images; class {named}{more}"


def _share(images: int, share: float) -> int:
    """Return the rounded share of ``images``, at least one if the share is above zero."""
    exact = Decimal(repr(float(share))) * images
    return max(int(exact.to_integral_value(ROUND_HALF_UP)), 1 if share > 0 else 0)


def _shuffled(members: Indices, seed: int, label: int) -> Indices:
    """Return a class's positions in an order that no version of numpy changes.

    Raw output of a bit generator is stable between releases; ``Generator.permutation`` is not.
    """
    name = hashlib.sha256(f"cut {seed} {label}".encode()).digest()
    noise = np.random.PCG64(int.from_bytes(name[:16], "big")).random_raw(len(members))
    return members[np.argsort(noise, kind="stable")]


def _base_hint(low: int, high: int, num_classes: int) -> str:
    if low == 1 and high == num_classes:
        return "; they count from 1: subtract 1 where they are read"
    if low == -1 and high <= num_classes - 2:
        return "; 1 was subtracted from labels that counted from 0 already"
    return ""


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _split_hint(counts: Mapping[str, int], expected: Mapping[str, int]) -> str:
    for one in expected:
        for two in expected:
            if one < two and (counts.get(one), counts.get(two)) == (expected[two], expected[one]):
                return f"{one} and {two} seem to be swapped"
    if sum(counts.values()) == sum(expected.values()):
        return "these are the same images cut in another way, and results could not be compared"
    return "files are missing, or this is another version of the data set"
