"""A session over D-Bus with PyGObject, as a desktop program would hold it."""
import json
import os

from gi.repository import Gio, GLib

NAME, ROOT = "org.kadence.Kadence1", "/org/kadence/Kadence1"
bus = Gio.bus_get_sync(Gio.BusType.SYSTEM, None)


def call(path, interface, method, arguments, reply):
    result, files = bus.call_with_unix_fd_list_sync(
        NAME, path, f"{NAME}.{interface}", method, arguments, GLib.VariantType(reply), 0, -1, None, None)
    return result.unpack(), files


(session,), _ = call(ROOT, "Manager", "CreateSession", GLib.Variant("(sa{sv})", ("", {"name": GLib.Variant("s", "gi")})), "(o)")
options = {"max_tokens": GLib.Variant("u", 5), "ignore_eos": GLib.Variant("b", True)}
(request, handle), files = call(session, "Session", "Prompt", GLib.Variant("(sa{sv})", ("Hello", options)), "(uh)")
with os.fdopen(files.get(handle)) as stream:
    lines = [json.loads(line) for line in stream]
assert "begin" in lines[0] and lines[-1]["usage"]["completion_tokens"] == 5, lines
print("said something:", "".join(line.get("text", "") for line in lines))
try:
    call(ROOT, "Manager", "OpenSession", GLib.Variant("(sa{sv})", ("none", {})), "(o)")
except GLib.Error as error:
    print(Gio.DBusError.get_remote_error(error))
