"""The pages of a site in a real browser, each in a frame as wide as a phone."""

import json
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

CHROMIUM = shutil.which("chromium")
WATCH = """<!doctype html><link rel="icon" href="data:,"><script>
const wide = 390, found = [];
const scrolls = (one) => /auto|scroll/.test(getComputedStyle(one).overflowX);
async function look(place) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${wide}px; height: 844px; border: 0`;
  frame.src = place;
  const loaded = new Promise((done) => { frame.onload = done; });
  document.body.replaceChildren(frame);
  await loaded;
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach((one) => { one.open = true; });
  for (const one of page.images) {
    one.loading = "eager";
    await one.decode().catch(() => found.push(`${place}: no picture at ${one.src}`));
  }
  if (page.documentElement.scrollWidth > wide) found.push(`${place}: scrolls sideways`);
  const over = [];
  for (const one of page.querySelectorAll("article *:not(svg *)")) {
    if (one.getBoundingClientRect().right <= wide + 1) continue;
    let around = one.parentElement;
    while (around.tagName != "ARTICLE" && !scrolls(around)) around = around.parentElement;
    if (around.tagName == "ARTICLE") over.push(one);
  }
  const formulas = [...page.querySelectorAll("div.math")];
  over.push(...formulas.filter((one) => one.scrollWidth > one.clientWidth));
  const outer = over.filter((one) => !over.some((other) => one != other && other.contains(one)));
  for (const one of outer.slice(0, 3)) {
    const text = one.textContent.trim() || one.outerHTML;
    found.push(`${place}: cut at the right: ${text.slice(0, 160)}`);
  }
}
addEventListener("load", async () => {
  for (const place of PAGES) await look(place);
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
});
</script><body></body>"""


class Site(SimpleHTTPRequestHandler):
    """Serves the files of a site, the page that looks at them, and takes what it found."""

    def __init__(self, *args: Any, watch: bytes, found: Queue, missing: list[str], **more: Any):
        self.watch, self.found, self.missing = watch, found, missing
        super().__init__(*args, **more)

    def do_GET(self) -> None:
        if self.path == "/watch":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(self.watch)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def send_error(self, *args: Any, **more: Any) -> None:
        self.missing.append(f"{self.path} is not there")
        super().send_error(*args, **more)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def faults_of(site: Path, seconds: float = 240) -> list[str]:
    """Return what a reader with a phone would see go wrong on all pages, and what the console says.

    These are pictures that do not load, pages that scroll sideways, what is cut off, files that are
    not there, and messages of the console. Raises queue.Empty after so many seconds.
    """
    found: Queue[list[str]] = Queue()
    missing: list[str] = []
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    watch = WATCH.replace("PAGES", json.dumps(pages)).encode()
    serve = partial(Site, directory=str(site), watch=watch, found=found, missing=missing)
    assert CHROMIUM is not None
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), serve) as server,
        TemporaryDirectory() as home,
        (Path(home) / "console").open("w+") as console,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/watch"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
        words = [CHROMIUM, *options, f"--user-data-dir={home}/user", "--remote-debugging-port=0"]
        browser = subprocess.Popen([*words, place], stdout=console, stderr=console)
        try:
            seen = found.get(timeout=seconds)
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
        console.seek(0)
        return seen + missing + [line.strip() for line in console if ":CONSOLE" in line]
