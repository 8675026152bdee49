"""One sample in a process of its own: `python -m speed.sample spec.json result.json`.

Nothing heavy is imported here: processes that a sample starts import this module anew.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Read the spec, measure, write the result."""
    from speed.measuring import describe_here, measure
    from speed.spec import SampleSpec

    spec = SampleSpec.read(Path(sys.argv[1]))
    result = {**measure(spec), "machine": describe_here()}
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
