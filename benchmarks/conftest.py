"""Benchmarks run one after the other, in this process."""


def pytest_xdist_auto_num_workers() -> int:
    return 0
