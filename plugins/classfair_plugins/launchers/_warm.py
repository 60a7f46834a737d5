"""What the fork server imports before it forks; importing this module is what does it.

The server only imports: no tensor operation and no question to CUDA, for a child that is forked
after its parent used threads hangs.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import warnings
from collections.abc import Iterable

VARIABLE = "CLASSFAIR_WARM"


def _import(names: Iterable[str]) -> None:
    """Import modules, and those that they name in ``PRELOAD``."""
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except (Exception, SystemExit):  # noqa: BLE001, S112 - the job meets it and can log it
            continue
        _import(getattr(module, "PRELOAD", ()))


_import(filter(None, os.environ.pop(VARIABLE, "").split(",")))
# Children are born deaf to the Ctrl-C that the terminal sends to all of them: the runner decides.
signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.freeze()  # Collecting in a child would otherwise copy the pages that it shares.
