"""Formats for tables, one file each."""
