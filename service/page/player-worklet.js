// The audio thread's half of the player: plays chunks back to back, counts what it ran dry, and
// is silent within one render quantum of being told to stop. player.js is the other half.

const STATUS_SAMPLES = 2048;
const AUDIBLE = 0.01; // -40 dBFS, as the server counts leading silence

class PlayerProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.queue = []; // {id, samples}
    this.at = 0; // position in the first of them
    this.played = 0;
    this.audible = false;
    this.dry = 0; // samples of silence since the queue ran empty, after the first chunk
    this.ending = this.over = this.fading = false;
    this.nextStatus = 0;
    this.port.onmessage = ({ data }) => this.onMessage(data);
  }

  onMessage({ type, chunk }) {
    if (this.over || this.fading) return;
    if (type === "chunk") this.queue.push(chunk);
    else if (type === "end") this.ending = true;
    else if (type === "stop") this.fading = true;
  }

  process(_inputs, [[out, ...others]]) {
    if (this.over) return false;
    if (this.fading) this.fade(out);
    else this.play(out);
    for (const other of others) other.set(out);
    return !this.over;
  }

  play(out) {
    let filled = 0;
    while (filled < out.length && this.queue.length) {
      const { id, samples } = this.queue[0];
      if (this.at === 0) this.begin(id, filled);
      const count = Math.min(out.length - filled, samples.length - this.at);
      out.set(samples.subarray(this.at, this.at + count), filled);
      filled += count;
      this.at += count;
      if (this.at === samples.length) {
        this.queue.shift();
        this.at = 0;
      }
    }
    this.listen(out, filled);
    this.played += filled;
    if (filled < out.length && this.ending) return this.finish("drained");
    const ranDry = filled < out.length && this.played > 0;
    const isDue = ranDry ? this.dry === 0 : filled && this.played >= this.nextStatus;
    if (isDue) this.status("status", ranDry);
    if (ranDry) this.dry += out.length - filled;
  }

  begin(id, filled) {
    if (this.dry) this.port.postMessage({ type: "gap", id, samples: this.dry });
    this.dry = 0;
    // The date tells player.js when the first of all was rendered; it goes on in frames.
    this.port.postMessage({ type: "began", id, frame: currentFrame + filled, at: Date.now() });
  }

  listen(out, filled) {
    for (let i = 0; i < filled && !this.audible; i++) {
      if (Math.abs(out[i]) >= AUDIBLE) {
        this.audible = true;
        this.port.postMessage({ type: "audible", frame: currentFrame + i });
      }
    }
  }

  // A hard cut would click: the rest of this quantum fades out, and it is the last one.
  fade(out) {
    const samples = this.queue[0]?.samples.subarray(this.at, this.at + out.length) ?? [];
    for (let i = 0; i < samples.length; i++) out[i] = samples[i] * (1 - (i + 1) / out.length);
    this.played += samples.length;
    this.queue = [];
    this.finish("stopped");
  }

  finish(type) {
    this.over = true;
    this.status(type);
  }

  status(type, ranDry = true) {
    this.nextStatus = ranDry ? 0 : this.played + STATUS_SAMPLES;
    const frame = currentFrame + 128; // it has been played when this quantum is over
    this.port.postMessage({ type, played: this.played, frame, ranDry });
  }
}

registerProcessor("talkwire-player", PlayerProcessor);
