"""A session over D-Bus with dasbus, with an error of the service as an exception."""
import json
import os

from dasbus.connection import SystemMessageBus
from dasbus.error import DBusError, ErrorMapper, get_error_decorator
from dasbus.typing import get_variant
from dasbus.unix import GLibClientUnix

NAME = "org.kadence.Kadence1"
errors = ErrorMapper()


@get_error_decorator(errors)(NAME + ".Error.SessionNotFound")
class SessionNotFound(DBusError):
    pass


bus = SystemMessageBus(error_mapper=errors)
manager = bus.get_proxy(NAME, "/org/kadence/Kadence1")
assert manager.Version == 1
path = manager.CreateSession("", {"name": get_variant("s", "dasbus")})
session = bus.get_proxy(NAME, path, client=GLibClientUnix)
options = {"max_tokens": get_variant("u", 5), "ignore_eos": get_variant("b", True)}
request, stream = session.Prompt("Hello", options)
with os.fdopen(stream) as answer:
    lines = [json.loads(line) for line in answer]
assert lines[-1]["usage"]["completion_tokens"] == 5, lines
print("said something:", "".join(line.get("text", "") for line in lines))
try:
    manager.OpenSession("none", {})
except SessionNotFound as error:
    print(type(error).__name__, error)
