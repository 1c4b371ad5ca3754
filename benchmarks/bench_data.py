"""`fastbert bench data` as a script with its old options: `prepare` against the tokenizers library.

python benchmarks/bench_data.py --corpus books.txt --vocab vocab.txt --mb 100 --rounds 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fastbert import hardware
from fastbert.bench import data
from fastbert.bench.table import rows_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=hardware.num_cores())
    args = parser.parse_args()
    say = lambda line: print(line, flush=True)  # noqa: E731
    for name, rows in data.run(args.corpus, args.vocab, args.mb, args.threads, args.rounds, say).items():
        Console().print(rows_table(name, rows))


if __name__ == "__main__":
    main()
