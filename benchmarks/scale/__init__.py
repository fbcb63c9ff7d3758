"""A model of what frames of very many chunks cost on clusters that are not here.

`python -m benchmarks.scale measure` measures the costs of single steps on this machine, `check`
holds the model against real runs here, `predict` computes tables for large clusters. See NOTE.md.
"""
