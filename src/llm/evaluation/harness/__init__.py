"""The lm-eval side of the bridge; importing it needs no harness."""
