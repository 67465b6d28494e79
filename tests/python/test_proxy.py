# SPDX-License-Identifier: Apache-2.0
"""The proxy of examples/: what reaches the prefill and the decode server, and what the client
gets.  Needs aiohttp, which vLLM installs."""

import contextlib
import importlib.util
import io
import json
import os
import unittest

try:
    import aiohttp
    from aiohttp import web
except ImportError:
    aiohttp = None

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples",
                    "disaggregated-proxy.py")
ANSWER = {"do_remote_prefill": True, "do_remote_decode": False, "remote_num_tokens": 5}


@unittest.skipUnless(aiohttp, "aiohttp is not installed")
class Proxy(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        spec = importlib.util.spec_from_file_location("proxy", PATH)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.prefill_answer, self.prefilled, self.decoded = {"kv_transfer_params": ANSWER}, [], []
        self.prefill, prefill = await self.serve([("POST", "/v1/completions", self.on_prefill)])
        self.decode, decode = await self.serve([("*", "/{path:.*}", self.on_decode)])
        proxy = module.Proxy([prefill], [decode])
        _, self.url = await self.serve([("POST", "/v1/completions", proxy.generate),
                                        ("*", "/{path:.*}", proxy.forward)], proxy.run_session)

    async def serve(self, routes, context=None):
        """Return (runner of a server on loopback, URL)."""
        app = web.Application()
        for route in routes:
            app.router.add_route(*route)
        if context:
            app.cleanup_ctx.append(context)
        runner = web.AppRunner(app)
        await runner.setup()
        self.addAsyncCleanup(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, "http://127.0.0.1:%d" % runner.addresses[0][1]

    async def on_prefill(self, request):
        self.prefilled.append(await request.json())
        return web.json_response(self.prefill_answer)

    async def on_decode(self, request):
        self.decoded.append((request.method, request.path_qs, await request.read(),
                             request.headers.get("Authorization")))
        return web.Response(text="decoded", status=201)

    async def send(self, path, method="POST", **more):
        async with aiohttp.ClientSession() as session:
            async with session.request(method, self.url + path, **more) as answer:
                return answer.status, await answer.text()

    async def test_the_decode_server_gets_what_the_prefill_server_answers(self):
        body = {"prompt": "a", "stream": True, "stream_options": {}, "min_tokens": 4, "n": 2,
                "kv_transfer_params": {"lmcache.tag.t": "1"}}
        self.assertEqual(await self.send("/v1/completions", json=body), (201, "decoded"))
        first, = self.prefilled
        self.assertEqual((first["max_tokens"], first["n"], first["stream"]), (1, 1, False))
        self.assertFalse({"min_tokens", "stream_options"} & first.keys())
        self.assertEqual(first["kv_transfer_params"], {
            "lmcache.tag.t": "1", "do_remote_decode": True, "do_remote_prefill": False})
        self.assertEqual(json.loads(self.decoded[0][2]), {
            **body, "kv_transfer_params": {"lmcache.tag.t": "1", **ANSWER}})

    async def test_a_bad_body_reaches_the_decode_server_alone(self):
        for data in b"{bad", b"[1]", b'"text"', b"\xff":
            await self.send("/v1/completions", data=data)
            self.assertEqual(self.decoded[-1][2], data)
        self.assertEqual(self.prefilled, [])

    async def test_other_requests_keep_body_and_authorization(self):
        await self.send("/tokenize?a=1", data=b"body", headers={"Authorization": "Bearer t"})
        await self.send("/health", method="GET")
        self.assertEqual(self.decoded, [("POST", "/tokenize?a=1", b"body", "Bearer t"),
                                        ("GET", "/health", b"", None)])

    async def test_the_decode_server_answers_without_a_good_prefill_server(self):
        for answer in [1], {}, {"kv_transfer_params": "text"}:
            self.prefill_answer = answer
            await self.send("/v1/completions", data=b'{"prompt": "a"}')
        await self.prefill.cleanup()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            await self.send("/v1/completions", data=b'{"prompt": "a"}')
        self.assertIn("The prefill server failed", said.getvalue())
        self.assertEqual([body for _, _, body, _ in self.decoded], [b'{"prompt": "a"}'] * 4)

    async def test_a_decode_server_that_is_down_is_a_bad_gateway(self):
        await self.decode.cleanup()
        status, text = await self.send("/v1/completions", json={"prompt": "a"})
        self.assertEqual(status, 502)
        self.assertIn("The decode server failed", text)


if __name__ == "__main__":
    unittest.main()
