"""Captions and footnotes: what must be said so that a table's numbers can be trusted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from classfair_leaderboard.aggregate import Group, Row
from classfair_leaderboard.groups import RankingName, Reference
from classfair_leaderboard.load import Run
from classfair_registry.errors import UsageError
from classfair_registry.manager import Card, Plugins
from classfair_registry.records import MethodInfo, Skipped

HEADLINES = ("overall", "mean_class")
_LONGEST_REASON = 160
_HALVES = (
    "; ranked on one half of each class's test images and measured on the other, both ways, over "
    "10 fixed splits"
)


def row_name(row: Row, plugins: Plugins) -> str:
    """Return what a row is called: a label of the user's own, or the method's title.

    A title is followed by what would not be guessed from it: settings that are not the defaults,
    and a revision that is not today's. The name depends on the row alone.
    """
    method = row.cell.method
    card = find_card(plugins, "methods", method.name)
    own_label = method.label != method.name
    parts = [] if own_label or card is None else _unusual(method, card)
    if card is not None and method.revision != card.values["revision"]:
        parts.append(f"revision {method.revision}")
    name = method.label if own_label else method.title
    return f"{name} ({', '.join(parts)})" if parts else name


def find_card(plugins: Plugins, kind: str, name: str) -> Card | None:
    """Return a card, or None if its plugin is not installed here."""
    try:
        return plugins.card(kind, name)
    except UsageError:
        return None


def headline(group: Group, plugins: Plugins) -> str:
    """Return the metric that the literature of the group's data set reports."""
    told = [run.record.dataset.get("headline") for run in group.runs[:1]]
    name = group.cell.recipe.get("data", {}).get("name", "")
    if not told and (card := find_card(plugins, "datasets", name)):
        told = [card.values["manifest"]["headline"]]
    return told[0] if told and told[0] in HEADLINES else HEADLINES[0]


def caption(group: Group, ranking: RankingName, reference: Reference | None, first: str) -> str:
    """Return the sentences over a table.

    Args:
        group: what stands in it.
        ranking: by which classes are ranked.
        reference: by which runs, if by any.
        first: what the matrix says of itself.
    """
    sentences = [first, str(group.cell.recipe.get("caption", "")), _images(group)]
    sentences.append(
        "Accuracies in %, gap in points; ± is the sample standard deviation over n seeds "
        "(ddof = 1), none for one seed. Cost in images passed forward and (twice) backward, "
        "ERM = 1."
    )
    sentences.append(_seeds(group))
    sentences.append(ranking_sentence(ranking, reference))
    return " ".join(_ended(text) for text in sentences if text)


def footnotes(
    group: Group,
    names: Sequence[str],
    reference: Reference | None,
    skipped: Iterable[Skipped],
    plugins: Plugins,
) -> tuple[str, ...]:
    """Return the sentences under a table.

    Args:
        group: what stands in it.
        names: of its rows.
        reference: by which runs its classes are ranked, if by any.
        skipped: what the matrices leave out.
        plugins: to spell methods.
    """
    rows = list(zip(names, group.rows, strict=True))
    notes = [
        *(_identical(name, row, plugins) for name, row in rows if row.reduces_to),
        *(f"{name}: {row.cell.method.budget}" for name, row in rows if row.cell.method.budget),
        *_needs(rows, plugins),
        *_selected(rows),
        *_codes(rows),
        *_givers(rows),
        *(_missing(name, row) for name, row in rows if row.missing),
        *_left_out(group, skipped),
        *_same_names(names),
        *_mixed(group.runs),
    ]
    if reference is not None:
        notes += reference_notes(group, reference)
    return tuple(_ended(note) for note in notes)


def _unusual(method: MethodInfo, card: Card) -> list[str]:
    defaults = {setting.name: setting.default for setting in card.settings}
    changed = {k: v for k, v in method.settings.items() if k in defaults and defaults[k] != v}
    return [f"{key} {_text(value)}" for key, value in sorted(changed.items())]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _images(group: Group) -> str:
    if not group.runs:
        return ""
    run = group.runs[0]
    title = run.record.dataset.get("title") or run.record.dataset.get("name") or "Test"
    return f"{title}: {run.count.sum()} test images, {run.count.min()} of the smallest class."


def _seeds(group: Group) -> str:
    """Say what a seed changes; the cut of the data has a seed of its own."""
    recipe = group.cell.recipe
    weights = recipe.get("backbone", {}).get("weights")
    parts = ["the head's initial weights" if weights else "initial weights", "order of the images"]
    if recipe.get("augmentation", {}).get("name", "none") != "none":
        parts.append("augmentation")
    return f"Seeds differ in {_listed(parts)}, not in the split of the data."


def ranking_sentence(name: RankingName, reference: Reference | None) -> str:
    """Say by what classes are ranked."""
    halves = _HALVES if name.endswith("crossfit") else ""
    if name.startswith("own"):
        late = halves or ", which makes hard lower and the gap wider than they are"
        return f"Ranking {name}: thirds of the classes by each run's own test accuracy{late}."
    if reference is None:
        return f"Ranking {name}: not available, as there are no ERM runs to rank the classes."
    if reference.kind == "local":
        return (
            f"Ranking {name}: thirds of the classes by the local ERM runs of other seeds{halves}."
        )
    return (
        f"Ranking {name}: thirds of the classes by the mean over {reference.runs} dedicated ERM "
        f"runs ({reference.hash}), the same for all rows{halves}."
    )


def _identical(name: str, row: Row, plugins: Plugins) -> str:
    other = row.reduces_to or ""
    card = find_card(plugins, "methods", other)
    return f"{name}: identical to {card.values['title'] if card else other} here."


def _needs(rows: Iterable[tuple[str, Row]], plugins: Plugins) -> Iterator[str]:
    """Say which methods read more than the train split."""
    for name, row in rows:
        card = find_card(plugins, "methods", row.method.name)
        more = [split for split in card.values["splits"] if split != "train"] if card else []
        if more:
            yield f"{name}: also reads the {_listed(more)} split"


def _selected(rows: Iterable[tuple[str, Row]]) -> Iterator[str]:
    """Say where not the last state was judged, or settings were searched for."""
    for name, row in rows:
        rules = {str(run.record.selection.get("rule", "last")) for run in row.runs} - {"last"}
        if rules:
            yield f"{name}: judged in a state chosen by {_listed(sorted(rules))}"
        tuning = next((run.record.tuning for run in row.runs if run.record.tuning), None)
        if tuning:
            yield (
                f"{name}: settings of {tuning.get('trials', '?')} trials, by "
                f"{tuning.get('metric', '?')} on {tuning.get('split', '?')}"
            )


def _codes(rows: Iterable[tuple[str, Row]]) -> Iterator[str]:
    """Name methods whose code is in no release."""
    for name, row in rows:
        if row.method.code is not None:
            where = row.method.plugin.rsplit("/", 1)[-1]
            yield f"{name}: a plugin outside this release ({where}, code {row.method.code[:8]})"


def _givers(rows: Iterable[tuple[str, Row]]) -> Iterator[str]:
    """Say whose results are not the suite's own, and how far they were checked."""
    for name, row in rows:
        told = {(run.about.by, run.about.trust, run.about.how) for run in row.runs if run.about}
        for by, trust, how in sorted(told):
            if by:
                yield f"{name}: given by {by}; {trust}{f' ({how})' if how else ''}"


def _missing(name: str, row: Row) -> str:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for seed, reason in row.missing.items():
        short = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
        by_reason[short].append(seed)
    parts = [f"{_numbered(seeds)} {reason}" for reason, seeds in by_reason.items()]
    return f"{name}: {len(row.runs)} of {len(row.cells)} seeds, so no mean: {'; '.join(parts)}"


def _left_out(group: Group, skipped: Iterable[Skipped]) -> Iterator[str]:
    seeds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for note in skipped:
        if note.recipe == group.cell.recipe_name:
            seeds[note.method, note.why].append(note.seed)
    for (method, why), left_out in seeds.items():
        yield f"{method}: {_numbered(left_out)} left out: {why}"


def _same_names(names: Sequence[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{times} rows are called {name}: they differ in settings, revision or code"


def _mixed(runs: Sequence[Run]) -> Iterator[str]:
    """Say where runs differ in what is not part of their keys but may move a last digit."""
    kinds = {"devices": Counter(_device(run) for run in runs)}
    for package in ("torch", "classfair"):
        kinds[f"versions of {package}"] = Counter(_package(run, package) for run in runs)
    for kind, found in kinds.items():
        if len(found) > 1:
            parts = (f"{what} ({times})" for what, times in sorted(found.items()))
            yield f"Runs on different {kind}: {', '.join(parts)}"


def _device(run: Run) -> str:
    machine = run.record.machine
    return str(machine.get("device_name") or machine.get("device") or "unknown")


def _package(run: Run, name: str) -> str:
    packages = run.record.machine.get("packages")
    return str(packages.get(name, "unknown")) if isinstance(packages, Mapping) else "unknown"


def reference_notes(group: Group, reference: Reference) -> Iterator[str]:
    """Yield what must be known of the runs that rank."""
    if reference.kind == "local":
        yield (
            "No dedicated ranking runs: for each seed the ERM runs of the other seeds rank the "
            "classes, so the thirds differ between seeds and with the runs that are there"
        )
    if reference.kind == "dedicated" and reference.runs < group.ranking_cells:
        yield (
            f"{reference.runs} of {group.ranking_cells} ranking runs are there: the ranking is not "
            "final"
        )


def _numbered(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(str(seed) for seed in seeds)}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]
