"""Objects by their address: look, list, read a range, write on a condition.

Credentials, region and endpoint come from the environment (AWS_… for s3://, GOOGLE_… for gs://), as LanceDB reads them.
Every failure is an OSError whose words say what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from errno import EEXIST, EINVAL, EIO, ENOENT
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from allocembed.errors import ConfigError, MissingDependency

SCHEMES = ("s3", "gs")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
REQUEST_TIMEOUT = timedelta(seconds=30)  # for one request and its repetitions
RETRIES = 4
OBJECTS_PER_PAGE = 1000  # objects in one page of a list
BAD_KEY = "its key has an empty, . or .. segment, or a control character; rename the object"
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS to the file of an account",
}


class StorageFailure(OSError):  # noqa: N818 (named for what happened)
    """A request to object storage failed; `strerror` has the cause and the remedy."""


class BadKey(StorageFailure):
    """A key that clients of object storage do not accept."""

    def __init__(self) -> None:
        super().__init__(EINVAL, BAD_KEY)


class ConditionFailed(OSError):  # noqa: N818 (named for what happened)
    """An object exists, or has changed, against the condition of a request."""


@dataclass(frozen=True)
class ObjectInfo:
    """Facts that object storage gives about an object."""

    address: str
    size: int
    changed: int
    """Time of the last change in nanoseconds."""
    tag: str
    """The ETag: it changes whenever the object is written."""


class Version(NamedTuple):
    """The identity of one state of an object: its ETag, and a version where the service has them."""

    tag: str
    number: str | None = None


def is_remote(place: str | Path) -> bool:
    """Whether a place is an address and not a path.

    >>> is_remote("s3://bucket/a.mp4"), is_remote("a.mp4"), is_remote(Path("a:/b"))
    (True, False, False)
    """
    return isinstance(place, str) and "://" in place


def is_below(address: str, place: str) -> bool:
    """Whether an address is a place, or lies below it.

    >>> is_below("s3://b/x/a.mp4", "s3://b/x"), is_below("s3://b/xy/a.mp4", "s3://b/x")
    (True, False)
    """
    return address == place or address.startswith(f"{place.rstrip('/')}/")


def split(address: str) -> tuple[str, str, str]:
    """Scheme, bucket and key of an address. Raise ConfigError if it is of another kind.

    >>> split("s3://bucket/videos/a b.mp4"), split("gs://bucket")
    (('s3', 'bucket', 'videos/a b.mp4'), ('gs', 'bucket', ''))
    """
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES or not bucket:
        raise ConfigError(f"cannot use the address {address}: give a path, s3://BUCKET/KEY or gs://BUCKET/KEY")
    return scheme, bucket, key.strip("/")


def environment_options(address: str) -> dict[str, str]:
    """Settings that LanceDB does not take from the environment by itself.

    A plain http:// endpoint is one that somebody has named on purpose, as of a server of their own.
    """
    scheme = split(address)[0]
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "") if scheme == "s3" else ""
    if not endpoint:
        return {}
    return {"aws_endpoint": endpoint} | ({"allow_http": "true"} if endpoint.startswith("http://") else {})


def look(address: str) -> ObjectInfo:
    """Ask about one object. Raise FileNotFoundError if there is none."""
    store, key = _open(address)
    with failures(address):
        return _info(address, _obstore().head(store, key))


def list_objects(address: str, refused: dict[str, str] | None = None) -> Iterator[ObjectInfo]:
    """All objects below an address. Those that cannot be read because of their key are added to `refused`."""
    store, key = _open(address)
    scheme, bucket, _ = split(address)
    last = ""
    try:
        with failures(address):
            for page in _obstore().list(store, key or None, chunk_size=OBJECTS_PER_PAGE):
                for each in page:
                    last = each["path"]
                    yield _info(f"{scheme}://{bucket}/{last}", each)
    except BadKey:
        yield from _list_one_by_one(address, last, {} if refused is None else refused)


def _list_one_by_one(address: str, last: str, refused: dict[str, str]) -> Iterator[ObjectInfo]:
    """The objects after the key `last`. One key that obstore does not accept makes it refuse a whole page."""
    scheme, bucket, key = split(address)
    for name in sorted(_all_keys(scheme, bucket, key)):
        place = f"{scheme}://{bucket}/{name}"
        if name <= last:
            continue
        try:
            with suppress(FileNotFoundError):
                yield look(place)
        except BadKey:
            refused[place] = BAD_KEY


def _all_keys(scheme: str, bucket: str, key: str) -> list[str]:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise MissingDependency("listing objects with unusual keys", "pyarrow", "cloud") from error
    if scheme == "gs":
        system: Any = fs.GcsFileSystem()
    else:
        endpoint = environment_options(f"s3://{bucket}").get("aws_endpoint", "")
        kind, _, host = endpoint.partition("://")
        named: Any = {"endpoint_override": host, "scheme": kind} if endpoint else {}
        system = fs.S3FileSystem(anonymous=os.environ.get("AWS_SKIP_SIGNATURE") == "true", **named)
    found = system.get_file_info(fs.FileSelector(f"{bucket}/{key}".rstrip("/"), recursive=True))
    return [each.path.removeprefix(f"{bucket}/") for each in found if each.type == fs.FileType.File]


def has_objects(address: str) -> bool:
    """Whether there is any object below an address."""
    return next(list_objects(address), None) is not None


def read(address: str) -> tuple[bytes, Version]:
    """The content of a small object, and its version. Raise FileNotFoundError if there is none."""
    store, key = _open(address)
    with failures(address):
        found = _obstore().get(store, key)
        return bytes(found.bytes()), _version(found.meta)


def read_range(address: str, start: int, end: int, tag: str = "") -> bytes:
    """Bytes start <= position < end. Raise ConditionFailed if the object has another tag by now."""
    store, key = _open(address)
    options: Any = {"range": (start, end)} | ({"if_match": tag} if tag else {})
    with failures(address):
        return bytes(_obstore().get(store, key, options=options).bytes())


def write(address: str, content: bytes) -> None:
    """Write an object, also over an old one."""
    store, key = _open(address)
    with failures(address):
        _obstore().put(store, key, content)


def create(address: str, content: bytes) -> Version:
    """Write a new object. Raise ConditionFailed if there is one."""
    return _put(address, content, "create")


def replace(address: str, content: bytes, version: Version) -> Version:
    """Write over this version of an object. Raise ConditionFailed if it is another one by now."""
    number = {} if version.number is None else {"version": version.number}
    return _put(address, content, {"e_tag": version.tag, **number})


def delete(address: str) -> None:
    """Remove an object, if there is one."""
    store, key = _open(address)
    with failures(address):
        _obstore().delete(store, key)


def _put(address: str, content: bytes, mode: Any) -> Version:
    store, key = _open(address)
    with failures(address):
        return _version(_obstore().put(store, key, content, mode=mode))


def _version(meta: Any) -> Version:
    return Version(meta["e_tag"] or "", meta.get("version"))


def _info(address: str, meta: Any) -> ObjectInfo:
    changed = int(meta["last_modified"].timestamp()) * 1_000_000_000  # some servers give fractions only in lists
    return ObjectInfo(address, meta["size"], changed, meta["e_tag"] or "")


def _obstore() -> Any:
    try:
        import obstore
    except ImportError as error:
        raise MissingDependency("object storage", "obstore", "cloud") from error
    return obstore


def _open(address: str) -> tuple[Any, str]:
    scheme, bucket, key = split(address)
    return _bucket(scheme, bucket, tuple(sorted(environment_options(address).items())), os.getpid()), key


@lru_cache(maxsize=64)
def _bucket(scheme: str, bucket: str, options: tuple[tuple[str, str], ...], _process: int) -> Any:
    """A client of one bucket, shared by all threads of a process."""
    _obstore()
    from obstore.store import GCSStore, S3Store

    retries: Any = {"max_retries": RETRIES, "retry_timeout": REQUEST_TIMEOUT}
    client: Any = {"timeout": REQUEST_TIMEOUT, "connect_timeout": timedelta(seconds=5)}
    given = dict(options)
    if given.pop("allow_http", ""):
        client["allow_http"] = True
    named: Any = {"endpoint": given["aws_endpoint"]} if given else {}
    with failures(f"{scheme}://{bucket}"):
        if scheme == "gs":
            return GCSStore(bucket, client_options=client, retry_config=retries)
        return S3Store(bucket, client_options=client, retry_config=retries, **named)


@contextmanager
def failures(address: str) -> Iterator[None]:
    """Turn errors of a client of object storage into OSErrors with one sentence."""
    try:
        yield
    except (OSError, MissingDependency, ConfigError) as error:
        if isinstance(error, FileNotFoundError) and not isinstance(error, StorageFailure) and not error.errno:
            if "NoSuchBucket" in str(error):
                raise StorageFailure(EIO, explain(address, str(error))) from error
            raise FileNotFoundError(ENOENT, "no such object or bucket; check the address") from error
        raise
    except Exception as error:
        if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
            raise ConditionFailed(EEXIST, "it exists, or was changed meanwhile") from error
        if type(error).__name__ == "InvalidPathError" or "Could not parse path" in str(error):
            raise BadKey from error
        if type(error).__module__.partition(".")[0] != "obstore":
            raise
        raise StorageFailure(EIO, explain(address, str(error))) from error


def explain(address: str, message: str) -> str:
    """Explain a message of an object-storage client, and say what to do.

    >>> explain("s3://bucket/x", "… <Code>NoSuchBucket</Code> …")
    'there is no bucket bucket; make it, or check the address and AWS_ENDPOINT_URL'
    >>> explain("gs://bucket/x", "Error performing PUT http://169.254.169.254/latest/api/token")
    'there are no credentials; set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS to the file of an account'
    """
    scheme, bucket, _ = split(address)
    text = " ".join(message.partition("Debug source")[0].split())
    endpoint = environment_options(address).get("aws_endpoint", "")
    if "NoSuchBucket" in text:
        return f"there is no bucket {bucket}; make it, or check the address and AWS_ENDPOINT_URL"
    if any(sign in text for sign in ("169.254.169.254", "metadata.google", "credential")):
        return f"there are no credentials; {CREDENTIALS[scheme]}"
    if any(sign in text for sign in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken")):
        return f"the credentials are refused; {CREDENTIALS[scheme]}"
    if any(sign in text for sign in ("AccessDenied", "403 Forbidden", "401 Unauthorized")):
        return f"access is denied; check the rights of these credentials on the bucket {bucket}"
    if any(sign in text for sign in ("error sending request", "dns error", "timed out", "connect")):
        return f"{endpoint or 'its server'} cannot be reached; check the network and AWS_ENDPOINT_URL"
    return f"the request failed ({text[:200]}); try again, or check the address"
