"""Observers of a run, one file each."""
