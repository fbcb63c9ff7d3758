"""The folder beside a target in which objects are staged, and how a write is given up for good."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from b2nd_dask.storage.failures import NO_BUCKET, only_here
from b2nd_dask.storage.write.object_store import ObjectStore

#: Lies in the area for as long as anything may be staged there.
_OPEN = "open"


@dataclass(frozen=True, slots=True)
class StagingArea:
    """A folder of staged objects.

    Object stores have no folders that could be removed under a task which still runs, as tasks
    do after an interrupt or a failure of another. So there is a marker: who stages an object looks
    for it afterwards, who clears the area removes it first. Whatever the order, nothing stays.
    """

    store: ObjectStore
    folder: str

    def path(self, name: str) -> str:
        """Path of a staged object."""
        return f"{self.folder}/{name}"

    def open(self) -> None:
        """Make the area; shows at once whether the store can be written.

        Raises
        ------
        OSError
            It cannot, or there is no such bucket.
        """
        label = self.store.label
        try:
            self.store.make_folder(self.folder)
            self.store.put(self.path(_OPEN), b"")
            # some of fsspec's file systems that only read let what is written vanish
            self.check()
        except FileNotFoundError as error:
            problem = "nothing can be put there; is there such a bucket or folder?"
            if error.strerror == NO_BUCKET:
                problem = NO_BUCKET
            raise FileNotFoundError(errno.ENOENT, problem, label) from None
        except (NotImplementedError, ValueError) as error:
            raise OSError(
                errno.EROFS, f"fsspec cannot write to this store ({error}); write elsewhere", label
            ) from None

    def put(self, name: str, data: bytes) -> str:
        """Stage an object.

        Returns
        -------
        str
            Its path.

        Raises
        ------
        FileNotFoundError
            The area was cleared; the object is not left there.
        """
        path = self.path(name)
        self.store.put(path, data)
        try:
            self.check()
        except FileNotFoundError:
            self.store.remove([path])
            raise
        return path

    def check(self) -> None:
        """Raise FileNotFoundError where the area was cleared."""
        if self.store.kind(self.path(_OPEN)) is None:
            raise FileNotFoundError(
                errno.ENOENT,
                "this write is over or was given up: its staging area is gone"
                + only_here(self.store.label),
                self.store.label,
            )

    def names(self) -> list[str]:
        """Names of the staged objects."""
        return self.store.names(self.folder)

    def clear(self) -> None:
        """Remove everything in it; what is staged later is removed by who stages it."""
        self.store.remove([self.path(_OPEN)])
        self.store.remove(map(self.path, self.names()))
        self.store.remove_folder(self.folder)
