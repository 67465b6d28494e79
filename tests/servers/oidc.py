# SPDX-License-Identifier: Apache-2.0
"""An issuer of web identity tokens for STS: serves the key set and signs tokens.
RSA comes from the openssl program."""

import base64
import json
import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import lifetime

AUDIENCE = "sts.amazonaws.com"
KEY_ID = "1"


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, text=None):
    return subprocess.run(["openssl", *arguments], check=True, input=text,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


class Issuer:
    """An issuer that serves URL/keys until stop()."""

    def __init__(self, directory):
        self.key = os.path.join(directory, "issuer.pem")
        openssl("genrsa", "-out", self.key, "2048", text=b"")
        modulus = openssl("rsa", "-in", self.key, "-noout", "-modulus", text=b"")
        modulus = bytes.fromhex(modulus.decode().strip().partition("=")[2])
        keys = json.dumps({"keys": [{
            "kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID,
            "n": base64url(modulus), "e": base64url(b"\1\0\1")}]}).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/keys" else 404)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(keys)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer((lifetime.LOOPBACK, 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{lifetime.LOOPBACK}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, seconds=3600):
        """Return a token that is valid for `seconds` from now; below 0: already expired."""
        now = int(time.time())
        parts = [{"alg": "RS256", "typ": "JWT", "kid": KEY_ID},
                 {"iss": self.url, "aud": AUDIENCE, "sub": "kvtier",
                  "iat": now - 7200, "exp": now + seconds}]
        text = ".".join(base64url(json.dumps(part).encode()) for part in parts)
        mac = openssl("dgst", "-sha256", "-sign", self.key, text=text.encode())
        return f"{text}.{base64url(mac)}"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
