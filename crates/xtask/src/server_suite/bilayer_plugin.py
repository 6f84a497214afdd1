"""A pytest plugin: texts of other weights are not compared, models are not downloaded, outcomes are written to a file."""
import os


def pytest_configure(config):
    import utils

    # The expected texts are those of models that are not here.
    utils.match_regex = lambda expression, text: isinstance(text, str)
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_collection_modifyitems(config, items):
    outside = os.environ["SUITE_OUTSIDE"].splitlines()
    unwanted = [item for item in items if any(part in item.nodeid for part in outside)]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


def pytest_runtest_logreport(report):
    # A test has one report before, of and after it; only its own says that it passed.
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["SUITE_REPORT"], "a", encoding="utf-8") as out:
            out.write(f"{report.outcome}\t{report.nodeid}\n")
