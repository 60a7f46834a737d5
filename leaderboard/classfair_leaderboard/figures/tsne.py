"""Fig. 10: the features of hard classes in the plane, for runs that kept their features."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from classfair_leaderboard.figures.style import Drawing, Skip, chosen, drawing, named, plain, short
from classfair_leaderboard.load import Run
from classfair_leaderboard.view import View
from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import Floats, load_arrays

FEATURES = "features.npz"
"""Beside a record: ``features`` [N, D] and ``label`` [N] of the test images."""
CLASSES, MOST_IMAGES, SEED = 10, 2_000, 0


def hard_classes(view: View) -> Iterator[Drawing]:
    """Draw the features of the ten hardest classes of the first seed, ERM beside a method."""
    found = {}
    for place in dict.fromkeys(chosen(view)):
        kept = None if place is None else _features(view.rows[place].runs[0])
        if place is not None and kept is not None:
            found[place] = kept
    if not found:
        raise Skip(f"no run kept its features ({FEATURES})")
    scores = view.difficulty()
    hardest = np.argsort(np.where(np.isnan(scores), np.inf, scores), kind="stable")[:CLASSES]
    names = view.class_names()
    with drawing(3.6 * len(found) + 1.2, 3.4, len(found)) as (figure, every):
        for axes, (place, (features, label)) in zip(every, found.items(), strict=True):
            points, kinds = _embedded(features, label, hardest)
            for k in hardest:
                x, y = points[kinds == k].T
                axes.scatter(x, y, 6, label=short(names[k]), lw=0)
            axes.set(xticks=[], yticks=[], title=short(view.name(place)))
        figure.legend(*every[0].get_legend_handles_labels(), loc="outside right", fontsize=7)
        figure.suptitle(plain(f"Features of hard classes, {view.group.title}"), fontsize=10)
        yield Drawing(
            named(view, "t-sne"),
            f"t-SNE of the features of the hardest classes on {view.group.title}",
            f"The {len(hardest)} hardest classes, seed {view.evidence.seeds[0]}, at most "
            f"{MOST_IMAGES} images, t-SNE with seed {SEED} and perplexity 30 or less. Distances "
            "between clusters mean nothing.",
            figure,
        )


def _features(run: Run) -> tuple[Floats, npt.NDArray[np.int64]] | None:
    try:
        arrays = load_arrays(run.folder / FEATURES)
        return arrays["features"].astype(float), arrays["label"].astype(np.int64)
    except (ClassfairError, KeyError):
        return None


def _embedded(
    features: Floats, label: npt.NDArray[np.int64], classes: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return points [n, 2] and classes [n] of the images of some classes."""
    from sklearn.manifold import TSNE

    wanted = np.flatnonzero(np.isin(label, classes))[:MOST_IMAGES]
    perplexity = min(30.0, max(1.0, (len(wanted) - 1) / 3))
    embedding = TSNE(perplexity=perplexity, random_state=SEED, init="pca")
    return np.asarray(embedding.fit_transform(features[wanted]), float), label[wanted]
