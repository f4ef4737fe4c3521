#!/usr/bin/env python3
"""Prints the percentiles of every histogram in a .hlog, read by the public Python package (pip install hdrhistogram).

Usage: read_hlog.py FILE. One line per tag: tag, count, then p50 p90 p99 p999 max in ns, as in /histograms.json.
"""
import sys

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

HIGHEST_NS = 60_000_000_000


def main(path):
    reader = HistogramLogReader(path, HdrHistogram(1, HIGHEST_NS, 3))
    seen = 0
    while (histogram := reader.get_next_interval_histogram()) is not None:
        seen += 1
        values = [int(histogram.get_value_at_percentile(p)) for p in (50, 90, 99, 99.9)]
        p50, p90, p99, p999 = values
        print(
            f"{histogram.get_tag()} count={histogram.get_total_count()} p50_ns={p50} p90_ns={p90} "
            f"p99_ns={p99} p999_ns={p999} max_ns={int(histogram.get_max_value())}"
        )
    return 0 if seen else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
