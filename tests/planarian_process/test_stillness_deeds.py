"""The proof that nothing has moved since a capture by CRIU: nothing that a tool call does to a process that waits fools
it.
"""

from __future__ import annotations

import time

import pytest

from planarian_core.testing.process import Subject
from planarian_core.testing.stillness import StillnessTrial

pytestmark = [pytest.mark.needs("criu"), pytest.mark.needs("namespaces")]


@pytest.fixture
def trial(subject: Subject) -> StillnessTrial:
    return StillnessTrial(subject)


def doubt(trial: StillnessTrial) -> str:
    """Why there is no proof; empty when there is one."""
    return str(trial.artefact.details["stillness"].get("doubt", ""))


DEEDS = {
    "a request answered": (
        """
s = socket.socket()
s.bind(('127.0.0.1', 80))
s.listen()
ready()
while True: s.accept()
""",
        "s = socket.socket(); s.connect(('127.0.0.1', 80)); time.sleep(0.1); s.close()",
    ),
    "a connection that nobody accepts": (
        "s = socket.socket(); s.bind(('127.0.0.1', 80)); s.listen(); ready(); time.sleep(1000)",
        "s = socket.socket(); s.connect(('127.0.0.1', 80)); s.close()",
    ),
    "a connection to a path that nobody accepts": (
        "s = socket.socket(socket.AF_UNIX); s.bind('/tmp/s'); s.listen(); ready(); time.sleep(1000)",
        "s = socket.socket(socket.AF_UNIX); s.connect('/tmp/s'); s.close()",
    ),
    "a connection to a stopped server": (
        """
s = socket.socket()
s.bind(('127.0.0.1', 80))
s.listen()
ready()
os.kill(os.getpid(), signal.SIGSTOP)
s.accept()
""",
        "s = socket.socket(); s.connect(('127.0.0.1', 80)); s.close()",
    ),
    "a message": (
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('/tmp/s'); ready(); time.sleep(1000)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '/tmp/s')",
    ),
    "an empty message": (
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('/tmp/s'); ready(); time.sleep(1000)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'', '/tmp/s')",
    ),
    "an empty datagram": (
        "s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 80)); ready(); time.sleep(1000)",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 80)); time.sleep(0.1)",
    ),
    "data in a pipe": (
        "a, b = os.pipe(); ready(fd=b); time.sleep(1000)",
        "os.write(os.open(f'/proc/{pid}/fd/{facts[\"fd\"]}', os.O_WRONLY), b'x')",
    ),
    "data in a stopped reader's pipe": (
        "a, b = os.pipe(); ready(fd=b); os.kill(os.getpid(), signal.SIGSTOP); os.read(a, 1)",
        "os.write(os.open(f'/proc/{pid}/fd/{facts[\"fd\"]}', os.O_WRONLY), b'x')",
    ),
    "data in a pipe exchanged": (
        "a, b = os.pipe(); os.write(b, b'one'); ready(r=a, w=b); time.sleep(1000)",
        """
r = os.open(f'/proc/{pid}/fd/{facts["r"]}', os.O_RDONLY)
w = os.open(f'/proc/{pid}/fd/{facts["w"]}', os.O_WRONLY)
assert os.read(r, 9) == b'one'
os.write(w, b'two')
""",
    ),
    "a pipe made larger": (
        "a, b = os.pipe(); ready(fd=b); time.sleep(1000)",
        "fcntl.fcntl(os.open(f'/proc/{pid}/fd/{facts[\"fd\"]}', os.O_WRONLY), 1031, 1 << 18)",
    ),
    "data in a FIFO": (
        "os.mkfifo('/tmp/f'); f = os.open('/tmp/f', os.O_RDWR); ready(); time.sleep(1000)",
        "os.write(os.open('/tmp/f', os.O_WRONLY), b'x')",
    ),
    "a writer that came and went": (
        "os.mkfifo('/tmp/f'); f = os.open('/tmp/f', os.O_RDONLY | os.O_NONBLOCK); ready(); time.sleep(1000)",
        "os.close(os.open('/tmp/f', os.O_WRONLY))",
    ),
    "a file that is watched": (
        """
libc = ctypes.CDLL(None)
i = libc.inotify_init()
libc.inotify_add_watch(i, b'/tmp', 0xFFF)
ready()
time.sleep(1000)
""",
        "os.close(os.open('/tmp/new', os.O_CREAT | os.O_WRONLY))",
    ),
    "a watched directory renamed": (
        """
libc = ctypes.CDLL(None)
os.mkdir('/tmp/d')
i = libc.inotify_init()
libc.inotify_add_watch(i, b'/tmp/d', 0x100)
ready()
time.sleep(1000)
""",
        "os.rename('/tmp/d', '/tmp/e')",
    ),
    "a directory above a watched file renamed": (
        """
libc = ctypes.CDLL(None)
os.makedirs('d/in')
os.close(os.open('d/in/f', os.O_CREAT | os.O_WRONLY))
i = libc.inotify_init()
libc.inotify_add_watch(i, b'd/in/f', 2)
ready()
time.sleep(1000)
""",
        "os.rename('d', 'e'); os.mkdir('d')",
    ),
    "a signal that is held back": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); ready(); time.sleep(1000)",
        "os.kill(pid, signal.SIGUSR1)",
    ),
    "a signal for a stopped process": ("ready(); os.kill(os.getpid(), signal.SIGSTOP)", "os.kill(pid, signal.SIGTERM)"),
    "a signal that is handled": (
        """
signal.signal(signal.SIGUSR1, lambda *_: None)
ready()
while True: signal.pause()
""",
        "os.kill(pid, signal.SIGUSR1); time.sleep(0.1)",
    ),
    "stopped": ("ready(); time.sleep(1000)", "os.kill(pid, signal.SIGSTOP); time.sleep(0.1)"),
    "stopped and continued": (
        "ready(); time.sleep(1000)",
        "os.kill(pid, signal.SIGSTOP); time.sleep(0.1); os.kill(pid, signal.SIGCONT); time.sleep(0.1)",
    ),
    "continued and stopped": (
        """
ready()
os.kill(os.getpid(), signal.SIGSTOP)
while True: time.sleep(1000)
""",
        "os.kill(pid, signal.SIGCONT); time.sleep(0.1); os.kill(pid, signal.SIGSTOP); time.sleep(0.1)",
    ),
    "its niceness": ("ready(); time.sleep(1000)", "os.setpriority(os.PRIO_PROCESS, pid, 5)"),
    "its scheduling": ("ready(); time.sleep(1000)", "os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))"),
    "its processors": ("ready(); time.sleep(1000)", "os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})"),
    "its limits": ("ready(); time.sleep(1000)", "resource.prlimit(pid, resource.RLIMIT_CPU, (77, 7777))"),
    "the limits of the init": ("ready(); time.sleep(1000)", "resource.prlimit(1, resource.RLIMIT_CPU, (7777777, -1))"),
    "a thread's niceness": (
        "t = threading.Thread(target=time.sleep, args=(1000,)); t.start(); ready(t=t.native_id); time.sleep(1000)",
        "os.setpriority(os.PRIO_PROCESS, facts['t'], 5)",
    ),
    "a terminal's settings": (
        "import pty; m, s = pty.openpty(); ready(name=os.ttyname(s)); time.sleep(1000)",
        """
t = os.open(facts['name'], os.O_RDWR | os.O_NOCTTY)
a = termios.tcgetattr(t)
a[3] ^= termios.ECHO
termios.tcsetattr(t, termios.TCSANOW, a)
""",
    ),
    "a terminal's size": (
        "import pty; m, s = pty.openpty(); ready(name=os.ttyname(s)); time.sleep(1000)",
        """
t = os.open(facts['name'], os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(t, termios.TIOCSWINSZ, struct.pack('4H', 7, 7, 0, 0))
""",
    ),
    "output to a terminal": (
        "import pty; m, s = pty.openpty(); ready(name=os.ttyname(s)); time.sleep(1000)",
        "os.write(os.open(facts['name'], os.O_RDWR | os.O_NOCTTY), b'x'); time.sleep(0.1)",
    ),
    "a debugger": (
        "ready(); time.sleep(1000)",
        """
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
assert libc.ptrace(16, pid, None, None) == 0
os.waitpid(pid, 0x40000000)
assert libc.ptrace(17, pid, None, None) == 0
""",
    ),
    "a debugger of a stopped process": (
        """
b = ctypes.create_string_buffer(b'A' * 8)
ready(at=ctypes.addressof(b))
os.kill(os.getpid(), signal.SIGSTOP)
""",
        """
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
assert libc.ptrace(0x4206, pid, None, None) == 0
time.sleep(0.1)
assert libc.ptrace(4, pid, facts['at'], 0x42) == 0
assert libc.ptrace(17, pid, None, None) == 0
""",
    ),
    "shared memory left": ("ready(); time.sleep(1000)", "assert libc.shmget(77, 4096, 0o1600) >= 0"),
    "a semaphore left": ("ready(); time.sleep(1000)", "assert libc.semget(77, 1, 0o1600) >= 0"),
    "an open file removed": ("f = open('/tmp/f', 'w'); ready(); time.sleep(1000)", "os.unlink('/tmp/f')"),
    "an open file exchanged": (
        "f = open('/tmp/f', 'w'); ready(); time.sleep(1000)",
        "os.close(os.open('/tmp/g', os.O_CREAT, 0o644)); os.rename('/tmp/g', '/tmp/f')",
    ),
    "an open file written to": (
        "f = open('/tmp/f', 'w'); ready(); time.sleep(1000)",
        "open('/tmp/f', 'w').write('more')",
    ),
    "an open file's directory renamed": (
        "os.mkdir('/tmp/d'); f = open('/tmp/d/f', 'w'); ready(); time.sleep(1000)",
        "os.rename('/tmp/d', '/tmp/e')",
    ),
    "a mapped file written to": (
        """
f = open('/tmp/f', 'w+b')
f.truncate(4096)
m = mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE)
f.close()
ready()
time.sleep(1000)
""",
        "f = open('/tmp/f', 'r+b'); f.write(b'x'); f.close()",
    ),
    "a library written to": (
        "import _ctypes; ready(path=_ctypes.__file__); time.sleep(1000)",
        "f = open(facts['path'], 'r+b'); c = f.read(1); f.seek(0); f.write(c); f.close()",
    ),
    "a library exchanged": (
        "import _ctypes; ready(path=_ctypes.__file__); time.sleep(1000)",
        "import shutil; p = facts['path']; shutil.copy2(p, p + '.new'); os.rename(p + '.new', p)",
    ),
    "its directory removed": (
        "os.mkdir('/tmp/d'); ready(); os.chdir('/tmp/d'); time.sleep(1000)",
        "os.rmdir('/tmp/d')",
    ),
    "the name of a socket removed": (
        "s = socket.socket(socket.AF_UNIX); s.bind('/tmp/s'); s.listen(); ready(); time.sleep(1000)",
        "os.unlink('/tmp/s')",
    ),
    "killed and started again": (
        "ready(); time.sleep(1000)",
        """
a = open(f'/proc/{pid}/cmdline').read().split('\\0')[:-1]
os.unlink('facts')
os.kill(pid, 9)
if os.fork() == 0:
  os.setsid(); os.execv(a[0], a)
while not os.path.exists('facts'): time.sleep(0.01)
""",
    ),
    "a thread more": (
        """
signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=time.sleep, args=(1000,)).start())
ready()
while True: signal.pause()
""",
        "os.kill(pid, signal.SIGUSR1); time.sleep(0.2)",
    ),
    "a process left behind": (
        "ready(); time.sleep(1000)",
        """
if os.fork() == 0:
  os.setsid(); os.execlp('sleep', 'sleep', '999')
""",
    ),
    "a process ended": (
        "c = subprocess.Popen(['sleep', '999']); ready(c=c.pid); time.sleep(1000)",
        "os.kill(facts['c'], 9)",
    ),
    "an event counter that a child writes": (
        """
e = os.eventfd(0)
if os.fork() == 0:
  a, b = os.pipe(); ready(fd=b); os.read(a, 1); os.eventfd_write(e, 1)
  os.read(a, 1)
time.sleep(1000)
""",
        "os.write(os.open(f'/proc/{pid}/fd/{facts[\"fd\"]}', os.O_WRONLY), b'x'); time.sleep(0.1)",
    ),
    "a file's position that a child moves": (
        """
f = os.open('/tmp/f', os.O_CREAT | os.O_RDWR)
if os.fork() == 0:
  a, b = os.pipe(); ready(fd=b)
  os.read(a, 1); os.lseek(f, 1, 0); os._exit(0)
time.sleep(1000)
""",
        "os.write(os.open(f'/proc/{pid}/fd/{facts[\"fd\"]}', os.O_WRONLY), b'x'); time.sleep(0.1)",
    ),
}
"""What waits, and what is done to it."""


@pytest.mark.parametrize(("program", "deed"), DEEDS.values(), ids=DEEDS)
def test_what_a_tool_call_does_is_noticed(trial: StillnessTrial, program: str, deed: str) -> None:
    trial.start(program)
    trial.capture()
    assert doubt(trial) == ""
    assert trial.still()
    trial.do(deed)
    assert not trial.still()
    time.sleep(0.05)
    assert not trial.still()


def test_other_files_may_change(trial: StillnessTrial) -> None:
    """So that files alone can be captured beside processes that stand still."""
    trial.start("f = open('/tmp/f', 'w'); ready(); time.sleep(1000)")
    trial.capture()
    trial.do("open('new', 'w').write('x'); os.mkdir('/tmp/d'); os.unlink('facts')")
    assert trial.still()


def test_memory_of_another_process_can_not_be_written_unseen(trial: StillnessTrial) -> None:
    trial.start("b = ctypes.create_string_buffer(b'A' * 8); ready(at=ctypes.addressof(b)); time.sleep(1000)")
    trial.capture()
    trial.do(
        "for name in (f'/proc/{pid}/mem', f'/proc/{pid}/task/{pid}/mem', f'/proc/1/root/proc/{pid}/mem'):\n"
        "    try: os.open(name, os.O_RDWR); raise SystemExit('opened')\n"
        "    except OSError as error: assert error.errno == errno.EROFS, error\n"
        "vector = struct.pack('PN', facts['at'], 8)\n"
        "write = 311 if os.uname().machine == 'x86_64' else 271\n"
        "for number in (write, 438, 440):  # process_vm_writev, pidfd_getfd, process_madvise\n"
        "    assert libc.syscall(number, pid, vector, 1, vector, 1, 0) == -1\n"
        "    assert ctypes.get_errno() == errno.ENOSYS, (number, ctypes.get_errno())\n"
    )
    assert trial.still()
