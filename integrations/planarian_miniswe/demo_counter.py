"""The demo's live server: a counter that exists in memory only. Stand-alone; the demo copies it into its project.

``counter.py serve`` answers on loopback until it is killed; ``add [N]``, ``show`` and ``pid`` ask it.
"""

import http.client
import http.server
import os
import sys
import time
import zlib

# One port for each directory, so that forks that share the host's network don't meet.
PORT = 20000 + zlib.crc32(os.getcwd().encode()) % 10000


class Counter(http.server.BaseHTTPRequestHandler):
    value = 0

    def do_GET(self) -> None:
        verb, _, amount = self.path.strip("/").partition("/")
        if verb == "add":
            Counter.value += int(amount)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid() if verb == 'pid' else Counter.value}".encode())

    def log_message(self, *_: object) -> None:
        return


def ask(path: str) -> str:
    """The server's answer; a server that is just starting is waited for, one that isn't there is not."""
    for attempt in range(40):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except ConnectionRefusedError:
            if attempt == 39:
                raise SystemExit("the counter is down") from None
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError("not reached")


if __name__ == "__main__":
    verb, amount = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "1"
    if verb == "serve":
        http.server.HTTPServer(("127.0.0.1", PORT), Counter).serve_forever()
    print(ask(f"/add/{amount}" if verb == "add" else f"/{verb}"))
