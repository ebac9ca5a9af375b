"""A shell-heavy agent's work as commands: reads, edits, builds, git, a local wheel, a server, tests, failures.

The commands are those of an agent that is asked to make a small inventory program usable: it looks around, builds,
repairs, commits, packs and installs the program, and runs it as a server. Everything that it needs is in the workspace
that :func:`prepare` makes, or on any host with Python; where ``git``, ``make`` or a C compiler is missing the commands
that want it fail, as an agent's do. The server wakes twice a second while it waits, as Python's own and most others do:
from then on its processes have moved before a call as often as not, whatever the call does.
"""

from __future__ import annotations

import email
import json
import random
import shutil
import unittest
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

READ, EDIT, BUILD, GIT, INSTALL, SERVER, TEST, FAIL = (
    "read", "edit", "build", "git", "install", "server", "test", "failure",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One tool call."""

    kind: str
    command: str


def turns(port: int) -> list[Turn]:
    """The hundred commands; the server listens on ``port`` of the loopback."""
    every = [
        *_of(READ, _LOOKING_AROUND),
        *_of(GIT, _FIRST_COMMIT),
        *_of(BUILD, _FIRST_BUILD),
        *_of(READ, _AFTER_THE_BUILD),
        *_of(TEST, ["python3 -m unittest -q test_inventory"]),
        *_mixed(_REPAIR),
        *_mixed(_PACKING),
        *_mixed([(kind, command.replace("PORT", str(port))) for kind, command in _SERVING]),
        *_mixed(_CLOSING),
    ]
    assert len(every) == 100, len(every)
    return every


def prepare(workspace: Path, seed: int = 1) -> None:
    """The workspace as the agent finds it: a small program, and some hundred files of other people's sources."""
    workspace.mkdir(parents=True)
    for name, text in _FILES.items():
        (workspace / name).write_text(text)
    for package in (email, json, unittest):
        folder = Path(str(package.__file__)).parent
        shutil.copytree(folder, workspace / "vendor" / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    chance = random.Random(seed)  # noqa: S311  # no secret
    rows = [f"{number},part-{chance.randrange(1000)},{chance.randrange(50)}" for number in range(20_000)]
    (workspace / "stock.csv").write_text("id,name,count\n" + "\n".join(rows) + "\n")


def _of(kind: str, commands: Iterable[str]) -> list[Turn]:
    return [Turn(kind, command) for command in commands]


def _mixed(pairs: Iterable[tuple[str, str]]) -> list[Turn]:
    return [Turn(kind, command) for kind, command in pairs]


_FILES = {
    "README.md": "# Inventory\n\nCounts parts. `make` builds the counter, `python3 -m unittest` tests it.\n",
    "inventory.py": '''"""Counts parts."""

import csv


def load(path):
    with open(path, newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


def total(rows, name):
    return sum(row["count"] for row in rows if row["name"] == name)
''',
    "test_inventory.py": """import unittest

import inventory


class Totals(unittest.TestCase):
    def test_total(self):
        rows = [{"name": "a", "count": "2"}, {"name": "a", "count": "3"}, {"name": "b", "count": "9"}]
        self.assertEqual(inventory.total(rows, "a"), 5)
""",
    "counter.c": """#include <stdio.h>

int main(void) {
    long lines = 0;
    for (int c = getchar(); c != EOF; c = getchar()) lines += c == '\\n';
    printf("%ld\\n", lines);
    return 0;
}
""",
    "Makefile": "counter: counter.c\n\tcc -O2 -o counter counter.c\n\nclean:\n\trm -f counter\n",
    "server.py": '''"""Serves totals, and counts how often it was asked."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import inventory

ROWS = inventory.load("stock.csv")
asked = 0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        found = inventory.total(ROWS, self.path.strip("/"))
        answer = json.dumps({"total": found, "asked": asked}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
''',
    "pack.py": '''"""Packs inventory.py as a wheel, by hand: there is no network to fetch a build back end from."""

import base64
import hashlib
import os
import zipfile

os.makedirs("dist", exist_ok=True)
info = "inventory-1.0.dist-info"
held = {
    "inventory.py": open("inventory.py").read(),
    f"{info}/METADATA": "Metadata-Version: 2.1\\nName: inventory\\nVersion: 1.0\\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: pack\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
}
record = ""
with zipfile.ZipFile("dist/inventory-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in held.items():
        wheel.writestr(name, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text.encode())}\\n"
    wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\\n")
''',
}

_LOOKING_AROUND = [
    "ls -la",
    "cat README.md",
    "find . -name '*.py' | wc -l",
    "cat inventory.py",
    "cat test_inventory.py",
    "head -n 5 stock.csv; wc -l stock.csv",
    "grep -rn 'def load' --include='*.py' . | head",
    "grep -rln JSONDecodeError vendor",
    "du -sh vendor",
    "python3 --version; command -v git make cc curl",
]

_FIRST_COMMIT = [
    "git init -q . && git config user.name agent && git config user.email agent@localhost",
    "printf '__pycache__/\\n*.pyc\\ndist/\\n.venv/\\ncounter\\n' > .gitignore",
    "git add -A && git commit -q -m 'As found'",
    "git log --oneline",
    "git status --short",
]

_FIRST_BUILD = ["python3 -m compileall -q .", "make", "./counter < stock.csv"]

_AFTER_THE_BUILD = ["git status --short", "ls -la __pycache__ vendor | head -n 20"]

_ANOTHER_TEST = """
    def test_names(self):
        self.assertEqual(inventory.names([{'name': 'b'}, {'name': 'a'}]), ['a', 'b'])
"""

_REPAIR = [
    (READ, "grep -n sum inventory.py"),
    (FAIL, "python3 -c 'import inventory; print(inventory.total(inventory.load(\"stock.csv\"), \"part-7\"))'"),
    (READ, "sed -n '10,20p' inventory.py"),
    (EDIT, "sed -i 's/sum(row\\[\"count\"\\]/sum(int(row[\"count\"])/' inventory.py"),
    (GIT, "git diff"),
    (TEST, "python3 -m unittest -q test_inventory"),
    (READ, "python3 -c 'import inventory; print(inventory.total(inventory.load(\"stock.csv\"), \"part-7\"))'"),
    (GIT, "git commit -q -a -m 'Counts are numbers'"),
    (READ, "git show --stat HEAD"),
    (GIT, "git checkout -q -b by-name"),
    (EDIT, "printf '\\n\\ndef names(rows):\\n    return sorted({row[\"name\"] for row in rows})\\n' >> inventory.py"),
    (READ, "tail -n 5 inventory.py"),
    (EDIT, f"cat >> test_inventory.py <<'END'\n{_ANOTHER_TEST}END"),
    (TEST, "python3 -m unittest -v test_inventory 2>&1 | tail -n 5"),
    (FAIL, "python3 -m pytest -q --no-such-option"),
    (FAIL, "cat inventory_old.py"),
    (READ, "grep -rn 'class TestCase' vendor | head -n 3"),
    (READ, "sort -t, -k3 -n -r stock.csv | head -n 3"),
    (GIT, "git add -A && git commit -q -m 'Names of parts'"),
    (GIT, "git checkout -q - && git merge -q by-name"),
    (READ, "git log --oneline --graph | head"),
    (FAIL, "make install"),
    (READ, "cat Makefile"),
    (EDIT, "printf '\\ntest: counter\\n\\tpython3 -m unittest -q test_inventory\\n' >> Makefile"),
    (BUILD, "make test"),
    (BUILD, "make clean && make"),
    (GIT, "git commit -q -a -m 'make test'"),
]  # fmt: skip

_PACKING = [
    (READ, "cat pack.py | head -n 12"),
    (INSTALL, "python3 pack.py"),
    (READ, "python3 -m zipfile -l dist/inventory-1.0-py3-none-any.whl"),
    (INSTALL, "python3 -m venv .venv"),
    (INSTALL, ".venv/bin/pip install -q --no-index --no-deps dist/inventory-1.0-py3-none-any.whl"),
    (READ, ".venv/bin/pip list --format=freeze"),
    (TEST, "cd / && \"$OLDPWD\"/.venv/bin/python -c 'import inventory; print(inventory.__file__)'"),
    (FAIL, ".venv/bin/pip install -q --no-index requests"),
    (READ, "du -sh .venv"),
    (INSTALL, ".venv/bin/pip uninstall -q -y inventory"),
    (INSTALL, ".venv/bin/pip install -q --no-index --no-deps dist/inventory-1.0-py3-none-any.whl"),
]

_ASK = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:PORT/part-7\").read().decode())'"

_START = "nohup python3 server.py PORT > server.log 2>&1 & echo $! > server.pid; sleep 0.4"

_SERVING = [
    (READ, "cat server.py"),
    (FAIL, _ASK),
    (SERVER, f"{_START}; echo started"),
    (SERVER, _ASK),
    (READ, "cat server.log"),
    (READ, "ls -la"),
    (READ, "ps -ef | grep -c '[s]erver.py'"),
    (SERVER, _ASK),
    (READ, "tail -n 2 server.log"),
    (READ, "grep -n global server.py"),
    (READ, "cat README.md"),
    (GIT, "git status --short"),
    (EDIT, "printf '\\nThe server: `python3 server.py 8000`.\\n' >> README.md"),
    (READ, "git diff README.md"),
    (GIT, "git add -A && git commit -q -m 'Say how it is served'"),
    (SERVER, _ASK),
    (FAIL, "python3 -c 'import nowhere'"),
    (EDIT, 'sed -i \'s/"asked": asked/"asked": asked, "rows": len(ROWS)/\' server.py'),
    (
        SERVER,
        f"kill $(cat server.pid); sleep 0.1; {_START}",
    ),
    (SERVER, _ASK),
    (TEST, f"for i in 1 2 3 4 5; do {_ASK}; done"),
    (READ, "wc -l server.log"),
    (READ, "sed -n '1,30p' server.py"),
]

_CLOSING = [
    (TEST, "python3 -m unittest -q test_inventory"),
    (BUILD, "python3 -m compileall -q -f inventory.py server.py"),
    (GIT, "git diff --stat"),
    (GIT, "git commit -q -a -m 'The server says how many rows it has'"),
    (READ, "git log --oneline | wc -l"),
    (READ, "find . -newer Makefile -type f -not -path './.git/*' -not -path './.venv/*' | head"),
    (EDIT, "mkdir -p notes && date > notes/done.txt"),
    (EDIT, "cp -r vendor notes/vendor"),
    (EDIT, "rm -rf notes/vendor"),
    (FAIL, "false"),
    (READ, "cat notes/done.txt"),
    (READ, "ls notes"),
    (READ, "true"),
    (READ, "git status --short"),
    (READ, "tail -n 3 README.md"),
    (READ, "ls"),
    (READ, "git log --oneline -n 1"),
    (READ, "echo done"),
]
