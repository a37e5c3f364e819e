"""Client."""
