"""A tree search that repairs a broken server, with proposals from a script in place of a model.

``pip install planarian``, then ``python tree_search.py``. A server reads its settings when it starts; two are wrong.
Each action is tried in a fork of the state that it begins from, files and processes. What makes it worse does so in its
own branch only.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from functools import partial
from pathlib import Path

from planarian_core import Planarian, Sandbox
from planarian_core.model import CommandResult
from planarian_swesearch import Budget, Event, Judgement, Node, TreeSearch

SERVER = """\
import http.server, json
settings = json.load(open("settings.json"))

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = settings["greeting"] if settings["mode"] == "live" else "down for maintenance"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass

server = http.server.HTTPServer(("127.0.0.1", settings["port"]), Answer)
open("ready", "w").close()
server.serve_forever()
"""
RESTART = """kill $(cat pid) 2>/dev/null; rm -f ready; python3 server.py >/dev/null 2>&1 & echo $! >pid
until test -e ready || ! kill -0 $(cat pid); do sleep 0.05; done"""
ASK = """python3 -c "
from urllib.request import urlopen
print(urlopen('http://127.0.0.1:$PORT').read().decode())" """
ACTIONS = [
    "rm settings.json",
    "sed -i s/helo/hello/ settings.json",
    "sed -i s/maintenance/live/ settings.json",
]


def propose(node: Node) -> list[str]:
    """A model would read ``node.actions()``, ``node.observation`` and ``node.outcomes`` here."""
    return [action for action in ACTIONS if action not in node.actions()]


def act(sandbox: Sandbox, action: str) -> CommandResult:
    return sandbox.run(f"{action}; {RESTART}", timeout=60)


def judge(ask: str, node: Node, sandbox: Sandbox) -> Judgement:
    """What the server says is what counts."""
    answer = sandbox.run(ask, timeout=60)
    if answer.exit_code != 0:
        return Judgement(0.0, terminal=True, text="the server is gone")
    said = answer.stdout.strip()
    return Judgement({"hello": 1.0, "helo": 0.5}.get(said, 0.2), text=f"the server says {said!r}")


def story(planarian: Planarian, project: Path, tree: Path) -> bool:
    port = free_port()
    ask = ASK.replace("$PORT", str(port))
    (project / "server.py").write_text(SERVER)
    (project / "settings.json").write_text(f'{{"mode": "maintenance", "greeting": "helo", "port": {port}}}\n')
    sandbox = planarian.create_sandbox(project)
    sandbox.run(RESTART)
    isolated = sandbox.record.spec.backend != "directory"  # where forks share the host's ports one must be at a time

    def tell(event: Event) -> None:
        if event.kind in ("judged", "failed"):
            print(f"node {event.node}: {event.text.splitlines()[0] if event.text else ''}")

    with TreeSearch(
        planarian, sandbox, propose=propose, act=act, value=partial(judge, ask), path=tree,
        forks=2 if isolated else 0, on_event=tell,
    ) as search:  # fmt: skip
        best = search.run(Budget(iterations=20, depth=3, target=1.0))
        print(search.tree.render())
        if best is None or best.value != 1.0:
            return False
        print(f"best: {'; '.join(best.actions())}")
        search.take(best)
        search.end()
    said = sandbox.run(ask).stdout.strip()
    print(f"the server says: {said}")
    return said == "hello"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main(folder: Path) -> bool:
    (folder / "project").mkdir()
    with Planarian.open(folder / "home") as planarian:
        try:
            return story(planarian, folder / "project", folder / "tree.json")
        finally:
            for record in reversed(planarian.registry.sandboxes()):
                planarian.remove_sandbox(planarian.sandbox(record.id))


if __name__ == "__main__":
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as place:
        sys.exit(not main(Path(place)))
