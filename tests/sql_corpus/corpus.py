"""The regression files and their databases: a template with what PostgreSQL's own tests build on, one copy a file."""

from __future__ import annotations

import contextlib
import queue
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import psycopg

from planarian_core.testing.postgresql import SUPERUSER, PrivateCluster
from planarian_core.testing.postgresql_contents import DatabaseContents
from planarian_core.testing.postgresql_service import HIDDEN, NAME, ROLE, SqlWorld
from planarian_remote.configuration import Table
from planarian_remote.postgresql.kind import make

from .control import session
from .proxied import SANDBOX, StatementSession
from .script import Script
from .tally import Tally, Violation
from .walk import Walk, run_bare
from .whole import WholeProxy

BASE = ("test_setup", "create_index", "create_misc")
"""Most files need nothing else; they run before, past the proxy."""
_BIG = ("dupindexcols", "fast_emp4000", "onek2", "slow_emp4000", "tenk1", "tenk2")
"""Tables of the template whose thousands of rows would be looked at for each statement: only where they are named."""
FEW = (
    "insert",
    "insert_conflict",
    "update",
    "delete",
    "merge",
    "with",
    "returning",
    "identity",
    "generated",
    "truncate",
    "domain",
    "updatable_views",
)
THROUGH = ("direct", "toolbox", "proxy")
"""The kind on a connection of its own; the kind and MCP Toolbox; ``planarian proxy`` before Toolbox, and rollbacks."""
_SETTINGS = {  # as pg_regress has them, and hostile enough
    "datestyle": "Postgres, MDY",
    "intervalstyle": "postgres_verbose",
    "timezone": "PST8PDT",
    "lc_monetary": "C",
    "bytea_output": "hex",
}
_SERVER: dict[str, str | int] = {
    "max_prepared_transactions": 20,
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": 0,
}


class Corpus:
    """Files of one PostgreSQL's tests; a context manager. ``at_once``: on as many servers."""

    def __init__(self, folder: Path, through: str, control: str | None = None, at_once: int = 1) -> None:
        self._folder = folder
        self._through = through
        self._control = control
        self._at_once = at_once
        self._free: queue.SimpleQueue[Server] = queue.SimpleQueue()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for _ in range(self._at_once):
                cluster = stack.enter_context(PrivateCluster(fsync=False, settings=_SERVER))
                self._free.put(Server(cluster, self._folder))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def walk_all(self, names: Sequence[str]) -> Iterator[Tally]:
        """What was found in each file, in this order."""
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                yield from pool.map(self.walk, names)
            finally:
                pool.shutdown(cancel_futures=True)

    def walk(self, name: str) -> Tally:
        """Send one file's statements."""
        server = self._free.get()
        try:
            return server.walk(name, self._through, self._control)
        except Exception as error:  # the other files are walked all the same, and the run has failed
            lost = Violation(name, 0, "", f"the file couldn't be walked to its end: {error!r}")
            return Tally(violations=[lost])
        finally:
            self._free.put(server)


class Server:
    """A cluster with the role and the templates: ``before_NAME`` for the files of :data:`BASE`, ``base`` for all
    others.
    """

    def __init__(self, cluster: PrivateCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        if (folder / "data").exists():  # where the server can read it
            shutil.copytree(folder / "data", cluster.folder / "regress" / "data")
        cluster.create_role(ROLE, "CREATEROLE IN ROLE pg_read_server_files, pg_write_server_files")
        with cluster.connect() as connection:
            connection.execute(f"ALTER ROLE {ROLE} SET statement_timeout = '20s'")
            connection.execute(f"ALTER ROLE {ROLE} SET lock_timeout = '5s'")
        template = "template0"
        for name in BASE:
            self._make(f"before_{name}", template)
            template = f"with_{name}"
            self._make(template, f"before_{name}")
            script = self._script(name)
            with cluster.connect(template, ROLE) as connection:
                for statement in script:
                    run_bare(connection, statement, script)
        self._make("base", template)

    def walk(self, name: str, through: str = "direct", control: str | None = None) -> Tally:
        """Send one file's statements, in a copy of the template."""
        database = f"walk_{name}_{through}_{control or 'real'}"
        self._make(database, f"before_{name}" if name in BASE else "base")
        with contextlib.ExitStack() as stack:

            def connect(role: str) -> psycopg.Connection[Any]:
                connection = self._cluster.connect(database, role)
                stack.callback(connection.close)
                return connection

            script = self._script(name)
            for table in _BIG:
                if table not in script.text.lower():
                    connect(SUPERUSER).execute(f"DROP TABLE IF EXISTS {table}".encode())
            contents = DatabaseContents(connect(SUPERUSER), HIDDEN)
            place = Path(stack.enter_context(TemporaryDirectory(prefix="planarian-")))
            world = SqlWorld(place, self._cluster, database, "direct" if through == "direct" else "toolbox")
            if through == "proxy":
                proxied: StatementSession = WholeProxy(world)
            else:
                table = tomllib.loads(world.table())["services"][NAME]
                proxied = session(make(Table(NAME, table), SANDBOX), control, connect(SUPERUSER))
            stack.callback(proxied.close)
            return Walk(name, connect(ROLE), connect(ROLE), contents, proxied).run(script)

    def _make(self, database: str, template: str) -> None:
        self._cluster.create_database(database, owner=ROLE, template=template)
        with self._cluster.connect() as connection:
            for key, value in _SETTINGS.items():
                connection.execute(f"ALTER DATABASE \"{database}\" SET {key} = '{value}'".encode())

    def _script(self, name: str) -> Script:
        text = (self._folder / "sql" / f"{name}.sql").read_text(errors="surrogateescape")
        environment = {
            "PG_ABS_SRCDIR": str(self._cluster.folder / "regress"),
            "PG_LIBDIR": "/nowhere",
            "PG_DLSUFFIX": ".so",
        }
        return Script(text, environment)
