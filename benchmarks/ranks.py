"""What processes that train together find in their environment, as from a launcher."""

from __future__ import annotations

import os
import socket


def environments(processes: int, threads: int) -> list[dict[str, str]]:
    """By rank, on this machine: a port that is free, and so many threads each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo"}
    return [
        os.environ | {name: str(value) for name, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(processes)
    ]
