"""Scoring and generation: the only place that windows, packs and takes log-softmax."""
