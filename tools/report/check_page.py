#!/usr/bin/env python3
"""Opens a report in headless Chromium: no console message, no request to anywhere, and screenshots to look at.

  check_page.py INDEX_HTML SCREENSHOT_DIR

Exit 0 when the page is quiet, 1 when it is not, 77 (skipped) where there is no chromium (apt-get install chromium).
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

SHOTS = {"wide": ["--window-size=1280,{height}"], "narrow": ["--window-size=420,{height}"],
         "dark": ["--window-size=1280,{height}", "--blink-settings=preferredColorScheme=0"]}


def chromium(*flags):
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        print("check_page: skipped, no chromium (apt-get install chromium)", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run([program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run",
                               f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND", *flags],
                              capture_output=True, text=True, timeout=180, errors="replace")
    if done.returncode != 0:
        sys.exit(f"check_page: chromium ended with {done.returncode}: {done.stderr[-2000:]}")
    return done


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    page, shots = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    if not page.is_file():
        sys.exit(f"check_page: {page}: no such file")
    shots.mkdir(parents=True, exist_ok=True)
    url = page.as_uri()
    # The page's own height is known only to the browser: a copy says it in its title.
    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder, "probe.html")
        probe.write_text(page.read_text().replace("</html>", "<script>document.title='height '+document.documentElement.scrollHeight+' wide '+document.documentElement.scrollWidth</script></html>"))
        dom = {name: chromium(*[f.format(height=900) for f in flags], "--dump-dom", probe.as_uri()).stdout for name, flags in SHOTS.items()}
    loud = []
    for name, flags in SHOTS.items():
        facts = dom[name].split("<title>height ", 1)
        if len(facts) != 2:
            sys.exit(f"check_page: the page's scripts did not run to their end ({name})")
        height, width = (int(word) for word in facts[1].split("</title>", 1)[0].split(" wide "))
        asked = int(flags[0].split("=")[1].split(",")[0])
        if width > max(asked, 500):  # Chromium lays nothing out narrower than 500 pixels
            loud.append(f"{name}: {width} pixels wide in a window of {asked}")
        done = chromium(*[f.format(height=min(height, 14000)) for f in flags], f"--screenshot={shots / (name + '.png')}", url)
        loud += [f"{name}: {line}" for line in done.stderr.splitlines() if "CONSOLE" in line]
    text = page.read_text()
    loud += [f"asks for {word}" for word in ("src=\"http", "src=http", "url(http", "href=\"http", "href=http", "@import") if word in text]
    for line in loud:
        print(f"check_page: {line}", file=sys.stderr)
    print(f"check_page: {'quiet' if not loud else 'NOT quiet'}; screenshots in {shots}")
    return 1 if loud else 0


if __name__ == "__main__":
    sys.exit(main())
