"""What a process of a sandbox holds survives: snapshot and go on, roll back, fork."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]

HOLDINGS: dict[str, str] = {
    "deleted files": """
content = os.urandom(3_000_000)  # more than CRIU keeps by default
with open("gone", "wb") as file:
    file.write(content)
held = open("gone", "r+b")
os.unlink("gone")
os.mkdir("gone-directory"); os.chdir("gone-directory")
home = os.open("..", os.O_RDONLY | os.O_DIRECTORY)
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
os.fchdir(home); os.rmdir("gone-directory")
open("linked", "w").write("linked"); os.link("linked", "other")
linked = open("linked"); os.unlink("linked")
lower = open("hello.txt"); os.unlink("hello.txt")
def check():
    held.seek(0); linked.seek(0); lower.seek(0)
    same = held.read() == content and linked.read() == "linked" and lower.read().startswith("hello")
    gone = os.fstat(held.fileno()).st_nlink == 0 and os.fstat(directory).st_nlink == 0
    return "ok" if same and gone else (same, gone)
""",
    "inotify": """
libc = ctypes.CDLL(None)
watched = os.path.abspath("watched")
os.mkdir(watched)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, watched.encode(), 0x100) > 0
single = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(single, b"hello.txt", 0x2) > 0
n = 0
def check():
    global n
    n += 1
    open(f"{watched}/file{n}", "w").close()
    with open("hello.txt", "a") as file:
        file.write("x")
    ready = select.select([watch], [], [], 5)[0] and select.select([single], [], [], 5)[0]
    assert ready, "no event"
    return "ok" if f"file{n}".encode() in os.read(watch, 4096) and os.read(single, 4096) else "another event"
""",
    "stopped process": """
pid = os.fork()
if pid == 0:
    while True:
        time.sleep(0.001)
os.kill(pid, signal.SIGSTOP)
os.waitpid(pid, os.WUNTRACED)
def check():
    state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.05)
    resumed = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    return "ok" if (state, resumed in "SR") == ("T", True) else (state, resumed)
""",
    "50 threads": """
counts = [0] * 50
def work(i):
    while True:
        counts[i] += 1
        time.sleep(0.01)
for i in range(50):
    threading.Thread(target=work, args=(i,), daemon=True).start()
time.sleep(0.1)
def check():
    before = list(counts)
    time.sleep(0.3)
    return "ok" if all(now > then > 0 for now, then in zip(counts, before)) else "a thread stands still"
""",
    "shared memory": """
from multiprocessing import shared_memory
shared = mmap.mmap(-1, 4096)
named = shared_memory.SharedMemory(create=True, size=4096)
with open("mapped", "wb") as file:
    file.write(bytes(4096))
mapped = mmap.mmap(os.open("mapped", os.O_RDWR), 4096)
def increment(text):
    for memory in (shared, named.buf, mapped):
        memory[0] = (memory[0] + 1) % 256
    return b"done"
pid, ask = child(increment)
n = 0
def check():
    global n
    n += 1
    ask(b"more")
    found = (shared[0], named.buf[0], mapped[0], open("mapped", "rb").read(1)[0])
    return "ok" if set(found) == {n % 256} else found
""",
    "memfd": """
sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.write(sealed, b"content")
fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
def check():
    seals = fcntl.fcntl(sealed, fcntl.F_GET_SEALS)
    content = os.pread(sealed, 100, 0)
    return "ok" if (content, seals) == (b"content", fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK) else (content, seals)
""",
    "timers": """
alarms = 0
def alarm(number, frame):
    global alarms
    alarms += 1
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(1, os.O_NONBLOCK)
libc.timerfd_settime(timer, 0, struct.pack("4q", 0, 50_000_000, 0, 50_000_000), None)
once = libc.timerfd_create(1, os.O_NONBLOCK)
libc.timerfd_settime(once, 0, struct.pack("4q", 0, 0, 3600, 0), None)
def check():
    before = alarms
    assert select.select([timer], [], [], 5)[0], "the interval timer does not fire"
    os.read(timer, 8)
    time.sleep(0.3)
    left = ctypes.create_string_buffer(32)
    libc.timerfd_gettime(once, left)
    remaining = struct.unpack("4q", left.raw)[2]
    ticks = struct.unpack("Q", os.read(timer, 8))[0]
    good = alarms > before and ticks >= 2 and 3000 < remaining <= 3600
    return "ok" if good else (alarms - before, ticks, remaining)
""",
    "signals": """
caught = []
signal.signal(signal.SIGUSR2, lambda number, frame: caught.append(number))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
os.kill(os.getpid(), signal.SIGUSR1)
def check():
    pending = signal.sigpending() == {signal.SIGUSR1}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, set()) == {signal.SIGUSR1, signal.SIGUSR2}
    os.kill(os.getpid(), signal.SIGUSR2)
    held = not caught
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    delivered = caught == [signal.SIGUSR2]
    caught.clear()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    return "ok" if pending and masked and held and delivered else (pending, masked, held, delivered)
""",
    "another user": """
def who(text):
    return f"{os.getuid()} {os.getgid()}".encode()
def drop():
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
dropped = []
def work(text):
    if not dropped:
        drop(); dropped.append(1)
    return who(text)
pid, ask = child(work)
ask(b"begin")
def check():
    answer = ask(b"who")
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
    return "ok" if answer == b"65534 65534" and status["Uid"].split()[0] == "65534" else answer
""",
    "environment": """
os.environ["ADDED"] = "later"
os.umask(0o027)
os.makedirs("deep/er")
os.chdir("deep/er")
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(5)
os.setpriority(os.PRIO_PROCESS, 0, 7)
where = os.getcwd()
os.chdir("../..")
libc = ctypes.CDLL(None)
libc.prctl(15, b"renamed")
def check():
    mask = os.umask(0o027)
    name = open("/proc/self/comm").read().strip()
    found = (os.environ["ADDED"], mask, os.getpriority(os.PRIO_PROCESS, 0), name, resource.getrlimit(4))
    return "ok" if found == ("later", 0o027, 7, "renamed", (0, 0)) and os.path.isdir(where) else found
""",
}


@pytest.mark.parametrize("name", HOLDINGS)
def test_survives(survives: Callable[[str], None], name: str) -> None:
    survives(HOLDINGS[name])
