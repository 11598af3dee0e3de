// Everything that touches the document. Text only ever becomes text: no markup is made of it.

import { drawWaterfall } from "./waterfall.js";
import { Waveform } from "./waveform.js";

const LINK_WORDS = {
  connecting: "Connecting",
  waiting: "Not connected",
  resting: "Resting; Speak wakes it",
  locked: "Locked",
};
const ENDINGS = {
  complete: "Done.",
  stopped: "Stopped.",
  failed: "It did not work.",
};

const counted = (chunks) => `${chunks} ${chunks === 1 ? "chunk" : "chunks"}`;
const ms = (value) => (value === null ? "–" : `${Math.round(value)} ms`);
const seconds = (value) => `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s`;

export class View {
  constructor(root) {
    this.at = (id) => root.getElementById(id);
    this.waveform = new Waveform(this.at("waveform"));
    this.shown = null;
    this.speechError = null;
    this.#listen(root);
  }

  #listen(root) {
    this.at("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.onSpeak(event.timeStamp);
    });
    this.at("stop").addEventListener("click", (event) => this.onStop(event.timeStamp));
    this.at("retry").addEventListener("click", () => this.onRetry());
    this.at("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.onKey(this.at("key").value.trim());
      this.at("key").value = "";
    });
    this.at("llm").addEventListener("change", () => this.#showPace());
    this.at("pace").addEventListener("input", () => this.#showPace());
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.onStop(event.timeStamp);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat) {
        event.preventDefault();
        this.onSpeak(event.timeStamp);
      }
    });
    const redraw = () => this.shown && this.draw(this.shown);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("resize", redraw);
    this.#showPace();
  }

  get text() {
    return this.at("text").value;
  }

  get voice() {
    return this.at("voice").value;
  }

  /** Null: not as an LLM would, the whole text at once. */
  get wordsPerSecond() {
    return this.at("llm").checked ? Number(this.at("pace").value) : null;
  }

  #showPace() {
    this.at("pace").disabled = !this.at("llm").checked;
    this.at("pace-text").value = `${this.at("pace").value} words/s`;
  }

  // -- the connection

  showLink(state, error, link) {
    clearInterval(this.counting);
    this.at("link").dataset.state = state;
    this.at("link-text").textContent = LINK_WORDS[state] ?? "Connected";
    this.at("speak").setAttribute("aria-disabled", String(state === "waiting"));
    this.at("retry").hidden = state !== "waiting";
    if (state !== "connecting") this.at("key-form").hidden = state !== "locked";
    if (state === "open") this.#clearLinkError();
    if (state === "locked") this.showError(error);
    if (state !== "waiting") return;
    const count = () => {
      const left = Math.max(0, Math.ceil((link.retryAtMs - performance.now()) / 1000));
      this.at("link-text").textContent = `Not connected; trying again in ${left} s`;
    };
    this.showError(error);
    count();
    this.counting = setInterval(count, 250);
  }

  /** A voice that has just been made, chosen at once. */
  addVoice(name) {
    const select = this.at("voice");
    if (![...select.options].some((option) => option.value === name)) {
      select.add(new Option(name, name));
    }
    select.value = name;
  }

  showSession(session) {
    const rate = `${session.sample_rate / 1000} kHz`;
    this.at("link-text").textContent = `Connected: ${session.model}, ${rate}`;
    this.at("text").maxLength = session.limits.max_text_chars;
    const select = this.at("voice");
    const chosen = select.value;
    select.replaceChildren(...session.voices.map((voice) => new Option(voice, voice)));
    if (session.voices.includes(chosen)) select.value = chosen;
    select.disabled = false;
    if (session.model === "embedded") {
      this.at("about").textContent =
        "The embedded voice reads English. It is a small model that runs on any processor; the " +
        "README lists larger ones and their languages.";
    }
  }

  /** Adds what the server says of its voices; `voices` are those of `GET /v1/audio/voices`. */
  describeVoices(voices) {
    const told = Object.fromEntries(voices.map((voice) => [voice.name, voice.description]));
    told.default ??= voices.find((voice) => voice.default)?.name;
    for (const option of this.at("voice").options) {
      const name = option.value;
      if (told[name]) option.textContent = `${name}: ${told[name]}`;
    }
  }

  showError(error) {
    this.at("error-text").textContent = error.message;
    this.at("error-code").textContent = error.code ?? "internal";
    this.at("error").hidden = false;
  }

  /** What went wrong with a speech, which the next one clears. */
  showSpeechError(error) {
    this.speechError = error;
    this.showError(error);
  }

  clearError() {
    this.speechError = null;
    this.at("error").hidden = true;
  }

  /** The connection is back; why a speech failed is still to be read. */
  #clearLinkError() {
    if (this.speechError) this.showError(this.speechError);
    else this.at("error").hidden = true;
  }

  // -- one speech

  begin(speech) {
    this.shown = speech;
    this.waveform.clear(speech.record.sampleRate);
    this.at("heard").hidden = false;
    this.at("heard-note").hidden = true;
    this.at("warnings").replaceChildren();
    this.at("warnings").hidden = true;
    this.#showHeard(false, "", "");
    this.#showSpeaking(true);
    this.showStatus("Waiting for the first sound…");
    this.showFigures(speech);
  }

  addSamples(samples) {
    this.waveform.add(samples);
  }

  /** What of the text is not spoken as it is written. */
  addWarning(message) {
    this.at("warnings").append(`${message} `);
    this.at("warnings").hidden = false;
  }

  /** What has been given to the server so far. */
  showFed(text) {
    this.#showHeard(false, text, "");
  }

  end(speech, outcome) {
    this.#showSpeaking(false);
    const { cancelled, fed, text } = speech;
    if (outcome === "stopped") {
      const spoken = cancelled?.text_spoken ?? "";
      const unsent = text.slice(fed.length);
      this.#showHeard(true, spoken, (cancelled?.text_remaining ?? "") + unsent);
      this.at("heard-note").hidden = false;
    }
    const heard = cancelled ? ` ${seconds(cancelled.played_ms)} were heard.` : "";
    this.showStatus(ENDINGS[outcome] + heard);
    this.showFigures(speech);
    this.draw(speech);
  }

  #showHeard(isCut, spoken, remaining) {
    this.at("heard").classList.toggle("cut", isCut);
    this.at("heard-label").textContent = isCut ? "Heard: " : "";
    this.at("unheard-label").textContent = isCut ? " Not heard: " : "";
    this.at("spoken").textContent = spoken;
    this.at("remaining").textContent = remaining;
  }

  #showSpeaking(speaking) {
    this.at("stop").setAttribute("aria-disabled", String(!speaking));
  }

  showStatus(words) {
    if (this.at("status").textContent !== words) this.at("status").textContent = words;
  }

  showFigures(speech) {
    const figures = speech.record.figures();
    const show = (id, words) => (this.at(id).textContent = words);
    show("f-click", ms(figures.clickToSoundMs));
    show("f-ttfa", ms(figures.serverTtfaMs));
    show("f-audio", figures.chunks ? seconds(figures.audioMs) : "–");
    show("f-audio-note", figures.chunks ? `in ${counted(figures.chunks)}` : "received so far");
    show("f-rtf", figures.rtf === null ? "–" : figures.rtf.toFixed(2));
    show("f-gaps", figures.chunks ? String(figures.underruns) : "–");
    show("f-gaps-note", gapWords(figures));
    this.at("f-gaps").classList.toggle("alarm", figures.underruns > 0);
    show("chunks-text", chunkWords(figures));
    const speaking = !speech.stopped && !speech.over;
    if (speaking && figures.clickToSoundMs !== null) this.showStatus("Speaking…");
  }

  draw(speech) {
    this.waveform.draw(speech.playback?.heardSamples ?? 0);
    drawWaterfall(this.at("waterfall"), speech.record);
  }
}

function gapWords({ underruns, underrunMs, pauses, pauseMs }) {
  if (underruns) return `${ms(underrunMs)} of silence`;
  if (pauses) return `${seconds(pauseMs)} waiting for text`;
  return "times the audio ran dry";
}

function chunkWords({ chunks, underruns, leastLeadMs }) {
  if (!chunks) return "No chunks yet.";
  if (underruns) return `${counted(chunks)} arrived, ${underruns} of them too late.`;
  const lead = leastLeadMs === null ? "" : `, each at least ${ms(leastLeadMs)} before it was needed`;
  return `${counted(chunks)} arrived${lead}.`;
}
