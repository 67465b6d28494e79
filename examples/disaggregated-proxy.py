#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Send the prompt of each request to a prefill server, then the request to a decode server.
Both are vLLMs with kvtier and the same storage: docs/disaggregation.md.

    disaggregated-proxy.py --port 8000 --prefill http://HOST:PORT --decode http://HOST:PORT

An example, without retries or authentication.  Several servers of a kind take turns.  Needs
aiohttp, which vLLM installs.
"""
import argparse
import itertools
import json
import sys

import aiohttp
from aiohttp import web

ASK = {"do_remote_decode": True, "do_remote_prefill": False}
FORWARDED = ("Content-Type", "Authorization")
NOT_FORWARDED = ("content-length", "transfer-encoding", "connection", "content-encoding")


def params_of(message):
    """Return the kv_transfer_params of a request or an answer, {} without any."""
    params = message.get("kv_transfer_params") if isinstance(message, dict) else None
    return params if isinstance(params, dict) else {}


def prefill_body(body):
    """Return the request for the prefill server: the same prompt, one token of an answer."""
    more = dict(body, stream=False, max_tokens=1, n=1,
                kv_transfer_params={**params_of(body), **ASK})
    more.pop("stream_options", None)
    more.pop("min_tokens", None)
    if "max_completion_tokens" in body:
        more["max_completion_tokens"] = 1
    return more


class Proxy:
    def __init__(self, prefill, decode):
        self.prefill = itertools.cycle(prefill)
        self.decode = itertools.cycle(decode)
        self.session = None

    async def run_session(self, _app):
        no_limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
                timeout=no_limit, connector=aiohttp.TCPConnector(limit=0)) as self.session:
            yield

    async def generate(self, request):
        data = await request.read()
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if not isinstance(body, dict):  # the decode server says what is wrong
            return await self.forward(request)
        params = await self.prefilled(request.path, body)
        if params:
            body["kv_transfer_params"] = {**params_of(body), **params}
            data = json.dumps(body).encode()
        return await self.forward(request, data)

    async def prefilled(self, path, body):
        """Return what the prefill server tells the decode server; {} after a failure: the
        decode server then computes the prompt."""
        try:
            async with self.session.post(next(self.prefill) + path,
                                         json=prefill_body(body)) as answer:
                return params_of(await answer.json())
        except (aiohttp.ClientError, ValueError) as e:
            print(f"The prefill server failed: {e!r}", file=sys.stderr)
            return {}

    async def forward(self, request, data=None):
        data = await request.read() if data is None else data
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        try:
            async with self.session.request(
                    request.method, next(self.decode) + request.path_qs, data=data,
                    headers=headers) as answer:
                return await copy(request, answer)
        except aiohttp.ClientConnectorError as e:
            return web.json_response({"error": f"The decode server failed: {e}"}, status=502)


async def copy(request, answer):
    """Send a server's answer to the client, piece by piece."""
    headers = {name: value for name, value in answer.headers.items()
               if name.lower() not in NOT_FORWARDED}
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL")
    args = parser.parse_args()
    proxy = Proxy(args.prefill, args.decode)
    app = web.Application(client_max_size=1 << 30)
    app.cleanup_ctx.append(proxy.run_session)
    app.router.add_post("/v1/completions", proxy.generate)
    app.router.add_post("/v1/chat/completions", proxy.generate)
    app.router.add_route("*", "/{path:.*}", proxy.forward)
    # A client that leaves ends its request in the servers.
    web.run_app(app, host=args.host, port=args.port, print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
