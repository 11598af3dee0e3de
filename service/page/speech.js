// One speech, from the click to its last sample or its stop.

import { SpeechRecord, wordsOf } from "./record.js";

const REPORT_MS = 250;
const ALL = "all"; // the id of the one flush

/**
 * Speaks `text` as told by `on`: `changed()` when there is something new to show, `chunk(samples)`,
 * `fed(text)`, `error(error)`, `warning(message)`, and `ended(outcome)` with "complete", "stopped" or "failed".
 *
 * The context stays open until its last sample was heard, so that a stop can tell at any moment
 * what was heard: the text is flushed, and ended only when the player has drained.
 */
export class Speech {
  constructor(client, player, on, clickedMs) {
    this.record = new SpeechRecord(clickedMs, client.session.sample_rate);
    this.fed = "";
    this.cancelled = null;
    this.playback = null;
    this.stopped = false;
    this.arrived = false; // all of its audio: an error from now on takes nothing away
    this.heard = false; // to the last sample: there is nothing left to stop
    this.over = false;
    this.context = null;
    this.client = client;
    this.player = player;
    this.on = on;
  }

  /** `wordsPerSecond` null: the whole text at once. */
  async run(text, voice, wordsPerSecond) {
    this.text = text;
    try {
      await this.player.prepare(this.client.session.sample_rate);
      if (this.stopped) return;
      this.playback = this.player.start(this.#sound());
      this.drained = new Promise((resolve) => (this.onDrained = resolve));
      await this.#open(voice);
      await this.#feed(text, wordsPerSecond);
      if (this.stopped) return;
      await Promise.race([this.context.flush(ALL), this.context.finished]);
      if (this.stopped) return;
      this.arrived = this.record.chunks.length > 0; // else its end may tell why it is silent
      await this.#drain();
      if (this.stopped) return;
      this.heard = true;
      await this.#end();
      this.record.metrics = this.context.metrics;
      this.#finish("complete");
    } catch (error) {
      if (this.record.chunks.length) await this.#drain(); // what has arrived is heard
      if (!this.stopped) this.#fail(error);
    }
  }

  /** Plays what has arrived to its end, or until it is stopped. */
  async #drain() {
    this.playback.end();
    await this.drained;
  }

  /** Ends the context, unless the server has done it, as in a drain, or is gone. */
  async #end() {
    try {
      this.context.end();
      await this.context.finished;
    } catch (error) {
      if (!this.arrived) throw error; // else all of it was heard
    }
  }

  /** Silence now; then the server tells what was heard. */
  async stop(nowMs) {
    if (this.stopped || this.heard || this.over) return;
    this.stopped = true;
    this.playback?.stop();
    this.wake?.();
    this.record.onStopped(nowMs);
    const heardMs = (1000 * (this.playback?.heardSamples ?? 0)) / this.record.sampleRate;
    try {
      this.cancelled = (await this.context?.cancel(heardMs)) ?? null;
      if (this.context) await this.context.finished;
      this.record.metrics = this.context?.metrics ?? null;
    } catch (error) {
      return this.#fail(error);
    }
    this.#finish("stopped");
  }

  async #open(voice) {
    if (this.stopped) return;
    const context = await this.client.createContext({
      voice,
      onAudio: (chunk) => this.#onChunk(chunk),
      onError: (error) => this.arrived || this.on.error(error),
      onWarning: (warning) => this.on.warning(warning.message),
    });
    this.context = context;
    if (this.stopped) await context.cancel(0);
  }

  async #feed(text, wordsPerSecond) {
    const pieces = wordsPerSecond === null ? [text] : wordsOf(text);
    for (const [number, piece] of pieces.entries()) {
      if (number) await this.#sleep(1000 / wordsPerSecond);
      if (this.stopped || this.over) return;
      this.context.append(piece);
      this.fed += piece;
      this.on.fed(this.fed);
    }
    this.record.onTextDone(performance.now());
  }

  /** Sleeps until then, or until the speech is stopped or fails. */
  async #sleep(ms) {
    await new Promise((resolve) => {
      this.wake = resolve;
      this.context.finished.then(resolve, resolve);
      setTimeout(resolve, ms);
    });
  }

  #onChunk(chunk) {
    if (this.stopped || this.over) return;
    try {
      this.playback.push(chunk.samples);
    } catch (error) {
      return this.#fail(error);
    }
    this.record.onChunk(chunk);
    this.reporting ??= setInterval(() => this.#report(), REPORT_MS);
    this.on.chunk(chunk.samples);
  }

  #report() {
    if (this.client.isOpen) this.context.reportPlayed(this.playback.heardSamples);
    this.on.changed();
  }

  #sound() {
    return {
      began: (id, ms) => this.record.onBegan(id, ms),
      audible: (ms) => (this.record.onAudible(ms), this.on.changed()),
      gap: (id, ms) => this.record.onGap(id, ms),
      ended: () => this.onDrained(),
    };
  }

  #fail(error) {
    if (this.over) return;
    this.playback?.stop();
    if (this.context && this.client.isOpen) this.context.cancel().catch(() => {});
    this.on.error(error);
    this.#finish("failed");
  }

  #finish(outcome) {
    this.over = true;
    clearInterval(this.reporting);
    this.on.ended(outcome);
  }
}
