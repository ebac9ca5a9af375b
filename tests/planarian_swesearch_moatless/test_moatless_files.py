"""Edits in memory are in the environment when a command runs, and what it changes is in memory afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moatless", reason="needs planarian[moatless]")

from moatless.actions.create_file import CreateFile, CreateFileArgs
from moatless.actions.run_tests import RunTests, RunTestsArgs
from moatless.actions.string_replace import StringReplace, StringReplaceArgs
from moatless.file_context import FileContext
from moatless.repository.file import FileRepository
from moatless.repository.repository import InMemRepository

from planarian_core import Planarian, Sandbox
from planarian_core.diff import Diff
from planarian_core.errors import ConfigurationError, SandboxError
from planarian_swesearch.moatless import NodeEnvironments, RunCommand, RunCommandArgs, StatepointSearchTree
from planarian_swesearch.moatless_files import edited, materialise, take_over

Search = Callable[..., StatepointSearchTree]


def _line(*steps: Any) -> Callable[[int, int], Any]:
    """A plan without branches."""
    return lambda depth, _: steps[depth - 1]


def _run(command: str) -> RunCommandArgs:
    return RunCommandArgs(command=command)


def _searched(search: Search, environments: NodeEnvironments, *steps: Any, **named: Any) -> list[Any]:
    """The nodes of a search that takes some steps one after the other."""
    options = {"max_expansions": 1, "max_depth": len(steps), "max_iterations": len(steps) + 1}
    tree = search(environments, _line(*steps), **{**options, **named})
    tree.run_search()
    return list(tree.root.get_all_nodes()[1:])


@pytest.fixture
def context(repository: Path) -> FileContext:
    """The agent sees the whole of app.py, and may edit it."""
    context = FileContext(repo=FileRepository(repo_path=str(repository)))
    context.add_file("app.py", show_all_spans=True)
    return context


@pytest.fixture
def environments(planarian: Planarian, sandbox: Sandbox) -> NodeEnvironments:
    return NodeEnvironments(planarian, sandbox)


def test_edits_in_memory_and_by_commands_build_on_each_other(
    environments: NodeEnvironments, search: Search, repository: Path, context: FileContext
) -> None:
    actions = [StringReplace(), CreateFile()]
    nodes = _searched(
        search,
        environments,
        StringReplaceArgs(scratch_pad="", path="app.py", old_str="return 1", new_str="return 2"),
        CreateFileArgs(scratch_pad="", path="sub/new.py", file_text="import app\nprint(app.answer())\n"),
        _run("PYTHONPATH=. python3 sub/new.py && sed -i 's/return 2/return 3/' app.py && echo hello > log.txt"),
        StringReplaceArgs(scratch_pad="", path="app.py", old_str="return 3", new_str="return 4"),
        _run("PYTHONPATH=. python3 sub/new.py; cat log.txt"),
        actions=actions,
        file_context=context,
    )
    first, last = nodes[2], nodes[4]
    assert first.observation.message == "2\n\nChanged files: app.py, log.txt"
    assert first.file_context.get_file("app.py").content == "def answer():\n    return 3\n"
    assert last.observation.message == "4\nhello"
    patch = last.file_context.generate_git_patch()
    assert "+    return 4" in patch
    assert "+++ b/sub/new.py" in patch
    assert "+hello" in patch
    assert (repository / "app.py").read_text() == "def answer():\n    return 1\n", "the repository isn't written"


def test_a_state_that_is_taken_has_the_edits_after_its_last_command(
    environments: NodeEnvironments, search: Search, context: FileContext
) -> None:
    steps = [_run("echo > ran"), StringReplaceArgs(scratch_pad="", path="app.py", old_str="1", new_str="5")]
    options = {"max_expansions": 1, "max_depth": 2, "max_iterations": 3}
    tree = search(environments, _line(*steps), actions=[StringReplace()], file_context=context, **options)
    tree.run_search()
    tree.take(tree.root.get_all_nodes()[-1])
    assert environments.sandbox.run("cat app.py").stdout == "def answer():\n    return 5\n"


def test_tests_run_in_the_node_s_environment(
    planarian: Planarian, sandbox: Sandbox, search: Search, context: FileContext
) -> None:
    environments = NodeEnvironments(planarian, sandbox, test_command=("python3", "-B"))
    test = "import app\nassert app.answer() == 2, 'wrong answer'\n"
    nodes = _searched(
        search,
        environments,
        CreateFileArgs(scratch_pad="", path="test_app.py", file_text=test),
        RunTestsArgs(scratch_pad="", test_files=["test_app.py"]),
        StringReplaceArgs(scratch_pad="", path="app.py", old_str="return 1", new_str="return 2"),
        RunTestsArgs(scratch_pad=" ", test_files=["test_app.py"]),
        actions=[CreateFile(), StringReplace(), RunTests(runtime=environments)],
        file_context=context,
    )
    assert "wrong answer" in nodes[1].observation.message
    assert "0 passed. 1 failed. 0 errors." in nodes[1].observation.message
    assert "1 passed. 0 failed. 0 errors." in nodes[3].observation.message


def test_what_a_context_can_t_hold_stays_in_the_environment(environments: NodeEnvironments, search: Search) -> None:
    makes = (
        "printf 'a\\0b' > zero && printf '\\377' > latin && ln -s app.py link && mkdir -p .hid && echo > .hid/f"
        " && head -c 300000 /dev/zero | tr '\\0' x > large && printf 'a\\r\\nb\\fc\\n' > odd"
        " && rm app.py && echo ok > t"
    )
    (node,) = _searched(search, environments, _run(makes))
    properties = node.observation.properties
    assert properties["changed_files"] == ["t"]
    left = {"zero", "latin", "link", "large", "app.py"}
    assert left <= set(properties["changed_in_environment_only"]) <= left | {"odd"}
    assert "Changed, not in the file context: " in node.observation.message
    assert [file.file_path for file in node.file_context.files if file.patch] == ["t"]


def test_a_file_that_can_t_be_there_is_told(environments: NodeEnvironments, search: Search) -> None:
    nodes = _searched(
        search,
        environments,
        CreateFileArgs(scratch_pad="", path="../outside.py", file_text="x = 1\n"),
        _run("echo never > never"),
        actions=[CreateFile()],
    )
    assert "is no path within the workspace" in nodes[1].observation.message
    assert nodes[1].observation.expect_correction
    assert nodes[1].observation.properties == {"fail_reason": "file-unwritable"}


def test_edits_that_are_taken_back_are_taken_back_in_the_environment(sandbox: Sandbox, repository: Path) -> None:
    context = FileContext(repo=FileRepository(repo_path=str(repository)))
    context.get_file("app.py").apply_changes("changed\n")
    context.add_file("new.py").apply_changes("new\n")
    materialise(sandbox, context, {})
    assert sandbox.run("cat app.py new.py").stdout == "changed\nnew\n"
    written = edited(context)
    context.remove_file("app.py")
    context.remove_file("new.py")
    materialise(sandbox, context, written)
    assert sandbox.run("cat app.py; ls").stdout == "def answer():\n    return 1\napp.py\n"
    assert not context.files


def test_no_more_than_a_hundred_files_are_taken_over(planarian: Planarian, sandbox: Sandbox) -> None:
    before = planarian.snapshot(sandbox)
    sandbox.run("for i in $(seq 103); do echo $i > f$i; done")
    changed = planarian.diff(before, of=sandbox, paths=["."], text=False)
    context = FileContext(repo=InMemRepository())
    found = take_over(sandbox, context, changed)
    assert (len(found.taken), len(found.left)) == (100, 3)
    assert take_over(sandbox, context, Diff("a", "b")).taken == ()


def test_the_repository_must_not_change_under_the_search(
    environments: NodeEnvironments, search: Search, repository: Path, repo: Path
) -> None:
    repository.rename(repository.with_name("other"))
    repository.symlink_to(repo)
    with pytest.raises(ConfigurationError, match="itself works"):
        search(environments, _line())


def test_an_action_outside_of_a_search_is_refused(environments: NodeEnvironments) -> None:
    with pytest.raises(ConfigurationError, match="no node's environment"):
        environments.run("true", FileContext(repo=InMemRepository()))
    with pytest.raises(ConfigurationError, match="needs the environments"):
        RunCommand()
    context = FileContext(repo=InMemRepository())
    context.add_file("..").apply_changes("x\n")
    with pytest.raises(SandboxError, match="no path"):
        materialise(environments.sandbox, context, {})
