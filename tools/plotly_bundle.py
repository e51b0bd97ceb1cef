"""Make `src/coterie/report/plotly/plotly-cartesian.min.js.gz`, the part of plotly.js that the report page carries.

    python tools/plotly_bundle.py [TARBALL]

Takes the pinned npm package plotly.js-cartesian-dist-min (from the registry, or a tarball at hand), checks it against npm's
checksum, and packs its script with gzip. The same package always gives the same bytes. No user ever runs this.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "4.1.1"
PACKAGE = "plotly.js-cartesian-dist-min"
URL = f"https://registry.npmjs.org/{PACKAGE}/-/{PACKAGE}-{VERSION}.tgz"
INTEGRITY = (
    "o8GrFeusncwBIxbBynRJpY4pkgVB6caM+JLpwrLYbbsO7dZ8FJ+SVN2Fr+L7kiG/Z6w4P5O0Jus/Qr5EefHVeg=="  # sha512, as npm says
)
FOLDER = Path(__file__).parents[1] / "src" / "coterie" / "report" / "plotly"


def main(arguments: list[str]) -> None:
    packed = Path(arguments[0]).read_bytes() if arguments else urllib.request.urlopen(URL).read()
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != INTEGRITY:
        sys.exit(f"{arguments[0] if arguments else URL} is not {PACKAGE} {VERSION}: its checksum is another.")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name, target in (("plotly-cartesian.min.js", "plotly-cartesian.min.js.gz"), ("LICENSE", "LICENSE")):
            content = archive.extractfile(f"package/{name}").read()
            if target.endswith(".gz"):
                print(f"sha256 of {name}: {hashlib.sha256(content).hexdigest()}")
                content = gzip.compress(content, 9, mtime=0)
            (FOLDER / target).write_bytes(content)
            print(f"{FOLDER / target}: {len(content):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
