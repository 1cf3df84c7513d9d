"""How large report.html is, how long it takes to make, and how long a browser takes to open it.

Run by hand: ``python benchmarks/report.py [CASES [BACKENDS [STEPS]]]``; the last needs ``gradbridge[browser]`` and a
Chromium. Without arguments 100 cases through 6 backends, 20 steps each, with Jacobian maps.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import big_run

from bridge.report import html


def opened(path):
    """Seconds until the page is loaded, those of its main thread's CPU, and seconds until every chart is drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as api:
        browser = api.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        began = time.perf_counter()
        page.goto(path.as_uri())
        loaded = time.perf_counter() - began
        spent = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
        page.wait_for_function("document.documentElement.dataset.drawn === 'all'")
        drawn = time.perf_counter() - began
        browser.close()
    return loaded, spent["TaskDuration"], drawn


def main(cases=100, backends=6, steps=20):
    with tempfile.TemporaryDirectory() as folder:
        run = big_run.write(Path(folder), cases, backends, steps)
        tables = sum(path.stat().st_size for path in run.glob("*.csv"))
        began = time.process_time()
        path = html.write(run)
        print(f"{cases} cases x {backends} backends, {steps} steps: tables of {tables / 1e6:.0f} MB")
        print(f"report.html: {path.stat().st_size / 1e6:.2f} MB, made in {time.process_time() - began:.1f} s of CPU")
        loaded, spent, drawn = opened(path)
        print(f"opens in {loaded:.2f} s ({spent:.2f} s of CPU); every chart is drawn after {drawn:.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
