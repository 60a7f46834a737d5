"""Everything that could be a plugin, as plugins: one file each, found by scanning."""
