"""What connects processes of a sandbox survives: snapshot and go on, roll back, fork."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

CONNECTIONS: dict[str, str] = {
    "pipes": """
counts = []
pid, ask = child(lambda text: text.upper())
full, write = os.pipe()
os.write(write, b"unread")
left = [b"unread"]
def check():
    os.write(write, b"+")
    left[0] += b"+"
    peek = os.read(full, 100)
    os.write(write, peek)
    return "ok" if ask(b"ping") == b"PING" and peek == left[0] else peek
""",
    "unix sockets": """
listener = socket.socket(socket.AF_UNIX); listener.bind("unix.sock"); listener.listen()
client = socket.socket(socket.AF_UNIX); client.connect("unix.sock"); server, _ = listener.accept()
one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.send(b"queued")
abstract = socket.socket(socket.AF_UNIX); abstract.bind(chr(0) + "planarian-abstract"); abstract.listen()
def check():
    client.send(b"ping"); assert server.recv(10) == b"ping"
    queued = two.recv(100); one.send(queued)
    again = socket.socket(socket.AF_UNIX); again.connect(chr(0) + "planarian-abstract"); other, _ = abstract.accept()
    again.close(); other.close()
    fresh = socket.socket(socket.AF_UNIX); fresh.connect("unix.sock"); other, _ = listener.accept()
    fresh.close(); other.close()
    return "ok" if queued == b"queued" else queued
""",
    "established tcp": """
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
pid = os.fork()
if pid == 0:
    connection, _ = listener.accept()
    n = 0
    while True:
        connection.recv(100)
        n += 1
        connection.send(str(n).encode())
client = socket.create_connection(("127.0.0.1", port))
name = client.getsockname()
asked = 0
def check():
    global asked
    asked += 1
    client.send(b"x")
    answer = int(client.recv(100))
    return "ok" if answer == asked and client.getsockname() == name else (answer, asked)
""",
    "http keep-alive": """
import http.client, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    n = 0
    def do_GET(self):
        Handler.n += 1
        body = str(Handler.n).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if os.fork() == 0:
    server.serve_forever()
client = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
asked = 0
def get():
    global asked
    asked += 1
    client.request("GET", "/")
    return int(client.getresponse().read()) == asked
get()
port = client.sock.getsockname()
def check():
    return "ok" if get() and client.sock.getsockname() == port else "reconnected or forgot"
""",
    "terminal": """
import pty
pid, master = pty.fork()
if pid == 0:
    os.execv("/bin/cat", ["cat"])
def check():
    os.write(master, b"echo me" + bytes([10]))
    seen = b""
    while seen.count(b"echo me") < 2:
        assert select.select([master], [], [], 5)[0], seen
        seen += os.read(master, 1000)
    return "ok"
""",
    "locks": """
held = open("flocked", "w"); fcntl.flock(held, fcntl.LOCK_EX)
ranged = open("ranged", "w"); fcntl.lockf(ranged, fcntl.LOCK_EX, 10)
def attempt(text):
    refused = []
    for name, lock in (("flocked", fcntl.flock), ("ranged", fcntl.lockf)):
        with open(name, "w") as file:
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                refused.append(name)
    return ",".join(refused).encode()
pid, ask = child(attempt)
def check():
    answer = ask(b"try")
    return "ok" if answer == b"flocked,ranged" else answer
""",
    "events and descriptors": """
event = os.eventfd(7, os.EFD_SEMAPHORE)
poller = select.epoll()
poller.register(event, select.EPOLLIN)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
six = socket.create_server(("::1", 0), family=socket.AF_INET6)
os.mkfifo("fifo"); fifo = os.open("fifo", os.O_RDWR | os.O_NONBLOCK)
os.write(fifo, b"in fifo")
handle = os.pidfd_open(os.getpid())
def check():
    events = poller.poll(5)
    os.eventfd_read(event); os.eventfd_write(event, 1)
    udp.sendto(b"x", udp.getsockname())
    received = udp.recv(10) == b"x"
    socket.create_connection(six.getsockname()[:2]).close(); six.accept()[0].close()
    queued = os.read(fifo, 100); os.write(fifo, queued)
    signal.pidfd_send_signal(handle, 0)
    return "ok" if events and received and queued == b"in fifo" else (events, received, queued)
""",
}


@pytest.mark.parametrize("name", CONNECTIONS)
def test_survives(survives: Callable[[str], None], name: str) -> None:
    survives(CONNECTIONS[name])
