"""Inspect tasks: mmlu, arc_easy and wikitext, and the rendering, solver and scorer they share.

Inspect finds them by registry name through the entry point `tasks.registration`, or by file path.
"""
