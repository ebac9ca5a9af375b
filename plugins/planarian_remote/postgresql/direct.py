"""A direct connection to PostgreSQL that looks like a server with one tool, ``execute_sql``."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from planarian_core.errors import ConfigurationError, RemoteError
from planarian_core.interfaces import ToolResult
from planarian_remote.configuration import MAX_RESULT
from planarian_remote.postgresql import results

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn, PGresult

TOOL, READ_TOOL, ARGUMENT = "execute_sql", "read_sql", "sql"
_LIMIT = (
    "SELECT pg_catalog.set_config('statement_timeout', %s, false) "
    "WHERE pg_catalog.current_setting('statement_timeout') = '0'"
)
_PATIENCE = 5.0
_READ_ONLY = "-c default_transaction_read_only=on"


class DirectTarget:
    """Results are shaped as MCP Toolbox's are; values of types that it has a form of its own for are given as
    PostgreSQL's text. ``read_sql`` is the same on a second connection, which can't write, and takes results row by row,
    of ``max_result`` bytes at most.
    """

    def __init__(self, dsn: str, *, timeout: float = 60.0, max_result: int = MAX_RESULT) -> None:
        self._dsn = dsn
        self._timeout = timeout
        self._max_result = max_result
        self._connections: dict[str, psycopg.Connection] = {}

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        statement = arguments.get(ARGUMENT)
        if tool not in (TOOL, READ_TOOL) or not isinstance(statement, str):
            raise RemoteError(f"{tool} with {sorted(arguments)} is no tool here", code="service-error")
        connection = self._connection(tool)
        import psycopg
        from psycopg.pq import ExecStatus

        try:
            # The extended protocol: one statement, and no second one behind it.
            if tool == READ_TOOL:
                answer, items = self._streamed(connection, statement.encode())
            else:
                answer = connection.pgconn.exec_params(statement.encode(), None)
                items = _items(answer)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise self._lost(tool, str(error)) from error
        if answer.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY):
            return {"content": results.content(items)}
        if connection.pgconn.status != psycopg.pq.ConnStatus.OK:
            raise self._lost(tool, connection.pgconn.error_message.decode(errors="replace"))
        if answer.status != ExecStatus.FATAL_ERROR:  # COPY
            raise self._lost(tool, "the statement began a transfer")
        return {"content": results.content([_error(answer)]), "isError": True}

    def _streamed(self, connection: psycopg.Connection, statement: bytes) -> tuple[PGresult, list[str]]:
        """Run a read; how it ended, and its rows.

        Raises:
            RemoteError: ``result-too-large``.
        """
        import psycopg
        from psycopg.pq import ExecStatus

        pgconn = connection.pgconn
        pgconn.send_query_params(statement, None)
        pgconn.set_single_row_mode()
        items: list[str] = []
        size = 0
        last: PGresult | None = None
        while (found := _next_result(pgconn)) is not None:
            last = found
            if found.status != ExecStatus.SINGLE_TUPLE:
                if found.status in (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH):
                    break
                continue
            items += _items(found)
            size += len(items[-1])
            if size > self._max_result:
                with suppress(psycopg.Error):  # it ends when it can send no more, too
                    connection.cancel_safe(timeout=_PATIENCE)
                self._connections.pop(READ_TOOL).close()  # what the server has sent meanwhile goes unread
                raise results.too_large(self._max_result)
        assert last is not None  # there is an answer to every statement
        return last, items

    def tools(self) -> Sequence[Mapping[str, Any]]:
        schema = {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "The statement."}},
            "required": [ARGUMENT],
        }
        return [{"name": TOOL, "description": "Run one SQL statement on the database.", "inputSchema": schema}]

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _connection(self, tool: str) -> psycopg.Connection:
        found = self._connections.get(tool)
        if found is not None and not found.closed:
            return found
        try:
            import psycopg
        except ImportError as error:
            raise ConfigurationError(
                "a direct connection to PostgreSQL needs the psycopg package",
                code="extra-missing",
                remedy="pip install 'planarian[sql]'",
            ) from error
        try:
            given = psycopg.conninfo.conninfo_to_dict(self._dsn)
        except psycopg.Error:  # its text, and so its cause, would show parts of a password
            raise ConfigurationError(
                "the dsn is no connection string that PostgreSQL reads",
                remedy="in a URL write special characters as %XX; in key=value pairs put 'quotes' around spaces",
            ) from None
        options = f"{given.get('options') or ''} {_READ_ONLY if tool == READ_TOOL else ''}".strip()
        try:
            made = psycopg.connect(
                self._dsn, autocommit=True, connect_timeout=10, client_encoding="UTF8", options=options
            )
            made.execute(_LIMIT, [f"{int(self._timeout * 1000)}ms"])
        except psycopg.Error as error:
            raise RemoteError(
                f"PostgreSQL can't be reached: {error}",
                code="service-unreachable",
                state="nothing was changed",
                remedy="see that it runs and that dsn is right",
            ) from error
        self._connections[tool] = made
        return made

    def _lost(self, tool: str, why: str) -> RemoteError:
        self._connections.pop(tool).close()
        return RemoteError(
            f"the connection to PostgreSQL was lost: {why.strip()}",
            code="service-unreachable",
            state="the call may have had its effect; the next call, snapshot or rollback finds out",
            remedy="see that it runs, then go on",
        )


def _next_result(pgconn: PGconn) -> PGresult | None:
    """The next one, waited for in a way that lets other threads run: libpq would wait, and keep them all waiting."""
    poll = select.poll()
    while True:
        unsent = pgconn.flush()
        if not unsent and not pgconn.is_busy():
            return pgconn.get_result()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        poll.poll()
        pgconn.consume_input()


def _items(answer: PGresult) -> list[str]:
    names = [(answer.fname(column) or b"").decode() for column in range(answer.nfields)]
    types = [answer.ftype(column) for column in range(answer.nfields)]
    return [
        results.item(
            (
                (name, results.from_text(answer.get_value(row, column), types[column]))
                for column, name in enumerate(names)
            ),
            types,
            other=results.as_text,
        )
        for row in range(answer.ntuples)
    ]


def _error(answer: PGresult) -> str:
    from psycopg.pq import DiagnosticField

    message = answer.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"unknown"
    state = answer.error_field(DiagnosticField.SQLSTATE) or b"XX000"
    return f"ERROR: {message.decode(errors='replace')} (SQLSTATE {state.decode()})"
