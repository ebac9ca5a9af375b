"""mini-swe-agent on Planarian, dropped in by configuration."""
