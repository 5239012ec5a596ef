"""The lab: many runs, their statistics and pictures. It reads run folders and imports nothing of training."""
