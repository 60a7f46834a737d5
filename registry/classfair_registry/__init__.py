"""The contract of classfair: what a plugin is, how plugins are found, what a record is.

Everything here imports without torch except :mod:`classfair_registry.plain` and
:mod:`classfair_registry.testing`, which hold code that runs inside a training process.
"""

from classfair_registry.hooks import hookimpl

__all__ = ["hookimpl"]
