"""mini-swe-agent on Planarian: ``environment_class: planarian_miniswe.PlanarianEnvironment``.

Importing this needs neither mini-swe-agent nor anything heavy. mini-swe-agent turns an ImportError of an environment's
module into "Unknown environment type", so what is missing is said when an environment is made; and what keeps this
module itself from being imported is raised as another error, which mini-swe-agent shows.
"""

try:
    from planarian_miniswe.environment import PlanarianEnvironment
    from planarian_miniswe.environment_config import PlanarianEnvironmentConfig
except ImportError as error:
    raise RuntimeError(
        f"Planarian is installed here, but not whole: {error}. "
        "What mends it: pip install --force-reinstall 'planarian[miniswe]'"
    ) from error

__all__ = ["PlanarianEnvironment", "PlanarianEnvironmentConfig"]
