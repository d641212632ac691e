"""The pipeline's errors for those of an object store and of its client, without a server."""

import datetime as dt
import io

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, IncompleteReadError, ReadTimeoutError, SSLError
from botocore.response import StreamingBody
from botocore.stub import Stubber

from include.archive import bucket as client
from include.archive.bucket import StorageRefused, bucket_policy, client_of, translated
from include.archive.storage import StorageDenied, StorageUnavailable, open_storage
from include.contracts.errors import ConfigurationError
from include.runtime.settings import S3Connection

LOCATION = "s3://bucket/archive"
AWS = S3Connection(region="eu-west-1")


@pytest.mark.parametrize(
    ("code", "status", "error", "says"),
    [
        ("AuthorizationHeaderMalformed", 400, ConfigurationError, "ARCHIVE_S3_REGION: not the region of the bucket"),
        (
            "PermanentRedirect",
            301,
            ConfigurationError,
            "ARCHIVE_S3_REGION: not the region of the bucket, or ARCHIVE_S3_E",
        ),
        ("NoSuchBucket", 404, ConfigurationError, f"ARCHIVE_DIR={LOCATION}: the bucket does not exist; create it"),
        ("ExpiredToken", 400, ConfigurationError, "ARCHIVE_S3_ACCESS_KEY_ID: the login has expired"),
        ("AccessDenied", 403, StorageDenied, "pipeline archive rights"),
        ("403", 403, StorageDenied, "operation=PutObject"),
        ("SlowDown", 503, StorageUnavailable, "code=SlowDown"),
        ("InternalError", 500, StorageUnavailable, "AWS, region eu-west-1"),
        ("ConditionalRequestConflict", 409, StorageUnavailable, ""),
        ("RequestTimeout", 400, StorageUnavailable, ""),
        ("TooManyRequests", 429, StorageUnavailable, ""),
        ("InvalidObjectState", 400, StorageRefused, "code=InvalidObjectState"),
    ],
)
def test_an_answer_becomes_an_error_that_names_what_to_change(code, status, error, says):
    answer = {"Error": {"Code": code, "Message": "secret"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(error) as raised, translated(AWS, "PutObject", LOCATION):
        raise ClientError(answer, "PutObject")
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (ConnectTimeoutError(endpoint_url="http://store"), StorageUnavailable),
        (ReadTimeoutError(endpoint_url="http://store"), StorageUnavailable),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), StorageUnavailable),
        (SSLError(endpoint_url="http://store", error="x"), ConfigurationError),
    ],
)
def test_an_error_of_the_connection_is_tried_again_unless_the_certificate_is_wrong(found, error):
    with pytest.raises(error), translated(AWS, "PutObject", LOCATION):
        raise found


def test_a_server_that_is_down_is_tried_again(monkeypatch):
    monkeypatch.setattr(client, "TRIES", 1)
    client_of.cache_clear()
    storage = open_storage(LOCATION, S3Connection("http://127.0.0.1:1", "eu-west-1", "key", "secret"))
    for call in (lambda: storage.write("x", b"x"), lambda: list(storage.iter_objects()), lambda: storage.sizes(["x"])):
        with pytest.raises(StorageUnavailable, match=r"store=http://127\.0\.0\.1:1, .*EndpointConnectionError"):
            call()
    client_of.cache_clear()


def test_a_machine_without_a_login_is_named(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client_of.cache_clear()
    with pytest.raises(ConfigurationError, match="ARCHIVE_S3_ACCESS_KEY_ID is not set, and neither"):
        open_storage(LOCATION, S3Connection("http://127.0.0.1:1")).sizes(["x"])
    client_of.cache_clear()


def test_the_policy_ends_at_the_prefix_and_names_a_principal_only_if_one_is_given():
    policy = bucket_policy("s3://bucket/raw/board_detail")
    assert [statement["Resource"] for statement in policy["Statement"]] == [
        ["arn:aws:s3:::bucket"], ["arn:aws:s3:::bucket"], ["arn:aws:s3:::bucket/raw/board_detail/*"],
    ]  # fmt: skip
    assert not any("Principal" in statement for statement in policy["Statement"])
    with_principal = bucket_policy("s3://bucket/raw", "arn:aws:iam::1:role/batch")["Statement"]
    assert all(statement["Principal"] == {"AWS": ["arn:aws:iam::1:role/batch"]} for statement in with_principal)
    with pytest.raises(ConfigurationError, match=r"ARCHIVE_DIR=\.state/archive: a folder needs no policy"):
        bucket_policy(".state/archive")


@pytest.mark.parametrize(("listed", "error"), [(False, FileNotFoundError), (True, StorageDenied)])
def test_a_403_of_a_key_that_is_not_there_is_a_missing_file(listed, error):
    """AWS says 403 if the right to list ends at the prefix."""
    storage = open_storage(LOCATION, S3Connection(region="eu-west-1", access_key_id="a", secret_access_key="s"))
    with Stubber(storage._client) as stub:
        stub.add_client_error("get_object", "AccessDenied", http_status_code=403)
        stub.add_client_error("head_object", "403", http_status_code=403)
        contents = [{"Key": "archive/x", "Size": 1, "LastModified": dt.datetime.now(dt.UTC)}] if listed else []
        stub.add_response("list_objects_v2", {"Contents": contents, "IsTruncated": False})
        with pytest.raises(error):
            storage.open("x")


def test_a_store_that_ignores_ranges_is_refused():
    storage = open_storage(LOCATION, S3Connection(region="eu-west-1", access_key_id="a", secret_access_key="s"))
    with Stubber(storage._client) as stub:
        stub.add_response("get_object", {"Body": StreamingBody(io.BytesIO(b"whole"), 5)})
        with pytest.raises(StorageRefused, match="GetObject with a range"):
            storage.open("x")
