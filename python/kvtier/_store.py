# SPDX-License-Identifier: Apache-2.0
"""struct kvt_store for Python: any thread and any event loop may submit requests.

Each store has one thread, which polls for completions and calls the requests' callbacks.
The store references each request, and so the request's buffer, until the library has
completed the request, even if no caller waits any more.
"""

import asyncio
import ctypes
import errno
import functools
import os
import queue
import select
import threading

from ._lib import Op, _check, error, lib

AT_A_TIME = 64


class Request:
    """One operation.

    buffer: the bytes of a PUT, or the writable buffer of a GET, at least one byte long.
    """

    def __init__(self, kind, key, buffer=None, flags=0):
        self.op = Op(kind=kind, key=key, flags=flags)
        self.buffer = buffer
        self.then = None  # callback, on the store's thread, without arguments
        if isinstance(buffer, bytes):
            self.op.buf = ctypes.cast(buffer, ctypes.c_void_p)
            self.op.bytes = len(buffer)
        elif buffer is not None:
            self._pin = ctypes.c_char.from_buffer(buffer)
            self.op.buf = ctypes.addressof(self._pin)
            self.op.bytes = len(buffer)

    def found(self, missing=(errno.ENOENT,)):
        """Return True on success, False if the status is in `missing`; raise every other
        status as the matching exception."""
        if self.op.status == 0:
            return True
        if -self.op.status in missing:
            return False
        raise error(self.op.status, self.op.why)


class Store:
    def __init__(self, config):
        self._handle = ctypes.c_void_p()
        _check(lib().kvt_store_open(config.handle, ctypes.byref(self._handle)))
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._under_way = {}  # address of the Op -> Request
        stop, wake = os.pipe()
        self._wake = [wake]  # empty after stop(): submit() raises
        self._thread = threading.Thread(target=self._hand_out, args=(stop, wake),
                                        name="kvtier-store", daemon=True)
        self._thread.start()

    def submit(self, requests):
        if os.getpid() != self._pid:
            raise OSError(errno.ESTALE, "kvtier: this was opened by process %d, before "
                          "a fork; open one in this process." % self._pid)
        ops = (ctypes.POINTER(Op) * len(requests))(
            *(ctypes.pointer(request.op) for request in requests))
        mine = {ctypes.addressof(request.op): request for request in requests}
        with self._lock:
            if not self._wake:
                raise OSError(errno.ECANCELED, "kvtier: this was closed.")
            self._under_way.update(mine)
            rc = lib().kvt_store_submit(self._handle, ops, len(ops))
            if rc:
                for address in mine:
                    del self._under_way[address]
        _check(rc)

    def run(self, requests):
        """Submit the requests and block this thread until all of them are done."""
        done = queue.SimpleQueue()
        for request in requests:
            request.then = functools.partial(done.put, None)
        self.submit(requests)
        for _ in requests:
            done.get()

    async def run_async(self, request):
        """Submit the request and wait in the running event loop.  Cancellation ends the
        wait only; the request continues."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        request.then = functools.partial(_tell, loop, future)
        self.submit([request])
        await future

    def stop(self):
        """Close the store when all requests in flight are done; return at once."""
        if os.getpid() != self._pid:
            return
        try:
            wake = self._wake.pop()
        except IndexError:
            return
        os.write(wake, b".")

    def close(self):
        """Close the store and wait for the requests in flight."""
        self.stop()
        if os.getpid() == self._pid:
            self._thread.join()

    def _hand_out(self, stop, wake):
        done = (ctypes.POINTER(Op) * AT_A_TIME)()
        answers = select.poll()
        answers.register(lib().kvt_store_eventfd(self._handle), select.POLLIN)
        answers.register(stop, select.POLLIN)
        stopping = over = False
        while not over:
            if any(fd == stop for fd, _ in answers.poll()):
                stopping = True
                answers.unregister(stop)
            n = lib().kvt_store_poll(self._handle, done, AT_A_TIME)
            for op in done[:n]:
                self._under_way.pop(ctypes.addressof(op.contents)).then()
            with self._lock:
                over = stopping and not self._under_way
        lib().kvt_store_close(self._handle)
        os.close(stop)
        os.close(wake)


class Owner:
    """A context manager with a Store in self._store, which close() and __del__ end."""

    def close(self):
        """Wait for the requests in flight; later requests raise OSError."""
        self._store.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        store = getattr(self, "_store", None)
        if store:
            store.stop()


def _tell(loop, future):
    try:
        loop.call_soon_threadsafe(_settle, future)
    except RuntimeError:
        pass  # the loop is closed: no coroutine waits


def _settle(future):
    if not future.done():
        future.set_result(None)
