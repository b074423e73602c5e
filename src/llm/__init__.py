"""Torch decoders and exact scoring of them; knows neither harness."""
