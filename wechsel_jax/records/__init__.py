"""What was written down by a transfer, a run and a comparison: one schema each, one writer, one reader."""
