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


#: A folder that is mounted on other hosts only.
NOT_MOUNTED = """
import os, sys

def refuse(event, args):
    path = os.fspath(args[0]) if event == "open" and isinstance(args[0], (str, os.PathLike)) else ""
    if str(path).startswith({folder!r}):
        raise FileNotFoundError(2, "No such file or directory", path)

sys.addaudithook(refuse)
"""


class Commands:
    """The processes of a cluster, each started in a directory of its own."""

    def __init__(self, folder):
        self._folder, self._address = folder, folder / "scheduler.json"
        self._processes = {}

    def start(self, command, name, *options, preload=""):
        """Start `dask scheduler` or `dask worker` as a process of that name."""
        own = self._folder / name
        own.mkdir(parents=True)
        code = own / "preload.py"
        code.write_text(preload)
        options = ("--no-dashboard", "--scheduler-file", str(self._address), *options)
        # the tests' own modules are no one else's
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with (own / "log.txt").open("w") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "dask", command, *options, "--preload", str(code)],
                cwd=own,
                env=env,
                stderr=log,
            )

    def start_scheduler(self, preload=""):
        self.start("scheduler", "scheduler", "--host", "127.0.0.1", "--port", "0", preload=preload)

    def start_worker(self, name, *options, preload=""):
        scratch = ("--local-directory", str(self._folder / f"scratch-{name}"))
        self.start("worker", name, "--name", name, *scratch, *options, preload=preload)

    def send(self, name, number):
        """Send a signal to a process."""
        self._processes[name].send_signal(number)

    def end(self):
        # a worker that must end may wait for a scheduler that has ended
        for process in self._processes.values():
            process.kill()
            process.wait()

    def client(self):
        return Client(scheduler_file=str(self._address), timeout=120)


@contextmanager
def commands(folder):
    """Start processes one by one; all end with the block."""
    running = Commands(folder)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def cluster(folder, preload):
    """Client of a scheduler that runs some code before anything else, and of one plain worker."""
    with commands(folder) as running:
        running.start_scheduler(preload)
        running.start_worker("worker", "--no-nanny", "--nthreads", "2")
        with running.client() as client:
            client.wait_for_workers(1, timeout=120)
            yield client
