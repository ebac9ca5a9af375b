"""A private PostgreSQL for tests, made by the system's own binaries and not by what is to be tested."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlencode

import psutil

if TYPE_CHECKING:
    import psycopg

SUPERUSER = "postgres"
_RECOVERS_WITHIN = 60.0
"""Seconds."""
_PLENTY = 3 << 30
"""Bytes; a cluster of tests takes up to half a gigabyte."""
_BINARIES = ("initdb", "postgres", "pg_dump", "psql")
_ACCOUNTS = ("postgres", "nobody")
"""Whom root runs the server as: it refuses to run as root."""
_STOP = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class ClusterError(RuntimeError):
    """The server couldn't be made, started or stopped; the message ends with the tail of its log."""


class PrivateCluster:
    """A PostgreSQL cluster of one's own, in a temporary folder: a context manager.

    It listens on a free port of 127.0.0.1 (with a password, see :meth:`dsn`) and on a Unix socket in its folder. Root
    runs it as an ordinary user. It ends with this process, however that ends, and leaves nothing behind.

    Args:
        fsync: off is faster; what is committed still survives :meth:`kill9`, only not the machine's own death. Then it
            lies in memory where there is plenty.
        settings: more lines for ``postgresql.conf``.

    Raises:
        ClusterError: no binaries, or the server doesn't start.
    """

    def __init__(self, *, fsync: bool = True, settings: Mapping[str, str | int] | None = None) -> None:
        self.binaries = _binaries()
        self.password = secrets.token_urlsafe(12)
        self.port = 0
        self._settings: dict[str, str | int] = {
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "dynamic_shared_memory_type": "mmap",  # in the folder, so that it goes with it
            **({} if fsync else {"max_wal_size": "256MB"}),
            "shared_buffers": "64MB",
            "max_connections": 60,
            "max_prepared_transactions": 2,
            "listen_addresses": "127.0.0.1",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **(settings or {}),
        }
        self._account = _account()
        self._server: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.folder = _folder(self._account, [tempfile.gettempdir()] if fsync else [*_memory(), tempfile.gettempdir()])
        self._data, self._log = self.folder / "data", self.folder / "log"

    def __enter__(self) -> Self:
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the server at once and remove the folder. Idempotent."""
        try:
            self.stop("immediate")  # SIGKILL would leave shared memory behind, of which the machine has only so much
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- the server ---

    def start(self) -> None:
        """Start the server, on the port that it had before, and wait until it takes connections."""
        chosen = self.port
        for _ in range(5):
            port = chosen or _free_port()
            if self._started(port):
                self.port = port
                return
            if "Address already in use" not in self.log():
                break
        raise ClusterError(f"PostgreSQL doesn't start; its log ends with:\n{self.log()}")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server as ``pg_ctl stop -m MODE`` does, and wait until it has ended."""
        if self._server is None:
            return
        self._server.send_signal(_STOP[mode])
        try:
            self._server.wait(timeout=60)
        except subprocess.TimeoutExpired as error:
            self.kill9()
            raise ClusterError(f"PostgreSQL didn't stop; its log ends with:\n{self.log()}") from error
        self._server = None

    def kill9(self) -> None:
        """SIGKILL to every process of the server at once, as if the machine had died; :meth:`start` recovers."""
        if self._server is None:
            return
        server = psutil.Process(self._server.pid)
        self._server.send_signal(signal.SIGSTOP)  # or it would start new children, or answer the death of one
        processes = server.children(recursive=True)
        for process in [server, *processes]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._server.wait(timeout=60)
        while any(_runs(process) for process in processes):
            time.sleep(0.005)
        self._server = None

    def log(self, lines: int = 20) -> str:
        """The end of the server's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:]) if self._log.exists() else ""

    # --- what is in it ---

    def dsn(
        self, database: str = "postgres", role: str = SUPERUSER, *, port: int = 0, socket: bool = False, **more: str
    ) -> str:
        """A connection URL. ``port``: another one, of a relay; ``socket``: by the Unix socket, faster than TCP;
        ``more``: parameters of libpq.
        """
        where = {"host": str(self.folder), "port": str(self.port)} if socket else {}
        address = "" if socket else f"127.0.0.1:{port or self.port}"
        query = urlencode({**where, **more}, quote_via=quote)
        return f"postgresql://{quote(role, safe='')}:{self.password}@{address}/{quote(database, safe='')}" + (
            f"?{query}" if query else ""
        )

    def connect(self, database: str = "postgres", role: str = SUPERUSER) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode, past everything that is to be tested; a server that recovers is waited
        for.
        """
        import psycopg

        deadline = time.monotonic() + _RECOVERS_WITHIN
        while True:
            try:
                return psycopg.connect(self.dsn(database, role, socket=True), autocommit=True)
            except psycopg.OperationalError as error:
                if "the database system is" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def create_role(self, name: str, attributes: str = "") -> str:
        """Make a role that may log in by :meth:`dsn`; an ordinary one unless ``attributes`` say more. Its name."""
        from psycopg import sql

        statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} " + attributes).format(
            sql.Identifier(name), sql.Literal(self.password)
        )
        with self.connect() as connection:
            connection.execute(statement)
        return name

    def create_database(self, name: str = "", *, owner: str = SUPERUSER, template: str = "template0") -> str:
        """Make a database and return its name (a new one unless it is given)."""
        from psycopg import sql

        self._databases += 1
        name = name or f"db{self._databases}"
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}")
        names = (sql.Identifier(part) for part in (name, owner, template))
        with self.connect() as connection:
            connection.execute(statement.format(*names))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is connected to it. Idempotent."""
        from psycopg import sql

        with self.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    # --- parts ---

    def _make(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        self._give(secret)
        self._give(self.folder)
        options = ["--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
        command = [str(self.binaries / "initdb"), "--no-sync", f"--username={SUPERUSER}", f"--pwfile={secret}"]
        done = subprocess.run(
            [*command, *options, "-D", str(self._data)],
            capture_output=True, text=True, check=False, timeout=120, cwd=self.folder, **self._as_account(),
        )  # fmt: skip
        if done.returncode != 0:
            raise ClusterError(f"initdb: {done.stderr.strip()}")
        lines = [f"{key} = '{value}'\n" for key, value in self._settings.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'\n")
        with open(self._data / "postgresql.conf", "a") as configuration:
            configuration.writelines(lines)

    def _started(self, port: int) -> bool:
        server = str(self.binaries / "postgres")
        # A server whose test was killed would run for ever.
        dying = ["setpriv", "--pdeathsig", "INT", "--"] if shutil.which("setpriv") else []
        with open(self._log, "ab") as log:
            self._give(self._log)
            self._server = subprocess.Popen(
                [*dying, server, "-D", str(self._data), "-p", str(port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True, **self._as_account(),
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                self._server = None
                return False
            if self._ready():
                return True
            time.sleep(0.01)
        self.kill9()
        return False

    def _ready(self) -> bool:
        """What ``pg_ctl`` asks: the last line of the server's own file says so, and it is this server's."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        assert self._server is not None
        return len(lines) >= 8 and lines[0] == str(self._server.pid) and lines[7].strip() == "ready"

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}


def server_version() -> int:
    """The major version of the server that :class:`PrivateCluster` starts.

    Raises:
        ClusterError: there is none.
    """
    done = subprocess.run(
        [_binaries() / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    return int(re.search(r"\d+", done.stdout)[0])  # type: ignore[index]  # it always says one


def why_no_postgresql() -> str:
    """Why :class:`PrivateCluster` doesn't work here; empty where it should."""
    try:
        _binaries()
        _account()
    except ClusterError as error:
        return str(error)
    return "" if find_spec("psycopg") else "psycopg isn't installed"


def _binaries() -> Path:
    """The folder of the newest server's binaries: Debian keeps them out of PATH."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    found = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    for folder in [*found, *([Path(on_path).resolve().parent] if on_path else [])]:
        if all((folder / name).exists() for name in _BINARIES):
            return folder
    raise ClusterError(f"PostgreSQL's {', '.join(_BINARIES)} aren't installed: apt-get install postgresql")


def _account() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in _ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ClusterError(f"root can't run PostgreSQL, and there is no account {' or '.join(_ACCOUNTS)}")


def _memory() -> list[str]:
    """The file system in memory, if several clusters fit: a database is hundreds of files, made and removed at once."""
    parent = "/dev/shm"  # noqa: S108  # mkdtemp's names
    try:
        room = min(psutil.disk_usage(parent).free, psutil.virtual_memory().available)
    except OSError:
        return []
    return [parent] if room > _PLENTY else []


def _folder(account: pwd.struct_passwd | None, preferred: Sequence[str]) -> Path:
    """A new folder that the account reaches (pytest's are below one for its user alone), short enough for a socket."""
    for parent in dict.fromkeys((*preferred, "/tmp", "/var/tmp")):  # noqa: S108  # mkdtemp's names
        path = Path(parent).resolve()
        open_to_all = all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))
        if path.is_dir() and len(str(path)) < 60 and (account is None or open_to_all):
            return Path(tempfile.mkdtemp(prefix="planarian-pg-", dir=path))
    raise ClusterError("no temporary directory that another user reaches, with a path short enough for a socket")


def _runs(process: psutil.Process) -> bool:
    """Whether a killed process still holds anything; whoever inherited it may be slow to collect its exit code."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
