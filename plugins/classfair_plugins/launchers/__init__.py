"""Places to run cells, one file each."""
