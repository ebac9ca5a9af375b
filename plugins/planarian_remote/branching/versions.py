"""Versions of a doltlite database: a branch for each sandbox, commits, resets, and refs that keep what was left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from planarian_core.errors import CaptureError, CompensationError, PlanarianError, RemoteError
from planarian_core.faults import reach
from planarian_remote.branching.engine import Connection, EngineError

_AUTHOR = "Planarian <planarian@localhost>"
_CLEAN = "SELECT dolt_hashof_catalog('WORKING') = dolt_hashof_catalog('HEAD')"
_OF_DOLTLITE = "prolly"
_ATTEMPTS = 3
"""A reset may leave ``user_version`` as it was; once more, on another connection, and it is reset too (0.51)."""


@dataclass(frozen=True)
class DoltVersions:
    """The versions of one database file. Each operation has a connection of its own.

    ``service`` is the configured name, for messages; ``base`` the branch from which a new sandbox starts;
    ``busy_timeout`` the seconds to wait for another writer.
    """

    service: str
    library: Path
    database: Path
    base: str = "main"
    busy_timeout: float = 5.0

    # --- as planarian_core.interfaces.Versions says ---

    def commit(self, sandbox_id: str) -> str:
        """The branch's state as a commit: the present one where nothing was changed since.

        Raises:
            CaptureError: somebody else holds the database, or the commit does not hold all of the state.
        """
        with self._explained(CaptureError, "no version could be made"), self._on_branch(sandbox_id) as branch:
            if not branch.value(_CLEAN):
                _commit_all(branch, f"statepoint of {sandbox_id}")
                if not branch.value(_CLEAN):
                    raise CaptureError(
                        f"{self.service}: the commit does not hold all of the branch's state",
                        code="service-failed",
                        state="nothing was committed to the registry; the sandbox goes on running",
                    )
            return str(branch.value("SELECT dolt_hashof('HEAD')"))

    def check(self, sandbox_id: str, version: str) -> None:
        """CompensationError unless the version is there whole, and nobody else is writing."""
        with self._explained(CompensationError, f"{sandbox_id} can't go to version {version}"):
            connection = self.open()
            try:
                connection.execute("SELECT dolt_hashof(?), dolt_hashof_db(?)", version, version)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            finally:
                connection.close()

    def reset(self, sandbox_id: str, version: str) -> None:
        """The branch at a version; a line of commits that this leaves is kept by a ref. Idempotent.

        Raises:
            CompensationError: it is not there, or somebody else holds the database.
        """
        with self._explained(CompensationError, f"{sandbox_id} could not be brought to version {version}"):
            with self._on_branch(sandbox_id, version) as branch:
                if not branch.value(_CLEAN):  # a hard reset would leave new tables where they are
                    _commit_all(branch, f"what a rollback of {sandbox_id} left behind")
                _keep_tip(branch, sandbox_id, version)
            reach("branch.kept")
            for _ in range(_ATTEMPTS):
                with self._on_branch(sandbox_id) as branch:
                    branch.execute("SELECT dolt_reset('--hard', ?)", version)
                with self._on_branch(sandbox_id) as branch:  # looked at as others see it
                    there = str(branch.value("SELECT dolt_hashof('HEAD')"))
                    if there == version and branch.value(_CLEAN):
                        return
            raise CompensationError(
                f"{self.service}: the branch of {sandbox_id} is at {there} after a reset to {version}, or not clean",
                code="service-failed",
                state="no row was lost: the branch's commits are kept",
            )

    def branch(self, sandbox_id: str, source_id: str, version: str) -> None:
        """The branch of a fork, from a version of its source. Idempotent.

        Raises:
            CompensationError: the version is gone, or somebody else holds the database.
        """
        what = f"the branch of {sandbox_id} could not be made from version {version} of {source_id}"
        with self._explained(CompensationError, what):
            connection = self.open()
            try:
                _make_branch(connection, sandbox_id, version)
            finally:
                connection.close()

    def take_over(self, sandbox_id: str, version: str) -> None:
        """A ref of the sandbox's own to a version of its fork. Idempotent."""
        with self._explained(CompensationError, f"{sandbox_id} could not take version {version} over"):
            connection = self.open()
            try:
                _keep(connection, sandbox_id, version)
            finally:
                connection.close()

    def keep(self, sandbox_id: str, versions: Sequence[str]) -> None:
        """Drop the refs that lead to none of these versions, or only to such as the branch leads to."""
        with (
            self._explained(CompensationError, f"old versions of {sandbox_id} could not be given up"),
            self._on_branch(sandbox_id) as branch,
        ):
            tip = str(branch.value("SELECT dolt_hashof('HEAD')"))
            needed = [version for version in versions if not _leads_to(branch, tip, version)]
            tags, own = _tags(branch, sandbox_id), {_ref(sandbox_id, version) for version in needed}
            others = [tag for tag in tags if tag not in own]
            idle = [tag for tag in others if not any(_leads_to(branch, tag, version) for version in needed)]
            for tag in idle[len(idle) == len(tags) :]:  # one stays, as a sign that the sandbox was here
                branch.execute("SELECT dolt_tag('-d', ?)", tag)

    def drop(self, sandbox_id: str) -> None:
        """Remove the sandbox's branch and refs; the commits go with the database's next collection. Idempotent."""
        with self._explained(CompensationError, f"the branch of {sandbox_id} could not be removed"):
            connection = self.open()
            try:
                if _has_branch(connection, sandbox_id):
                    connection.execute("SELECT dolt_branch('-D', ?)", branch_name(sandbox_id))
                for tag in _tags(connection, sandbox_id):
                    connection.execute("SELECT dolt_tag('-d', ?)", tag)
            finally:
                connection.close()

    # --- connections ---

    def open(self) -> Connection:
        """A connection to the database, on its default branch.

        Raises:
            EngineError: the file is missing, or isn't a database.
            RemoteError: ``not-doltlite``: it is one of plain SQLite.
        """
        connection = Connection(self.library, self.database, busy_timeout=self.busy_timeout)
        # Asked first: this engine opens SQLite's own files too, and its version functions crash there.
        if connection.value("SELECT doltlite_engine()") != _OF_DOLTLITE:
            connection.close()
            raise RemoteError(
                f"{self.service}: {self.database} is a plain SQLite database, without versions",
                code="not-doltlite",
                state="nothing was changed",
                remedy='use kind = "sql" with dialect = "sqlite", or load its dump into a doltlite database',
            )
        return connection

    def on_branch(self, sandbox_id: str) -> Connection:
        """A connection on the sandbox's branch, which is made if this is its first use.

        Raises:
            RemoteError: ``service-unreachable``, or ``branch-missing``.
        """
        with self._explained(RemoteError, "the database can't be reached"):
            connection = self.open()
            try:
                self._enter(connection, sandbox_id)
            except BaseException:
                connection.close()
                raise
            return connection

    def ensure(self, sandbox_id: str) -> None:
        """See that the sandbox has its branch."""
        self.on_branch(sandbox_id).close()

    @contextmanager
    def _on_branch(self, sandbox_id: str, version: str = "") -> Iterator[Connection]:
        connection = self.open()
        try:
            self._enter(connection, sandbox_id, version)
            yield connection
        finally:
            connection.close()

    def _enter(self, connection: Connection, sandbox_id: str, version: str = "") -> None:
        """Go to the sandbox's branch. One that is gone is made again only at ``version``: never from the base."""
        if not _has_branch(connection, sandbox_id):
            if version:
                _make_branch(connection, sandbox_id, version)
            elif _tags(connection, sandbox_id):
                raise RemoteError(
                    f"{self.service}: somebody removed the branch {branch_name(sandbox_id)}",
                    code="branch-missing",
                    state="nothing was changed",
                    remedy="roll the sandbox back to a statepoint: that makes the branch again",
                )
            else:
                self._begin(connection, sandbox_id)
        before = connection.value("SELECT active_branch()")
        connection.execute("SELECT dolt_connect_branch(?)", branch_name(sandbox_id))
        if not _has_working_set(connection):  # never used: a checkout from elsewhere makes one, under the write lock
            connection.execute("SELECT dolt_connect_branch(?)", before)
            connection.execute("SELECT dolt_checkout(?)", branch_name(sandbox_id))

    def _begin(self, connection: Connection, sandbox_id: str) -> None:
        """The first use by a sandbox: it starts from the base's last commit."""
        found = connection.execute("SELECT hash, dirty FROM dolt_branches WHERE name = ?", self.base).rows
        if not found:
            raise RemoteError(
                f"{self.service}: the base branch {self.base!r} does not exist",
                code="branch-missing",
                state="nothing was changed",
                remedy='set base = "…" for the service',
            )
        tip, dirty = found[0]
        if dirty:
            raise RemoteError(
                f"{self.service}: the branch {self.base} has changes that are not committed; a sandbox would miss them",
                code="base-uncommitted",
                state="nothing was changed",
                remedy=f"commit them on {self.base}: SELECT dolt_commit('-A', '-m', '…')",
            )
        _make_branch(connection, sandbox_id, str(tip))

    @contextmanager
    def _explained(self, error_class: type[PlanarianError], what: str) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            busy = error.busy
            raise error_class(
                f"{self.service}: {what}: {error}",
                code="service-busy" if busy else "service-unreachable",
                state="nothing was changed",
                remedy="end the other connection's transaction, then try again"
                if busy
                else f"see that {self.database} is there and whole",
            ) from error
        except RemoteError as error:
            if isinstance(error, error_class):
                raise
            raise error_class(error.message, code=error.code, state=error.state, remedy=error.remedy) from error


def branch_name(sandbox_id: str) -> str:
    """Without a slash: servers that take ``FILE@BRANCH`` as a path would make folders of it."""
    return f"planarian-{sandbox_id}"


def _ref(sandbox_id: str, commit: str) -> str:
    return f"{branch_name(sandbox_id)}.{commit}"


def _has_branch(connection: Connection, sandbox_id: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM dolt_branches WHERE name = ?", branch_name(sandbox_id)).rows)


def _has_working_set(connection: Connection) -> bool:
    try:
        connection.execute("SELECT dolt_hashof_catalog('WORKING')")
    except EngineError as error:
        if error.busy:
            raise
        return False
    return True


def _tags(connection: Connection, sandbox_id: str) -> list[str]:
    pattern = _ref(sandbox_id, "")
    found = connection.execute("SELECT tag_name FROM dolt_tags WHERE substr(tag_name, 1, ?) = ?", len(pattern), pattern)
    return [str(name) for (name,) in found.rows]


def _keep(connection: Connection, sandbox_id: str, commit: str) -> None:
    """A ref to a commit, so that no collection removes it; and a sign that the sandbox was here."""
    if _ref(sandbox_id, commit) not in _tags(connection, sandbox_id):
        connection.execute("SELECT dolt_tag(?, ?)", _ref(sandbox_id, commit), commit)


def _make_branch(connection: Connection, sandbox_id: str, version: str) -> None:
    """The ref first: a branch without one would look like one whose sandbox never was here when it is removed."""
    _keep(connection, sandbox_id, version)
    name = branch_name(sandbox_id)
    if _has_branch(connection, sandbox_id):  # a fork that was begun and not ended
        connection.execute("SELECT dolt_branch('-D', ?)", name)
    connection.execute("SELECT dolt_branch(?, ?)", name, version)


def _keep_tip(branch: Connection, sandbox_id: str, version: str) -> None:
    """Keep the branch's last commit where a reset to ``version`` would leave it without a ref."""
    tip = str(branch.value("SELECT dolt_hashof('HEAD')"))
    if not _leads_to(branch, version, tip):
        _keep(branch, sandbox_id, tip)


def _leads_to(connection: Connection, ref: str, commit: str) -> bool:
    """Whether a commit is ``ref`` itself or one that it grew from."""
    return connection.value("SELECT dolt_merge_base(?, ?)", ref, commit) == commit


def _commit_all(branch: Connection, message: str) -> None:
    """A commit of all tables, also of those that ``dolt_ignore`` would leave out."""
    # Violated constraints are the agent's state as well: --force.
    commit = "SELECT dolt_commit(?, '--force', '--skip-empty', '-m', ?, '--author', ?)"
    branch.execute(commit, "-A", message, _AUTHOR)
    if branch.value(_CLEAN):
        return
    tables = branch.execute("SELECT name FROM sqlite_master WHERE type = 'table'").rows
    dropped = branch.execute("SELECT from_table_name FROM dolt_schema_diff('HEAD', 'WORKING')").rows
    for name in {str(name) for (name,) in (*tables, *dropped)}:
        if name and not name.startswith("sqlite_"):
            with suppress(EngineError):  # a view or an index: not a table to add
                branch.execute("SELECT dolt_add('--force', ?)", name)
    branch.execute("SELECT dolt_commit('--force', '--skip-empty', '-m', ?, '--author', ?)", message, _AUTHOR)
