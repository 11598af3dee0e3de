// What one speech measured: pure arithmetic on what the page noted. Times are milliseconds on
// performance.now()'s clock; figures are milliseconds since the click.

export class SpeechRecord {
  constructor(clickedMs, sampleRate) {
    this.clickedMs = clickedMs;
    this.sampleRate = sampleRate;
    /** {arrivedMs, startMs, lengthMs, gapMs, underrun}; startMs is null until it plays. */
    this.chunks = [];
    this.samples = 0;
    this.audibleMs = null;
    this.textDoneMs = null;
    this.metrics = null;
    this.stoppedMs = null;
  }

  /** A chunk arrived; chunks are numbered as they come, from 0. */
  onChunk({ samples, arrivedMs, discontinuity }) {
    const lengthMs = (1000 * samples.length) / this.sampleRate;
    this.samples += samples.length;
    this.chunks.push({
      arrivedMs: arrivedMs - this.clickedMs,
      lengthMs,
      startMs: null,
      gapMs: 0,
      underrun: false,
      late: discontinuity,
    });
  }

  /** The chunk's first sample was played. */
  onBegan(id, ms) {
    this.chunks[id].startMs = ms - this.clickedMs;
  }

  /**
   * Before this chunk the player was dry for so long. It is an underrun if the server says so, or
   * if all text had been sent by then; else the speech waited for its text. Call before onBegan.
   */
  onGap(id, gapMs) {
    const before = this.chunks[id - 1];
    const dryMs = (before?.startMs ?? 0) + (before?.lengthMs ?? 0);
    const chunk = this.chunks[id];
    chunk.gapMs = gapMs;
    chunk.underrun = chunk.late || (this.textDoneMs !== null && dryMs >= this.textDoneMs);
  }

  onAudible(ms) {
    this.audibleMs ??= ms - this.clickedMs;
  }

  onTextDone(ms) {
    this.textDoneMs = ms - this.clickedMs;
  }

  onStopped(ms) {
    this.stoppedMs = ms - this.clickedMs;
  }

  /** The figures so far; null where it has not come to that. */
  figures() {
    const gaps = this.chunks.filter((chunk) => chunk.gapMs > 0);
    const underruns = gaps.filter((chunk) => chunk.underrun);
    const total = (chunks) => chunks.reduce((sum, chunk) => sum + chunk.gapMs, 0);
    return {
      clickToSoundMs: this.audibleMs,
      serverTtfaMs: this.metrics?.ttfa_ms ?? null,
      audioMs: (1000 * this.samples) / this.sampleRate,
      rtf: this.metrics?.rtf ?? null,
      underruns: underruns.length,
      underrunMs: total(underruns),
      pauses: gaps.length - underruns.length,
      pauseMs: total(gaps) - total(underruns),
      chunks: this.chunks.length,
      leastLeadMs: this.#leastLeadMs(),
    };
  }

  /** The closest call: how long before it was needed the latest chunk came. */
  #leastLeadMs() {
    const leads = this.chunks
      .slice(1)
      .filter((chunk) => chunk.startMs !== null && !chunk.gapMs)
      .map((chunk) => chunk.startMs - chunk.arrivedMs);
    return leads.length ? Math.min(...leads) : null;
  }
}

/** The text in pieces of a word each, with the space after it: an LLM's tokens, roughly. */
export function wordsOf(text) {
  return text.match(/\s*\S+\s*/gu) ?? [];
}
