"""Random SQLite schemas and statements on them, as Hypothesis strategies. Many fail; that is part of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

_VALUES = (
    "NULL", "0", "1", "2", "3", "7", "-1", "1.0", "0.5", "-0.0", "9e999", "-9e999", "9223372036854775807",
    "-9223372036854775808", "1e300", "''", "'a'", "'A'", "'b'", "'b '", "'1'", "'01'", "'1.0'", "'é'", "x''", "x'00ff'",
    "x'61'",
)  # fmt: skip
_TYPES = ("", "INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC", "VARCHAR(9)")
_STRICT_TYPES = ("INTEGER", "TEXT", "REAL", "BLOB", "ANY")
_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION")


def values() -> SearchStrategy[str]:
    return st.sampled_from((*_VALUES, "'a' || char(0) || 'b'", "random() % 5", "randomblob(2)"))


@dataclass
class Table:
    name: str
    columns: list[str]
    sql: str
    generated: list[str] = field(default_factory=list)


@dataclass
class Schema:
    tables: list[Table]
    views: list[str]
    script: list[str]


# --- schemas ---


@st.composite
def schemas(draw: DrawFn) -> Schema:
    tables: list[Table] = []
    for number in range(draw(st.integers(1, 3))):
        tables.append(draw(tables_of(f"t{number}", tables)))
    script = [table.sql for table in tables]
    for number in range(draw(st.integers(0, 2))):
        script.append(draw(indexes(f"i{number}", draw(st.sampled_from(tables)))))
    for number in range(draw(st.integers(0, 2))):
        script.append(draw(triggers(f"g{number}", tables)))
    views = []
    if draw(st.booleans()):
        base = tables[0]
        views.append("v0")
        columns = ", ".join(base.columns)
        script.append(f"CREATE VIEW v0 AS SELECT {columns} FROM {base.name}")  # noqa: S608  # names of ours
        action = draw(actions_of_a_trigger(tables, "new"))
        script.append(f"CREATE TRIGGER gv INSTEAD OF INSERT ON v0 BEGIN {action}; END")
    if draw(st.integers(0, 4)) == 0:
        script.append(f"CREATE VIRTUAL TABLE full USING {draw(st.sampled_from(('fts5', 'fts4')))}(x)")
        tables.append(Table("full", ["x"], ""))
    return Schema(tables, views, script)


@st.composite
def tables_of(draw: DrawFn, name: str, earlier: list[Table]) -> Table:
    strict = draw(st.integers(0, 4)) == 0
    types = _STRICT_TYPES if strict else _TYPES
    columns = [f"c{number}" for number in range(draw(st.integers(2, 4)))]
    key = draw(st.sampled_from(("none", "rowid", "auto", "text", "both", "without")))
    parts = [draw(columns_of(column, types, earlier)) for column in columns]
    if key in ("rowid", "auto"):
        parts[0] = f"c0 INTEGER PRIMARY KEY{' AUTOINCREMENT' if key == 'auto' else ''}"
    elif key == "text":
        parts[0] = "c0 TEXT PRIMARY KEY"
    generated = []
    if draw(st.integers(0, 3)) == 0:
        generated.append("gen")
        parts.append(f"gen {types[1]} AS (c1 IS NULL) {draw(st.sampled_from(('VIRTUAL', 'STORED')))}")
    if key in ("both", "without"):
        collation = draw(st.sampled_from(("", " COLLATE NOCASE", " DESC")))
        parts.append(f"PRIMARY KEY (c1{collation}, c0)")
    options = [*(["WITHOUT ROWID"] if key == "without" else []), *(["STRICT"] if strict else [])]
    return Table(name, columns, f"CREATE TABLE {name} ({', '.join(parts)}) {', '.join(options)}", generated)


@st.composite
def columns_of(draw: DrawFn, name: str, types: tuple[str, ...], earlier: list[Table]) -> str:
    text = f"{name} {draw(st.sampled_from(types))}"
    if draw(st.integers(0, 3)) == 0:
        text += " UNIQUE"
        if draw(st.integers(0, 2)) == 0:
            text += " ON CONFLICT REPLACE"
    if draw(st.integers(0, 4)) == 0:
        text += " COLLATE NOCASE"
    if draw(st.integers(0, 4)) == 0:
        text += f" DEFAULT {draw(st.sampled_from(('1', chr(39) + 'a' + chr(39))))}"
    if draw(st.integers(0, 7)) == 0:
        text += f" CHECK ({name} IS NULL OR {name} <> 7)"
    if earlier and draw(st.integers(0, 2)) == 0:
        parent = draw(st.sampled_from(earlier))
        on_delete, on_update = draw(st.sampled_from(_ACTIONS)), draw(st.sampled_from(_ACTIONS))
        text += f" REFERENCES {parent.name}(c0) ON DELETE {on_delete} ON UPDATE {on_update}"
        text += draw(st.sampled_from(("", " DEFERRABLE INITIALLY DEFERRED")))
    return text


@st.composite
def indexes(draw: DrawFn, name: str, table: Table) -> str:
    unique = draw(st.sampled_from(("", "UNIQUE ")))
    what = draw(st.sampled_from(("c1", "c1, c0", "c0 COLLATE NOCASE DESC", "lower(c1)")))
    where = draw(st.sampled_from(("", " WHERE c1 IS NOT NULL")))
    return f"CREATE {unique}INDEX {name} ON {table.name} ({what}){where}"


@st.composite
def triggers(draw: DrawFn, name: str, tables: list[Table]) -> str:
    table = draw(st.sampled_from(tables))
    time, event = draw(st.sampled_from(("BEFORE", "AFTER"))), draw(st.sampled_from(("INSERT", "UPDATE", "DELETE")))
    row = "old" if event == "DELETE" else "new"
    return f"CREATE TRIGGER {name} {time} {event} ON {table.name} BEGIN {draw(actions_of_a_trigger(tables, row))}; END"


@st.composite
def actions_of_a_trigger(draw: DrawFn, tables: list[Table], row: str) -> str:
    table = draw(st.sampled_from(tables))
    first, second = table.columns[:2]
    return draw(
        st.sampled_from(
            (
                f"INSERT OR IGNORE INTO {table.name} ({first}, {second}) VALUES ({row}.c1, {row}.c0)",  # noqa: S608
                f"INSERT OR REPLACE INTO {table.name} ({first}, {second}) VALUES ({row}.c0, {row}.c1)",  # noqa: S608
                f"UPDATE OR IGNORE {table.name} SET {second} = {row}.c0 WHERE {first} = {row}.c1",  # noqa: S608
                f"DELETE FROM {table.name} WHERE {second} = {row}.c1",  # noqa: S608
                f"SELECT raise(IGNORE) WHERE {row}.c1 = 3",
            )
        )
    )


# --- statements ---


@st.composite
def changes(draw: DrawFn, schema: Schema) -> str:
    """A statement that changes rows, or tries to."""
    names = [*((table.name, table.columns) for table in schema.tables), *((v, ["c0", "c1"]) for v in schema.views)]
    name, columns = draw(st.sampled_from(names))
    kind = draw(st.sampled_from(("insert", "insert", "insert", "upsert", "select", "update", "update", "delete")))
    if kind in ("insert", "upsert"):
        text = _insert(draw, name, columns)
        if kind == "upsert":
            target = draw(st.sampled_from(("", "(c0)", "(c1)")))
            text += f" ON CONFLICT {target} DO UPDATE SET {draw(st.sampled_from(columns))} = {draw(values())}"
    elif kind == "select":
        source = draw(st.sampled_from(schema.tables))
        text = f"INSERT OR IGNORE INTO {name} ({', '.join(columns[:1])}) SELECT {source.columns[0]} FROM {source.name}"  # noqa: S608
    elif kind == "update":
        text = _update(draw, name, columns)
    else:
        text = f"DELETE FROM {name}{draw(conditions(columns))}"  # noqa: S608
    return text + draw(st.sampled_from(("", "", " RETURNING *")))


def _insert(draw: DrawFn, name: str, columns: list[str]) -> str:
    verb = draw(st.sampled_from(("INSERT", "INSERT", "REPLACE", "INSERT OR IGNORE", "INSERT OR ROLLBACK")))
    chosen = columns[: draw(st.integers(1, len(columns)))]
    rows = [f"({', '.join(draw(values()) for _ in chosen)})" for _ in range(draw(st.integers(1, 4)))]
    return f"{verb} INTO {name} ({', '.join(chosen)}) VALUES {', '.join(rows)}"


def _update(draw: DrawFn, name: str, columns: list[str]) -> str:
    verb = draw(st.sampled_from(("UPDATE", "UPDATE", "UPDATE OR REPLACE", "UPDATE OR IGNORE")))
    column = draw(st.sampled_from(columns))
    value = draw(st.one_of(values(), st.sampled_from((f"{column} + 1", f"-{column}", f"upper({column})", columns[-1]))))
    return f"{verb} {name} SET {column} = {value}{draw(conditions(columns))}"


@st.composite
def conditions(draw: DrawFn, columns: list[str]) -> str:
    column = draw(st.sampled_from(columns))
    return draw(
        st.sampled_from(
            (
                "",
                f" WHERE {column} IS NULL",
                f" WHERE {column} > 1",
                f" WHERE {column} = {draw(values())}",
                " WHERE random() % 2",
                f" WHERE {column} IN (SELECT max({column}) FROM t0)",  # noqa: S608
            )
        )
    )


@st.composite
def definitions(draw: DrawFn, schema: Schema) -> str:
    """A statement that changes definitions, or tries to."""
    table = draw(st.sampled_from(schema.tables)).name
    return draw(
        st.sampled_from(
            (
                f"ALTER TABLE {table} RENAME TO x0",
                f"ALTER TABLE x0 RENAME TO {table}",
                f"ALTER TABLE {table} RENAME COLUMN c1 TO cx",
                f"ALTER TABLE {table} RENAME COLUMN cx TO c1",
                f"ALTER TABLE {table} ADD COLUMN n0 DEFAULT {draw(st.sampled_from(_VALUES))}",
                f"ALTER TABLE {table} ADD COLUMN n1 AS (c0 || 'x')",
                f"ALTER TABLE {table} DROP COLUMN n0",
                f"ALTER TABLE {table} DROP COLUMN c1",
                f"DROP TABLE {table}",
                f"CREATE TABLE x1 AS SELECT * FROM {table}",  # noqa: S608
                "CREATE TABLE x2 (a INTEGER PRIMARY KEY AUTOINCREMENT, b UNIQUE)",
                "INSERT INTO x2 (b) VALUES (1), (2)",
                "DROP TABLE x1",
                "DROP TABLE x2",
                f"CREATE INDEX x3 ON {table} (c0)",
                f"CREATE UNIQUE INDEX x4 ON {table} (c1)",
                "DROP INDEX x3",
                "DROP INDEX i0",
                "DROP TRIGGER g0",
                "DROP VIEW v0",
                f"CREATE VIEW x5 AS SELECT * FROM {table}",  # noqa: S608
                f"CREATE TRIGGER x6 AFTER DELETE ON {table} BEGIN DELETE FROM t0; END",  # noqa: S608
                "CREATE VIRTUAL TABLE x7 USING fts5(a, b)",
                "INSERT INTO x7 VALUES ('a', 'b')",
                "DROP TABLE x7",
                "DROP TABLE full",
            )
        )
    )
