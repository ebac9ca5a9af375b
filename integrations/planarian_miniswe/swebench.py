"""``python -m planarian_miniswe.swebench``: mini-swe-agent's SWE-bench runner, each instance in a sandbox on its image.

Which image an instance has, the runner tells its own environments only. So two of its functions are wrapped, and the
rest is the runner's: options, data sets, workers, results that are there already, predictions.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from planarian_core.errors import ConfigurationError
from planarian_miniswe.environment import PlanarianEnvironment
from planarian_miniswe.requirements import require_mini

CLASS = "planarian_miniswe.swebench.InstanceEnvironment"
_here = threading.local()


class InstanceEnvironment(PlanarianEnvironment):
    """The environment of one instance, which ends with it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _made().append(self)


def _made() -> list[PlanarianEnvironment]:
    """Environments of the instance that this thread works on."""
    made: list[PlanarianEnvironment] = _here.__dict__.setdefault("environments", [])
    return made


def run(arguments: list[str]) -> None:
    """Run the runner with its own command-line arguments; it exits as it likes."""
    require_mini()
    from minisweagent.run.benchmarks import swebench

    for name in ("app", "process_instance", "get_sb_environment", "get_swebench_docker_image_name"):
        if not hasattr(swebench, name):
            raise ConfigurationError(
                f"this mini-swe-agent's SWE-bench runner has no {name}", code="miniswe-version", remedy="report it"
            )
    process_instance, get_sb_environment = swebench.process_instance, swebench.get_sb_environment

    def with_image(config: dict[str, Any], instance: dict[str, Any]) -> Any:
        image = swebench.get_swebench_docker_image_name(instance)
        environment = {"keep": False, "image": image, **config.get("environment", {}), "environment_class": CLASS}
        return get_sb_environment({**config, "environment": environment}, instance)

    def to_its_end(*arguments: Any) -> None:
        try:
            process_instance(*arguments)
        finally:
            while _made():
                _made().pop().close()

    swebench.process_instance = to_its_end  # type: ignore[assignment]  # it is called with what that takes
    swebench.get_sb_environment = with_image
    try:
        swebench.app(arguments, prog_name="python -m planarian_miniswe.swebench")
    finally:
        swebench.process_instance, swebench.get_sb_environment = process_instance, get_sb_environment


if __name__ == "__main__":
    # Not the run of this very module, which is another one than what the environment's class is looked up in.
    from planarian_miniswe import swebench as imported

    imported.run(sys.argv[1:])
