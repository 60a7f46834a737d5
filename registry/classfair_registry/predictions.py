"""What a finished cell knows about the test images: enough for every metric, now and later.

Stored as ``predictions.npz`` and read without torch. N test images, K classes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair_registry.errors import ClassfairError
from classfair_registry.files import writing

Floats = npt.NDArray[np.float64]
THIRDS = ("easy", "medium", "hard")


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions on the test split, in the order of ``index``.

    Attributes:
        index: [N] positions in the test split, ascending, each once.
        label: [N] true classes.
        top5: [N, min(5, K)] classes by falling logit; ``top5[:, 0]`` is the answer.
        p_label: [N] softmax probability of the true class.
        p_other: [N] largest probability among the other classes.
        p_max: [N] largest probability.
        z_label: [N] logit of the true class.
        z_other: [N] largest logit among the other classes.
        mean_probability: [K, K] mean probability vector (columns) over the images of each true
            class (rows); a row of NaN for a class without test images.
        vector_norm: [K] L2 norms of the head's class vectors, NaN if it has none.
        vector_angle: [K] smallest angle from each class vector to another one, degrees, or NaN.
        feature_mean_square: [K] ||mu_k||^2 of the test features of class k.
        feature_spread: [K] ||s_k||^2, mean squared distance of the features to mu_k.
        feature_collapse: [K] ||s_k||^2 / ||mu_k - mean over classes of mu||^2.
        temperature: fitted on the validation split by log-likelihood, or NaN without one.
        p_label_scaled, p_other_scaled, p_max_scaled: as above, after division of the logits by the
            temperature; NaN without one.
        names: [N] file names, or empty strings.
        ranking: [K] scores by which classes are ranked, best first; not stored. None ranks by this
            model's own test accuracy.
    """

    index: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    top5: npt.NDArray[np.int64]
    p_label: Floats
    p_other: Floats
    p_max: Floats
    z_label: Floats
    z_other: Floats
    mean_probability: Floats
    vector_norm: Floats
    vector_angle: Floats
    feature_mean_square: Floats
    feature_spread: Floats
    feature_collapse: Floats
    temperature: Floats
    p_label_scaled: Floats
    p_other_scaled: Floats
    p_max_scaled: Floats
    names: npt.NDArray[np.str_]
    ranking: Floats | None = None

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.mean_probability)

    @functools.cached_property
    def correct(self) -> npt.NDArray[np.bool_]:
        """[N] whether the answer is right."""
        return np.asarray(self.top5[:, 0] == self.label)

    @functools.cached_property
    def count(self) -> npt.NDArray[np.int64]:
        """[K] test images of each class."""
        return np.bincount(self.label, minlength=self.num_classes)

    @functools.cached_property
    def class_accuracy(self) -> Floats:
        """[K] share of right answers in [0, 1], NaN for a class without test images."""
        return self.class_mean(self.correct)

    @functools.cached_property
    def thirds(self) -> Floats:
        """[3, K] membership of each class in the easy, medium and hard third."""
        return membership(self.class_accuracy if self.ranking is None else self.ranking)

    def class_mean(self, values: npt.ArrayLike) -> Floats:
        """Return the [K] means of per-image ``values`` [N] over each true class; NaN if empty."""
        sums = np.bincount(self.label, np.asarray(values, float), minlength=self.num_classes)
        empty = np.full(self.num_classes, np.nan)
        return np.asarray(np.divide(sums, self.count, out=empty, where=self.count > 0))

    def third_mean(self, per_class: Floats, third: str) -> float:
        """Return the mean of [K] values over a third's classes, weighted by their membership.

        NaN for a third without classes, as the hard one of two classes is.
        """
        return weighted_mean(per_class, self.thirds[THIRDS.index(third)])

    def ranked_by(self, scores: Floats) -> Predictions:
        """Return the same predictions with classes ranked by ``scores`` [K], best first."""
        if len(scores) != self.num_classes:
            raise ValueError(f"{len(scores)} scores for {self.num_classes} classes")
        return dataclasses.replace(self, ranking=np.asarray(scores, float))

    def only(self, images: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Predictions:
        """Return the predictions of a part of the images; per-class values stay as they are."""
        per_image = {
            name: getattr(self, name)[images]
            for name in _FIELDS
            if name not in _PER_CLASS and name != "temperature"
        }
        return dataclasses.replace(self, **per_image)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays as they are stored: per image in 32 bits, the rest as it is."""
        return {name: _narrowed(name, getattr(self, name)) for name in _FIELDS}

    def rounded(self) -> Predictions:
        """Return what :meth:`load` will return, so that numbers computed now and later agree."""
        return dataclasses.replace(self, **_widened(self.arrays()))

    def digest(self) -> str:
        """Return the sha256 over all arrays: equal runs have equal digests."""
        total = hashlib.sha256()
        for name, array in self.arrays().items():
            total.update(f"{name}{array.dtype}{array.shape}".encode())
            total.update(np.ascontiguousarray(array).tobytes())
        return total.hexdigest()

    def save(self, path: Path) -> None:
        """Write ``predictions.npz``, whole or not at all."""
        save_arrays(path, self.arrays())

    @classmethod
    def load(cls, path: Path) -> Predictions:
        """Read ``predictions.npz``.

        Raises:
            ClassfairError: naming the file, if it is torn, foreign or inconsistent.
        """
        arrays = load_arrays(path)
        if set(arrays) != set(_FIELDS):
            odd = ", ".join(sorted(set(arrays) ^ set(_FIELDS)))
            raise ClassfairError(f"{path}: not a predictions file of this version ({odd})")
        predictions = cls(**_widened(arrays))
        predictions.check(str(path))
        return predictions

    def check(self, where: str) -> None:
        """Raise ClassfairError if lengths or ranges do not fit together."""
        images, classes = len(self.label), self.num_classes
        for name, array in self.arrays().items():
            wanted = classes if name in _PER_CLASS else 1 if name == "temperature" else images
            if len(array) != wanted:
                raise ClassfairError(f"{where}: {name} has length {len(array)}, not {wanted}")
        for name in ("label", "top5"):
            values = getattr(self, name)
            if values.size and not 0 <= values.min() <= values.max() < classes:
                raise ClassfairError(f"{where}: {name} is not within 0..{classes - 1}")
        if len(np.unique(self.index)) != images:
            raise ClassfairError(f"{where}: an image is counted twice")


_FIELDS = tuple(f.name for f in dataclasses.fields(Predictions) if f.name != "ranking")
_PER_CLASS = {
    "mean_probability",
    "vector_norm",
    "vector_angle",
    "feature_mean_square",
    "feature_spread",
    "feature_collapse",
}


def _narrowed(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    per_image = name not in _PER_CLASS and name != "temperature"
    narrow = {"f": np.float32, "i": np.int32}.get(array.dtype.kind)
    return array.astype(narrow) if per_image and narrow else array


def _widened(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    wide = {"f": np.float64, "i": np.int64}
    return {name: a.astype(wide.get(a.dtype.kind, a.dtype)) for name, a in arrays.items()}


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Return the mean of ``values`` [K] by ``weights`` [K]; what has no weight is not looked at."""
    counted = weights > 0
    if not counted.any():
        return float("nan")
    return float((weights[counted] * values[counted]).sum() / weights[counted].sum())


def membership(scores: npt.ArrayLike) -> Floats:
    """Return the [..., 3, K] share of each class in the easy, medium and hard third.

    Classes are ranked by ``scores`` [..., K], best first, and cut like ``numpy.array_split(.., 3)``
    (100 classes give 34, 33, 33). Tied classes share the places that they hold together, which is
    the average over all orders of the tie. A class without a score (NaN) is in no third, and the
    cut is made over the others.
    """
    scores = np.asarray(scores, float)
    classes = scores.shape[-1]
    order = np.argsort(-scores, axis=-1, kind="stable")
    ranked = np.take_along_axis(scores, order, -1)
    place = np.broadcast_to(np.arange(classes), scores.shape)
    first = np.ones(scores.shape, bool)
    first[..., 1:] = ranked[..., 1:] != ranked[..., :-1]
    last = np.ones(scores.shape, bool)
    last[..., :-1] = first[..., 1:]
    start = np.maximum.accumulate(np.where(first, place, 0), -1)
    end = np.minimum.accumulate(np.where(last, place + 1, classes)[..., ::-1], -1)[..., ::-1]
    cut = _cuts((~np.isnan(scores)).sum(-1))[..., None]
    low = np.maximum(start[..., None, :], cut[..., :-1, :])
    high = np.minimum(end[..., None, :], cut[..., 1:, :])
    sorted_shares = np.clip(high - low, 0, None) / (end - start)[..., None, :]
    shares = np.zeros(sorted_shares.shape)
    np.put_along_axis(shares, order[..., None, :], sorted_shares, -1)
    return shares


def _cuts(classes: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the [..., 4] bounds of the thirds among so many classes."""
    size = np.asarray(classes)[..., None]
    sizes = size // 3 + (np.arange(3) < size % 3)
    return np.concatenate([np.zeros_like(size), sizes.cumsum(-1)], -1)


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as a compressed npz whose bytes depend on the arrays alone."""
    with writing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read an npz file without running anything that it holds.

    Raises:
        ClassfairError: naming the file, if it cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ClassfairError(f"{path}: cannot be read as arrays ({error})") from error
