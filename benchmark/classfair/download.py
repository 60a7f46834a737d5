"""Downloads that are whole or not there: to a ``.part`` file, checked, then renamed.

A transfer that breaks off goes on where it was. A server that is out of quota sends a web page in
place of the file; that is recognised, and never kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from classfair_registry.errors import DataBad, DataMissing
from classfair_registry.specs import Archive

TRIES = 4
_CHUNK = 1 << 20
_SECONDS = 60.0
_AGENT = {"User-Agent": "classfair"}
_RANGE_BEYOND_END = 416

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and all of them, 0 if that is not known."""


def fetch(
    archive: Archive,
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    pause: Callable[[int], None] = lambda attempt: time.sleep(2**attempt),
) -> Path:
    """Download a file into a folder, unless it is there and right, and return its path.

    Args:
        archive: the file.
        folder: for it and its ``.part``.
        progress: told how far it is.
        pause: called with the number of each failed try before the next.

    Raises:
        DataMissing: if the server does not answer, or breaks off each time.
        DataBad: if what it sends is not the file; nothing of it is kept.
    """
    path, part = folder / archive.file, folder / f"{archive.file}.part"
    if path.is_file() and _digest(path, archive) == archive.checksum:
        return path
    for attempt in range(1, TRIES + 1):
        try:
            _transfer(archive, part, progress)
            break
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES or _refused(error):
                raise DataMissing(
                    f"{archive.url}: {error}; get it by hand, or run this again, which goes on "
                    f"from {part}"
                ) from error
            pause(attempt)
    _check(archive, part)
    part.replace(path)
    return path


def _refused(error: Exception) -> bool:
    """Whether a server says that it will not give the file, so that trying again is no use."""
    return isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500


def _transfer(archive: Archive, part: Path, progress: Progress) -> None:
    """Append what is missing of a file.

    Raises:
        OSError, HTTPException: if the transfer breaks off.
        DataBad: if it is a web page.
    """
    have = part.stat().st_size if part.is_file() else 0
    headers = _AGENT | ({"Range": f"bytes={have}-"} if have else {})
    if not archive.url.startswith(("http://", "https://")):
        raise DataMissing(f"{archive.url}: neither http nor https")
    request = urllib.request.Request(archive.url, headers=headers)  # noqa: S310 - checked above
    try:
        answer = urllib.request.urlopen(request, timeout=_SECONDS)  # noqa: S310 - checked above
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_BEYOND_END and have:
            return  # All of it is there; the checks decide whether it is the right one.
        raise
    with contextlib.closing(answer):
        _refuse_page(answer, archive)
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        have = have if goes_on else 0
        announced = int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if goes_on else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                progress(file.tell(), have + announced)
            end = file.tell()
    if announced and end < have + announced:
        raise http.client.IncompleteRead(b"", have + announced - end)


def _refuse_page(answer: Any, archive: Archive) -> None:
    kind = answer.headers.get_content_type()
    if kind in ("text/html", "application/xhtml+xml"):
        raise DataBad(
            f"{archive.url}: the server sent a web page ({kind}) in place of the file, as it does "
            "when a quota is used up or the file is gone; try later or get it by hand"
        )


def _check(archive: Archive, part: Path) -> None:
    """Raise DataBad, and delete the file, unless it is the one that is wanted."""
    size = part.stat().st_size
    with part.open("rb") as file:
        head = file.read(200).lstrip().lower()
    found = _digest(part, archive)
    if found == archive.checksum:
        return
    part.unlink()
    if head.startswith((b"<!doctype html", b"<html")):
        what = "is a web page, not the file"
    elif archive.size is not None and size != archive.size:
        what = f"has {size:,} bytes, not {archive.size:,}"
    else:
        what = f"has {found}, not {archive.checksum}"
    raise DataBad(f"{archive.url}: what was downloaded {what}; it was deleted; try again")


def _digest(path: Path, archive: Archive) -> str:
    """Return a file's digest in the manner of the wanted one."""
    kind = archive.checksum.partition(":")[0]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{found.hexdigest()}"
