"""A cluster as users start it: `dask scheduler` and `dask worker`, each a process of its own."""

import os
import subprocess
import sys
from contextlib import contextmanager

from distributed import Client

#: Put before the imports of a process: it opens no file of a folder, and reaches no port.
REFUSES_FILES_AND_PORT = """
import os, sys

def refuse(event, args):
    path = os.fspath(args[0]) if event == "open" and isinstance(args[0], (str, os.PathLike)) else ""
    away = event == "socket.connect" and isinstance(args[1], tuple) and args[1][1] == {port}
    if away or str(path).startswith({folder!r}):
        raise PermissionError("this process does not see " + str(args))

sys.addaudithook(refuse)
"""
#: This package is not installed in the process.
LACKS_PACKAGE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "b2nd_dask":
            raise ModuleNotFoundError("No module named 'b2nd_dask'", name="b2nd_dask")

sys.meta_path.insert(0, Missing())
"""


@contextmanager
def cluster(folder, preload):
    """Client of a scheduler that runs some code before anything else, and of one plain worker."""
    folder.mkdir(exist_ok=True)
    address, code = folder / "scheduler.json", folder / "preload.py"
    code.write_text(preload)
    dask = [sys.executable, "-m", "dask"]
    scratch = ["--local-directory", str(folder / "scratch")]
    quiet = ["--no-dashboard", "--scheduler-file", str(address)]
    commands = [
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--preload", str(code), *quiet],
        [*dask, "worker", "--no-nanny", "--nthreads", "2", *quiet, *scratch],
    ]
    with (folder / "log.txt").open("w") as log:
        # the tests' own modules are no one else's
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        processes = [
            subprocess.Popen(command, cwd=folder, env=env, stderr=log) for command in commands
        ]
        try:
            with Client(scheduler_file=str(address), timeout=120) as client:
                client.wait_for_workers(1, timeout=120)
                yield client
        finally:
            # a worker that is asked to end may wait for its scheduler, which has ended
            for process in processes:
                process.kill()
                process.wait()
