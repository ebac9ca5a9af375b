"""Planarian for tree searches (``docs/swesearch.md``): :class:`TreeSearch` needs no framework.

The adapter for moatless-tree-search is imported by its own name, since that needs an environment of its own.
"""

from __future__ import annotations

from planarian_swesearch.remote_tools import CallFailed, call_tool
from planarian_swesearch.search import TreeSearch
from planarian_swesearch.tree import Node, NodeStatus, Tree
from planarian_swesearch.values import Budget, Event, Judgement, in_shell

__all__ = [
    "Budget",
    "CallFailed",
    "Event",
    "Judgement",
    "Node",
    "NodeStatus",
    "Tree",
    "TreeSearch",
    "call_tool",
    "in_shell",
]
