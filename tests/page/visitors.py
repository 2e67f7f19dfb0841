"""A browser without scripts, over real sockets: it keeps its cookie, follows where it is sent, and sends the forms that
it finds.
"""

import re
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from tests.server.served import Answer, Served
from tests.server.served import hocket as command

FORM = "application/x-www-form-urlencoded"


class Form(NamedTuple):
    action: str
    method: str
    fields: dict[str, str]
    verb: str


class _Reader(HTMLParser):
    """Collects the forms and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._form: Form | None = None
        self._in_button = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag == "form":
            self._form = Form(found["action"], found.get("method", "get"), {}, "")
        elif tag == "input" and self._form is not None and "name" in found:
            self._form.fields[found["name"]] = found.get("value", "")
        elif tag == "button":
            self._in_button = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._form is not None:
            self.forms.append(self._form)
            self._form = None
        elif tag == "button":
            self._in_button = False

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._in_button and self._form is not None:
            self._form = self._form._replace(verb=self._form.verb + data.strip())


class Shown:
    """A page as its reader sees it."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.status = answer, answer.status
        self.html = answer.body.decode()
        read = _Reader(self.html)
        self.forms, self.tags = read.forms, read.tags
        self.text = re.sub(r"\s+", " ", " ".join(read.words))

    def form(self, verb: str) -> Form:
        return next(each for each in self.forms if each.verb == verb)

    @property
    def verbs(self) -> set[str]:
        return {each.verb for each in self.forms}


class Visitor:
    def __init__(self, served: Served, *options: str) -> None:
        self.served = served
        self.cookie = ""
        self.address = command(served.home, "page", "--no-open", *options).stdout.strip()
        entered = self.get(urlsplit(self.address).path)
        assert entered.status == 303, entered.html
        self.cookie = entered.answer.headers["set-cookie"].partition(";")[0]

    def get(self, path: str, **headers: str) -> Shown:
        return Shown(self.served.ask("GET", path, headers={"Cookie": self.cookie, **headers}))

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Shown:
        sent = {"Cookie": self.cookie, "Content-Type": FORM, **headers}
        return Shown(self.served.ask("POST", path, body=urlencode(fields).encode(), headers=sent))

    def send(self, form: Form, **fields: str) -> Shown:
        """Sends a form, and goes where that leads."""
        shown = self.post(form.action, {**form.fields, **fields})
        return self.get(shown.answer.headers["location"]) if shown.status == 303 else shown
