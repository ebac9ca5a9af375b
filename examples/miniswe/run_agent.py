"""mini-swe-agent in a Planarian sandbox, from Python: it breaks something, goes back, and finishes.

The model is a script, so this runs without an API key; put any mini-swe-agent model in its place.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from minisweagent.agents.default import DefaultAgent
from minisweagent.models.test_models import DeterministicModel, make_output

from planarian_miniswe import PlanarianEnvironment

COMMANDS = [
    "echo 'print(6 * 7)' > answer.py",
    "planarian snapshot answer -d 'answer.py prints the answer'",
    "rm answer.py; planarian outcome answer 'answer.py is needed' --status failed; planarian rollback answer",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; python3 answer.py",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        project.mkdir()
        answers = [make_output("", [{"command": command}]) for command in COMMANDS]
        model = DeterministicModel(outputs=answers)  # type: ignore[no-untyped-call]  # upstream's
        with PlanarianEnvironment(
            workspace=str(project), home=f"{folder}/home", policy="milestones", keep=False
        ) as environment:
            agent = DefaultAgent(
                model, environment, system_template="Work.", instance_template="{{task}}", cost_limit=0
            )
            result = agent.run("print the answer")
            print(environment.planarian.ledger(environment.sandbox).to_markdown())
    print(f"{result['exit_status']}: {result['submission'].strip()}")
    sys.exit(result["submission"].strip() != "42")


if __name__ == "__main__":
    main()
