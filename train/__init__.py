"""Programs: each parses flags and calls the library."""
