"""Inverses for the tools of any MCP server, declared in ``planarian.toml`` (``docs/declared.md``)."""
