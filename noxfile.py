"""What is checked, and how: ``nox`` runs the default list, ``nox -l`` shows all, ``nox -s NAME -- ARGS`` one.

Sessions test the built wheel, never the source folders. What a machine can't offer is skipped and said; with
``CI=true`` a missing feature that this project's CI must have (root: CRIU, namespaces, …) is a failure.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
GROUPS = nox.project.load_toml(ROOT / "pyproject.toml")
PYTHONS = ["3.11", "3.12", "3.13"]
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
IS_ROOT = os.geteuid() == 0
REQUIRED_OF_ROOT = (
    "linux,root,namespaces,userns,criu,btrfs,podman,git,tmux,redis-server,chromium-headless-shell,postgresql,npm,"
    "doltlite,pypi"
)
USER = "planarian-test"
CHECKED = ["planarian_core", "integrations", "plugins", "tests", "benchmarks", "examples", "noxfile.py"]
UNLESS_UNAVAILABLE = [0] if os.environ.get("CI") == "true" and IS_ROOT else [0, 4]
"""Exit codes of what needs PostgreSQL and npm: it says what is missing, and in CI nothing may be."""
APART = (
    "crash",
    "guest",
    "harnesses",
    "planarian_autogen",
    "planarian_langgraph",
    "planarian_nanobot",
    "planarian_swesearch_moatless",
    "upstream",
)
"""Folders of tests that have sessions of their own."""
_ON_ZFS = "tests/planarian_filesystem/test_zfs.py"
FEW_IN_THE_GUEST = (
    "tests/guest/test_stack.py",
    "tests/guest/test_zfs_story.py",
    "tests/guest/test_incremental.py::test_images_stay_small_after_rollbacks_and_forks",
    *(f"{_ON_ZFS}::TestConformance::test_{name}" for name in ("restore_is_exact", "a_fork_is_captured_by_itself")),
    f"{_ON_ZFS}::test_nobody_else_destroys_a_statepoint_by_accident",
    f"{_ON_ZFS}::test_what_nobody_needs_goes",
)
"""What `guest` runs: software emulation is slow."""
ALL_IN_THE_GUEST = (
    "tests/guest",
    *(f"tests/planarian_filesystem/test_{name}.py" for name in ("zfs", "zfs_faults", "zfs_pool")),
)
"""What needs that kernel; `guest_all` runs it, and kills on ZFS as `crash` does."""
ALSO_AS_A_USER = [
    *(f"crash/test_{name}.py" for name in ("abandoned", "bundles", "kill", "promote", "random_cycles", "standby")),
    "planarian_filesystem",
    "planarian_miniswe/test_backends.py",
    "planarian_process",
    "planarian_sandbox",
    *(f"planarian_core/test_{name}.py" for name in ("attach", "bundles", "registry", "statepoints", "workspaces")),
    *(f"planarian_core/cli/test_cli_{name}.py" for name in ("attach", "real", "restore")),
]
"""What `rootless` runs once more: the other tests run on fakes, or on what doesn't depend on who it is."""
NANOBOT = [r for r in GROUPS["project"]["optional-dependencies"]["nanobot"] if r.startswith("nanobot-ai")]
BRIEFLY = ["-m", "not thorough"]
"""The default list has every fault point, backend and front end, but not all combinations: the rest is `thorough`."""
NO_HANG = ["--timeout=300", "--durations=5"]
# A crashed worker ends the run: pytest-xdist would wait for ever for the rest of its file.
AT_ONCE = [f"--numprocesses={min((os.cpu_count() or 1) + 1, 4)}", "--dist=loadfile", "--max-worker-restart=0"]
"""Most tests wait for processes; each has its own home."""

nox.needs_version = ">=2024.10.9"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = [
    "host_packages",
    "lint",
    "layers",
    f"tests-{RUNNING if RUNNING in PYTHONS else PYTHONS[-1]}",
    "crash",
    *(["rootless"] if IS_ROOT else []),
    "side_by_side",
]
SIDE_BY_SIDE = (
    "guest",
    "bench",
    "sql_corpus_few",
    "types",
    "upstream_langgraph",
    "langgraph",
    "autogen",
    "nanobot",
    "demo",
    "upstream_miniswe",
)
"""What keeps one core busy or less; the longest first."""


# --- the parts that sessions share ---


def group(name: str) -> list[str]:
    """The requirements of a dependency group of pyproject.toml."""
    return list(nox.project.dependency_groups(GROUPS, name))


_BUILT = "PLANARIAN_BUILT_WHEEL"
_wheels = [Path(os.environ[_BUILT])] if _BUILT in os.environ else []


def wheel(session: nox.Session) -> Path:
    """The wheel of this checkout, built once a run of nox."""
    if not _wheels:
        folder = ROOT / ".nox" / "wheel"
        shutil.rmtree(folder, ignore_errors=True)
        session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", str(ROOT))
        _wheels.extend(folder.glob("*.whl"))
    return _wheels[0]


def install_wheel(session: nox.Session, *extras: str, groups: Sequence[str] = ()) -> None:
    """Put the built wheel into the session's environment, with extras of its own and our dependency groups."""
    built = str(wheel(session))
    needed = [requirement for name in groups for requirement in group(name)]
    session.install("--quiet", "--no-compile", f"{built}[{','.join(extras)}]" if extras else built, *needed)


def required(of_root: str = REQUIRED_OF_ROOT) -> str:
    """Host features whose absence fails a test: in CI, as root, what ``.ci/host-packages`` has installed."""
    chosen = os.environ.get("PLANARIAN_REQUIRE")
    if chosen is not None:
        return chosen
    return of_root if IS_ROOT and os.environ.get("CI") == "true" else ""


@contextmanager
def scratch(session: nox.Session) -> Iterator[dict[str, str | None]]:
    """An empty working directory and home, so that nothing is imported from the checkout and no one's home is used."""
    folder = Path(tempfile.mkdtemp(prefix="planarian-"))
    (folder / "home").mkdir()
    (folder / "work").mkdir()
    try:
        with session.chdir(folder / "work"):
            yield {
                **dict.fromkeys(("PLANARIAN_HOME", "PLANARIAN_SANDBOX", "XDG_CONFIG_HOME", "XDG_DATA_HOME")),
                "HOME": str(folder / "home"),
                "PLANARIAN_NPM_CACHE": str(ROOT / ".nox" / "npm"),
                "PLANARIAN_PYPI_CACHE": str(ROOT / ".nox" / "pypi"),
                "PLANARIAN_REQUIRE": required(),
                "PLANARIAN_TEST_INSTALLED": "1",
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_pytest(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Run pytest on the checkout's tests against what is installed in the session."""
    with scratch(session) as clean:
        settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *NO_HANG, *AT_ONCE]
        session.run("pytest", *settings, *arguments, *session.posargs, env={**clean, **environment})


def suite(*apart: str) -> list[str]:
    """The tests as pytest's arguments: without the folders of other sessions, but for some."""
    ignored = [f"--ignore={ROOT / 'tests' / name}" for name in APART if name not in apart]
    return [str(ROOT / "tests"), *ignored]


# --- several at a time ---


@nox.session
def side_by_side(session: nox.Session) -> None:
    """The rest of the default list, two sessions at a time, as each needs one core; the figures of `bench` suffer."""
    at_once = ["--parallel=2", "--allow-parallel"] if hasattr(nox.options, "parallel") else []  # nox of 2026
    command = [sys.executable, "-m", "nox", "--noxfile", str(ROOT / "noxfile.py"), *at_once, "--session", *SIDE_BY_SIDE]
    session.run(*command, env={_BUILT: str(wheel(session))}, external=True)


# --- host ---


@nox.session(python=False)
def host_packages(session: nox.Session) -> None:
    """Install the Debian packages that the tests and the demo use (root only)."""
    session.run("bash", str(ROOT / ".ci" / "host-packages"), external=True)


# --- the sources ---


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install("--quiet", *group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, tests included."""
    session.install("--quiet", "-e", ".[all]", *group("types"))
    session.run("mypy", *CHECKED)


@nox.session
def layers(session: nox.Session) -> None:
    """Data flows one way; core, plugins and adapters keep apart (import-linter)."""
    session.install("--quiet", "-e", ".", *group("layers"))
    session.run("lint-imports")


# --- the wheel ---


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The suite, against the installed wheel."""
    install_wheel(session, "branching", "mcp", "miniswe", "sql", groups=["test"])
    run_pytest(session, *suite(), *BRIEFLY)


@nox.session
def crash(session: nox.Session) -> None:
    """kill -9 at every fault point, and random cycles against a model; PLANARIAN_CYCLES asks for more of them.

    As root without the combination that `rootless` kills as well; `-- -k ''` has it too.
    """
    install_wheel(session, "branching", "mcp", "sql", groups=["test"])
    run_pytest(session, str(ROOT / "tests" / "crash"), *BRIEFLY, *(["-k", "not namespace-respawn"] if IS_ROOT else []))


@nox.session
def thorough(session: nox.Session) -> None:
    """What `tests` and `crash` leave out: more combinations of backends, kills of the other kinds of services."""
    install_wheel(session, "branching", "mcp", "miniswe", "sql", groups=["test"])
    run_pytest(session, *suite("crash"), "-m", "thorough")


@nox.session
def autogen(session: nox.Session) -> None:
    """The AutoGen adapter, and that of its successor, Agent Framework."""
    install_wheel(session, "agentframework", "autogen", "branching", "sql", groups=["autogen"])
    run_pytest(session, str(ROOT / "tests" / "planarian_autogen"))


@nox.session
def langgraph(session: nox.Session) -> None:
    """The LangGraph adapter, in an environment with LangGraph; its savers' conformance suite too."""
    install_wheel(session, "branching", "langgraph", "sql", groups=["langgraph"])
    run_pytest(session, str(ROOT / "tests" / "planarian_langgraph"))


@nox.session
def nanobot(session: nox.Session) -> None:
    """The nanobot adapter; nanobot needs another generation of MCP's SDK than `planarian mcp`."""
    install_wheel(session, "branching", "nanobot", "sql", groups=["test"])
    run_pytest(session, str(ROOT / "tests" / "planarian_nanobot"))


@nox.session
def harnesses(session: nox.Session) -> None:
    """`planarian mcp` in Claude Code and Codex, from npm (800 MB, once), and in nanobot, with a scripted model."""
    install_wheel(session, "mcp", groups=["test"])
    place = Path(session.create_tmp()).resolve() / "nanobot"
    session.run("python", "-m", "venv", str(place))
    session.run(str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *NANOBOT, external=True)
    run_pytest(session, str(ROOT / "tests" / "harnesses"), PLANARIAN_NANOBOT=str(place / "bin" / "nanobot"))


@nox.session
def guest(session: nox.Session) -> None:
    """In a virtual machine with Debian 13's kernel, ZFS, CRIU and Podman; `.nox/guest-machine` keeps what is built."""
    run_in_guest(session, "--", *(session.posargs or FEW_IN_THE_GUEST))


@nox.session
def guest_all(session: nox.Session) -> None:
    """All that needs the guest: half an hour, then the kills on ZFS, as long again."""
    limit = ["--limit", "7200", "--"]
    run_in_guest(session, *limit, *ALL_IN_THE_GUEST, *session.posargs)
    run_in_guest(session, *limit, "tests/crash/test_kill.py", "-k", "zfs", *session.posargs)


@nox.session
def figures(session: nox.Session) -> None:
    """The paper's Figures 12 to 14, measured in the guest and drawn. Options are the benchmark's: --most 64."""
    measured = ["figures", "--folder", "/scratch", "--json", "/tmp/out/figures.json", *session.posargs]  # noqa: S108
    session.install("--quiet", "-e", ".", *group("figures"))
    run_in_guest(session, "--limit", "10800", "--benchmark", "--", *measured)
    found = ROOT / ".nox" / "guest-machine" / "results" / "figures.json"
    session.run("python", "-m", "benchmarks", "draw", str(found), "--to", str(found.with_name("primitives")))


def run_in_guest(session: nox.Session, *arguments: str) -> None:
    """Build the guest as far as need be, and boot it with the wheel; ``arguments`` are those of ``machine``."""
    cache = ROOT / ".nox" / "guest-machine"  # `.nox/guest` is the session's own
    machine = ["python", "-m", "machine"]
    path = {"PYTHONPATH": str(ROOT / "tests" / "guest")}
    lacking = str(session.run(*machine, "--lacking", env=path, silent=True)).strip()
    if lacking and os.environ.get("CI") == "true":
        session.error(lacking)
    if lacking:
        session.skip(f"NOT RUN: {lacking}")
    site = cache / "site"
    shutil.rmtree(site, ignore_errors=True)
    platforms = [f"--platform=manylinux{age}_x86_64" for age in ("_2_28", "2014")]
    foreign = ["--only-binary=:all:", "--python-version=3.13", "--implementation=cp", *platforms]
    needed = [f"{wheel(session)}[mcp,sql]", *group("test")]
    session.run("python", "-m", "pip", "install", "--quiet", "--no-compile", f"--target={site}", *foreign, *needed)
    where = ["--cache", str(cache), "--site", str(site), "--checkout", str(ROOT)]
    session.run(*machine, *where, *arguments, env=path)


@nox.session(python="3.11")
def moatless(session: nox.Session) -> None:
    """The adapter for moatless-tree-search: its requirements fit no environment with the others, and take minutes."""
    if IS_ROOT:
        session.run("bash", str(ROOT / ".ci" / "host-packages"), "moatless", external=True)
    install_wheel(session, "moatless", groups=["moatless"])
    run_pytest(session, str(ROOT / "tests" / "planarian_swesearch_moatless"))


@nox.session
def rootless(session: nox.Session) -> None:
    """As root: what depends on the user once more as an ordinary one, who gets other backends."""
    if not IS_ROOT:
        session.skip("not root: `tests` has run as an ordinary user already")
    make_user(session)
    folder = Path(tempfile.mkdtemp(prefix="planarian-"))
    try:
        checkout = copy_for_user(folder, wheel(session))
        clean = user_environment(folder)
        run = [*as_user(clean), make_environment(session, folder, clean), "-m"]
        built = f"{next(checkout.glob('*.whl'))}[miniswe,sql]"
        session.run(*run, "pip", "install", "--quiet", built, *group("test"), external=True)
        settings = ["-c", str(checkout / "pyproject.toml"), "--rootdir", str(checkout), *NO_HANG, *AT_ONCE]
        chosen = [str(checkout / "tests" / name) for name in ALSO_AS_A_USER]
        # root has killed those, and nothing in them depends on the user
        others = "not (directory and (test_kill or test_bundles or test_promote))"
        arguments = [*settings, *chosen, *BRIEFLY, "-k", others, *session.posargs]
        with session.chdir(folder / "home"):
            session.run(*run, "pytest", *arguments, external=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@nox.session
def demo(session: nox.Session) -> None:
    """Both demos, from an installed wheel."""
    install_wheel(session, "miniswe", "mcp", "sql")
    with scratch(session) as environment:
        session.run("planarian", "demo", *session.posargs, env=environment)
        remote = ["planarian", "demo", "--remote", *session.posargs]
        session.run(*remote, env=environment, success_codes=UNLESS_UNAVAILABLE)


@nox.session
def upstream_autogen(session: nox.Session) -> None:
    """AutoGen's own tests of workbenches and code executors, against ours."""
    install_wheel(session, "autogen", groups=["autogen"])
    session.install("--quiet", "aiofiles", "pytest-asyncio>=1,<2")
    with scratch(session) as environment:
        script = str(ROOT / "tests" / "upstream" / "autogen" / "run.py")
        session.run("python", script, *session.posargs, env=environment)


@nox.session
def upstream_miniswe(session: nox.Session) -> None:
    """mini-swe-agent's own tests of its environments, against ours."""
    install_wheel(session, "miniswe", groups=["test"])
    with scratch(session) as environment:
        script = str(ROOT / "tests" / "upstream" / "miniswe" / "run.py")
        session.run("python", script, *session.posargs, env=environment)


@nox.session
def upstream_langgraph(session: nox.Session) -> None:
    """LangGraph's own tests of time travel, subgraphs and interrupts, through our checkpointer."""
    install_wheel(session, "langgraph", groups=["langgraph"])
    with scratch(session) as environment:
        script = str(ROOT / "tests" / "upstream" / "langgraph" / "run.py")
        session.run("python", script, *session.posargs, env=environment)


@nox.session
def sql_corpus(session: nox.Session) -> None:
    """PostgreSQL's own regression SQL, each statement undone and done again; then with a broken undo, to be found."""
    send_corpus(session, *(session.posargs or ["--report", str(ROOT / ".nox" / "sql_corpus.txt")]))
    if not session.posargs:
        send_corpus(session, "--few", "--control", "nothing")


@nox.session
def sql_corpus_few(session: nox.Session) -> None:
    """A few files of it, and the negative control on fewer."""
    send_corpus(session, "--few")
    send_corpus(session, "--control", "third", "--files", "insert_conflict", "update")


def send_corpus(session: nox.Session, *arguments: str) -> None:
    """Run ``tests/sql_corpus`` on the installed wheel; PostgreSQL's source is kept in ``.nox``."""
    install_wheel(session, "mcp", "sql")
    command = ["python", "-m", "sql_corpus", "--cache", str(ROOT / ".nox" / "sql_corpus"), *arguments]
    with scratch(session) as environment:
        path = {"PYTHONPATH": str(ROOT / "tests")}
        session.run(*command, env={**environment, **path}, success_codes=UNLESS_UNAVAILABLE)


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks, briefly; ``nox -s bench -- primitives --json FILE`` measures one of them in full."""
    install_wheel(session, "mcp", "sql")
    with scratch(session) as environment:
        path = {"PYTHONPATH": str(ROOT)}  # benchmarks aren't part of the wheel

        def run(*arguments: str) -> None:
            command = ["python", "-m", "benchmarks", *arguments]
            session.run(*command, env={**environment, **path}, success_codes=UNLESS_UNAVAILABLE)

        if session.posargs:
            run(*session.posargs)
            return
        for name in ("primitives", "turns", "proxy"):
            run(name, "--quick", "--json", f"{name}.json")
        run("document", *map(str, sorted(Path.cwd().glob("*.json"))), "--to", "benchmarks.md")


# --- an ordinary user, made by root ---


def make_user(session: nox.Session) -> None:
    """The account that the session ``rootless`` works as; it stays for the next time."""
    try:
        pwd.getpwnam(USER)
    except KeyError:
        session.run("useradd", "--create-home", "--shell", "/bin/bash", USER, external=True)


def make_environment(session: nox.Session, folder: Path, clean: dict[str, str]) -> str:
    """A virtual environment of the user's own, from a Python that others may run too (one below /root isn't)."""
    why = []
    old = f"import sys; sys.exit(sys.version_info < ({PYTHONS[0].replace('.', ', ')}))"
    for python in ("/usr/bin/python3", "/usr/local/bin/python3", *(f"/usr/bin/python{v}" for v in PYTHONS)):
        for step in (["-c", old], ["-m", "venv", "--clear", str(folder / "venv")]):
            tried = subprocess.run([*as_user(clean), python, *step], capture_output=True, text=True, cwd=folder)
            if tried.returncode != 0:
                why.append(f"{python}: {(tried.stdout + tried.stderr).strip()[-150:] or 'too old'}")
                break
        else:
            return str(folder / "venv" / "bin" / "python")
    message = f"no Python that {USER} could use ({'; '.join(why)}): apt-get install python3-venv"
    if os.environ.get("CI") == "true":
        session.error(message)
    session.skip(message)


def copy_for_user(folder: Path, built: Path) -> Path:
    """The checkout may lie where others can't read: give the user a copy, and the wheel."""
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    checkout = folder / "checkout"
    shutil.copytree(ROOT, checkout, ignore=left_out, symlinks=True)
    shutil.copy(built, checkout)
    account = pwd.getpwnam(USER)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return checkout


def user_environment(folder: Path) -> dict[str, str]:
    """A clean environment; what pip needs to reach its index is passed on."""
    passed = {
        key: value for key, value in os.environ.items() if key.startswith("PIP_") or key.lower().endswith("_proxy")
    }
    return passed | {
        "CI": os.environ.get("CI", ""),
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PLANARIAN_REQUIRE": required("linux,user,userns,git,podman"),
        "PLANARIAN_TEST_INSTALLED": "1",
        "TMPDIR": str(folder / "tmp"),
    }


def as_user(environment: dict[str, str]) -> list[str]:
    """The argument list that runs a command as the user, in that environment alone."""
    return ["runuser", "-u", USER, "--", "env", "-i", *(f"{key}={value}" for key, value in environment.items())]
