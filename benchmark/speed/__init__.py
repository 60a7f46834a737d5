"""How fast the suite is, each figure measured beside a limit or a rival. Not a test."""
