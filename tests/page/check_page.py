"""The page in a real browser. Run by ``make test-page``: Chromium is a system package.

An audio worklet records the playback, which is compared sample by sample with the WebSocket
messages seen by the browser's network layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fakes.talker import FakeTalker
from tests.e2e.live import Service, service
from tests.page.browser import CTRL, page
from tests.page.talkwire_page import TalkwirePage, align, talkwire_page
from tests.service.auth.keyring import entry, write_keys
from tests.service.live import gateway

TEXT = "The morning train runs along the river. You can stop this voice in the middle of a word."
LONG = TEXT + " It tells what was heard, so that an agent knows where it was cut off."


@pytest.fixture(scope="module")
def speaking() -> Iterator[Service]:
    """The real service with the embedded voice."""
    with service() as started:
        yield started


def address(speaking: Service) -> str:
    return f"http://127.0.0.1:{speaking.port}/"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder for screenshots."""
    return Path(os.environ.get("SCREENSHOTS", tmp_path))


async def figure(shown: TalkwirePage, name: str) -> float:
    return float((await shown.tab.text(f"f-{name}")).split()[0])


async def test_speak_button_plays_all_samples_and_shows_figures(speaking: Service) -> None:
    async with talkwire_page(address(speaking)) as shown:
        await shown.write(TEXT)
        await shown.tab.click("speak")
        await shown.until_status("Speaking")
        await shown.until_status("Done.")
        chunks = shown.chunks()
        samples = sum(map(len, chunks))
        assert len(chunks) > 2
        _, silent = align(await shown.heard(), chunks)
        assert (await figure(shown, "gaps") == 0) == (silent == 0)
        assert await figure(shown, "audio") == pytest.approx(samples / 24_000, abs=0.006)
        assert f"{len(chunks)} chunks" in await shown.tab.text("f-audio-note")
        (metrics,) = shown.messages("metrics")
        assert metrics["audio_ms"] == pytest.approx(1000 * samples / 24_000, abs=0.1)
        assert await figure(shown, "ttfa") == round(metrics["ttfa_ms"])
        assert await figure(shown, "click") > 0
        rows = await shown.tab.run(
            "[...document.querySelectorAll('#waterfall g')].map((row) => "
            "[row.querySelector('.dot').cx, row.querySelector('.bar').x]"
            ".map((length) => length.baseVal.value))"
        )
        assert len(rows) == len(chunks)
        # No chunk plays before it arrives. A sample is far shorter than a pixel, and the browser
        # rounds its clocks to a millisecond.
        assert all(arrived <= began + 1 for arrived, began in rows)
        reports = [m["played_samples"] for m in shown.tab.sent if m["type"] == "playback"]
        assert reports == sorted(reports)
        assert 0 < reports[-1] <= samples


async def test_stop_button_silences_playback_and_shows_spoken_text(
    speaking: Service, pictures: Path
) -> None:
    async with talkwire_page(address(speaking)) as shown:
        await shown.write(LONG)
        await shown.tab.click("speak")
        await shown.until_status("Speaking")
        began = len(await shown.heard())
        await shown.until_heard(began + 3 * 24_000)
        await shown.tab.click("stop")
        await shown.until_status("Stopped.")
        at_stop = len(await shown.heard())
        await shown.until_heard(at_stop + 24_000)  # another second, of silence
        played, _ = align(await shown.heard(), shown.chunks(), stopped=True)
        assert played <= at_stop
        (cancelled,) = shown.messages("context.cancelled")
        assert cancelled["text_spoken"]
        assert cancelled["text_remaining"]
        spoken, remaining = await shown.tab.text("spoken"), await shown.tab.text("remaining")
        assert spoken == cancelled["text_spoken"]
        assert spoken + remaining == LONG
        faint = await shown.tab.run(
            "['spoken', 'remaining'].map((id) => getComputedStyle("
            "document.getElementById(id)).color)"
        )
        assert faint[0] != faint[1]
        last = [
            isinstance(data, str) and "context.cancelled" in data for data in shown.tab.received
        ]
        assert not any(isinstance(data, bytes) for data in shown.tab.received[last.index(True) :])
        await shown.tab.screenshot(pictures / "page.png")


async def test_keyboard_reaches_and_operates_all_controls(speaking: Service) -> None:
    async with talkwire_page(address(speaking)) as shown:
        focused = "document.activeElement.id"
        order = []
        while (now := await shown.tab.run(focused)) not in order:
            order.append(now)
            await shown.tab.key("Tab")
        assert order[1:] == ["text", "voice", "llm", "speak", "stop", "clone-summary"]
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        while await shown.tab.run(focused) != "llm":
            await shown.tab.key("Tab")
            assert await shown.tab.run(focused) == "" or await shown.tab.run(outline) == "solid"
        await shown.tab.key("Space")
        await shown.tab.key("Tab")
        assert await shown.tab.run(focused) == "pace"
        await shown.tab.key("ArrowRight")
        assert await shown.tab.text("pace-text") == "6 words/s"
        await shown.tab.key("Enter", CTRL)
        await shown.until_status("Speaking")
        await shown.tab.key("Escape")
        await shown.until_status("Stopped.")
        await shown.tab.key("Tab")
        assert await shown.tab.run(focused) == "speak"
        await shown.tab.key("Enter")
        await shown.until_status("Speaking")
        await shown.tab.key("Tab")
        await shown.tab.key("Space")
        await shown.until_status("Stopped.")


async def test_llm_mode_sends_text_word_by_word(speaking: Service) -> None:
    async with talkwire_page(address(speaking)) as shown:
        await shown.write(TEXT)
        await shown.tab.click("llm")
        await shown.tab.run("document.getElementById('pace').value = 8")
        await shown.tab.click("speak")
        await shown.until_status("Done.")
        appended = [m["text"] for m in shown.tab.sent if m["type"] == "text.append"]
        assert len(appended) == len(TEXT.split())
        assert "".join(appended) == TEXT
        align(await shown.heard(), shown.chunks())


async def test_speak_while_speaking_cancels_and_restarts() -> None:
    async with gateway() as server, talkwire_page(f"{server.http}/") as shown:
        await shown.write(TEXT)
        await shown.tab.key("Enter", CTRL)
        await shown.until_status("Speaking")
        await shown.write("Once more.")
        await shown.tab.key("Enter", CTRL)
        await shown.until_status("Done.")
        await server.until_free()
        assert len(shown.messages("context.cancelled")) == 1
        assert await shown.tab.text("spoken") == "Once more."


async def test_errors_show_message_and_code() -> None:
    async with gateway(max_contexts=1) as server, talkwire_page(f"{server.http}/") as shown:
        await shown.write("")
        await shown.tab.click("speak")
        await shown.until_status("Write something")
        await shown.write("\u0645\u0631\u062d\u0628\u0627")
        await shown.tab.click("speak")
        await shown.until_status("It did not work")
        assert await shown.tab.text("error-code") == "invalid_text"
        lease = server.runtime.admission.acquire()
        await shown.write(TEXT)
        await shown.tab.click("speak")
        await shown.tab.until("document.getElementById('error-code').textContent == 'overloaded'")
        lease.release()
        await shown.tab.click("speak")
        await shown.until_status("Done.")
        assert await shown.tab.run("document.getElementById('error').hidden")


async def test_page_shows_warnings_of_the_text(pictures: Path) -> None:
    hidden = "document.getElementById('warnings').hidden"
    async with gateway(FakeTalker()) as server, talkwire_page(f"{server.http}/") as shown:
        await shown.write("[excited] We won. <noise/> Really.")
        await shown.tab.click("speak")
        await shown.until_status("Done.")
        assert (await shown.tab.text("warnings")).strip() == (
            "The voice has no emotion 'excited'; it is left out. The tag <noise> is unknown."
        )
        await shown.tab.screenshot(pictures / "warnings.png")
        await shown.write("We won.")
        await shown.tab.click("speak")
        await shown.until_status("Speaking")
        assert await shown.tab.run(hidden)
        await shown.until_status("Done.")


async def test_page_does_not_interpret_markup_in_text() -> None:
    async with gateway(FakeTalker()) as server, talkwire_page(f"{server.http}/") as shown:
        text = "<img src=x onerror=alert(1)> <b>bold</b> &amp; words."
        await shown.write(text)
        await shown.tab.click("speak")
        await shown.until_status("Speaking")
        assert await shown.tab.text("spoken") == text
        await shown.tab.click("stop")
        await shown.until_status("Stopped.")
        assert await shown.tab.run("document.querySelectorAll('img, b').length") == 0


async def test_page_reconnects_after_connection_loss() -> None:
    # too slow for all of the speech to have arrived when the connection is lost
    async with gateway(FakeTalker(row_s=0.02)) as server, Wire(server.http) as wire:
        server.codec.is_ready = False
        async with talkwire_page(wire.http, connected=False) as shown:
            await shown.until_link("waiting")
            assert await shown.tab.text("error-code") == "not_ready"
            server.codec.is_ready = True
            await shown.tab.click("retry")
            await shown.until_link("open")
            assert await shown.tab.run("document.getElementById('error').hidden")
            await shown.write(TEXT)
            await shown.tab.click("speak")
            await shown.until_status("Speaking")
            server.codec.is_ready = False  # delays the reconnection
            wire.cut()
            await shown.until_status("It did not work")
            align(await shown.heard(), shown.chunks())
            await shown.until_link("waiting")
            assert await shown.tab.text("error-code") in ("connection_lost", "not_ready")
            server.codec.is_ready = True
            await shown.until_link("open")  # without a click
            await shown.tab.click("speak")
            await shown.until_status("Done.")


@pytest.mark.parametrize("is_drained", [True, False], ids=["drained", "cut"])
async def test_speech_that_has_arrived_is_played_to_its_end(is_drained: bool) -> None:
    async with (
        gateway() as server,
        Wire(server.http) as wire,
        talkwire_page(wire.http, connected=False) as shown,
    ):
        await shown.until_link("open")
        await shown.write(LONG)
        await shown.tab.click("speak")
        await shown.until_status("Speaking")
        while not shown.messages("flush.done"):
            await asyncio.sleep(0.02)
        server.codec.is_ready = False  # delays the reconnection
        server.runtime.lifecycle.begin_drain() if is_drained else wire.cut()
        await shown.until_link("waiting")
        await shown.until_status("Done.")
        align(await shown.heard(), shown.chunks())


async def test_voice_recording_by_keyboard_adds_voice_that_speaks(pictures: Path) -> None:
    async with gateway() as server, talkwire_page(f"{server.http}/") as shown:
        status = "document.getElementById('clone-status').textContent"
        focused = "document.activeElement.id"

        async def tab_to(name: str) -> None:
            for _ in range(20):
                if await shown.tab.run(focused) == name:
                    return
                await shown.tab.key("Tab")
            raise AssertionError(f"the keyboard does not reach {name}")

        await tab_to("clone-summary")
        await shown.tab.key("Enter")
        await tab_to("clone-name")
        await shown.tab.type("mine")
        await tab_to("clone-by")
        await shown.tab.type("Somebody")
        await tab_to("clone-text")
        await shown.tab.type("Beep.")
        await tab_to("clone-record")
        await shown.tab.key("Space")
        await shown.tab.until("document.getElementById('clone-record').textContent >= 'Stop (2'")
        await shown.tab.key("Space")
        await shown.tab.until(f"{status}.startsWith('Recorded')")
        assert await shown.tab.text("clone-record") == "Record"
        await tab_to("clone-submit")
        await shown.tab.key("Enter")  # the browser's form validation requires the consent
        assert await shown.tab.run("document.getElementById('clone-consent').matches(':invalid')")
        assert server.runtime.voices.library.names() == []
        await shown.tab.run("document.getElementById('clone-consent').focus()")
        await shown.tab.key("Space")
        await tab_to("clone-submit")
        await shown.tab.key("Enter")
        await shown.tab.until(f"{status} == 'mine can speak now.'")
        voice = server.runtime.voices.library.find("mine")
        assert voice.codes.shape[1] >= 2 * 25
        assert voice.consent is not None
        assert (voice.consent.by, voice.text) == ("Somebody", "Beep.")
        assert "has agreed" in voice.consent.statement
        assert await shown.tab.run("document.getElementById('voice').value") == "mine"
        await shown.tab.screenshot(pictures / "clone.png")
        await shown.write(TEXT)
        await shown.tab.click("speak")
        await shown.until_status("Done.")
        created = [m["voice"] for m in shown.tab.sent if m["type"] == "context.create"]
        assert created == ["mine"]


async def test_recording_ends_with_its_microphone() -> None:
    async with gateway() as server, talkwire_page(f"{server.http}/") as shown:
        await shown.tab.run(
            "(() => { const { mediaDevices } = navigator;"
            "const ask = mediaDevices.getUserMedia.bind(mediaDevices);"
            "mediaDevices.getUserMedia = async (w) => (window.microphone = await ask(w)); })()"
        )
        record = "document.getElementById('clone-record')"
        await shown.tab.click("clone-summary")
        await shown.tab.click("clone-record")
        await shown.tab.until(f"{record}.textContent >= 'Stop (1'")
        # what the browser does when it is unplugged: stop() alone has no such event
        track = "microphone.getTracks()[0]"
        await shown.tab.run(f"{track}.stop(); {track}.dispatchEvent(new Event('ended'))")
        await shown.tab.until(f"{record}.textContent == 'Record'")
        assert await shown.tab.run(f"{record}.getAttribute('aria-pressed')") == "false"
        told = await shown.tab.text("clone-status")
        assert told.startswith("Recorded ")
        assert told != "Recorded 29.5 seconds.", "silence was recorded up to the limit"


async def test_invalid_clip_shows_error_code() -> None:
    async with gateway() as server, talkwire_page(f"{server.http}/") as shown:
        await shown.tab.click("clone-summary")
        await shown.tab.run(
            "(() => { const files = new DataTransfer();"
            "files.items.add(new File(['<html>'], 'clip.wav'));"
            "const at = (name) => document.getElementById(`clone-${name}`);"
            "at('file').files = files.files; at('file').dispatchEvent(new Event('change'));"
            "at('name').value = 'mine'; at('by').value = 'x'; at('consent').checked = true; })()"
        )
        await shown.tab.click("clone-submit")
        status = "document.getElementById('clone-status').textContent"
        await shown.tab.until(f"{status}.includes('(invalid_audio)')")
        assert server.runtime.voices.library.names() == []
        shown.tab.complaints.clear()  # the browser logs the status 400


class Wire:
    """A TCP forwarder to the service. ``cut`` aborts its connections; new ones are accepted."""

    def __init__(self, http: str) -> None:
        self._port = int(http.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.http = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(_pipe(reader, back), _pipe(there, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.mark.parametrize("dark", [False, True])
async def test_page_fits_phone_in_light_and_dark(dark: bool, pictures: Path) -> None:
    async with gateway() as server, talkwire_page(f"{server.http}/") as shown:
        await shown.tab.look(360, 740, dark=dark, mobile=True)
        await shown.write(TEXT)
        await shown.tab.click("speak")
        await shown.until_status("Done.")
        widest = "Math.max(...[...document.querySelectorAll('body *')].map((e) => "
        widest += "e.closest('.visually-hidden') ? 0 : e.getBoundingClientRect().right))"
        assert await shown.tab.run("document.documentElement.scrollWidth") <= 360
        assert await shown.tab.run(widest) <= 360
        back = await shown.tab.run("getComputedStyle(document.body).backgroundColor")
        red = int(back.removeprefix("rgb(").split(",")[0])
        assert (red < 64) == dark
        await shown.tab.screenshot(pictures / f"phone-{'dark' if dark else 'light'}.png")


#: The contrast ratio (WCAG 2) of each visible text that is below the 4.5 of level AA.
FAINT = """(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, under) => {
    const a = top[3] ?? 1;
    return under.map((c, i) => a * top[i] + (1 - a) * c);
  };
  const back = (e) => {
    if (!e) return [255, 255, 255];
    const color = parse(getComputedStyle(e).backgroundColor);
    return (color[3] ?? 1) === 1 ? color.slice(0, 3) : over(color, back(e.parentElement));
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    const isShown = e.checkVisibility() && !e.closest(".visually-hidden, svg, noscript");
    if (!texts.currentNode.data.trim() || !isShown) continue;
    if (e.closest("[aria-disabled=true], :disabled")) continue;  // exempt
    const behind = back(e);
    let opacity = 1;
    for (let at = e; at; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
    const ink = over([...parse(getComputedStyle(e).color).slice(0, 3), opacity], behind);
    const [a, b] = [light(ink), light(behind)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)} ${texts.currentNode.data.trim()}`);
  }
  return faint;
})()"""


@pytest.mark.parametrize("dark", [False, True])
async def test_all_texts_have_the_contrast_of_level_aa(dark: bool) -> None:
    async with gateway(max_contexts=1) as server, talkwire_page(f"{server.http}/") as shown:
        await shown.tab.look(1000, 1000, dark=dark)
        await shown.tab.click("clone-summary")
        await shown.tab.run("document.getElementById('key-form').hidden = false")
        await shown.tab.run("document.getElementById('error').hidden = false")
        await shown.tab.run(
            "for (const id of ['spoken', 'remaining', 'error-text', 'error-code', 'clone-status'])"
            "document.getElementById(id).textContent = 'Words.';"
            "for (const id of ['heard', 'heard-note', 'retry'])"
            "document.getElementById(id).hidden = false"
        )
        assert await shown.tab.run(FAINT) == []
        await shown.tab.run("document.getElementById('remaining').style.opacity = 0.5")
        assert len(await shown.tab.run(FAINT)) == 1


async def test_voices_are_shown_with_their_descriptions(speaking: Service) -> None:
    async with talkwire_page(address(speaking)) as shown:
        options = "[...document.getElementById('voice').options].map((o) => [o.value, o.text])"
        find = "Object.fromEntries(" + options + ").emma"
        await shown.tab.until(f"{find} != 'emma'")
        assert await shown.tab.run(find) == "emma: Female, British."
        assert "English" in await shown.tab.text("about")


async def test_default_text_fits_on_a_phone() -> None:
    async with gateway() as server, talkwire_page(f"{server.http}/") as shown:
        await shown.tab.look(390, 844, mobile=True)
        heights = "(({scrollHeight, clientHeight}) => [scrollHeight, clientHeight])"
        needed, there = await shown.tab.run(f"{heights}(document.getElementById('text'))")
        assert needed <= there


async def test_error_goes_with_the_next_try(speaking: Service) -> None:
    async with talkwire_page(address(speaking)) as shown:
        await shown.write("Привет")
        await shown.tab.click("speak")
        await shown.tab.until("!document.getElementById('error').hidden")
        await shown.write(" ")
        await shown.tab.click("speak")
        await shown.until_status("Write something first.")
        assert await shown.tab.run("document.getElementById('error').hidden")


async def test_api_key_is_requested_kept_in_tab_and_used(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", entry("the-key", "acme", "speak", "voices:write"))
    async with (
        gateway(api_keys_file=keys) as server,
        talkwire_page(f"{server.http}/", connected=False) as shown,
    ):
        await shown.until_link("locked")
        assert await shown.tab.text("error-code") == "unauthorized"
        for key, state in (("another", "locked"), ("the-key", "open")):
            await shown.tab.run("document.getElementById('key').focus()")
            await shown.tab.type(key)
            await shown.tab.click("key-use")
            await shown.tab.until("document.getElementById('key').value == ''")
            await shown.tab.until("document.getElementById('link').dataset.state != 'connecting'")
            await shown.until_link(state)
        assert await shown.tab.run("document.getElementById('key-form').hidden")
        await shown.write(TEXT)
        await shown.tab.click("speak")
        await shown.until_status("Done.")
        assert await shown.tab.run("Object.keys(localStorage).length") == 0
        assert "the-key" not in await shown.tab.run("document.cookie + location.href")
        await shown.tab.run("location.reload()")
        await shown.until_link("open")


@pytest.mark.parametrize("format_", ["mp3", "wav", "opus", "flac"])
async def test_audio_element_plays_address_of_speech_to_its_end(format_: str) -> None:
    """It asks for a range of bytes, and gets all of them, of which nobody knows the length."""
    async with gateway() as server, page() as tab:
        await tab.call("Page.setBypassCSP", enabled=True)  # the page itself has no such element
        await tab.open(f"{server.http}/")
        query = f"input=Hello%20there.%20And%20more.&response_format={format_}"
        play = (
            f"window.heard = new Audio('/v1/audio/speech?{query}'), heard.volume = 0,"
            "window.broken = heard.play().then(() => '', String), true"
        )
        await tab.call("Runtime.evaluate", expression=play, userGesture=True)
        assert await tab.run("broken") == ""
        await tab.until("heard.ended || heard.error")
        assert await tab.run("heard.error") is None
        played_s = await tab.run("heard.played.end(0)")
        assert played_s == pytest.approx(await tab.run("heard.duration"), abs=0.05)
        assert played_s > 0.5
        asked = [headers for headers in tab.headers if "Range" in headers]
        assert {headers["Range"] for headers in asked} == {"bytes=0-"}
