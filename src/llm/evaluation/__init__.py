"""Evaluation rules, data and prompts shared by every door; knows neither harness."""
