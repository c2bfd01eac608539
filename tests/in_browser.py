"""A page in a real browser, which can reach nothing but its own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Opened:
    """A page, with the requests that it made and the errors that it reported."""

    page: Any
    requests: list[str]
    errors: list[str]


def opened(browser: Any, file: Path, width: int, part: str = "", **options: Any) -> Opened:
    """Open a file at a width, with `part` (#...) behind its address.

    `options` are those of a browser context, such as color_scheme.
    """
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    it = Opened(page, [], [])
    address = file.resolve().as_uri()

    def route(route: Any) -> None:
        if route.request.url.partition("#")[0] == address:
            return route.continue_()
        it.requests.append(route.request.url)
        return route.abort()

    page.route("**/*", route)
    page.on("console", lambda message: it.errors.append(message.text))
    page.on("pageerror", lambda error: it.errors.append(str(error)))
    page.goto(address + part)
    page.wait_for_load_state("networkidle")
    return it
