"""When a browser first paints the page of a service, and when the first photos are there; the cache is empty each time.

python speed/paint.py http://127.0.0.1:8000/
"""

import argparse
import os
import shutil
import statistics

from playwright.sync_api import sync_playwright

SHOWN = 12  # photos that are waited for
TIMES = f"""async () => {{
  const shown = [...document.querySelectorAll(".card img")].slice(0, {SHOWN});
  await Promise.all(shown.map((one) => one.decode().catch(() => null)));
  const paints = performance.getEntriesByType("paint").map((entry) => [entry.name, entry.startTime]);
  return {{ ...Object.fromEntries(paints), "first photos": performance.now() }};
}}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--visits", type=int, default=7)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--headless", "--no-sandbox"])
        visits = []
        for _ in range(given.visits):
            context = browser.new_context(viewport={"width": 1280, "height": 820})
            page = context.new_page()
            page.goto(given.address)
            page.wait_for_selector(".card img")
            visits.append(page.evaluate(TIMES))
            context.close()
        browser.close()
    for name in visits[0]:
        times = [visit[name] for visit in visits]
        print(f"{name}: {statistics.median(times):.0f} ms, the slowest {max(times):.0f} ms")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
