"""Bytes of frames, local and remote: reads of ranges, and staged chunks of new frames.

`read` has the readers (local files, fsspec URLs, bytes in memory, a frame at an offset). `write`
has the stagings, which use the readers. The modules in this folder serve both: byte ranges, file
names, errors without secrets. Storage knows only the file names of the frame format. Other packages
import only this module. Storage imports only `errors` and `system`.
"""

from b2nd_dask.storage.byte_reader import (
    CHUNK_MEMBER,
    HEAD_NBYTES,
    MAIN_MEMBER,
    ByteReader,
    Identity,
    Item,
    Span,
    chunk_member,
)
from b2nd_dask.storage.failures import MEANWHILE, TOGETHER, public_error, what_directory
from b2nd_dask.storage.read.container import (
    OffsetReader,
    ZipMember,
    is_zip,
    member_offset,
    read_text_file,
    zip_members,
)
from b2nd_dask.storage.read.local_reader import changes_show, is_same_file
from b2nd_dask.storage.read.location import Location, matches_of, natural_key, split_store, store_in
from b2nd_dask.storage.read.prefetch import Prefetch, reading_ahead
from b2nd_dask.storage.redaction import Secrets, printable
from b2nd_dask.storage.urls import below, public_url, split_path
from b2nd_dask.storage.write.local_names import (
    about,
    area_of,
    publish_path,
    remove_area,
    remove_path,
)
from b2nd_dask.storage.write.local_update import (
    CHANGED,
    FrameState,
    LocalUpdate,
    frame_locked,
    require_end,
)
from b2nd_dask.storage.write.staging import Run, Staging
from b2nd_dask.storage.write.targets import (
    StagingInfo,
    list_staging,
    log_other_staging,
    remove_staging,
    staging_for,
    update_staging_for,
)
