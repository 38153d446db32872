"""Text of any kind to documents, by one path for every verb: `sources` finds it, `documents` and `parts` read it."""
