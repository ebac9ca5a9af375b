"""The rows of a SQLite file go back with the sandbox's files; needs no server. ``python remote_sqlite.py``."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from planarian_core import Planarian

CONFIGURATION = """
[services.notes]
kind = "sql"
dialect = "sqlite"
path = {path}
"""


def main(folder: Path) -> bool:
    home, project, file = folder / "home", folder / "project", folder / "notes.db"
    home.mkdir()
    project.mkdir()
    (home / "planarian.toml").write_text(CONFIGURATION.format(path=json.dumps(str(file))))
    with closing(sqlite3.connect(file)) as owner, owner:
        owner.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, note TEXT)")

    def seen() -> list[str]:
        """The notes, read past Planarian."""
        with closing(sqlite3.connect(file)) as reader:
            return [note for (note,) in reader.execute("SELECT note FROM notes ORDER BY id")]

    with Planarian.open(home) as planarian:
        sandbox = planarian.create_sandbox(project)
        notes = planarian.remote_session(sandbox, "notes")
        with closing(notes.kind.connect()) as server:
            notes.call("execute_sql", {"sql": "INSERT INTO notes (note) VALUES ('milk'), ('bread')"}, server)
            before = planarian.snapshot(sandbox, name="before")
            notes.call("execute_sql", {"sql": "UPDATE notes SET note = upper(note)"}, server)
            notes.call("execute_sql", {"sql": "DELETE FROM notes WHERE id = 1"}, server)
        states = [seen()]
        context = planarian.rollback(sandbox, before)
        states.append(seen())
        planarian.rollback(sandbox, str(context.safety_id))
        states.append(seen())
        for effect in planarian.effects(sandbox):
            print(f"{effect.number}  {effect.state.value:8} {effect.summary}")
        print("after the change, after the rollback, after its rollback:", *states)
        planarian.remove_sandbox(sandbox)
    return states == [["BREAD"], ["milk", "bread"], ["BREAD"]]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        sys.exit(not main(Path(place)))
