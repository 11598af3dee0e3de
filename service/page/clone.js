// The form that makes a voice of a clip: recorded here, or a file; with somebody's consent.

import { LONGEST_S, Recording } from "./clip.js";
import { apiKey } from "./link.js";

/** Why a clip was refused: the server's `error`, or that of a proxy before it, which is no JSON. */
function refused(status, error) {
  if (error?.message) return `${error.message} (${error.code})`;
  if (status === 413) return "The clip is too large for a proxy before the server (HTTP 413).";
  return `Something else answers in the server's place (HTTP ${status}).`;
}

export class CloneForm {
  /** `onMade(name)`: the voice can be spoken with. */
  constructor(root, onMade) {
    this.at = (name) => root.getElementById(`clone-${name}`);
    this.onMade = onMade;
    this.recording = null;
    this.toggling = false; // while the browser asks for the microphone, or lets go of it
    this.clip = null;
    this.busy = false;
    this.at("record").addEventListener("click", () => this.#toggle());
    this.at("file").addEventListener("change", () => this.#choose());
    this.at("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  #say(text) {
    this.at("status").textContent = text;
  }

  /** A file, instead of what may be being recorded: the microphone is let go of. */
  async #choose() {
    const file = this.at("file").files[0] ?? null;
    if (file && this.recording) await this.#toggle({ isWanted: false });
    this.clip = file;
  }

  async #toggle({ isWanted = true } = {}) {
    if (this.toggling) return;
    this.toggling = true;
    const button = this.at("record");
    try {
      if (this.recording) {
        const recording = this.recording;
        this.recording = null;
        this.clip = await recording.stop();
        if (isWanted) this.at("file").value = "";
        this.#say(isWanted ? `Recorded ${recording.seconds.toFixed(1)} seconds.` : "");
      } else {
        const onTime = (seconds) => {
          button.textContent = `Stop (${Math.floor(seconds)} s)`;
          if (seconds >= LONGEST_S) this.#toggle(); // there is no more to come
        };
        this.recording = await Recording.start(onTime, () => this.#toggle());
        this.#say("Recording: read out what is said in the clip.");
      }
    } catch {
      this.recording = null;
      this.#say("The microphone cannot be used.");
    } finally {
      this.toggling = false;
    }
    button.setAttribute("aria-pressed", String(this.recording !== null));
    if (!this.recording) button.textContent = "Record";
  }

  async #submit() {
    if (this.busy) return;
    if (this.recording) await this.#toggle();
    if (!this.clip) return this.#say("Record a clip, or choose a file.");
    this.busy = true;
    this.at("submit").setAttribute("aria-disabled", "true");
    this.#say("Making the voice …");
    try {
      const name = this.at("name").value.trim();
      const headers = apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {};
      const request = { method: "POST", headers, body: this.#body(name) };
      const answer = await fetch("/v1/audio/voices", request);
      const told = await answer.json().catch(() => null);
      if (!answer.ok || !told) return this.#say(refused(answer.status, told?.error));
      this.#say(`${told.name} can speak now.`);
      this.at("form").reset();
      this.clip = null;
      this.onMade(told.name);
    } catch {
      this.#say("The server cannot be reached.");
    } finally {
      this.busy = false;
      this.at("submit").setAttribute("aria-disabled", "false");
    }
  }

  #body(name) {
    const body = new FormData();
    body.append("name", name);
    body.append("audio_sample", this.clip);
    const text = this.at("text").value.trim();
    if (text) body.append("ref_text", text);
    body.append("consent_by", this.at("by").value.trim());
    body.append("consent_statement", this.at("statement").textContent);
    return body;
  }
}
