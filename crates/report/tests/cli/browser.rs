//! The page in headless Chromium: how it looks on narrow and on wide screens, on light and on dark ground,
//! and what it says.
//!
//! `WARPWEAVE_CHROMIUM` names the browser where it is not on the path. Without one the tests say so and end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::page::Page;
use crate::report::{NUMBERS, written};

const NAMES: [&str; 5] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
];

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("WARPWEAVE_CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || {
        let folders: Vec<_> = std::env::split_paths(&path).collect();
        let files = NAMES
            .iter()
            .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        files.into_iter().find(|file| file.is_file())
    };
    let found = named.or_else(on_path);
    if found.is_none() {
        // What tests print is shown of failed ones only; this is written past that.
        let told = "SKIPPED: no Chromium on the path: install it or set WARPWEAVE_CHROMIUM\n";
        std::io::stderr().write_all(told.as_bytes()).unwrap();
    }
    found
}

/// Runs the browser on a file; what it prints.
fn browse(program: &Path, folder: &Path, file: &Path, more: &[&str]) -> String {
    let home = tempfile::tempdir_in(folder).unwrap();
    let quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        "--hide-scrollbars",
        "--virtual-time-budget=4000",
    ];
    let out = Command::new(program)
        .args(quiet)
        .arg(format!("--user-data-dir={}", home.path().display()))
        .args(more)
        .arg(format!("file://{}", file.display()))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}: {}",
        program.display(),
        out.status
    );
    String::from_utf8(out.stdout).unwrap()
}

const LIGHT: &str = "--blink-settings=preferredColorScheme=1";
const DARK: &str = "--blink-settings=preferredColorScheme=0";

/// Tells the frame around it how far the page is wider than the screen, and of which text the contrast is the
/// least.
const PROBE: &str = r"<script>
addEventListener('load', () => {
  const light = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 };
  const parts = c => (c.match(/[\d.]+/g) || []).map(Number);
  const luminance = c => {
    const [r, g, b] = parts(c).map(light);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05
  };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (parts(c).length === 3 || parts(c)[3] > 0) return c } return 'rgb(255, 255, 255)' };
  let contrast = 99, worst = '', texts = 0;
  for (const e of document.querySelectorAll('body *')) {
    if (['TITLE', 'SCRIPT', 'STYLE'].includes(e.tagName.toUpperCase())) continue;
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e), colour = e instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [luminance(colour), luminance(ground(e))];
    const ratio = Math.max(a, b) / Math.min(a, b);
    texts++;
    if (ratio < contrast) {
      contrast = ratio;
      worst = e.textContent.slice(0, 60) + ' ' + colour + ' on ' + ground(e)
    }
  }
  parent.postMessage(JSON.stringify({
    overflow: document.documentElement.scrollWidth - innerWidth, width: innerWidth, contrast, worst, texts,
    dark: matchMedia('(prefers-color-scheme: dark)').matches}), '*');
});
</script>";

#[test]
fn the_page_fits_every_screen_and_every_text_can_be_read() {
    let Some(program) = chromium() else { return };
    let written = written();
    let folder = written.folder.path();
    let html = std::fs::read_to_string(&written.page).unwrap();
    let (probed, frame) = (folder.join("probed.html"), folder.join("frame.html"));
    std::fs::write(&probed, html.replace("</body>", &format!("{PROBE}</body>"))).unwrap();
    for (ground, is_dark) in [(LIGHT, false), (DARK, true)] {
        for width in [360, 768, 1600] {
            // A window has a least width, a frame has none.
            let around = format!(
                "<!doctype html><pre></pre>\
                 <iframe width={width} height=900 style='border:0' src='probed.html'></iframe>\
                 <script>onmessage = e => document.querySelector('pre').textContent = e.data</script>"
            );
            std::fs::write(&frame, around).unwrap();
            let dom = browse(
                &program,
                folder,
                &frame,
                &["--dump-dom", "--window-size=1700,1000", ground],
            );
            let said = dom
                .split_once("<pre>")
                .and_then(|(_, rest)| rest.split_once("</pre>"));
            let said: Value =
                serde_json::from_str(said.unwrap().0).unwrap_or_else(|_| panic!("{dom}"));
            assert_eq!(
                (&said["width"], &said["dark"]),
                (&width.into(), &is_dark.into()),
                "{said}"
            );
            assert!(said["overflow"].as_f64().unwrap() <= 0.0, "{said}");
            assert!(said["contrast"].as_f64().unwrap() >= 4.5, "{said}");
            assert!(said["texts"].as_f64().unwrap() > 3000.0, "{said}");
        }
    }
}

#[test]
fn the_browser_reads_the_numbers_of_the_files() {
    let Some(program) = chromium() else { return };
    let written = written();
    let dom = browse(
        &program,
        written.folder.path(),
        &written.page,
        &["--dump-dom"],
    );
    let page = Page::parse(&dom);
    let compared = page.agrees_with(&written.files);
    assert!(compared > NUMBERS, "only {compared} numbers were compared");
    page.tells_no_more_than_its_tables();
}

#[test]
fn a_screenshot_shows_something() {
    let Some(program) = chromium() else { return };
    let written = written();
    let folder = written.folder.path();
    let mut grounds = Vec::new();
    for ground in [LIGHT, DARK] {
        let picture = folder.join("page.png");
        let to = format!("--screenshot={}", picture.display());
        browse(
            &program,
            folder,
            &written.page,
            &[&to, "--window-size=1280,3000", ground],
        );
        let png = std::fs::read(&picture).unwrap();
        assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
        let size = [16, 20].map(|at| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()));
        assert_eq!(size, [1280, 3000]);
        // A blank page of that size takes some kilobytes.
        assert!(png.len() > 100_000, "{} bytes", png.len());
        grounds.push(png);
    }
    assert!(grounds[0] != grounds[1], "dark looks as light does");
}
