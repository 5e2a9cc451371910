"""Numbered random cases that must equal transformers or be refused.

CLEARHEAD_FUZZ_CASES sets their number and CLEARHEAD_FUZZ_SEED the seed, by default that of the day.
"""

import os
from collections import Counter
from datetime import date

import transformers

SEED = int(os.environ.get("CLEARHEAD_FUZZ_SEED", date.today().toordinal()))


def check_cases(run_case, count, tmp_path, capsys):
    """Run cases, print how they ended and fail for those that differ; a good part must be equal.

    `run_case(number, folder)` returns how a case ended, or raises AssertionError if it differs.
    """
    transformers.logging.set_verbosity_error()
    count = int(os.environ.get("CLEARHEAD_FUZZ_CASES", count))
    endings = Counter()
    failures = []
    for number in range(count):
        try:
            ending = run_case(number, tmp_path / str(number))
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
            ending = "different"
        endings[ending.split(":")[0]] += 1
    with capsys.disabled():
        print(f"\n{run_case.__module__}, seed {SEED}, {count} cases: {dict(endings)}")
    assert not failures, "\n".join(failures)
    assert endings["equal"] > count / 4
