"""How long a stdio MCP server takes for each tool call, measured right before it. Stand-alone.

``stdio_clock.py FILE COMMAND…`` runs the command, passes every message on, and appends to the file, for each call of a
tool, the seconds between its request and its answer.
"""

import json
import subprocess
import sys
import threading
import time


def main() -> int:
    times, *command = sys.argv[1:]
    asked: dict[str, float] = {}
    with open(times, "a") as found, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def answers() -> None:
            assert server.stdout is not None
            for line in server.stdout:
                now = time.perf_counter()
                started = asked.pop(_id_of(line), None)
                if started is not None:
                    found.write(f"{now - started}\n")
                    found.flush()
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()

        thread = threading.Thread(target=answers)
        thread.start()
        for line in sys.stdin.buffer:
            if b'"tools/call"' in line:
                asked[_id_of(line)] = time.perf_counter()
            server.stdin.write(line)
            server.stdin.flush()
        server.stdin.close()
        thread.join()
        return server.wait()


def _id_of(line: bytes) -> str:
    return str(json.loads(line).get("id", ""))


if __name__ == "__main__":
    sys.exit(main())
