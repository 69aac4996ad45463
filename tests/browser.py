"""A headless Chromium for tests of pages: opens a file, tells what it logged and asked the network for."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
)  # fmt: skip
WAIT_SECONDS = 60


def _program() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def browser_problem() -> str | None:
    """Why tests of pages cannot run, or None."""
    if _program() is None:
        return "no Chromium is installed: run scripts/setup-browser"
    if shutil.which("chromedriver") is None:
        return "chromedriver is not installed: run scripts/setup-browser"
    return None


class Browser:
    """One window. Sizes in CSS pixels."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, width: int = 1300, height: int = 1000, *, dark: bool = False) -> None:
        """Set the size of the window and the preferred colours."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, page: Path | str, fragment: str = "") -> None:
        """Open a file (or an address) afresh."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        address = page.absolute().as_uri() if isinstance(page, Path) else page
        self.driver.get(f"{address}#{fragment}" if fragment else address)

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body returns; it may await."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...args) => {{ {script} }})(...Array.from(arguments).slice(0, -1))"
            ".then(value => done({value}), error => done({error: String(error)}));"
        )
        found = self.driver.execute_async_script(wrapped, *arguments)
        assert "error" not in found, found["error"]
        return found["value"]

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(f"return Boolean({condition})"), condition
        )

    def find(self, selector: str) -> list[Any]:
        """Elements by CSS selector."""
        from selenium.webdriver.common.by import By

        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def click(self, selector: str) -> None:
        """Click the first element of a selector."""
        self.find(selector)[0].click()

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """What the console said since the page was opened, worst and mildest alike."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def fetched(self) -> list[str]:
        """Addresses asked for since the page was opened, other than files and data in the page."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(str(message["params"]["request"]["url"]))
        return [url for url in found if not url.startswith(("file:", "data:", "about:", "blob:", "chrome:"))]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser with a profile of its own that is thrown away."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _program() or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="rtb-browser-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1300,1000"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_page_load_timeout(WAIT_SECONDS)
            driver.set_script_timeout(WAIT_SECONDS)
            yield Browser(driver)
        finally:
            driver.quit()
