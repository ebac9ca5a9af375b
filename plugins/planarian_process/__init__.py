"""Process backends of Planarian."""
