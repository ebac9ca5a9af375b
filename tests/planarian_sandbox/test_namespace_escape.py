"""Attempts to get out of a namespace sandbox. Each is first shown to mean something: it works on the host."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from planarian_core.errors import SandboxError
from planarian_core.interfaces import AgentReply, AgentRequest
from planarian_core.model import Command, CommandResult, Limits, SandboxSpec, new_id
from planarian_core.testing.sandbox import Sandbox, running, unique_seconds, until
from planarian_sandbox import channel
from planarian_sandbox.namespace import NamespaceBackend

ROOT = os.geteuid() == 0
PYTHON = "/usr/bin/python3"
pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("namespaces" if ROOT else "userns")]
root_only = pytest.mark.needs("root")

# Raw system calls by number, so that no library refuses before the kernel does.
NUMBERS = {
    "x86_64": {
        "mount": 165, "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "clone": 56, "clone3": 435,
        "fsopen": 430, "open_tree": 428, "move_mount": 429, "add_key": 248, "keyctl": 250, "bpf": 321,
        "open_by_handle_at": 304, "init_module": 175, "kexec_load": 246, "reboot": 169, "settimeofday": 164,
        "swapon": 167, "sethostname": 170, "syslog": 103, "acct": 163, "quotactl": 179, "iopl": 172,
        "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "pivot_root": 41, "unshare": 97, "setns": 268, "clone": 220, "clone3": 435,
        "fsopen": 430, "open_tree": 428, "move_mount": 429, "add_key": 217, "keyctl": 219, "bpf": 280,
        "open_by_handle_at": 265, "init_module": 105, "kexec_load": 104, "reboot": 142, "settimeofday": 170,
        "swapon": 224, "sethostname": 161, "syslog": 116, "acct": 89, "quotactl": 60,
        "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425,
    },
}  # fmt: skip
CALLS = NUMBERS.get(platform.machine(), {})
SYSCALL = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[
        ctypes.c_char_p(a.encode()) if isinstance(a, str) else ctypes.c_long(a) for a in arguments])
    return "works" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
print(json.dumps([call(*each) for each in json.loads(sys.argv[1])]))
"""


def system_calls(run: Sandbox | list[str], *calls: tuple[object, ...]) -> list[str]:
    """The outcome of each call (``works`` or an error's name), inside a sandbox or by a command prefix on the host."""
    argv = [PYTHON, "-c", SYSCALL, json.dumps(calls)]
    if isinstance(run, Sandbox):
        result = run.run(*argv)
        assert result.exit_code == 0, result.stderr
        outcomes: list[str] = json.loads(result.stdout)
        return outcomes
    done = subprocess.run([*run, *argv], capture_output=True, text=True, check=True)
    on_host: list[str] = json.loads(done.stdout)
    return on_host


@pytest.fixture
def visible() -> Iterator[Path]:
    """A directory of the host that a sandbox sees through its overlay."""
    path = Path(tempfile.mkdtemp(prefix="planarian-test-", dir="/var/tmp"))  # not fresh inside, as /tmp is
    path.chmod(0o755)
    yield path
    subprocess.run(["chmod", "-R", "u+rwX", str(path)], check=True)  # overlayfs makes directories of mode 0
    shutil.rmtree(path)


@pytest.fixture
def spec(tmp_path: Path, workspace: Path) -> SandboxSpec:
    layer = tmp_path / "home" / "sandboxes" / "one" / "layer"
    layer.mkdir(parents=True)
    home = str(tmp_path / "home")
    return SandboxSpec(new_id("sb"), str(workspace), str(layer), home, "namespace", limits=Limits(256 * 1024**2, 128))


@pytest.fixture
def backend(spec: SandboxSpec) -> NamespaceBackend:
    return NamespaceBackend(Path(spec.home))


@pytest.fixture
def sandbox(backend: NamespaceBackend, spec: SandboxSpec) -> Iterator[Sandbox]:
    prepared = backend.prepare(spec)
    box = Sandbox(backend, prepared, backend.start(prepared))
    try:
        yield box
    finally:
        backend.stop(prepared, box.live)


def python(sandbox: Sandbox, code: str, *arguments: str) -> CommandResult:
    return sandbox.run(PYTHON, "-c", code, *arguments)


# --- files -------------------------------------------------------------------------------------------------------


def test_host_files_stay_as_they_are(sandbox: Sandbox, visible: Path) -> None:
    victim = visible / "victim"
    victim.write_text("before")
    assert sandbox.run("cat", str(victim)).stdout == "before"
    text = f"echo after >{victim}; echo x >{visible}/new; rm -rf {visible}; mv /etc /etc2; chmod 000 /usr"
    sandbox.shell(text)
    assert victim.read_text() == "before"
    assert [path.name for path in visible.iterdir()] == ["victim"]
    assert os.path.isdir("/etc")
    assert stat.S_IMODE(os.stat("/usr").st_mode) & 0o500


def test_no_way_up_to_the_hosts_files(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    ups = "../" * 20
    paths = [str(secret), f"{ups}{secret}", f"/proc/1/root{secret}", f"/proc/self/root/{ups}{secret}", f"/..{secret}"]
    for path in [*paths, f"/proc/1/cwd/{ups}{secret}", f"/proc/thread-self/cwd/{ups}{secret}"]:
        result = sandbox.run("cat", path)
        assert result.exit_code != 0
        assert "the secret" not in result.stdout
    assert sandbox.command(Command(("pwd",), cwd=ups)).stdout == "/\n"
    assert sandbox.command(Command(("sh", "-c", "echo x >made-at-the-top"), cwd=ups)).exit_code in (0, 1, 2)
    assert not os.path.exists("/made-at-the-top")


def test_chroot_does_not_lead_out(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the secret")
    code = (
        "import os, sys; os.mkdir('/tmp/jail'); fd = os.open('/', os.O_RDONLY); os.chroot('/tmp/jail'); os.fchdir(fd)\n"
        "for _ in range(40): os.chdir('..')\n"
        "os.chroot('.'); print(open(sys.argv[1]).read())"
    )
    result = python(sandbox, code, str(tmp_path / "secret"))
    assert "FileNotFoundError" in result.stderr


def test_hidden_paths_stay_hidden(backend: NamespaceBackend, spec: SandboxSpec, visible: Path) -> None:
    (visible / "open.txt").write_text("open")
    (visible / "secret.txt").write_text("the secret")
    (visible / "link").symlink_to(visible / "secret.txt")
    (visible / "folder").mkdir()
    (visible / "folder" / "inner").write_text("the secret")
    hidden = (str(visible / "secret.txt"), str(visible / "folder"))
    prepared = backend.prepare(replace(spec, hidden=hidden))
    box = Sandbox(backend, prepared, backend.start(prepared))
    try:
        v = str(visible)
        assert box.run("cat", f"{v}/open.txt").stdout == "open"
        text = f"""cat {v}/secret.txt {v}/link {v}/folder/inner; ln {v}/secret.txt /tmp/l; cat /tmp/l; cp -a {v} /tmp/c
        grep -r secret /tmp/c; mv {v} {v}-moved; cat {v}-moved/secret.txt {v}-moved/folder/inner
        rm -f {v}-moved/secret.txt; mkdir {v}-moved/folder; cat {v}-moved/folder/inner; rmdir {v}-moved/folder
        mv {v}-moved {v}; touch {v}/secret.txt; cat {v}/secret.txt; rm {v}/secret.txt; cat {v}/secret.txt
        setfattr -x trusted.overlay.whiteout {v}; setfattr -n trusted.overlay.opaque -v n {v}; grep -r secret {v}"""
        assert "the secret" not in box.shell(text).stdout
    finally:
        backend.stop(prepared, box.live)


def test_credentials_of_a_home_directory(
    backend: NamespaceBackend, spec: SandboxSpec, visible: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(visible))
    for name in (".ssh/id_rsa", ".aws/credentials", ".netrc", ".cargo/credentials.toml", ".config/gh/hosts.yml"):
        (visible / name).parent.mkdir(parents=True, exist_ok=True)
        (visible / name).write_text("the secret")
    for name in (
        ".bash_history",
        ".bash_history-01234.tmp",
        ".kaggle/kaggle.json",
        ".mozilla/firefox/a.default/key4.db",
    ):
        (visible / name).parent.mkdir(parents=True, exist_ok=True)
        (visible / name).write_text("the secret")
    (visible / ".config" / "pip").mkdir()
    (visible / ".config" / "pip" / "pip.conf").write_text("[global]\nindex-url = https://me:the secret@host/simple\n")
    (visible / ".config" / "uv").mkdir()
    (visible / ".config" / "uv" / "uv.toml").write_text("a setting")
    (visible / ".gitconfig").write_text("a setting")
    (visible / ".cargo" / "planarian.toml").write_text("a setting")
    prepared = backend.prepare(spec)
    box = Sandbox(backend, prepared, backend.start(prepared))
    try:
        assert box.shell("echo $HOME").stdout == f"{visible}\n"
        assert box.shell("cat ~/.gitconfig ~/.cargo/planarian.toml ~/.config/uv/uv.toml").stdout == "a setting" * 3
        assert box.shell("grep -r secret ~").stdout == ""
        backend.stop(prepared, box.live)
        (visible / ".kube").mkdir()
        (visible / ".kube" / "config").write_text("the secret, made later")
        box.live = backend.start(prepared)
        assert box.shell("grep -r secret ~; ls ~/.kube").stdout == ""
    finally:
        backend.stop(prepared, box.live)


def test_shadow_files_and_host_keys(sandbox: Sandbox) -> None:
    there = [path for path in ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers") if os.path.exists(path)]
    assert there, "the host has none of them"
    for path in there:
        assert sandbox.run("cat", path).exit_code != 0
        assert sandbox.run("test", "-e", path).exit_code == 1


@root_only
def test_what_services_of_the_host_keep(backend: NamespaceBackend, spec: SandboxSpec) -> None:
    """A certificate's key, a crontab, a database's files, all put where they belong on the host."""
    mark = f"planarian-{os.getpid()}"
    places = [
        f"/etc/letsencrypt/{mark}/privkey.pem",
        f"/var/spool/cron/crontabs/{mark}",
        f"/var/lib/postgresql/{mark}/base/1",
        f"/var/lib/docker/{mark}/config.v2.json",
    ]
    with ExitStack() as stack:
        for place in places:
            stack.callback(_remove_made, _make_file(Path(place)))
        prepared = backend.prepare(spec)
        box = Sandbox(backend, prepared, backend.start(prepared))
        stack.callback(backend.stop, prepared, box.live)
        for place in places:
            assert Path(place).read_text() == "the secret"
            assert box.run("cat", place).exit_code == 1
            assert box.run("ls", os.path.dirname(place)).stdout == ""
        # programs find their directories and can make what is theirs
        assert box.shell("touch /var/spool/cron/crontabs/me; mkdir /var/lib/postgresql/17").exit_code == 0


def _make_file(path: Path) -> list[Path]:
    """Make a file; returns what had to be made for it, the deepest first."""
    made = [path, *(folder for folder in path.parents if not folder.exists())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("the secret")
    return made


def _remove_made(made: list[Path]) -> None:
    for path in made:
        path.rmdir() if path.is_dir() else path.unlink()


def test_the_home_and_other_layers_are_out_of_sight(
    backend: NamespaceBackend, spec: SandboxSpec, visible: Path
) -> None:
    home = visible / "home"
    layer = home / "sandboxes" / "one" / "layer"
    layer.mkdir(parents=True)
    (home / "registry").write_text("the registry")
    other = NamespaceBackend(home)
    prepared = other.prepare(replace(spec, home=str(home), layer=str(layer)))
    box = Sandbox(other, prepared, other.start(prepared))
    try:
        text = f"ls {visible}; cat {home}/registry; ls {layer}; ln -s {home} here; ls here/; ln {home}/registry hard"
        result = box.shell(text)
        assert result.stdout == ""
        assert (home / "registry").read_text() == "the registry"
    finally:
        other.stop(prepared, box.live)


def test_setting_overlay_attributes(sandbox: Sandbox, visible: Path) -> None:
    (visible / "secret").write_text("x")
    code = """
import os, sys
for name in ("trusted.overlay.redirect", "trusted.overlay.opaque", "user.overlay.redirect", "user.overlay.opaque"):
    os.makedirs("/var/tmp/trap", exist_ok=True)
    try:
        os.setxattr("/var/tmp/trap", name, b"/etc")
        print("set", name, os.listdir("/var/tmp/trap"))
    except OSError as error:
        print("refused", name)
"""
    result = python(sandbox, code)
    assert result.exit_code == 0, result.stderr
    for line in result.stdout.splitlines():
        # Where it could be set (overlayfs keeps it apart as the user's own), it has no meaning.
        assert line.startswith("refused") or line.endswith("[]"), line


def test_a_whiteout_device_is_no_key(sandbox: Sandbox) -> None:
    before = os.path.exists("/etc/passwd")
    sandbox.shell("rm /etc/passwd; mknod /etc/passwd c 0 0; rm -f /etc/hostname")
    assert before
    assert os.path.exists("/etc/passwd")


# --- kernel interfaces ---------------------------------------------------------------------------------------------


@root_only
def test_proc_sys_is_read_only(sandbox: Sandbox) -> None:
    name = "/proc/sys/kernel/panic_on_oops"
    value = Path(name).read_text()
    Path(name).write_text(value)  # on the host it can be written
    assert sandbox.shell(f"echo 1 >{name}").exit_code != 0
    assert sandbox.shell("echo '|/tmp/x' >/proc/sys/kernel/core_pattern").exit_code != 0
    assert sandbox.shell("mount -o remount,rw /proc/sys; umount /proc/sys; echo 1 >" + name).exit_code != 0
    assert Path(name).read_text() == value


def test_masked_files_of_proc(sandbox: Sandbox) -> None:
    names = ("kcore", "keys", "timer_list", "kallsyms", "sysrq-trigger", "kpageflags", "kpagecount", "kpagecgroup")
    masked = [name for name in (*names, "vmallocinfo", "slabinfo") if _in_proc(name)]
    assert masked, "the host has none of them"
    for name in masked:
        code = "import os, sys; s = os.stat(sys.argv[1]); print(os.major(s.st_rdev), os.minor(s.st_rdev))"
        assert python(sandbox, code, f"/proc/{name}").stdout == "1 3\n"
        assert sandbox.run("cat", f"/proc/{name}").stdout == ""


@pytest.mark.parametrize("name", ["iomem", "ioports"])
def test_addresses_of_the_host_are_zeros(sandbox: Sandbox, name: str) -> None:
    host = Path("/proc", name).read_text()
    assert not ROOT or set(host) & set("123456789"), "root sees them on the host"
    ranges = [line.split(" : ")[0] for line in sandbox.run("cat", f"/proc/{name}").stdout.splitlines()]
    assert len(ranges) == len(host.splitlines())
    assert not set("".join(ranges)) - set(" 0-")


def _in_proc(name: str) -> bool:
    return os.path.exists(f"/proc/{name}")


def test_no_sysfs_and_no_control_groups(sandbox: Sandbox) -> None:
    assert os.listdir("/sys")
    assert sandbox.shell("ls /sys").stdout == ""
    kinds = {line.split()[2] for line in sandbox.run("cat", "/proc/mounts").stdout.splitlines()}
    assert not kinds & {"cgroup", "cgroup2", "sysfs", "debugfs", "securityfs"}


@root_only
def test_device_nodes(sandbox: Sandbox, tmp_path: Path) -> None:
    disks = [line.split()[:2] for line in Path("/proc/partitions").read_text().splitlines()[2:]]
    candidates = [("b", *disk) for disk in disks] + [("c", "1", "1"), ("c", "1", "11"), ("c", "10", "229")]
    opened = []
    for number, (kind, major, minor) in enumerate(candidates):
        node = tmp_path / f"node{number}"
        subprocess.run(["mknod", node, kind, major, minor], check=True)
        try:
            os.close(os.open(node, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        opened.append((kind, major, minor))
    assert opened, "the host's root can't open any of them either"
    for kind, major, minor in opened:
        result = sandbox.shell(f"mknod /tmp/node {kind} {major} {minor}; exec 3</tmp/node; echo opened")
        assert "opened" not in result.stdout


def test_devices_are_the_harmless_ones(sandbox: Sandbox) -> None:
    assert {"null", "zero", "tty"} < set(os.listdir("/dev"))
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd"}
    assert set(sandbox.run("ls", "/dev").stdout.split()) == harmless | {"stdin", "stdout", "stderr"}
    assert sandbox.shell("head -c 4 /dev/urandom | wc -c; echo x >/dev/null; ls /dev/pts").stdout.split()[0] == "4"
    assert sandbox.shell("cat /dev/tty").exit_code != 0


NEWUSER, NEWNS, NEWPID = 0x10000000, 0x20000, 0x20000000
FORBIDDEN = [
    ("mount", "none", "/mnt", "tmpfs", 0, 0),
    ("mount", "none", "/mnt", "proc", 0, 0),
    ("mount", "none", "/mnt", "cgroup", 0, "memory"),
    ("mount", "none", "/mnt", "cgroup2", 0, 0),
    ("mount", "/etc", "/mnt", 0, 4096, 0),
    ("mount", 0, "/proc/sys", 0, 32 | 4096, 0),
    ("mount", 0, "/", 0, 32, 0),
    ("umount2", "/proc/sys", 2),
    ("umount2", "/proc", 2),
    ("pivot_root", ".", "."),
    ("unshare", NEWNS),
    ("unshare", NEWUSER),
    ("unshare", NEWPID),
    ("fsopen", "tmpfs", 0),
    ("open_tree", -100, "/", 1),
    ("move_mount", -100, "/", -100, "/mnt", 0),
    ("add_key", "user", "planarian-test", "x", 1, -3),
    ("keyctl", 0, -3, 1),
    ("bpf", 0, 0, 0),
    ("init_module", 0, 0, ""),
    ("kexec_load", 0, 0, 0, 0),
    ("reboot", 0, 0, 0, 0),
    ("settimeofday", 0, 0),
    ("swapon", "/nothing", 0),
    ("syslog", 3, 0, 0),
    ("acct", "/nothing"),
    ("perf_event_open", 0, 0, -1, -1, 0),
    ("userfaultfd", 0),
    ("io_uring_setup", 1, 0),
]


@pytest.mark.skipif(not CALLS, reason="numbers of system calls are unknown for this machine")
def test_forbidden_system_calls(sandbox: Sandbox) -> None:
    host = ["unshare", "--mount", *([] if ROOT else ["--user", "--map-root-user"])]
    works = [("mount", "none", "/mnt", "tmpfs", 0, 0), ("umount2", "/mnt", 2), ("unshare", NEWNS), ("unshare", NEWUSER)]
    assert system_calls(host, *((CALLS[str(name)], *rest) for name, *rest in works)) == ["works"] * 4
    attempts = [(CALLS[str(name)], *rest) for name, *rest in FORBIDDEN if name in CALLS]
    outcomes = system_calls(sandbox, *attempts)
    assert not [
        (attempt, outcome)
        for attempt, outcome in zip(FORBIDDEN, outcomes, strict=False)
        if outcome not in ("EPERM", "ENOSYS", "EACCES")
    ]


@pytest.mark.skipif(not CALLS, reason="numbers of system calls are unknown for this machine")
@pytest.mark.parametrize("flag", [NEWUSER, NEWPID, NEWNS, NEWUSER | NEWNS | NEWPID])
def test_clone_into_new_namespaces(sandbox: Sandbox, flag: int) -> None:
    code = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "pid = libc.syscall(ctypes.c_long(int(sys.argv[1])), ctypes.c_ulong(int(sys.argv[2]) | 17), 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\n"
        "print('works' if pid > 0 else ctypes.get_errno())"
    )
    argv = [PYTHON, "-c", code, str(CALLS["clone"]), str(flag | (0 if ROOT else NEWUSER))]
    assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == "works\n"
    inside = python(sandbox, code, str(CALLS["clone"]), str(flag))
    assert inside.stdout.strip() in ("1", "38")
    plain = python(sandbox, code, str(CALLS["clone"]), "0")
    assert plain.stdout == "works\n"


@root_only
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit table is of x86")
def test_the_32_bit_entry_to_the_kernel_is_closed(sandbox: Sandbox) -> None:
    """int 0x80 reaches the 32-bit table, whose numbers differ: unshare is 310 there."""
    code = """
import ctypes, mmap
machine = bytes.fromhex("5389f889f3cd805bc3")  # push rbx; mov eax,edi; mov ebx,esi; int 0x80; pop rbx; ret
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(machine)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint)(address)
print(function(20, 0) > 0, function(310, 0x20000))
"""
    host = subprocess.run(["unshare", "-m", PYTHON, "-c", code], capture_output=True, text=True, check=False)
    if host.stdout.split() != ["True", "0"]:
        pytest.skip("this kernel has no 32-bit calls")
    assert python(sandbox, code).stdout.split() == ["False", "-38"], "not even getpid: socketcall hides its arguments"


@root_only
@pytest.mark.skipif(not CALLS, reason="numbers of system calls are unknown for this machine")
def test_file_handles_do_not_reach_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    code = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
assert libc.name_to_handle_at(-100, sys.argv[1].encode(), handle, ctypes.byref(mount), 0) >= 0
root = os.open("/", os.O_RDONLY)
print("works" if libc.open_by_handle_at(root, handle, 0) >= 0 else ctypes.get_errno())
"""
    assert subprocess.run([PYTHON, "-c", code, "/etc"], capture_output=True, text=True, check=True).stdout == "works\n"
    assert python(sandbox, code, "/etc").stdout.strip() in ("1", "38")


# --- processes, users, network ---------------------------------------------------------------------------------------


def test_host_processes_are_out_of_reach(sandbox: Sandbox) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(victim.pid, 0)
        assert os.path.exists(f"/proc/{victim.pid}/mem")
        code = """
import ctypes, errno, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
try:
    os.kill(pid, 9)
    print("killed")
except ProcessLookupError:
    print("no such process")
print(libc.ptrace(16, pid, 0, 0), errno.errorcode[ctypes.get_errno()], os.path.exists("/proc/%d" % pid))
"""
        assert python(sandbox, code, str(victim.pid)).stdout.split("\n")[:2] == ["no such process", "-1 ESRCH False"]
        sandbox.shell("kill -9 -1")
        assert victim.poll() is None
        assert sandbox.shell("echo fine").stdout == "fine\n"
    finally:
        victim.kill()
        victim.wait()


def test_the_init_can_not_be_killed_from_inside(sandbox: Sandbox) -> None:
    sandbox.shell("for s in KILL STOP TERM INT HUP QUIT USR1 ABRT; do kill -$s 1; done")
    assert sandbox.shell("echo fine").stdout == "fine\n"


def test_privileges_are_those_of_a_container(sandbox: Sandbox) -> None:
    status = dict(
        line.split(":\t", 1) for line in sandbox.run("cat", "/proc/self/status").stdout.splitlines() if ":\t" in line
    )
    wanted = sum(1 << capability for capability in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(status[name], 16) == wanted
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


@root_only
def test_setuid_programs_give_nothing(sandbox: Sandbox, visible: Path) -> None:
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    shutil.copy("/usr/bin/id", visible / "id")
    (visible / "id").chmod(0o4755)
    host = subprocess.run([*become, str(visible / "id"), "-u"], capture_output=True, text=True, check=True)
    assert host.stdout == "0\n"
    assert sandbox.run(*become, str(visible / "id"), "-u").stdout == "65534\n"
    sandbox.shell("cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id")
    assert sandbox.run(*become, "/tmp/id", "-u").stdout == "65534\n"  # noqa: S108  # inside


def test_the_hosts_network_is_out_of_reach(sandbox: Sandbox, visible: Path) -> None:
    code = """
import json, socket, sys
for family, address in json.loads(sys.argv[1]):
    with socket.socket(getattr(socket, family)) as s:
        s.settimeout(2)
        try:
            s.connect(tuple(address) if isinstance(address, list) else address)
            print("works")
        except OSError as error:
            print(type(error).__name__)
"""
    name = f"planarian-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0{name}")
        abstract.listen()
        with socket.socket(socket.AF_UNIX) as named:
            named.bind(str(visible / "socket"))
            named.listen()
            targets = [["AF_INET", list(tcp.getsockname())], ["AF_UNIX", f"\0{name}"], ["AF_UNIX", f"{visible}/socket"]]
            argv = [PYTHON, "-c", code, json.dumps(targets)]
            assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() == ["works"] * 3
            assert "works" not in sandbox.run(*argv).stdout
    outward = json.dumps([["AF_INET", ["192.0.2.1", 80]]])
    assert python(sandbox, code, outward).stdout == "OSError\n"  # unreachable at once: there is no route


def test_no_descriptor_leads_outside(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    leak = os.open(secret, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        other = replace(sandbox.spec, id=new_id("sb"), layer=sandbox.spec.layer + "-two")
        os.mkdir(other.layer)
        prepared = sandbox.backend.prepare(other)
        box = Sandbox(sandbox.backend, prepared, sandbox.backend.start(prepared))
        try:
            marks = [unique_seconds() for _ in range(3)]
            box.shell(f"sleep {marks[0]} &")
            box.command(Command(("sleep", marks[1]), detach=True))
            box.command(Command((f"sleep {marks[2]} &",), session="main", timeout=30))

            def look(_: str, __: bytes) -> None:
                leaks.extend(_descriptors_outside(box))
                looked.append(len(box.backend.tasks(box.spec, box.live)))

            leaks: list[str] = []
            looked: list[int] = []
            box.command(Command(("sh", "-c", "echo look; sleep 0.1"), stdin=b"input"), look)
            assert looked
            assert looked[0] > 5
            assert leaks == []
        finally:
            box.backend.stop(box.spec, box.live)
    finally:
        os.close(leak)


def _descriptors_outside(sandbox: Sandbox) -> list[str]:
    """Descriptors of its tasks whose mount is none of the sandbox's, and sockets or pipes that the host has too.

    A call's own memory files are the two sides' by design: they lead nowhere.
    """
    init = sandbox.live.init_pid
    mounts = {line.split()[0] for line in Path(f"/proc/{init}/mountinfo").read_text().splitlines()}
    ours = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_link(name)}
    found = []
    for pid in sandbox.backend.tasks(sandbox.spec, sandbox.live):
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                info = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
            except FileNotFoundError:
                continue
            mount = next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:"))
            nameless = target.startswith(("pipe:", "socket:", "anon_inode:"))
            if target.startswith("/memfd:planarian-"):
                continue
            if (nameless and target in ours and not target.startswith("anon_inode:")) or (
                not nameless and mount not in mounts
            ):
                found.append(f"{pid} {name} {target}")
    return found


def _is_link(name: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{name}")


# --- exhaustion --------------------------------------------------------------------------------------------------


def test_a_fork_bomb_is_bounded_and_ended(sandbox: Sandbox) -> None:
    mark = unique_seconds()
    code = f"""
import os, time
while True:
    try:
        if os.fork() == 0: os.execv("/bin/sleep", ["sleep", "{mark}"])
    except OSError:
        break
print("refused", flush=True)
while True:
    try: os.fork()
    except OSError: time.sleep(0.01)
"""

    def sink(_: str, __: bytes) -> None:
        counted.append(len(sandbox.backend.tasks(sandbox.spec, sandbox.live)))

    counted: list[int] = []
    result = sandbox.command(Command((PYTHON, "-c", code), timeout=10), sink)
    assert result.timed_out
    assert "refused" in result.stdout
    assert 50 < counted[0] <= 128
    assert until(lambda: not running(mark))
    assert sandbox.shell("echo fine").stdout == "fine\n"


@root_only
def test_a_memory_bomb_is_bounded(sandbox: Sandbox) -> None:
    code = (
        "import sys; x = bytearray(1024 * 1024 * int(sys.argv[1])); x[::4096] = b'x' * len(x[::4096]); print('had it')"
    )
    host = subprocess.run([PYTHON, "-c", code, "400"], capture_output=True, text=True, check=True)
    assert host.stdout == "had it\n"
    result = python(sandbox, code, "400")
    assert result.exit_code == 137
    assert "had it" not in result.stdout
    assert sandbox.backend.alive(sandbox.spec, sandbox.live)
    assert sandbox.shell("echo fine").stdout == "fine\n"


@root_only
def test_memory_bombs_again_and_again(sandbox: Sandbox) -> None:
    code = "import os\nfor _ in range(6): os.fork()\nx = bytearray(1 << 30)\nx[::4096] = b'x' * len(x[::4096])"
    for _ in range(2):
        try:
            sandbox.command(Command((PYTHON, "-c", code), timeout=20))
        except SandboxError:  # the init was the victim: that is said, and a new start works
            sandbox.backend.stop(sandbox.spec, sandbox.live)
            sandbox.live = sandbox.backend.start(sandbox.spec)
    assert sandbox.shell("echo fine").stdout == "fine\n"


# --- the host's side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/run/planarian/calls", "/run/planarian", "/run"])
def test_a_runtime_directory_turned_into_a_link(sandbox: Sandbox, visible: Path, name: str) -> None:
    """The host must not follow it: out there, the same path leads to a directory of the host."""
    victim = visible / "victim"
    for directory in ("calls", "requests", "listening", "planarian/calls"):
        (victim / directory).mkdir(parents=True)
    before = sorted(str(path) for path in victim.rglob("*"))
    moved = sandbox.shell(f"mv {name} /var/tmp/moved && ln -s {victim} {name} && echo moved")
    assert moved.stdout == "moved\n" or name == "/run"  # rootless, /run is a mount and can't be moved
    if moved.stdout:
        with pytest.raises(SandboxError):
            sandbox.shell("true")
        with pytest.raises(SandboxError):
            sandbox.command(Command(("true",), session="main", timeout=5))
    assert sorted(str(path) for path in victim.rglob("*")) == before
    sandbox.backend.stop(sandbox.spec, sandbox.live)
    sandbox.live = sandbox.backend.start(sandbox.spec)
    assert sandbox.shell("echo mended").stdout == "mended\n"
    assert sorted(str(path) for path in victim.rglob("*")) == before


def test_files_of_a_call_replaced_by_links(sandbox: Sandbox, visible: Path) -> None:
    victim = visible / "victim"
    victim.write_text("before")
    os.chmod(victim, 0o666)  # noqa: S103  # it must not be a permission that saves it
    attack = f"cd /run/planarian/calls; for f in *.stdin; do rm $f && ln -s {victim} $f; done; echo out; exit 5"
    large = bytes(channel.LARGE + 1)
    result = sandbox.command(Command(("sh", "-c", attack), stdin=large, timeout=60))
    assert (result.exit_code, result.stdout) == (5, "out\n")
    assert victim.read_text() == "before"
    attack = "cd /run/planarian/calls; for f in *.stdin; do rm $f && mkdir $f; done; echo out; exit 6"
    result = sandbox.command(Command(("sh", "-c", attack), stdin=large, timeout=60))
    assert (result.exit_code, result.stdout) == (6, "out\n")


def held_by_init(kind: str, attack: str) -> str:
    """Shell text that does something to ``$f``, a memory file of the call, by the init's descriptor of it."""
    return f"for f in /proc/1/fd/*; do case $(readlink $f) in */memfd:planarian-{kind}*) {attack};; esac; done"


def test_a_huge_hole_as_output(sandbox: Sandbox) -> None:
    attack = held_by_init("stdout", "truncate -s 4T $f && echo grown >&2")
    result = sandbox.command(Command(("sh", "-c", attack), output_limit=1000, timeout=60))
    assert "grown" in result.stderr
    assert result.truncated
    assert len(result.stdout) < 2000


def test_a_nonsense_result(sandbox: Sandbox) -> None:
    attack = held_by_init("result", "echo '-1 whole; rm -rf /' >$f") + "; sleep 0.1"
    with pytest.raises(SandboxError):
        sandbox.shell(attack)
    assert sandbox.shell("echo fine").stdout == "fine\n"


def test_a_false_init_that_never_answers(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, socket, time\n"
        "os.unlink('/run/planarian/calls/agent.sock')\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('/run/planarian/calls/agent.sock'); s.listen()\n"
        "open('/tmp/listening', 'w').close(); time.sleep(600)"
    )
    sandbox.shell(f'{PYTHON} -c "{code}" & while ! test -e /tmp/listening; do sleep 0.05; done')
    monkeypatch.setattr(channel, "HANDSHAKE", 1.0)
    with pytest.raises(SandboxError, match="does not answer"):
        sandbox.shell("true")


def test_hostile_requests(sandbox: Sandbox, visible: Path) -> None:
    secret = visible / "secret"
    secret.write_text("1\0the secret")
    attack = f"""cd /run/planarian/requests
    ln -s {secret} any.1.aaaaaaaaaaaa.request; mkfifo any.1.bbbbbbbbbbbb.request; mkdir any.1.cccccccccccc.request
    head -c 3000000 /dev/zero >any.1.dddddddddddd.request; echo garbage >any.1.eeeeeeeeeeee.request
    printf '99999999\\0x' >any.1.ffffffffffff.request; printf '1\\0pretends-to-be-init' >any.1.000000000000.request
    touch '../../../tmp/x' 'any.1.../..request'; sleep 0.3; planarian honest"""

    def answer(request: AgentRequest) -> AgentReply:
        seen.append(request.argv)
        return AgentReply(stdout="answered\n")

    seen: list[tuple[str, ...]] = []
    result = sandbox.shell(attack, requests=answer)
    assert seen == [("honest",)]
    assert result.stdout == "answered\n"


def test_a_reply_does_not_follow_a_link(sandbox: Sandbox, visible: Path) -> None:
    victim = visible / "victim"
    victim.write_text("before")
    os.chmod(victim, 0o666)  # noqa: S103  # it must not be a permission that saves it
    attack = f"""cd /run/planarian/requests
    ln -s {victim} $PLANARIAN_CALL.1.aaaaaaaaaaaa.reply; ln -s {victim} .$PLANARIAN_CALL.1.aaaaaaaaaaaa.reply.new
    printf '%s\\0hello' $$ >$PLANARIAN_CALL.1.aaaaaaaaaaaa.request; sleep 0.3; cat *.reply"""
    result = sandbox.shell(attack, requests=lambda _: AgentReply(stdout="answered"))
    assert "answered" in result.stdout
    assert victim.read_text() == "before"
    assert os.listdir(visible) == ["victim"]


def test_constants_are_those_of_the_kernel() -> None:
    """The oracle above is by number: getpid by its number must be getpid."""
    number = {"x86_64": 39, "aarch64": 172}.get(platform.machine())
    if number is not None:
        assert ctypes.CDLL(None).syscall(number) == os.getpid()


@root_only
def test_device_nodes_of_the_host_do_not_work_inside(sandbox: Sandbox, visible: Path) -> None:
    node = visible / "memory"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # what /dev/zero is
    node.chmod(0o666)
    assert node.open("rb", buffering=0).read(4) == bytes(4), "it works on the host"
    result = sandbox.shell(f"test -c {node} && head -c 4 {node}; cp -a {node} /dev/copy; mv {node} /dev/moved; ls /dev")
    assert "denied" in result.stderr or "not permitted" in result.stderr
    assert "copy" not in result.stdout
    assert sandbox.shell("head -c 1 /dev/moved").exit_code != 0
    assert sandbox.shell("head -c 4 /dev/zero | wc -c; echo gone >/dev/null").stdout == "4\n"


@root_only
def test_moving_run_away_does_not_show_the_hosts(backend: NamespaceBackend, sandbox: Sandbox) -> None:
    secret = Path(tempfile.mkdtemp(prefix="planarian-test-", dir="/run"))
    try:
        on_root = secret.stat().st_dev == os.stat("/").st_dev
        if not on_root:
            pytest.skip("needs a host whose /run lies on its root file system: here it is a mount of its own")
        assert sandbox.shell("mv /run /elsewhere").exit_code == 0
        backend.stop(sandbox.spec, sandbox.live)
        sandbox.live = backend.start(sandbox.spec)
        assert secret.name not in sandbox.shell("ls /run").stdout
    finally:
        secret.rmdir()


@root_only
def test_a_home_on_a_bind_mount_is_hidden_by_its_other_name_too(tmp_path: Path, visible: Path, workspace: Path) -> None:
    (visible / "data" / "home").mkdir(parents=True)
    (visible / "bound").mkdir()
    subprocess.run(["mount", "--bind", str(visible / "data"), str(visible / "bound")], check=True)
    try:
        home = visible / "bound" / "home"
        (home / "sandboxes").mkdir()
        assert (visible / "data" / "home" / "sandboxes").is_dir(), "the same directory has two names"
        backend = NamespaceBackend(home)
        sandbox_id = new_id("sb")
        layer = home / "sandboxes" / sandbox_id / "layer"
        layer.mkdir(parents=True)
        spec = backend.prepare(
            SandboxSpec(sandbox_id, str(workspace), str(layer), str(home), "namespace", limits=Limits(0, 0))
        )
        box = Sandbox(backend, spec, backend.start(spec))
        try:
            assert box.shell(f"ls {visible}/data").stdout == ""
        finally:
            backend.stop(spec, box.live)
    finally:
        subprocess.run(["umount", str(visible / "bound")], check=True)


@pytest.mark.skipif(ROOT, reason="needs an ordinary user: as root all of / is in the layer")
def test_what_would_not_be_captured_can_not_be_written(sandbox: Sandbox) -> None:
    refused = sandbox.shell("mkdir /data")
    assert "Read-only" in refused.stderr
    assert sandbox.shell("echo kept >/dev/shm/x").exit_code == 0
    assert (Path(sandbox.spec.layer) / "upper" / "dev" / "shm" / "x").read_text() == "kept\n"


LOCKER = """
import fcntl, os, time
folder, held = "/run/planarian/listening", []
while True:
    for name in os.listdir(folder):
        try:
            held.append(os.open(f"{folder}/{name}", os.O_RDONLY))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
"""


def test_a_process_that_locks_the_files_of_calls_holds_nobody_up(sandbox: Sandbox) -> None:
    for _ in range(4):
        sandbox.command(Command((PYTHON, "-c", LOCKER), detach=True))
    outcomes = set()
    for _ in range(60):
        try:
            outcomes.add(str(sandbox.command(Command(("true",), timeout=5), requests=lambda _: AgentReply()).exit_code))
        except SandboxError as error:
            outcomes.add(error.code)
    assert outcomes <= {"0", "sandbox-hostile"}
