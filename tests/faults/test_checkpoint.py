"""Damaged, half-written, foreign and hostile checkpoints; saves that are cut off or find no room."""
