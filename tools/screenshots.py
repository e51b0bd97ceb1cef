"""The report's pictures in docs/figures: the demo's page at desktop and phone width, light and dark, and the README's.

make screenshots       (needs Chromium; half a minute)
"""

from __future__ import annotations

import io
import runpy
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image

from coterie.comparison.compare import compare
from coterie.datasets import rain, rain_stations
from coterie.report.page import write_report

ROOT = Path(__file__).parents[1]
SIZES = {"desktop": (1400, 2080), "phone": (390, 2750)}  # the top of the page: the verdict, who gains, the groups

FRONT = """(() => {
  const groups = document.querySelector("#groups");
  const kept = [...groups.querySelectorAll("figure")].slice(0, 2);
  const put_away = [".bar", ".cards", "main > section:not(#verdict):not(#groups)", "main > footer", "#groups figure",
    "#groups > .scroll", "#groups > p", "#groups > details"];
  for (const one of document.querySelectorAll(put_away.join(","))) one.style.display = kept.includes(one) ? "" : "none";
  window.dispatchEvent(new Event("resize"));
  return new Promise(done => setTimeout(() => done(document.querySelector("#groups").getBoundingClientRect().bottom), 500));
})()"""  # the README's picture is the page with two of its parts alone: the verdict, and the map of the groups


def main() -> None:
    found = runpy.run_path(str(ROOT / "tests" / "report" / "conftest.py"))
    browser = found["Browser"](found["CHROMIUM"])
    comparison = compare(rain(), seeds=1)
    about = comparison.about | {"rerun": {"data": {"name": "rain"}, "compare": {"seeds": 1}}}
    comparison = replace(comparison, about=about, positions=rain_stations()[["lon", "lat"]])
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(comparison, Path(folder) / "report.html")
        for name, (width, height) in SIZES.items():
            for dark in (False, True):
                browser.open(page, width, 900, dark=dark)
                browser.shot(Path(folder) / "shot.png")
                shown = f"report_{name}_{'dark' if dark else 'light'}.webp"
                keep(Image.open(Path(folder) / "shot.png"), height, ROOT / "docs" / "figures" / shown)
        browser.open(page, 1080, 900)
        end = browser.run(FRONT)
        browser.shot(Path(folder) / "shot.png")
        keep(Image.open(Path(folder) / "shot.png"), round(end) + 16, ROOT / "docs" / "figures" / "report_front.webp")
    browser.close()


def keep(image: Image.Image, height: int, path: Path) -> None:
    """The top of a picture, as small WebP."""
    top = image.convert("RGB").crop((0, 0, image.width, min(height, image.height)))
    kept = io.BytesIO()
    top.save(kept, "WEBP", quality=80, method=6)
    assert kept.tell() < 200_000, f"{path} has {kept.tell():,} bytes"
    path.write_bytes(kept.getvalue())
    print(f"{path.relative_to(ROOT)}: {kept.tell():,} bytes")


if __name__ == "__main__":
    main()
