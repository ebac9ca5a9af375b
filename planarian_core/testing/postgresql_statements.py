# ruff: noqa: S608  # to make odd SQL is the purpose
"""Random schemas for PostgreSQL, and random statements on them: what breaks a naive undo, in every combination."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

VALUES: dict[str, tuple[str, ...]] = {
    "integer": ("0", "1", "-1", "7", "2147483647", "NULL"),
    "bigint": ("0", "9007199254740993", "-9223372036854775808", "NULL"),
    "numeric": ("0.10", "0.1", "12345678901234567890.123456789", "'NaN'", "'Infinity'", "NULL"),
    "float8": ("0.30000000000000004", "'-0'", "'NaN'", "'-Infinity'", "1e308", "NULL"),
    "text": ("''", "'a'", "E'back\\\\slash'", "'quo''te, (paren) \"dq\"'", "E'new\\nline\\ttab'", "'ünï ☃'", "NULL"),
    "char(5)": ("'ab'", "''", "'abcde'", "NULL"),
    "varchar(8)": ("'x '", "' x'", "NULL"),
    "bytea": (r"'\x00ff5c'", r"'\x'", "NULL"),
    "boolean": ("true", "false", "NULL"),
    "date": ("'2024-02-29'", "'0044-03-15 BC'", "'infinity'", "NULL"),
    "timestamp": ("'2024-02-29 23:59:59.999999'", "'-infinity'", "'0001-01-01 BC'", "NULL"),
    "timestamptz": ("'2024-06-01 12:00:00+05:30'", "'infinity'", "NULL"),
    "interval": ("'1 year 2 mons -3 days 04:05:06.7'", "'-1 mon +1 day'", "NULL"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "NULL"),
    "json": ('\'{"b": 1, "a":  [1e400, null], "b": 2}\'', "'null'", "NULL"),
    "jsonb": ('\'{"b": 1.000, "a": [null]}\'', "NULL"),
    "integer[]": ("'{1,NULL,3}'", "'{}'", "'[0:1]={4,5}'", "NULL"),
    "text[]": ("ARRAY['NULL', NULL, '', 'a\"b,{}']", "NULL"),
    "point": ("'(1e-300,NaN)'", "'(0,-0)'", "NULL"),
    "inet": ("'::1/64'", "'10.0.0.1'", "NULL"),
    "bit varying": ("B''", "B'0101'", "NULL"),
    "money": ("'-1,234.56'", "NULL"),
    "int4range": ("'empty'", "'[1,5)'", "'(,)'", "NULL"),
    "tsvector": ("'''a b'':1A c:2,3'", "NULL"),
    "xml": ("'<a>x &amp; y</a>'", "NULL"),
    "mood": ("'fine'", "'so, so'", "NULL"),
    "small": ("1", "9", "NULL"),
    "pair": ("ROW(1, 'a,b')::pair", "ROW(NULL, '')::pair", "ROW(NULL, NULL)::pair", "NULL"),
}
"""Types and values that are easily lost on the way; the last three are the schema's own (:data:`TYPES`)."""

TYPES = (
    "CREATE TYPE mood AS ENUM ('fine', 'so, so')",
    "CREATE DOMAIN small AS integer CHECK (VALUE < 10)",
    "CREATE TYPE pair AS (a integer, b text)",
)
KEYS = ("serial", "always", "default", "plain", "text", "composite", "none", "nullable", "deferred")
_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION")


@dataclass
class RandomTable:
    """``key``: its columns (empty: none). ``plain``: columns that a statement may set, with their types."""

    name: str
    kind: str
    key: tuple[str, ...]
    plain: dict[str, str] = field(default_factory=dict)
    generated: bool = False


class RandomSchema:
    """A schema chosen by ``chance``: :attr:`ddl` makes it, :meth:`statement` gives one that may well fail."""

    def __init__(self, chance: Random, version: int) -> None:
        self._chance = chance
        self._version = version
        self.ddl: list[str] = [*TYPES, "CREATE TABLE audit (at serial, what text, old text, new text)"]
        self.tables: list[RandomTable] = []
        self.views: list[str] = []
        self._made = 0
        for number in range(chance.randint(2, 5)):
            self._add_table(f"t{number}")
        for table in self.tables:
            self._add_triggers(table)
        for table in chance.sample(self.tables, k=min(2, len(self.tables))):
            self._add_view(table)
        self._fill()

    def _fill(self) -> None:
        """Eight rows for most tables."""
        for table in self.tables:
            columns, values = "n", "g"
            if table.kind in ("plain", "composite", "nullable", "deferred"):
                columns, values = "k, n", "g, g"
            if table.kind != "text":
                rows = f"SELECT {values} FROM generate_series(1, 8) g"
                self.ddl.append(f"INSERT INTO {table.name} ({columns}) {rows}")

    def _one(self, choices: tuple[str, ...] | list[str]) -> str:
        return self._chance.choice(choices)

    # --- the schema ---

    def _add_table(self, name: str) -> None:
        chance = self._chance
        kind = self._one(KEYS)
        key, columns = _key(kind)
        table = RandomTable(name, kind, key)
        table.plain["n"] = "integer"
        columns.append("n integer DEFAULT 0" + self._one(["", "", " CHECK (n > -100)", " NOT NULL"]))
        for number, type_ in enumerate(chance.sample(sorted(VALUES), k=chance.randint(1, 4))):
            table.plain[f"c{number}"] = type_
            columns.append(f"c{number} {type_}")
        if chance.random() < 0.4:
            table.generated = True
            columns.append("g integer GENERATED ALWAYS AS (n / 2) STORED")
        if chance.random() < 0.15:
            columns.append("EXCLUDE USING btree (n WITH =) DEFERRABLE")
        excludes = columns[-1].startswith("EXCLUDE")
        partitioned = kind in ("plain", "composite", "none") and not excludes and chance.random() < 0.35
        if not partitioned:
            columns += self._foreign_keys(table)
        by = f" PARTITION BY RANGE ({'k' if key else 'n'})" if partitioned else ""
        self.ddl.append(f"CREATE TABLE {name} ({', '.join(columns)}){by}")
        if partitioned:
            for part, values in (("low", "FROM (MINVALUE) TO (5)"), ("high", "FROM (5) TO (1000)")):
                self.ddl.append(f"CREATE TABLE {name}_{part} PARTITION OF {name} FOR VALUES {values}")
            self.ddl.append(f"CREATE TABLE {name}_rest PARTITION OF {name} DEFAULT")
        elif chance.random() < 0.15:
            self.ddl.append(f"CREATE TABLE {name}_child (extra text DEFAULT 'x') INHERITS ({name})")
        elif chance.random() < 0.2:
            self.ddl.append(f"CREATE UNIQUE INDEX ON {name} (n) WHERE n > 30")
        self.tables.append(table)

    def _foreign_keys(self, table: RandomTable) -> list[str]:
        targets = [t for t in self.tables if t.kind in ("serial", "always", "default", "plain")]
        out = []
        if targets and self._chance.random() < 0.7:
            target = self._chance.choice(targets)
            table.plain["parent"] = "reference"
            out.append(
                f"parent integer DEFAULT 1 REFERENCES {target.name} (k) ON DELETE {self._one(_ACTIONS)} "
                f"ON UPDATE {self._one(_ACTIONS)}{self._one(('', ' DEFERRABLE', ' DEFERRABLE INITIALLY DEFERRED'))}"
            )
        if table.kind in ("serial", "always", "default", "plain") and self._chance.random() < 0.3:
            table.plain["self"] = "reference"
            out.append(f"self integer REFERENCES {table.name} (k) ON DELETE {self._one(_ACTIONS)}")
        return out

    def _add_triggers(self, table: RandomTable) -> None:
        name, chance = table.name, self._chance
        bodies = {
            "BEFORE INSERT OR UPDATE": "NEW.n := coalesce(NEW.n, 0) + 1; RETURN NEW;",
            "BEFORE UPDATE OR DELETE": "IF OLD.n = 7 THEN RETURN NULL; END IF; RETURN coalesce(NEW, OLD);",
            "AFTER INSERT OR UPDATE OR DELETE": (
                "INSERT INTO audit (what, old, new) VALUES (TG_OP, OLD::text, NEW::text); RETURN NULL;"
            ),
            "AFTER UPDATE": f"UPDATE {self._chance.choice(self.tables).name} SET n = n + 1 WHERE n < 3; RETURN NULL;",
        }
        deep = "IF pg_trigger_depth() > 2 THEN RETURN coalesce(NEW, OLD); END IF;"
        for number, (when, body) in enumerate(bodies.items()):
            if chance.random() < 0.2:
                head = f"CREATE FUNCTION {name}_{number}() RETURNS trigger LANGUAGE plpgsql"
                self.ddl += [
                    f"{head} AS $$ BEGIN {deep} {body} END $$",
                    f"CREATE TRIGGER {name}_{number} {when} ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_{number}()",
                ]

    def _add_view(self, table: RandomTable) -> None:
        self.views.append(f"v_{table.name}")
        check = self._one(["", " WITH CHECK OPTION"])
        self.ddl.append(f"CREATE VIEW v_{table.name} AS SELECT * FROM {table.name} WHERE n < 50{check}")

    # --- statements ---

    def chosen(self, chance: Random) -> RandomSchema:
        """The schema itself, its next statements chosen by ``chance``."""
        self._chance = chance
        return self

    def statement(self) -> str:
        """One statement of any kind."""
        kinds = {
            self._insert: 8, self._update: 8, self._delete: 4, self._upsert: 3, self._moving: 2, self._merge: 2,
            self._truncate: 1, self._definition: 3,
        }  # fmt: skip
        [made] = self._chance.choices(list(kinds), weights=list(kinds.values()))
        return made(self._chance.choice(self.tables))

    def row_change(self) -> str:
        """An INSERT, UPDATE or DELETE of few rows, as another writer would make it."""
        table = self._chance.choice(self.tables)
        return self._chance.choice((self._insert, self._update, self._delete))(table)

    def _value(self, type_: str) -> str:
        if type_ == "reference":
            return self._one(["1", "2", "3", "NULL"])
        if type_ == "integer" and self._chance.random() < 0.7:
            return str(self._chance.randint(0, 12))
        return self._one(VALUES[type_])

    def _target(self, table: RandomTable) -> str:
        view = f"v_{table.name}"
        if view in self.views and self._chance.random() < 0.3:
            return view
        return f"ONLY {table.name}" if self._chance.random() < 0.1 else table.name

    def _row(self, table: RandomTable) -> dict[str, str]:
        row = {}
        for column in table.key:
            if table.kind in ("serial", "always", "default") and self._chance.random() < 0.6:
                continue
            number = str(self._chance.randint(1, 9))
            row[column] = f"'k{number}'" if table.kind == "text" else number
        for column, type_ in table.plain.items():
            if self._chance.random() < 0.7:
                row[column] = self._value(type_)
        return row

    def _insert(self, table: RandomTable) -> str:
        target = self._target(table).removeprefix("ONLY ")
        if self._chance.random() < 0.1:
            return f"INSERT INTO {target} DEFAULT VALUES{self._returning()}"
        if self._chance.random() < 0.1:
            return f"INSERT INTO {target} (n) SELECT n + 1 FROM {self._chance.choice(self.tables).name} LIMIT 5"
        first = self._row(table) or {"n": "1"}
        rows = [
            first,
            *({c: self._row(table).get(c, "DEFAULT") for c in first} for _ in range(self._chance.randint(0, 2))),
        ]
        override = " OVERRIDING SYSTEM VALUE" if table.kind == "always" and self._chance.random() < 0.7 else ""
        values = ", ".join(f"({', '.join(row.values())})" for row in rows)
        return f"INSERT INTO {target} ({', '.join(first)}){override} VALUES {values}{self._returning()}"

    def _where(self, table: RandomTable) -> str:
        number = self._chance.randint(1, 9)
        choices = [f"n = {number}", f"n > {number}", "random() < 0.5", "true", "n IS NULL",
                   f"ctid IN (SELECT ctid FROM {table.name} LIMIT 2)"]  # fmt: skip
        if table.key and table.kind != "text":
            choices += [f"{table.key[0]} = {number}"] * 3
        return self._one(choices)

    def _update(self, table: RandomTable) -> str:
        target = self._target(table)
        where = self._where(table)
        if "ctid" in where and target.startswith("v_"):
            where = "true"
        changes = {c: self._value(t) for c, t in table.plain.items() if self._chance.random() < 0.4}
        if table.key and table.kind != "text" and self._chance.random() < 0.3:
            changes[table.key[0]] = f"{table.key[0]} + {self._chance.choice((1, -1, 10))}"
        if not changes or self._chance.random() < 0.3:
            changes["n"] = self._one(["n + 1", "n", "-n", "(SELECT count(*) FROM audit)"])
        settings = ", ".join(f"{column} = {value}" for column, value in changes.items())
        return f"UPDATE {target} SET {settings} WHERE {where}{self._returning()}"

    def _delete(self, table: RandomTable) -> str:
        target = self._target(table)
        where = self._where(table)
        if "ctid" in where and target.startswith("v_"):
            where = "n < 3"
        return f"DELETE FROM {target} WHERE {where}{self._returning()}"

    def _upsert(self, table: RandomTable) -> str:
        row = self._row(table) or {"n": "1"}
        target = f" ({', '.join(table.key)})" if table.key and table.kind not in ("nullable", "deferred") else ""
        action = "DO UPDATE SET n = excluded.n + 1" if target and self._chance.random() < 0.7 else "DO NOTHING"
        override = " OVERRIDING SYSTEM VALUE" if table.kind == "always" else ""
        return (f"INSERT INTO {table.name} ({', '.join(row)}){override} VALUES ({', '.join(row.values())}) "
                f"ON CONFLICT{target} {action}{self._returning()}")  # fmt: skip

    def _moving(self, table: RandomTable) -> str:
        """A statement that writes to two tables."""
        other = self._chance.choice(self.tables)
        return (
            f"WITH gone AS (DELETE FROM {table.name} WHERE {self._where(table)} RETURNING n), "
            f"more AS (UPDATE {other.name} SET n = n + 1 WHERE n < 5 RETURNING n) "
            "INSERT INTO audit (what, new) SELECT 'moved', n FROM gone UNION ALL SELECT 'more', n FROM more"
        )

    def _merge(self, table: RandomTable) -> str:
        if self._version < 15:
            return self._update(table)
        insert = "INSERT (n) VALUES (s.x)"
        return (f"MERGE INTO {table.name} t USING generate_series(1, 4) s(x) ON t.n = s.x "
                f"WHEN MATCHED AND s.x = 2 THEN DELETE WHEN MATCHED THEN UPDATE SET n = t.n + 10 "
                f"WHEN NOT MATCHED THEN {insert}")  # fmt: skip

    def _truncate(self, table: RandomTable) -> str:
        return f"TRUNCATE {table.name}{self._one(['', ' RESTART IDENTITY', ' CASCADE', ' RESTART IDENTITY CASCADE'])}"

    def _definition(self, table: RandomTable) -> str:
        self._made += 1
        new, any_new = f"x{self._made}", f"x{self._chance.randint(1, self._made)}"
        return self._one([
            f"ALTER TABLE {table.name} ADD COLUMN {new} integer DEFAULT 5",
            f"ALTER TABLE {table.name} DROP COLUMN {any_new}",
            f"ALTER TABLE {table.name} ADD CONSTRAINT {new} CHECK (n < 5000)",
            f"ALTER TABLE {table.name} ALTER COLUMN n SET DEFAULT 2",
            f"CREATE INDEX {new} ON {table.name} (n)",
            f"DROP INDEX {any_new}",
            f"CREATE TABLE {new} AS SELECT n FROM {table.name}",
            f"CREATE TABLE {new} (n integer PRIMARY KEY, s serial)",
            f"INSERT INTO {any_new} (n) VALUES ({self._chance.randint(0, 9)})",
            f"DELETE FROM {any_new} WHERE n < {self._chance.randint(0, 9)}",
            f"DROP TABLE {any_new}",
            f"CREATE VIEW {new} AS SELECT n FROM {table.name}",
            f"DROP VIEW {any_new}",
            f"COMMENT ON TABLE {table.name} IS '{new}'",
            f"CREATE MATERIALIZED VIEW {new} AS SELECT count(*) FROM {table.name}",
        ])  # fmt: skip

    def _returning(self) -> str:
        return self._one(["", "", "", " RETURNING *", " RETURNING n"])


def _key(kind: str) -> tuple[tuple[str, ...], list[str]]:
    """The key's columns, and how they are declared."""
    if kind == "composite":
        return ("k", "l"), ["k integer", "l integer DEFAULT 0", "PRIMARY KEY (k, l)"]
    declared = {
        "serial": "k serial PRIMARY KEY",
        "always": "k integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "default": "k integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        "plain": "k integer PRIMARY KEY DEFAULT 1",
        "text": 'k text COLLATE "C" PRIMARY KEY',
        "nullable": "k integer UNIQUE",
        "deferred": "k integer UNIQUE DEFERRABLE INITIALLY DEFERRED",
    }.get(kind)
    return (("k",), [declared]) if declared else ((), [])
