"""Looking after results folders: putting two together, and removing what nobody needs."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from classfair.results import CHECKPOINT, FAILURE, PROGRESS, RECORD, Results, is_running
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.files import file_digest
from classfair_registry.records import MatrixInfo, Record


@dataclasses.dataclass(frozen=True)
class Merged:
    """What a merge did.

    Attributes:
        copied: folders of cells that were copied.
        there: those whose result was there already.
        complaints: a line about each cell or matrix that was not taken as it is.
    """

    copied: tuple[str, ...]
    there: tuple[str, ...]
    complaints: tuple[str, ...]


def merge(sources: list[Path], into: Path) -> Merged:
    """Copy the finished cells and the matrices of results folders into another one.

    A cell is copied whole and moved into place in one step. Where both have a record of one cell
    the one that is there stays, and a different result is named.

    Raises:
        UsageError: for a source that is no folder, or that is the target.
    """
    for source in sources:
        if not source.is_dir():
            raise UsageError(f"{source}: no results folder")
        if source.resolve() == into.resolve():
            raise UsageError(f"{source}: cannot be merged into itself")
    target = Results(into)
    target.prepare()
    copied: list[str] = []
    there: list[str] = []
    complaints: list[str] = []
    for source in sources:
        for path in sorted(source.glob(f"*/{RECORD}")):
            try:
                (copied if _take(path, target) else there).append(path.parent.name)
            except (ClassfairError, OSError) as error:
                complaints.append(f"{error}; not copied")
        complaints += _take_matrices(Results(source), target)
    return Merged(tuple(copied), tuple(there), tuple(complaints))


def _take(path: Path, target: Results) -> bool:
    """Copy a finished cell; return whether there was none.

    Raises:
        ClassfairError: if it cannot be used, is being trained, or another result is there.
    """
    record = _checked(path)
    folder = target.folder_of(record.cell)
    if (folder / RECORD).exists():
        mine = Record.load(folder / RECORD)
        if mine.cell.key == record.cell.key and mine.result_digest == record.result_digest:
            return False
        raise ClassfairError(f"{path.parent}: {folder} has another result of this cell")
    if is_running(folder):
        raise ClassfairError(f"{path.parent}: {folder} is being trained")
    with tempfile.TemporaryDirectory(prefix=".merge-", dir=target.root) as temporary:
        made = Path(temporary) / folder.name
        shutil.copytree(path.parent, made, ignore=shutil.ignore_patterns("lock", "claim", ".*"))
        if folder.exists():
            # An unfinished attempt, which nobody trains: the finished cell takes its place.
            folder.replace(Path(temporary) / "before")
        made.replace(folder)
    return True


def _checked(path: Path) -> Record:
    record = Record.load(path)
    record.check(str(path))
    for name, expected in record.digests.items():
        file = path.parent / name
        if Path(name).name != name or file.is_symlink():
            raise ClassfairError(f"{path}: {name!r} leads out of the results folder")
        if not file.is_file() or file_digest(file) != expected:
            raise ClassfairError(f"{file}: not what the record was made with")
    return record


def _take_matrices(source: Results, target: Results) -> Iterator[str]:
    """Copy what is expected; cells of a matrix that both have are joined."""
    for name in source.names():
        matrix = source.matrix(name)
        if name in target.names():
            mine = target.matrix(name)
            known = {cell.key for cell in mine.cells}
            new = [cell for cell in matrix.cells if cell.key not in known]
            if not new:
                continue
            matrix = MatrixInfo(
                name=name,
                caption=mine.caption,
                cells=[*mine.cells, *new],
                skipped=list({repr(s): s for s in (*mine.skipped, *matrix.skipped)}.values()),
            )
            yield f"{source.root}: matrix {name}: {len(new)} cells added to those that are there"
        target.expect(matrix)


@dataclasses.dataclass(frozen=True)
class Waste:
    """Something in a results folder that nobody needs.

    Attributes:
        path: of the file or folder.
        why: in a few words.
        size: bytes.
    """

    path: Path
    why: str
    size: int


def find_waste(root: Path) -> list[Waste]:
    """Return what can be removed without losing a result, by path.

    Attempts without a record, and older records of a cell, that no matrix expects; checkpoints of
    finished cells; records that were put aside; files that a writer was killed over. What is being
    trained is left alone, and so are failures that a matrix expects, since they say why.

    Raises:
        UsageError: if there is no such folder.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no results folder")
    results = Results(root)
    expected = {cell.folder for cell in results.cells()}
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and _is_cell(path)]
    idle = [path for path in folders if not is_running(path)]
    older = {path for path in _older(idle) if path.name not in expected}
    found = [Waste(path, "an older record of a cell", _size(path)) for path in older]
    for path in (path for path in idle if path not in older):
        found += _waste_in(path, expected=path.name in expected)
    found += [Waste(path, "left by a killed writer", _size(path)) for path in _parts(root)]
    return sorted(found, key=lambda waste: waste.path)


def remove(found: list[Waste]) -> int:
    """Remove what was found; return the bytes."""
    for waste in found:
        if waste.path.is_dir() and not waste.path.is_symlink():
            shutil.rmtree(waste.path)
        else:
            waste.path.unlink(missing_ok=True)
    return sum(waste.size for waste in found)


def _is_cell(path: Path) -> bool:
    """Whether a folder was made by a run: nothing else is touched."""
    return not path.is_symlink() and (path / "cell.json").is_file()


def _older(folders: list[Path]) -> set[Path]:
    """Return the folders of records that a newer one of the same cell makes superfluous."""
    by_key: dict[str, list[tuple[str, str, Path]]] = {}
    for path in folders:
        try:
            record = Record.load(path / RECORD)
            record.check(str(path))
        except ClassfairError:
            continue
        finished = str(record.provenance.get("finished", ""))
        by_key.setdefault(record.cell.key, []).append((finished, path.name, path))
    return {path for same in by_key.values() for *_, path in sorted(same)[:-1]}


def _waste_in(folder: Path, *, expected: bool) -> Iterator[Waste]:
    if not (folder / RECORD).exists() and not expected:
        why = "a failed attempt" if (folder / FAILURE).exists() else "an unfinished attempt"
        yield Waste(folder, f"{why} that no matrix expects", _size(folder))
        return
    done = [CHECKPOINT, PROGRESS, FAILURE] if (folder / RECORD).exists() else []
    for name in done:
        if (folder / name).exists():
            yield Waste(folder / name, "of a finished cell", _size(folder / name))
    for path in sorted(folder.glob(f"{RECORD}.rejected")):
        yield Waste(path, "a record that was put aside", _size(path))
    for path in _parts(folder):
        yield Waste(path, "left by a killed writer", _size(path))


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(".*.part") if path.is_file())


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())
