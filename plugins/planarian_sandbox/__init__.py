"""Sandbox backends of Planarian."""
