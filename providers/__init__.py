"""The two doors to the decoder: Inspect's ModelAPI and lm-eval's model registry.

Importing the package loads neither harness. Inspect finds its door through the entry point
`providers.inspect_registration`.
"""
