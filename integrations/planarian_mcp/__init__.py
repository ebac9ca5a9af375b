"""Planarian for MCP: the state proxy's face to the harness and to the target server."""
