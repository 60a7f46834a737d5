"""A reader of pickles that holds arrays, lists, numbers and text, and runs nothing else.

A pickle can call any function while it is read. The caller has checked the file's digest before;
this is the second lock.
"""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

from classfair_registry.errors import DataBad

_ALLOWED = {
    ("multiarray", "_reconstruct"),
    ("numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
_OLD, _NEW = "numpy.core.", "numpy._core."


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # numpy moved its internals in version 2; files keep the place of their time.
        inner = module.removeprefix(_OLD).removeprefix(_NEW)
        if (inner, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        found = importlib.import_module(f"{_NEW}{inner}" if inner != module else module)
        return getattr(found, name)


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary of a pickle, text of Python 2 read as Latin-1.

    Raises:
        DataBad: if it asks for anything but arrays and plain values, or is no such file.
    """
    try:
        with path.open("rb") as file:
            values = _Arrays(file, encoding="latin1").load()
    except OSError as error:
        raise DataBad(f"{path}: {error.strerror}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataBad(f"{path}: not a pickle of arrays ({error}); get it again") from error
    if not isinstance(values, dict):
        raise DataBad(f"{path}: holds a {type(values).__name__}, not a dictionary; get it again")
    return values
