import html
import shutil
import subprocess

import pytest

from wechsel_jax.report.palette import PAGE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=2000",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


def chromium(tmp_path, *arguments: str) -> str:
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_its_window_and_shows_the_right_drawing(report, tmp_path, width):
    wrapper = tmp_path / "wrapper.html"
    measure = (
        "const page = document.querySelector('iframe').contentDocument, root = page.documentElement;"
        "const shown = [...page.querySelectorAll('figure > svg')].filter(svg => svg.getBoundingClientRect().width > 0);"
        "document.title = [root.clientWidth, root.scrollWidth, shown.map(svg => svg.getAttribute('class'))].join(' ')"
    )
    srcdoc = html.escape(report.read_text(encoding="utf-8"))
    wrapper.write_text(
        '<!DOCTYPE html><meta charset="utf-8">'
        f'<iframe style="border:0" width="{width}" height="800" srcdoc="{srcdoc}" onload="{measure}"></iframe>',
        encoding="utf-8",
    )
    found = chromium(tmp_path, "--window-size=1400,900", "--dump-dom", wrapper.as_uri())
    kind = "narrow" if width < 641 else "wide"
    assert f"<title>{width} {width} {kind},{kind},{kind}</title>" in found


@pytest.mark.parametrize(("mode", "setting"), [("light", 1), ("dark", 0)])
def test_light_and_dark(report, tmp_path, mode, setting):
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    scheme = f"--blink-settings=preferredColorScheme={setting}"
    chromium(tmp_path, scheme, "--window-size=1280,900", f"--screenshot={picture}", report.as_uri())
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    wanted = [int(PAGE[mode][i : i + 2], 16) for i in (1, 3, 5)]
    assert pixels[3, 3].tolist() == wanted
    assert (abs(pixels - wanted).max(axis=-1) > 60).mean() > 0.02, "the page is empty"
