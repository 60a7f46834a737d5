"""Where the files of a data set are, and strict readers of the lists that come with them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from classfair_plugins.datasets._files import begins
from classfair_registry.errors import DataBad, DataMissing


@dataclasses.dataclass(frozen=True)
class Layout:
    """The files and folders that a data set must have.

    Attributes:
        name: of the data set.
        folders: below the data folder, tried in turn.
        entries: below one of them; a folder ends with ``/``.
        sources: where people get them.
        downloads: whether ``data prepare`` gets them.
    """

    name: str
    folders: tuple[str, ...]
    entries: tuple[str, ...]
    sources: tuple[str, ...]
    downloads: bool = False

    def find(self, root: Path | None, *more: str) -> Path:
        """Return the first folder that has every entry.

        Args:
            root: the user's data folder.
            more: entries that are wanted too.

        Raises:
            DataMissing: with everything that is wanted, what lacks where, and where to get it.
        """
        wanted = (*self.entries, *more)
        if root is None:
            raise DataMissing(
                f"{self.name} needs {_listed(wanted)} in a folder {self.folders[0]}; give the "
                f"folder that this lies in with --data; {self._get()}"
            )
        looked = []
        for folder in (root / name for name in self.folders):
            lacking = [entry for entry in wanted if not _there(folder, entry)]
            if not lacking:
                return folder
            looked.append((len(lacking), folder, lacking))
        # Whoever has most of it in one place needs to hear what lacks there.
        _, folder, lacking = min(looked, key=lambda item: item[0])
        others = [str(other) for _, other, _ in looked if other != folder]
        also = f"; looked in {', '.join(others)} too" if others else ""
        raise DataMissing(
            f"{self.name} needs {_listed(wanted)} in {folder}, which lacks "
            f"{_listed(lacking) if len(lacking) < len(wanted) else 'all of them'}{also}; "
            f"{self._get()}"
        )

    def _get(self) -> str:
        told = f"people get them from {' or '.join(self.sources)}"
        own = f"; classfair data prepare {self.name} --root DIR downloads what it can"
        return f"{told}{own if self.downloads else ''}"


def _there(folder: Path, entry: str) -> bool:
    return (folder / entry).is_dir() if entry.endswith("/") else (folder / entry).is_file()


def _listed(entries: Sequence[str]) -> str:
    return ", ".join(entries)


def lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty, stripped.

    Raises:
        DataBad: if it is not text, or empty.
    """
    found = [line.strip() for line in _text(path).splitlines()]
    found = [line for line in found if line]
    if not found:
        raise DataBad(f"{path}: empty; get it again")
    return found


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        DataBad: if it is no JSON.
    """
    text = _text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataBad(f"{path}: not JSON ({error}); {begins(text.encode())}") from error


def read_mat(path: Path, variable: str) -> Any:
    """Return a variable of a MATLAB file, with dimensions of one squeezed out.

    Raises:
        DataBad: if it is no MATLAB file or has no such variable.
    """
    from scipy.io import loadmat

    content = _bytes(path)
    try:
        values = loadmat(os.fspath(path), squeeze_me=True)
    except Exception as error:  # its reader raises whatever it likes on other files
        raise DataBad(f"{path}: not a MATLAB file ({error}); {begins(content)}") from error
    if variable not in values:
        known = ", ".join(name for name in values if not name.startswith("__"))
        raise DataBad(f"{path}: has no variable {variable!r}, but {known or 'none'}")
    return values[variable]


def check_digest(path: Path, checksums: Mapping[str, str]) -> None:
    """Raise DataBad unless a file has the md5 that its name should have, if one is known."""
    wanted = checksums.get(path.name)
    if wanted is None:
        return
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, _md5).hexdigest()
    except OSError as error:
        raise DataBad(f"{path}: {error.strerror}") from error
    if found != wanted:
        with path.open("rb") as file:
            head = file.read(200)
        raise DataBad(
            f"{path}: its md5 is {found}, not {wanted}: it is partial, damaged or another file "
            f"({begins(head)}); get it again"
        )


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _text(path: Path) -> str:
    content = _bytes(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataBad(f"{path}: not text; {begins(content)}") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataBad(f"{path}: {error.strerror}") from error


def names(text: str) -> tuple[str, ...]:
    """Return the names in a text that separates them by commas, its line breaks not counting."""
    return tuple(name.strip() for name in " ".join(text.split()).split(","))
