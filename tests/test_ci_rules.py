"""A tool that is missing is one line. Under CI=true a skip fails the run, but for what none can have."""

from __future__ import annotations

import pytest

from support import ci, tools

SKIPS = {
    "in the test": "import pytest\ndef test_it(): pytest.skip({reason!r})",
    "by a mark": "import pytest\n@pytest.mark.skip(reason={reason!r})\ndef test_it(): pass",
    "of a module": "import pytest\npytest.skip({reason!r}, allow_module_level=True)",
}
PASSING = "\ndef test_other(): pass\n"


@pytest.fixture(params=SKIPS)
def run_with_skip(request, pytester, monkeypatch):
    def run(reason: str, *, ci_value: str, workers: int = 0) -> pytest.RunResult:
        monkeypatch.setenv("CI", ci_value)
        pytester.makepyfile(test_skipping=SKIPS[request.param].format(reason=reason), test_passing=PASSING)
        return pytester.runpytest_inprocess("-p", ci.__name__, "-n", str(workers))

    return run


@pytest.mark.parametrize("workers", [0, 1])
def test_a_skip_fails_the_run_under_ci(run_with_skip, workers):
    result = run_with_skip("no such thing here", ci_value="true", workers=workers)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skipped under CI=true*", "*no such thing here*"])


def test_a_skip_with_an_excuse_passes_under_ci(run_with_skip):
    assert run_with_skip("needs: a second disk", ci_value="true").ret == pytest.ExitCode.OK


def test_a_skip_passes_elsewhere(run_with_skip):
    assert run_with_skip("no such thing here", ci_value="").ret == pytest.ExitCode.OK


def test_an_expected_failure_is_no_skip(pytester, monkeypatch):
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False")

    assert pytester.runpytest_inprocess("-p", ci.__name__).ret == pytest.ExitCode.OK


@pytest.fixture
def no_go(monkeypatch):
    monkeypatch.setitem(tools.TOOLS, "go", tools.TOOLS["go"]._replace(is_here=lambda: False))
    tools.what_is_missing.cache_clear()
    yield
    tools.what_is_missing.cache_clear()


def test_what_is_missing_is_one_line_for_each_tool(pytester, monkeypatch, no_go):
    monkeypatch.setenv("CI", "")
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.go\n@pytest.mark.parametrize('n', range(3))\ndef test_it(n): assert False\n"
        "def test_other(): pass"
    )
    result = pytester.runpytest_inprocess("-p", ci.__name__, "-p", tools.__name__)

    result.assert_outcomes(passed=1, skipped=3)
    assert result.stdout.lines.count("3 tests skipped: no Go; apt-get install golang-go") == 1
