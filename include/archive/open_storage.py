"""Chooses the adapter of the archive's store by its location."""

from urllib.parse import unquote

from include.archive.storage import Storage
from include.runtime.s3_connection import FILE_SCHEME, S3_SCHEME, S3Connection


def open_storage(location: str, s3: S3Connection) -> Storage:
    """Return the store at a path, file:///path or s3://bucket/prefix. Connects to nothing."""
    if location.startswith(S3_SCHEME):
        from include.archive.bucket_storage import BucketStorage  # most archives are folders

        return BucketStorage(location, s3)
    from include.archive.folder_storage import FolderStorage

    is_uri = location.startswith(FILE_SCHEME)
    return FolderStorage(unquote(location.removeprefix(FILE_SCHEME)) if is_uri else location)
