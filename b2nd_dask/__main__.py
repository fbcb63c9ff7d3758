"""The command line as ``python -m b2nd_dask``."""

from b2nd_dask.edges.cli import main

if __name__ == "__main__":
    main(prog_name="python -m b2nd_dask")
