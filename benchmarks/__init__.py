"""Measured comparisons. Each prints ratios between things measured in turn, in one run, on one machine."""
