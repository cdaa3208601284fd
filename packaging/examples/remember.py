#!/usr/bin/env python3
"""Says something in a conversation that is kept, and prints the answer: Python's own library is enough.

    remember.py "My cat is called Miso."
    remember.py "What is my cat called?"

SOCKET: where the daemon listens, if not where the system's does."""

import http.client
import json
import os
import socket
import sys


class Daemon(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("kadence")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


daemon = Daemon(os.environ.get("SOCKET", "/run/kadence/kadence.sock"))
message = {"role": "user", "content": sys.argv[1]}
daemon.request("POST", "/v1/chat/completions", json.dumps({"session": "remember", "messages": [message]}))
answer = json.load(daemon.getresponse())
if "error" in answer:
    sys.exit(answer["error"]["message"])
print(answer["choices"][0]["message"]["content"])
