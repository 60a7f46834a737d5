"""A running cell on disk: tensors and plain values, whole or not at all."""

from __future__ import annotations

import logging
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from classfair_registry.files import writing

VERSION = 1
_log = logging.getLogger(__name__)


def save(path: Path, key: str, content: dict[str, Any]) -> None:
    """Write a checkpoint of the cell with this run key."""
    with writing(path) as file:
        torch.save({"version": VERSION, "key": key, **content}, file)


def load(path: Path, key: str) -> dict[str, Any] | None:
    """Return the content of a checkpoint, or None if there is none that can be used.

    One that is torn, of another version or of another cell is named in the log and left: the cell
    then starts from its beginning, which costs time and no number.
    """
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            torn = archive.testzip()
        if torn is not None:
            raise zipfile.BadZipFile(f"{torn} is damaged")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        _log.warning("%s cannot be read (%s); starting again", path, error)
        return None
    if content.get("version") != VERSION or content.get("key") != key:
        _log.warning("%s belongs to another cell or version; starting again", path)
        return None
    return content
