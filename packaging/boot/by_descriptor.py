"""On the system's bus: an answer through a pipe, and a session that goes into a file of the caller's and comes back from it."""

import json
import os

from gi.repository import Gio, GLib

NAME, PATH = "org.kadence.Kadence1", "/org/kadence/Kadence1"
bus = Gio.bus_get_sync(Gio.BusType.SYSTEM)


def call(path, interface, method, values, file=None):
    files = Gio.UnixFDList()
    if file is not None:
        files.append(file)
    return bus.call_with_unix_fd_list_sync(NAME, path, f"{NAME}.{interface}", method, values, None, 0, 120000, files, None)


session = call(PATH, "Manager", "CreateSession", GLib.Variant("(sa{sv})", ("", {})))[0].unpack()[0]
options = {"max_tokens": GLib.Variant("u", 6)}
reply, files = call(session, "Session", "Prompt", GLib.Variant("(sa{sv})", ("Hello.", options)))
with os.fdopen(files.get(reply.unpack()[1])) as stream:
    last = json.loads(stream.readlines()[-1])
assert last["saved"] and not last["error"], last
file = os.open(os.path.expanduser("~/kept.kadence"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
call(session, "Session", "Export", GLib.Variant("(ha{sv})", (0, {})), file)
assert os.fstat(file).st_size > 1000, "nothing was exported"
os.lseek(file, 0, os.SEEK_SET)
name = {"name": GLib.Variant("s", "imported")}
call(PATH, "Manager", "ImportSession", GLib.Variant("(ha{sv})", (0, name)), file)
