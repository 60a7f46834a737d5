"""Ranks over several recipes: only of methods that have all of a tier's recipes.

A mean rank over recipes that differ from method to method compares nothing. So a method has a rank
within a tier only if each of its recipes has all of the method's seeds, and it is ranked among such
methods alone. Tracks never share a rank.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from classfair_leaderboard.aggregate import Group
from classfair_registry.predictions import Floats
from classfair_registry.tables import Column, Entry, Table


@dataclasses.dataclass(frozen=True)
class Tier:
    """Recipes that are ranked together.

    Attributes:
        name: of the tier.
        patterns: of the names of its recipes; the tier is complete if each matches one.
        what: the recipes in words.
    """

    name: str
    patterns: tuple[str, ...]
    what: str

    def has(self, recipe: str) -> bool:
        """Whether a recipe is one of its own."""
        return any(fnmatch.fnmatchcase(recipe, pattern) for pattern in self.patterns)


TIERS = (
    Tier(
        "tier 1",
        ("cifar100_resnet32", "clip_*_probe"),
        "CIFAR-100 with ResNet-32, and the cached CLIP probes",
    ),
    Tier("tier 2", ("*",), "all other recipes"),
)
"""The first one that has a recipe takes it."""


def ranks(
    tables: Sequence[Table], groups: Sequence[Group], headlines: Sequence[str]
) -> list[Table]:
    """Return a table of mean ranks for each tier and track that has at least two recipes.

    Args:
        tables: of the recipes.
        groups: of the tables, in the same order.
        headlines: the headline metric of each table.
    """
    sorted_in: dict[tuple[Tier, str], list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        tier = next(tier for tier in TIERS if tier.has(group.cell.recipe_name))
        sorted_in[tier, group.cell.track].append(place)
    return [
        _table(tier, track, [(tables[i], groups[i], headlines[i]) for i in places])
        for (tier, track), places in sorted(
            sorted_in.items(), key=lambda item: (item[0][0].name, item[0][1])
        )
        if len(places) > 1
    ]


def _table(tier: Tier, track: str, parts: Sequence[tuple[Table, Group, str]]) -> Table:
    found = [dict(_values(table, group, headline)) for table, group, headline in parts]
    recipes = [group.cell.recipe_name for _, group, _ in parts]
    lacking = [p for p in tier.patterns if not fnmatch.filter(recipes, p)]
    names = list(dict.fromkeys(label for _, group, _ in parts for label in _labels(group)))
    complete = [name for name in names if all(name in values for values in found)]
    means = {} if lacking or len(complete) < 2 else _mean_ranks(complete, found)
    rows = [
        {
            "method": Entry(text=name),
            "recipes": Entry(text=f"{sum(name in values for values in found)}/{len(found)}"),
            **means.get(name, {}),
        }
        for name in names
    ]
    tuned = " (tuned)" if track == "tuned" else ""
    return Table(
        name=f"ranks--{tier.name.replace(' ', '-')}{'--tuned' if tuned else ''}",
        title=f"Mean ranks, {tier.name}{tuned}",
        columns=_COLUMNS,
        rows=tuple(rows),
        caption=(
            f"{tier.name.capitalize()}: {tier.what}; here {', '.join(recipes)}. Mean rank over the "
            "recipes by the headline metric and by hard, 1 is best, among the methods that have "
            "all seeds of all of these recipes; blank for others."
        ),
        footnotes=tuple(f"No recipe of {pattern}, so no ranks." for pattern in lacking),
    )


_COLUMNS = (
    Column("method", "method", text=True),
    Column("rank_headline", "rank, headline", "", "lower"),
    Column("rank_hard", "rank, hard", "", "lower"),
    Column("recipes", "recipes", text=True),
)


def _values(table: Table, group: Group, headline: str) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the label of each row that has both means, with them; not of rows that share one."""
    times = Counter(_labels(group))
    for label, row in zip(_labels(group), table.rows, strict=True):
        first, hard = row[headline].mean, row["hard"].mean
        if times[label] == 1 and first is not None and hard is not None:
            yield label, (first, hard)


def _labels(group: Group) -> list[str]:
    return [
        row.method.label if row.method.label != row.method.name else row.method.title
        for row in group.rows
    ]


def _mean_ranks(
    names: Sequence[str], found: Iterable[Mapping[str, tuple[float, float]]]
) -> dict[str, dict[str, Entry]]:
    """Return the mean ranks, ties shared, over the recipes."""
    by_recipe = [_shared_ranks(np.array([values[name] for name in names])) for values in found]
    total = np.mean(by_recipe, axis=0)
    return {
        name: {
            "rank_headline": Entry(float(headline), n=len(by_recipe)),
            "rank_hard": Entry(float(hard), n=len(by_recipe)),
        }
        for name, (headline, hard) in zip(names, total, strict=True)
    }


def _shared_ranks(values: Floats) -> Floats:
    """Return [rows, metrics] ranks from 1 for the largest; equal values share theirs."""
    above = (values[None] > values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return np.asarray(above + (equal + 1) / 2)
