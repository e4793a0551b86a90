#!/usr/bin/env python3
"""The page of ridge serve in a headless Chromium, against a fake server, or with --url against a real one.

Usage: page_test.py [--shots DIR] [--url URL [--key KEY]]     ($CHROME names the browser)
"""
import argparse
import json
import pathlib
import sys
import time

import browser as chromium
from fake_server import FakeServer

ANSWER = "(document.querySelector('#log .turn:last-child .text')?.textContent ?? '')"
META = "(document.querySelector('#log .turn:last-child .meta')?.textContent ?? '')"
ERROR = "(document.querySelector('#log .turn:last-child .error')?.textContent ?? '')"
BUSY = "!document.getElementById('stop').hidden"
IDLE = "document.getElementById('stop').hidden"
# Texts below a contrast of 4.5, of what is shown.
CONTRAST = """(() => {
  const luminance = (c) => c.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const back = (node) => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor); if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
  const low = []; let seen = 0;
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim()) || 'placeholder' in node;
    if (!own || !node.checkVisibility({visibilityProperty: true})) continue;
    const pair = [luminance(parse(getComputedStyle(node).color).slice(0, 3)), luminance(back(node))].sort((a, b) => b - a);
    const ratio = (pair[0] + .05) / (pair[1] + .05); seen++;
    if (ratio < 4.5) low.push(`${node.tagName}#${node.id}.${node.className} ${ratio.toFixed(2)}`);
  }
  return {low, seen};
})()"""


def text_of(name):
    return f"document.getElementById({json.dumps(name)}).textContent"


class Page:
    """What a person does with the page."""

    def __init__(self, browser, url, shots):
        self.b, self.url, self.shots, self.ids_only = browser, url, shots, False

    def open(self):
        self.b.open(self.url)
        self.b.wait(f"{text_of('model')} !== 'no answer from the server yet'")

    def click(self, name):
        self.b.value(f"document.getElementById({json.dumps(name)}).click()")

    def set(self, name, value):
        self.b.value(
            f"(() => {{ const e = document.getElementById({json.dumps(name)}); e.value = {json.dumps(str(value))};"
                     "e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', "
                     "{bubbles: true})); })()")

    def send(self, text):
        """With the Enter key. A model without a tokenizer gets token ids, unless a test is about them."""
        self.b.value("document.getElementById('input').focus()")
        self.b.type("1 2 3" if self.ids_only else text)
        self.b.press("Enter")

    def done(self):
        """Until the answer that was asked for has ended."""
        self.b.wait(f"({IDLE}) && document.querySelector('#log .turn:last-child').matches('.assistant:not(.busy)')",
                    120)

    def show(self, panel, on=True):
        if self.b.value(f"document.getElementById('{panel}').hidden") == on:
            self.click(f"show-{panel}")

    def shot(self, name):
        if self.shots:
            self.b.screenshot(pathlib.Path(self.shots) / f"{name}.png")


def check(condition, what):
    if not condition:
        raise AssertionError(what)


# ---- For any server.

def the_live_view_is_closed_at_first(page):
    check(page.b.value("['kept', 'settings', 'live'].every((name) => document.getElementById(name).hidden)"),
          "a panel is open")


def answers_grow_as_they_stream(page):
    page.b.value("window.lengths = new Set(); new MutationObserver(() => lengths.add(document.querySelector('#log "
                 ".busy .text')?.textContent.length)).observe("
                 "document.getElementById('log'), {subtree: true, childList: true, characterData: true}), 0")
    page.send("Tell me about ridges")
    page.done()
    check(page.b.value("lengths.size") >= 5, "the answer did not grow in steps")
    check("tokens" in page.b.value(META), page.b.value(META))
    check(page.b.value(ERROR) == "", page.b.value(ERROR))
    check(page.b.value("document.getElementById('log').ariaLive") == "polite", "the answer is no polite live region")


def regenerate_replaces_the_answer(page):
    turns = page.b.value("document.querySelectorAll('#log .turn').length")
    page.click("regenerate")
    page.done()
    check(page.b.value("document.querySelectorAll('#log .turn').length") == turns, "another turn came")
    check(page.b.value(f"{ANSWER}.length > 0"), "no answer")


def escape_ends_an_answer(page):
    page.send("A long text, please")
    page.b.wait(f"({IDLE}) || {ANSWER}.length > 0", 60)
    page.b.press("Escape")
    page.b.wait(IDLE, 10)
    shown = page.b.value(ANSWER)
    time.sleep(0.4)
    check(page.b.value(ANSWER) == shown, "text after the stop")


def the_conversation_outlives_the_page(page):
    before = page.b.value("document.getElementById('log').textContent")
    page.open()
    check(page.b.value("document.getElementById('log').textContent") == before, "another conversation")
    page.click("new")
    page.b.wait("document.querySelectorAll('#log .turn').length === 0")


def every_control_has_a_name(page):
    for panel in ("kept", "settings", "live"):
        page.show(panel)
    page.b.value("document.getElementById('key-form').hidden = false")
    names = page.b.control_names()
    page.b.value("document.getElementById('key-form').hidden = true")
    check(len(names) >= 17, names)
    check(all(name for _, name in names), names)


def texts_have_contrast(page):
    for panel in ("kept", "settings", "live"):
        page.show(panel)
    for scheme in ("dark", "light"):
        page.b.scheme(scheme)
        page.b.wait(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        found = page.b.value(CONTRAST)
        check(found["seen"] > 30 and not found["low"], (scheme, found))


def a_phone_shows_all_without_scrolling_sideways(page):
    for width in (320, 360, 390):
        page.b.size(width, 740, phone=True)
        page.set("mode", "text")  # the longest choice
        cut = page.b.value("(() => { const e = document.getElementById('mode'); const free = e.cloneNode(true); "
                           "free.style.position = 'absolute'; free.style.width = 'auto';"
                           "e.after(free); const missing = free.offsetWidth - e.offsetWidth; free.remove(); return "
                           "missing; })()")
        check(cut <= 0, f"{cut} pixels of the mode are cut at {width}")
        page.shot(f"phone-{width}-completion")
        check(page.b.value("document.documentElement.scrollWidth") <= width, f"wider than {width}")
        page.set("mode", "chat")
    page.b.size(360, 740, phone=True)
    for panel in ("kept", "settings", "live"):
        page.show(panel, False)
    for panel in (None, "kept", "settings", "live"):
        if panel:
            page.show(panel)  # closes the others
        wide = page.b.value("[...document.querySelectorAll('body, body *')].filter((e) => e.checkVisibility() && "
                            "e.getBoundingClientRect().right > 360.5"
                            " && !e.closest('pre')).map((e) => e.tagName + '#' + e.id)")
        check(page.b.value("document.documentElement.scrollWidth") <= 360 and not wide, (panel, wide))
        check(page.b.value("document.getElementById('send').getBoundingClientRect().bottom <= innerHeight"),
              "the button Send is below the screen")
    page.show("live", False)
    page.b.size(1280, 800)


def the_live_view_has_numbers(page):
    page.show("live")
    for name in ("tok_s", "step_ms", "running", "queue", "pages", "kv"):
        page.b.wait(f"/[0-9]/.test({text_of(name)})", 10)


# ---- With numbers and faults that only the fake server gives.

def requests_say_what_was_set(page, fake):
    page.show("settings")
    values = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "max_tokens": 15, "seed": 7,
              "kv_quant": "rotor-3"}
    for name, value in {**values, "system": "Be brief."}.items():
        page.set(name, value)
    page.open()  # settings are kept
    page.send("Hello")
    page.done()
    path, body = fake.requests[-1]
    check(path == "/v1/chat/completions", path)
    check({name: body.get(name) for name in values} == values, body)
    check(body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], body)
    check(body["stream"] and body["stream_options"] == {"include_usage": True} and body["model"] == fake.props["model"],
          body)
    meta = page.b.value(META)
    check("15 tokens" in meta and "1,234" in meta and "1,000 cached" in meta and "cut" in meta, meta)
    page.set("temperature", 5)
    count = len(fake.requests)
    page.show("settings", False)
    page.send("Out of range")
    time.sleep(0.2)
    check(len(fake.requests) == count and page.b.value("!document.getElementById('settings').hidden"),
          "sent with a wrong temperature")
    page.show("settings")
    page.click("clear")


def model_text_stays_text(page, fake):
    page.send("Markup")
    page.done()
    check(page.b.value("document.querySelectorAll('#log b, #log img, #log i').length") == 0,
          "markup of the model became elements")
    check("<b>no bold</b> <img src=x onerror=alert(1)>" in page.b.value(ANSWER), page.b.value(ANSWER))
    check(page.b.value("document.querySelector('#log .turn:last-child pre').textContent") == "int x = 1;  // <i>",
          "code block")
    check("```" not in page.b.value(ANSWER), "fence shown")


MARKDOWN = """# Title

Some **bold**, *slanted* and `code <b>` with [a link](https://example.org/x) and [no link](javascript:alert(1)).

1. one
2. two
   - inner *item*

> quoted

| a | b |
|---|:-:|
| 1 | <i>2</i> |

```py
print("**not bold**")
```
2 * 3 * 4 and snake_case_name stay."""


def answers_are_shown_as_markdown(page, fake):
    fake.script, fake.pause = [MARKDOWN[i:i + 7] for i in range(0, len(MARKDOWN), 7)], 0.01
    page.send("Markdown")
    page.done()
    fake.script, fake.pause = None, 0.05
    text = "document.querySelector('#log .turn:last-child .text')"
    tags = page.b.value(f"[...{text}.children].map((e) => e.tagName + (e.className && '.' + e.className))")
    check(tags == ["H3", "P", "OL", "BLOCKQUOTE", "DIV.wide-table", "DIV.code", "P"], tags)
    inner = page.b.value(f"[...{text}.querySelectorAll('strong, em, p code, a, li li, td, pre')].map((e) => e.tagName "
                         f"+ ' ' + e.textContent)")
    check(inner == ["STRONG bold", "EM slanted", "CODE code <b>", "A a link", "LI inner item", "EM item", "TD 1",
                    "TD <i>2</i>",
                    'PRE print("**not bold**")'], inner)
    check(page.b.value(f"{text}.querySelector('a').href + {text}.querySelector('a').rel")
          == "https://example.org/xnoopener noreferrer", "link")
    check("[no link](javascript:alert(1))" in page.b.value(f"{text}.textContent"), "a link to a script")
    check(page.b.value(f"{text}.lastChild.textContent") == "2 * 3 * 4 and snake_case_name stay.",
          page.b.value(f"{text}.lastChild.textContent"))
    page.shot("markdown")
    # What was copied; the browser of the test has no clipboard to read.
    page.b.value("window.copied = [], navigator.clipboard.writeText = async (text) => { copied.push(text); }, 0")
    page.b.value(f"{text}.querySelector('.copy').click()")
    page.b.value("document.querySelector('#log .turn:last-child > .copy').click()")
    page.b.wait("copied.length === 2")
    check(page.b.value("copied") == ['print("**not bold**")', MARKDOWN], page.b.value("copied"))
    page.b.wait(f"{text}.querySelector('.copy').textContent === 'Copied'")


def hostile_markdown_takes_little_time(page, fake):
    fake.pause = 0
    for hostile in ("*" * 15000, "[" * 15000, "`" * 9999 + "a", "> " * 5000 + "x", "- " * 3000 + "x",
                    "|" * 9000 + "\n" + "|-" * 4000, "_a" * 7000, "**a" * 5000):
        fake.script = [hostile]
        page.send("More")
        start = time.monotonic()
        page.done()
        fake.script = None
        check(time.monotonic() - start < 3, f"{hostile[:10]}: {time.monotonic() - start:.1f} s")
        page.click("new")
    fake.script, fake.pause = None, 0.05
    page.show("kept")
    for _ in range(8):
        page.b.value("document.querySelector('#kept-list li button:last-child').click()")


def reasoning_is_folded(page, fake):
    fake.reasoning = ["I think ", "so."]
    page.send("Why?")
    page.done()
    fake.reasoning = []
    box = "document.querySelector('#log .turn:last-child .reasoning')"
    check(page.b.value(f"{box}.lastChild.textContent") == "I think so."
          and page.b.value(f"!{box}.open && !{box}.hidden"), "no folded reasoning")
    check("I think" not in page.b.value(ANSWER), "reasoning in the answer")
    page.send("And?")
    page.done()
    check(not any("I think" in str(message) for message in fake.requests[-1][1]["messages"]), "reasoning went back")
    page.click("new")


def conversations_are_kept_and_exported(page, fake):
    fake.pause = 0.01
    page.click("new")
    for text in ("First talk", "Second talk"):
        page.send(text)
        page.done()
        page.click("new")
    page.send("Third talk")
    page.done()
    page.open()
    page.show("kept")
    titles = "[...document.querySelectorAll('#kept-list li button:first-child')].map((e) => e.textContent)"
    check(page.b.value(titles)[:2] == ["Second talk", "First talk"], page.b.value(titles))
    page.shot("conversations")
    page.b.value("document.querySelectorAll('#kept-list li button:first-child')[1].click()")
    said = "[...document.querySelectorAll('#log .user .text')].map((e) => e.textContent).join()"
    check(page.b.value(said) == "First talk", page.b.value(said))
    check(page.b.value(titles)[:2] == ["Third talk", "Second talk"], page.b.value(titles))
    page.send("It goes on")
    page.done()
    check([message["content"] for message in fake.requests[-1][1]["messages"] if message["role"] == "user"]
          == ["First talk", "It goes on"], fake.requests[-1])
    page.b.value("window.exported = null, URL.createObjectURL = (blob) => { blob.text().then((text) => { exported = "
                 "JSON.parse(text); }); return '#'; }, 0")
    page.click("export")
    page.b.wait("exported !== null")
    made = page.b.value("exported")
    check([one["turns"][0]["content"] for one in made["conversations"]][:3]
          == ["First talk", "Third talk", "Second talk"], made)
    count = len(page.b.value(titles))
    page.b.value("document.querySelector('#kept-list li button:last-child').click()")
    check(len(page.b.value(titles)) == count - 1 and page.b.value(titles)[0] == "Second talk", "not deleted")
    fake.pause = 0.05
    page.show("kept", False)


def tools_are_called_and_answered(page, fake):
    page.show("settings")
    page.set("tools", '[{"type": "function", "function": {}}]')
    check("Tool 1 needs" in page.b.value(text_of("tools-error"))
          and page.b.value("document.getElementById('tools').ariaInvalid") == "true", "no word on the wrong tool")
    page.shot("tools-wrong")
    count = len(fake.requests)
    page.send("Refused")
    time.sleep(0.2)
    check(len(fake.requests) == count, "sent with wrong tools")
    for wrong, said in (("[", "no JSON"), ("{}", "no list"), ("[null]", 'Tool 1 needs "type"')):
        page.set("tools", wrong)
        check(said in page.b.value(text_of("tools-error")), page.b.value(text_of("tools-error")))
    page.b.value("document.getElementById('input').value = ''")
    page.click("new")
    page.set("mode", "text")  # continues texts without tools
    page.send("Once")
    page.done()
    check("tools" not in fake.requests[-1][1], fake.requests[-1])
    page.click("new")
    page.set("mode", "chat")

    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    page.set("tools", json.dumps(tools))
    check(page.b.value(text_of("tools-error")) == "", page.b.value(text_of("tools-error")))
    page.show("settings", False)
    # The second number is beyond what JavaScript can hold: shown as it came.
    fake.calls = [("weather", ['{"city": "<b>Par', 'is</b>", "days": 2}']),
                  ("<i>find</i>", ['{"id": 12345678901234567890}'])]
    page.send("Weather?")
    results = "document.querySelectorAll('#log .results textarea')"
    page.b.wait(f"{results}.length === 2")
    check(fake.requests[-1][1]["tools"] == tools, fake.requests[-1])
    shown = page.b.value(
        "[...document.querySelectorAll('#log .assistant:nth-last-child(2) :is(.call, pre)')].map((e) => e.textContent)")
    check(shown == ["Calls weather", '{\n  "city": "<b>Paris</b>",\n  "days": 2\n}', "Calls <i>find</i>",
                    '{"id": 12345678901234567890}'], shown)
    check(page.b.value("document.querySelectorAll('#log b, #log i').length") == 0, "markup of a call became elements")
    check("calls tools"
          in page.b.value("document.querySelector('#log .assistant:nth-last-child(2) .meta').textContent"),
          "no word on calls")
    check(all(name for _, name in page.b.control_names()), page.b.control_names())
    page.b.value(f"{results}[0].scrollIntoView({{block: 'end'}})")
    page.shot("tools")
    page.open()  # calls outlive the page
    page.b.wait(f"{results}.length === 2")
    page.b.value(f"{results}[0].focus()")
    page.b.type("rain & <b>wind</b>")
    page.b.press("Enter")  # the other result is missing: it gets the focus
    check(page.b.value(f"document.activeElement === {results}[1]") and page.b.value(IDLE), "sent without a result")
    page.b.type("nothing")
    page.b.press("Enter")
    page.done()
    called = {"role": "assistant", "content": "Let me ask. ", "tool_calls": [
        {"id": "call-0", "type": "function", "function": {"name": "weather",
                                                          "arguments": '{"city": "<b>Paris</b>", "days": 2}'}},
        {"id": "call-1", "type": "function", "function": {"name": "<i>find</i>",
                                                          "arguments": '{"id": 12345678901234567890}'}}]}
    check(fake.requests[-1][1]["messages"] == [{"role": "user", "content": "Weather?"}, called,
          {"role": "tool", "tool_call_id": "call-0", "name": "weather", "content": "rain & <b>wind</b>"},
          {"role": "tool", "tool_call_id": "call-1", "name": "<i>find</i>", "content": "nothing"}],
          fake.requests[-1][1]["messages"])
    check(page.b.value(f"{results}.length") == 0 and "Here is" in page.b.value(ANSWER),
          "the results are still asked for")
    page.b.value("document.querySelector('#log .tool').scrollIntoView()")
    page.shot("tools-answered")
    fake.calls = []
    page.show("settings")
    page.click("clear")
    page.show("settings", False)
    page.click("new")


def an_earlier_message_is_edited(page, fake):
    fake.pause = 0.01
    for text in ("First", "Second", "Third"):
        page.send(text)
        page.done()
    fake.pause = 0.05
    opener = "document.querySelectorAll('#log .edit')[1]"
    check(page.b.value(f"{opener}.ariaLabel") == "Edit message: Second", page.b.value(f"{opener}.ariaLabel"))
    field = "document.querySelector('#log .editor textarea')"
    page.b.value(f"{opener}.focus()")
    page.b.press("Enter")
    check(page.b.value(f"document.activeElement === {field} && {field}.value === 'Second'"),
          "the field has not the focus or the text")
    check(all(name for _, name in page.b.control_names()), page.b.control_names())
    page.b.type(" thoughts")
    page.b.value(f"{field}.scrollIntoView({{block: 'center'}})")
    page.shot("edit")
    page.b.press("Escape")  # nothing changed
    check(page.b.value(f"document.activeElement === {opener} && document.querySelectorAll('#log .turn').length === 6"),
          "Esc does not go back")
    page.b.press("Enter")
    page.b.value(f"{field}.value = ''")
    page.b.type("Other")
    page.b.press("Enter")
    page.b.wait(BUSY)
    check(page.b.value("[...document.querySelectorAll('#log .edit')].every((e) => e.disabled)"),
          "editable while an answer comes")
    page.done()
    said = [message["content"] for message in fake.requests[-1][1]["messages"] if message["role"] == "user"]
    check(said == ["First", "Other"], said)
    check(page.b.value("[...document.querySelectorAll('#log .user .text')].map((e) => e.textContent).join()")
          == "First,Other", "the log")
    page.open()
    check(page.b.value("document.querySelectorAll('#log .turn').length") == 4, "dropped turns came back")
    page.click("new")


def the_stream_is_seen_growing(page, fake):
    fake.n_words = 400
    page.send("Slowly")
    lengths = []
    for _ in range(8):
        lengths.append(page.b.value(f"{ANSWER}.length"))
        time.sleep(0.2)
    check(lengths == sorted(lengths) and len(set(lengths)) >= 5, lengths)
    check(page.b.value(BUSY), "ended too soon")
    cancelled = fake.cancelled
    page.click("stop")
    page.b.wait(IDLE, 10)
    check("stopped" in page.b.value(META), page.b.value(META))
    end = time.monotonic() + 5
    while fake.cancelled == cancelled and time.monotonic() < end:
        time.sleep(0.02)
    check(fake.cancelled == cancelled + 1, "the server was not told")
    count = len(fake.requests)
    page.click("regenerate")
    page.b.wait(f"{ANSWER}.includes('r{count + 1}w3')")
    check(f"r{count}w" not in page.b.value(ANSWER), "old text in the new answer")
    check(fake.requests[-1][1]["messages"][-1] == {"role": "user", "content": "Slowly"}, fake.requests[-1])
    page.b.press("Escape")
    page.b.wait(IDLE, 10)
    fake.n_words = 40


def errors_are_shown(page, fake):
    fake.refuse = "temperature is 9, and must be at most 2"
    page.send("Wrong")
    page.b.wait(f"{ERROR}.includes('must be at most 2')")
    page.shot("error")
    fake.refuse = None
    page.send("Right")
    page.done()
    roles = [message["role"] for message in fake.requests[-1][1]["messages"]]
    check(fake.requests[-1][1]["messages"][-1]["content"] == "Wrong\n\nRight", fake.requests[-1])
    check(all(a != b for a, b in zip(roles, roles[1:])), roles)
    page.click("regenerate")
    page.done()
    check("Here is" in page.b.value(ANSWER), page.b.value(ANSWER))
    check(page.b.value(ERROR) == "", page.b.value(ERROR))


def the_live_view_shows_the_servers_numbers(page, fake):
    page.show("live")
    for name, shown in {"tok_s": "123.4", "step_ms": "12.34 ms", "running": "2", "queue": "3"}.items():
        page.b.wait(f"{text_of(name)} === {json.dumps(shown)}", 5)
    check(page.b.value(text_of("batch")) == "decoding sequences 5prompt tokens 96", page.b.value(text_of("batch")))
    check(page.b.value(text_of("pages")) == "used 120shared 50cached 80free 150", page.b.value(text_of("pages")))
    widths = page.b.value("[...document.querySelectorAll('#pages-bar i')].map((e) => Math.round(400 * "
                          "e.getBoundingClientRect().width / e.parentElement.clientWidth))")
    check(widths == [120, 50, 80, 150], widths)
    check(page.b.value(text_of("parts")) == "planning 0.25 msmodel 11 mssampling 1 msevents 0.09 ms",
          page.b.value(text_of("parts")))
    check("4,200 tokens of running sequences" in page.b.value(text_of("kv-tokens")), page.b.value(text_of("kv-tokens")))
    check("16 MiB" in page.b.value(text_of("kv")) and "64 MiB (4 times as much)" in page.b.value(text_of("kv")),
          page.b.value(text_of("kv")))
    check("rotor-3/q8_0: 1,234 bytes a token; f16: 4,936" in page.b.value(text_of("kv-token")),
          page.b.value(text_of("kv-token")))
    check(page.b.value("[...document.querySelectorAll('#slots td')].slice(0, 6).map((e) => e.textContent).join()")
          == "7,decode,1,200,1,024,55,21.5", "table")
    fake.status = {**fake.status, "queue": 11, "running": []}
    page.b.wait(f"{text_of('queue')} === '11' && {text_of('running')} === '0' && "
                f"!document.getElementById('slots-none').hidden", 5)


def the_keyboard_is_enough(page, fake):
    page.show("settings")
    page.show("live")
    page.b.value("document.activeElement.blur(), document.getElementById('mode').focus()")
    reached, outlines = ["mode"], []
    for _ in range(60):
        page.b.press("Tab")
        name = page.b.value("document.activeElement.id || document.activeElement.tagName")
        if name in ("mode", "BODY"):
            break
        reached.append(name)
        outlines.append(page.b.value("getComputedStyle(document.activeElement).outlineStyle !== 'none' && "
                                     "parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2"))
    wanted = page.b.value("[...document.querySelectorAll('button, input, select, textarea')].filter((e) => "
                          "e.checkVisibility() && !e.disabled).map((e) => e.id || e.tagName)")
    check(set(wanted) <= set(reached), f"not reached: {set(wanted) - set(reached)}")
    check(all(outlines), dict(zip(reached[1:], outlines)))
    page.b.value("document.getElementById('show-settings').focus()")
    page.b.press("Enter")
    check(page.b.value("document.getElementById('settings').hidden && "
                       "document.getElementById('show-settings').ariaExpanded === 'false'"), "panel")
    page.b.value("document.getElementById('input').focus()")
    count = len(fake.requests)
    page.b.type("One")
    page.b.press("Enter", chromium.SHIFT)
    page.b.type("two")
    check(page.b.value("document.getElementById('input').value") == "One\ntwo", "Shift+Enter is no new line")
    page.b.press("Enter")
    page.b.wait(f"{ANSWER}.includes('code')")
    check(fake.requests[count][1]["messages"][-1]["content"] == "One\ntwo", fake.requests[count])
    page.b.press("Escape")
    page.done()
    check(page.b.value("document.activeElement.id") == "input", "focus lost")


def a_lost_connection_is_said_and_retried(page, fake):
    fake.stop()
    page.b.wait(f"{text_of('link')}.includes('lost')")
    page.send("Are you there?")
    page.b.wait(f"{text_of('link')}.length > 0 && ({BUSY})")
    time.sleep(1)
    fake.start()
    page.b.wait(f"{ANSWER}.includes('Here is')", 20)
    page.b.wait(f"!{text_of('link')}.includes('lost') && !{text_of('link')}.includes('No connection')", 20)
    page.done()
    fake.cut_after = 5
    page.send("Cut me off")
    page.b.wait(f"{ERROR}.includes('lost before the answer was whole')")
    check("Here is" in page.b.value(ANSWER), "the text so far is gone")
    fake.cut_after = None


def a_key_is_asked_for_and_kept(page, fake):
    fake.key = "secret"
    page.b.wait("!document.getElementById('key-form').hidden")
    count = len(fake.requests)
    page.b.value("document.getElementById('key').focus()")
    page.b.type("guess")
    page.b.press("Enter")
    page.b.wait(f"{text_of('key-label')}.includes('does not take')")
    page.shot("key")
    page.send("With a key")
    page.b.wait(BUSY)
    page.b.value("document.getElementById('key').focus()")
    page.b.type("secret")
    page.b.press("Enter")
    page.b.wait(f"{ANSWER}.includes('Here is')")
    check(len(fake.requests) == count + 1, "sent more than once")
    check(page.b.value("JSON.stringify(localStorage).includes('secret')") is False, "the key is in localStorage")
    page.b.press("Escape")
    page.done()
    page.open()
    check(page.b.value("document.getElementById('key-form').hidden"), "asked again")
    fake.key = ""


def base_models_continue_texts(page, fake):
    fake.props = {**fake.props, "model": "base.gguf", "template": "plain"}
    page.b.wait("document.getElementById('mode').value === 'text'", 5)
    check("no chat template" in page.b.value(text_of("note")), "no note")
    fake.pause = 0.005
    page.send("Once upon ")
    page.done()
    path, body = fake.requests[-1]
    check(path == "/v1/completions" and body["prompt"] == "Once upon " and "messages" not in body, (path, body))
    made = page.b.value(ANSWER)
    check(made.startswith("Here is <b>no"), made)
    page.b.press("Enter")  # an empty field: the model writes on
    page.b.wait(f"document.querySelectorAll('#log .turn').length === 3 && ({IDLE})")
    check(fake.requests[-1][1]["prompt"] == "Once upon " + made, fake.requests[-1])
    page.shot("completion")
    page.set("mode", "chat")
    page.b.wait("document.querySelectorAll('#log .turn').length !== 3")
    check("may not answer" in page.b.value(text_of("note")), page.b.value(text_of("note")))


def one_of_several_models_is_chosen(page, fake):
    fake.models = ["other.gguf"]
    page.open()
    check(page.b.value("[...document.querySelectorAll('#choice option')].map((e) => e.textContent)")
          == [fake.props["model"], "other.gguf"], "choices")
    page.set("choice", "other.gguf")
    page.b.wait(f"{text_of('link')}.includes('other.gguf is not loaded')", 5)
    fake.pause = 0.005
    page.send("Load it")
    fake.props = {**fake.props, "model": "other.gguf"}
    page.done()
    check(fake.requests[-1][1]["model"] == "other.gguf", fake.requests[-1])
    page.b.wait(f"{text_of('link')} === ''", 5)
    page.open()
    check(page.b.value("document.getElementById('choice').value") == "other.gguf", "the choice is forgotten")
    page.shot("models")
    fake.models, fake.pause = [], 0.05
    page.open()
    check(page.b.value("document.getElementById('choice').hidden"), "one model is no choice")


def models_without_a_tokenizer_take_ids(page, fake):
    fake.props = {**fake.props, "model": "synth", "template": "none"}
    page.b.wait("document.getElementById('mode').disabled", 5)
    page.click("new")
    page.send("words")
    page.b.wait(f"{text_of('link')}.includes('Token ids are numbers')")
    page.b.value("document.getElementById('input').value = ''")
    page.send("1, 15 27")
    page.b.wait(f"({IDLE}) && {ANSWER}.startsWith('5 3 6 ')")
    check(fake.requests[-1][1]["prompt"] == [1, 15, 27], fake.requests[-1])


def screenshots(page, fake):
    fake.pause = 0.01
    page.send("What is a ridge, and what does the code of one look like?")
    page.done()
    page.show("live")
    page.b.wait(f"{text_of('tok_s')} === '123.4'")
    for rate in (90, 130, 110, 123.4):  # a curve
        fake.status = {**fake.status, "step": {**fake.status["step"], "tok_s": rate}}
        time.sleep(1.1)
    page.show("settings")
    page.b.scheme("dark")
    page.shot("desktop-dark")
    page.b.scheme("light")
    page.show("settings", False)
    page.shot("desktop")
    page.b.size(360, 740, phone=True)
    page.show("live", False)
    page.shot("phone")
    page.show("live")
    page.shot("phone-live")
    page.show("settings")
    page.shot("phone-settings")
    page.show("settings", False)
    page.b.scheme("light")
    page.b.size(1280, 800)
    page.show("live")
    fake.pause = 0.05


GENERAL = [the_live_view_is_closed_at_first, answers_grow_as_they_stream, regenerate_replaces_the_answer,
           escape_ends_an_answer, the_live_view_has_numbers,
           every_control_has_a_name, texts_have_contrast, a_phone_shows_all_without_scrolling_sideways,
           the_conversation_outlives_the_page]
FAKE = [requests_say_what_was_set, model_text_stays_text, answers_are_shown_as_markdown,
        hostile_markdown_takes_little_time, reasoning_is_folded,
        conversations_are_kept_and_exported, tools_are_called_and_answered, an_earlier_message_is_edited,
        the_stream_is_seen_growing, errors_are_shown, screenshots,
        the_live_view_shows_the_servers_numbers, the_keyboard_is_enough, a_lost_connection_is_said_and_retried,
        a_key_is_asked_for_and_kept,
        base_models_continue_texts, one_of_several_models_is_chosen, models_without_a_tokenizer_take_ids]
LOADS_FAIL = {errors_are_shown, one_of_several_models_is_chosen, a_lost_connection_is_said_and_retried,
              a_key_is_asked_for_and_kept}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shots", help="folder for screenshots")
    parser.add_argument("--url", help="of a running ridge serve")
    parser.add_argument("--key", default="", help="its API key")
    options = parser.parse_args()
    program = chromium.find()
    if not program:
        print("skipped: no Chromium (one of", ", ".join(chromium.NAMES) + ", or $CHROME)")
        return 77
    if options.shots:
        pathlib.Path(options.shots).mkdir(parents=True, exist_ok=True)
    fake = None if options.url else FakeServer()
    browser = chromium.Browser(program)
    failures = 0
    try:
        browser.size(1280, 800)
        page = Page(browser, options.url or fake.url, options.shots)
        browser.open(page.url)
        browser.value(f"sessionStorage.setItem('ridge-key', {json.dumps(options.key)})")
        page.open()
        if options.url:
            page.set("max_tokens", 200)
            page.ids_only = page.b.value(f"{text_of('input-label')} === 'Token ids'")
        for test in GENERAL + ([] if options.url else FAKE):
            browser.errors.clear()
            browser.failed_loads.clear()
            start = time.monotonic()
            try:
                test(page) if test in GENERAL else test(page, fake)
                check(not browser.errors, f"console: {browser.errors}")
                check(test in LOADS_FAIL or not browser.failed_loads, f"console: {browser.failed_loads}")
                print(f"ok      {test.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
            except (AssertionError, RuntimeError) as error:
                failures += 1
                print(f"FAILED  {test.__name__}: {error}", flush=True)
                if options.shots:
                    browser.screenshot(pathlib.Path(options.shots) / f"failed-{test.__name__}.png")
    finally:
        browser.close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
