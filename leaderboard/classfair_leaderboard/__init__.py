"""Records to tables, without torch."""
