"""The command ``classfair``, also as ``python -m classfair``.

Child processes import the main module of their parent again, so nothing is imported here.
"""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from classfair.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
