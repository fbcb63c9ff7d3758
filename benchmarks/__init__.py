"""Speed and memory of b2nd_dask beside its peers: `python -m benchmarks --help`."""
