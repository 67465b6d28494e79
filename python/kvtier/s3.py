# SPDX-License-Identifier: Apache-2.0
"""Objects of any kind in a bucket: names to bytes.  docs/python.md.

Any thread and any event loop may call; one connector serves all of them at once.
"""

import errno
import os

from ._lib import OP_DELETE, OP_GET, OP_NAME, OP_PUT, OP_STAT, Config
from ._store import Owner, Request, Store

SCHEME = "s3://"
MIN_ROOM = 1 << 20   # bytes of the buffer for an object of unknown length
MAX_ROOM = 64 << 20


def environment_without_settings():
    """Return all variables except the settings of inference engines."""
    return ["%s=%s" % (name, value) for name, value in os.environ.items()
            if not name.startswith(("KVTIER_", "LMCACHE_", "PYTHONHASHSEED"))]


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def object_name(key):
    name = key.encode()
    if b"\0" in name:
        raise ValueError("kvtier: a NUL character in the key %r." % key)
    return name


def _now(coroutine):
    """Run a coroutine that never yields, and return the coroutine's result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class S3Connector(Owner):
    """A bucket, or the objects below a prefix of a bucket.

    region, endpoint_url: used instead of AWS_REGION and AWS_ENDPOINT_URL.  Credentials come
    from the environment or from the other sources of AWS's programs.  config: other
    settings of docs/configuration.md by name, {"s3_sse": "AES256"}.

    A key is the name of an object: any text, but no part between slashes may be empty, "."
    or "..".  The async_ methods do the same for event loops.  Cancelling an async_ method
    ends the wait; the request may still take effect.

    ValueError: an argument or setting is wrong; OSError: every other failure, with errno.
    """

    def __init__(self, bucket, prefix="", region=None, endpoint_url=None, config=None):
        if not bucket or set(bucket) & set("/:"):
            raise ValueError("kvtier: bucket: %r is not the name of a bucket; "
                             "S3Adapter takes URLs." % (bucket,))
        settings = {"s3_file_prefix": prefix or None, "s3_region": region,
                    "s3_endpoint_url": endpoint_url}
        if "." in bucket:  # with path style a name with dots is a bucket, not a host
            settings["s3_addressing"] = "path"
        settings.update(config or {})
        self._open(SCHEME + bucket, settings)

    def _open(self, url, settings):
        config = Config(
            settings=["remote_url=" + url] + [
                "%s=%s" % (name, _text(value))
                for name, value in settings.items() if value is not None],
            environment=environment_without_settings())
        try:
            self._store = Store(config)
        finally:
            config.close()
        self._room = MIN_ROOM

    def put(self, key, data):
        """Store data, any bytes; replace an existing object."""
        _now(self._put(self._block, key, data))

    def get(self, key):
        """Return the object's bytes; None if there is no object of this name."""
        return _now(self._get(self._block, key))

    def delete(self, key):
        """Delete the object; return False if there was no object of this name."""
        return _now(self._ask(self._block, OP_DELETE, key))

    def exists(self, key):
        return _now(self._ask(self._block, OP_STAT, key))

    async def async_put(self, key, data):
        await self._put(self._store.run_async, key, data)

    async def async_get(self, key):
        return await self._get(self._store.run_async, key)

    async def async_delete(self, key):
        return await self._ask(self._store.run_async, OP_DELETE, key)

    async def async_exists(self, key):
        return await self._ask(self._store.run_async, OP_STAT, key)

    # The methods below wait with run(request): _block() or Store.run_async().

    async def _block(self, request):
        self._store.run([request])

    async def _put(self, run, key, data):
        if not isinstance(data, bytes):
            data = memoryview(data).tobytes()
        request = Request(OP_PUT, object_name(key), data, OP_NAME)
        await run(request)
        request.found(missing=())

    async def _get(self, run, key):
        name, room = object_name(key), self._room
        while True:
            request = Request(OP_GET, name, bytearray(room), OP_NAME)
            await run(request)
            if request.op.status != -errno.EMSGSIZE:
                break
            room = request.op.found_bytes
        if not request.found():
            return None
        n = request.op.found_bytes
        self._room = min(max(MIN_ROOM, n), MAX_ROOM)  # guess: the next object is as long
        return bytes(memoryview(request.buffer)[:n])

    async def _ask(self, run, kind, key):
        request = Request(kind, object_name(key), flags=OP_NAME)
        await run(request)
        return request.found()


class S3Adapter:
    """Create connectors from URLs, as LMCache's adapters do: s3://BUCKET/PREFIX, and every
    other form of docs/s3.md."""

    schema = SCHEME

    def can_parse(self, url):
        return url.startswith(SCHEME)

    def create_connector(self, context, config=None):
        """Return an S3Connector.  context: the URL, or an object with the URL as `url`.
        config: settings, as for S3Connector."""
        url = getattr(context, "url", context)
        if not self.can_parse(url):
            raise ValueError("kvtier: %r is not an s3:// URL." % (url,))
        connector = S3Connector.__new__(S3Connector)
        connector._open(url, config or {})
        return connector
