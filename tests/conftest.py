"""The shipped fixtures and marks, for all tests."""

pytest_plugins = ["planarian_core.testing.pytest_plugin"]
