"""The command ``classfair``, also as ``python -m classfair``.

Child processes import the main module of their parent again, so nothing is imported here.
"""

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from classfair.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    # ``-m`` puts the working directory first, where a project's own classfair_plugins.py would be
    # taken for the package of that name.
    if sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 - pathlib is not imported for this
        del sys.path[0]
    sys.exit(main())
