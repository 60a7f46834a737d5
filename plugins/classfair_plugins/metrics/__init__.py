"""Metrics over predictions, one file each."""
