"""The least rights of the batch layer in the archive's bucket, as a policy of AWS's language."""

from typing import Any

from include.contracts.errors import ConfigurationError
from include.runtime.s3_connection import S3_SCHEME, bucket_and_prefix

# of the bucket; those that list are limited to the prefix
_OF_LISTS = ("s3:ListBucket", "s3:ListBucketVersions")
_OF_UPLOADS = ("s3:ListBucketMultipartUploads",)
_OF_OBJECTS = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:DeleteObjectVersion",  # of a forgotten person, in a bucket with versioning
    "s3:AbortMultipartUpload",
)


def bucket_policy(location: str, principal: str = "") -> dict[str, Any]:
    """Return the policy for the archive at s3://bucket/prefix.

    With a principal, such as an ARN, it is a bucket's policy, else one to attach to a user or role. Raises
    ConfigurationError if the archive is a folder.
    """
    if not location.startswith(S3_SCHEME):
        raise ConfigurationError(f"ARCHIVE_DIR={location}: a folder needs no policy; set it to s3://bucket/prefix")
    bucket, prefix = bucket_and_prefix(location)
    who = {"Principal": {"AWS": [principal]}} if principal else {}
    of_prefix = {"StringLike": {"s3:prefix": [f"{prefix}/*"]}}
    allow = {"Effect": "Allow", **who}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "List", **allow, "Action": [*_OF_LISTS], "Resource": [_arn(bucket)], "Condition": of_prefix},
            {"Sid": "Uploads", **allow, "Action": [*_OF_UPLOADS], "Resource": [_arn(bucket)]},
            {"Sid": "Objects", **allow, "Action": [*_OF_OBJECTS], "Resource": [_arn(f"{bucket}/{prefix}/*")]},
        ],
    }


def _arn(resource: str) -> str:
    return f"arn:aws:s3:::{resource}"
