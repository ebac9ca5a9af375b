"""Filesystem backends of Planarian."""
