"""Parts of the page that its tests look at."""

import json

DRAWN, VIDEOS = 6, 8
LONG = "a name that goes on and on, as those of videos from meetings and of films from the web often do, and_then_some"
GIF = "moving ü.gif"
LINE = "the ferry leaves at noon"
CARDS = "document.querySelectorAll('#results .card:not(.ghost)')"
WATCH = """window.wrong = [];
addEventListener('error', e => wrong.push(e.message));
addEventListener('unhandledrejection', e => wrong.push(String(e.reason)));
addEventListener('securitypolicyviolation', e => wrong.push(e.violatedDirective + ' ' + e.blockedURI));"""


def text(browser, name: str) -> str:
    return browser.run(f"document.getElementById({json.dumps(name)}).textContent")
