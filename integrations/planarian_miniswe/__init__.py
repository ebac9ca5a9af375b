"""mini-swe-agent on Planarian: ``environment_class: planarian_miniswe.PlanarianEnvironment``.

Importing this needs neither mini-swe-agent nor anything heavy: mini-swe-agent turns an ImportError of an environment's
module into "Unknown environment type". What is missing is said when an environment is made.
"""

from planarian_miniswe.environment import PlanarianEnvironment
from planarian_miniswe.environment_config import PlanarianEnvironmentConfig

__all__ = ["PlanarianEnvironment", "PlanarianEnvironmentConfig"]
