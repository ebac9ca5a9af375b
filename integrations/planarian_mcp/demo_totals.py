"""The demo's live server: totals that it computed once and keeps in memory only. Stand-alone; copied into the project.

``totals.py serve`` answers on loopback until it is killed; ``load`` lets it read ``report.csv``, ``show`` and ``pid``
ask it.
"""

import csv
import decimal
import http.client
import http.server
import os
import sys
import time
import zlib

# One port for each directory, so that sandboxes that share the host's network don't meet.
PORT = 20000 + zlib.crc32(os.getcwd().encode()) % 10000


class Totals(http.server.BaseHTTPRequestHandler):
    known = "nothing loaded"

    def do_GET(self) -> None:
        if self.path == "/load":
            with open("report.csv", newline="") as report:
                rows = list(csv.DictReader(report))
            orders = sum(int(row["orders"]) for row in rows)
            spent = sum((decimal.Decimal(row["spent"]) for row in rows), decimal.Decimal())
            Totals.known = f"{len(rows)} customers, {orders} orders, {spent}"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid() if self.path == '/pid' else Totals.known}".encode())

    def log_message(self, *_: object) -> None:
        return


def ask(path: str) -> str:
    """The server's answer; a server that is just starting is waited for."""
    for _ in range(40):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except ConnectionRefusedError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise SystemExit("the server of totals is down")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        http.server.HTTPServer(("127.0.0.1", PORT), Totals).serve_forever()
    print(ask(f"/{sys.argv[1]}"))
