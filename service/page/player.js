// Plays chunks through an AudioWorklet whose context runs at the voice's own rate; the browser
// resamples to what the loudspeaker wants.

const IDLE_MS = 30_000;
/** More unplayed audio than any server sends ahead; the queue has a bound like every other. */
const MAX_LEAD_S = 150;

export class SoundError extends Error {
  code = "no_sound";
}

/** The page's sound. `prepare` in a gesture of the user's, then `start` for each speech. */
export class Player {
  #opening = null;
  #rate = 0; // that #opening is for
  #playing = 0; // playbacks of `context` that are not over
  #idle = 0;
  context = null;

  /**
   * Opens the audio context and loads the worklet, once; anew when the server has come back with
   * another rate. Throws SoundError.
   */
  async prepare(sampleRate) {
    clearTimeout(this.#idle);
    if (sampleRate !== this.#rate) this.#leave();
    this.#rate = sampleRate;
    const opening = (this.#opening ??= this.#open(sampleRate));
    try {
      const context = await opening;
      if (opening !== this.#opening) throw new SoundError("The sound is opened at another rate.");
      this.context = context;
    } catch (error) {
      if (opening === this.#opening) this.#opening = null;
      throw error;
    }
    if (this.context.state !== "running") await this.context.resume();
    this.#rest();
  }

  /** Closes what is open, or being opened. */
  #leave() {
    this.#opening?.then((context) => context.close()).catch(() => {});
    this.#opening = this.context = null;
    this.#playing = 0;
  }

  async #open(sampleRate) {
    if (!globalThis.isSecureContext || !globalThis.AudioWorkletNode) {
      throw new SoundError("This browser plays sound only over HTTPS or on localhost.");
    }
    try {
      const context = new AudioContext({ sampleRate, latencyHint: "interactive" });
      await context.audioWorklet.addModule("/static/player-worklet.js");
      return context;
    } catch {
      throw new SoundError("The browser could not open its sound output.");
    }
  }

  /** A new playback; `on` has `began(id, ms)`, `audible(ms)`, `gap(id, ms)`, `ended()`. */
  start(on) {
    clearTimeout(this.#idle);
    const { context } = this;
    this.#playing++;
    return new Playback(context, on, () => {
      if (context !== this.context) return; // that one was left
      this.#playing--;
      this.#rest();
    });
  }

  /** Suspends the sound when nothing has been played for a while. */
  #rest() {
    clearTimeout(this.#idle);
    // A playback that was stopped tells of its end after the next one has begun.
    if (this.#playing) return;
    this.#idle = setTimeout(() => this.context?.suspend(), IDLE_MS);
  }
}

/** One speech on its way to the ear. Times are on performance.now()'s clock. */
export class Playback {
  #node;
  #context;
  #on;
  #over;
  #given = 0;
  #ids = 0;
  #played = 0; // at #playedAtMs, as the audio thread said
  #playedAtMs = 0;
  #running = false; // false too while it is dry
  #heard = 0;
  #origin = null; // {ms, frame} of the first sample
  #heldMs = null; // since when the browser renders nothing
  #stopped = false;

  /** `over()` is called once, when nothing of this is played any more. */
  constructor(context, on, over) {
    this.#context = context;
    this.#on = on;
    this.#over = over;
    this.#node = new AudioWorkletNode(context, "talkwire-player", {
      numberOfInputs: 0,
      outputChannelCount: [1],
    });
    this.#node.port.onmessage = ({ data }) => this.#onMessage(data);
    this.#node.connect(context.destination);
    context.addEventListener("statechange", this.#onState);
  }

  /** The browser may hold the sound (for a call, say); while it does, the clock stands still. */
  #onState = () => {
    const nowMs = performance.now();
    if (this.#context.state !== "running") {
      this.#heldMs ??= nowMs;
    } else if (this.#heldMs !== null) {
      this.#playedAtMs += nowMs - this.#heldMs;
      if (this.#origin) this.#origin.ms += nowMs - this.#heldMs;
      this.#heldMs = null;
    }
  };

  /** Hands samples to the audio thread; returns the chunk's id. Throws SoundError when full. */
  push(samples) {
    if (this.#given - this.#played > MAX_LEAD_S * this.#context.sampleRate) {
      throw new SoundError("Far more audio came than can be played.");
    }
    const id = this.#ids++;
    this.#given += samples.length;
    if (samples.length) this.#node.port.postMessage({ type: "chunk", chunk: { id, samples } });
    return id;
  }

  /** No more samples will come. */
  end() {
    this.#node.port.postMessage({ type: "end" });
  }

  /** Silence, within one render quantum. */
  stop() {
    this.#node.port.postMessage({ type: "stop" });
    this.#played = this.heardSamples;
    this.#running = false;
    this.#stopped = true;
  }

  /** Samples that have reached the ear by now, as well as the browser can tell. */
  get heardSamples() {
    const rate = this.#context.sampleRate;
    const nowMs = this.#heldMs ?? performance.now();
    const since = this.#running ? (nowMs - this.#playedAtMs) / 1000 : 0;
    const late = this.#context.outputLatency || this.#context.baseLatency || 0;
    const heard = this.#played + (since - (this.#running ? late : 0)) * rate;
    // Clocks jitter, but what was heard stays heard.
    return (this.#heard = Math.max(this.#heard, Math.min(this.#given, Math.round(heard))));
  }

  /** When a frame was rendered, counted from the first frame that was. */
  #msAt(frame) {
    return this.#origin.ms + (1000 * (frame - this.#origin.frame)) / this.#context.sampleRate;
  }

  #onMessage({ type, id, frame, samples, played, ranDry, at }) {
    const rate = this.#context.sampleRate;
    // Not by currentTime: the browser renders ahead, several quanta at a time.
    if (type === "began") this.#origin ??= { ms: performance.now() - (Date.now() - at), frame };
    if (type === "began") this.#on.began(id, this.#msAt(frame));
    else if (type === "audible") this.#on.audible(this.#msAt(frame));
    else if (type === "gap") this.#on.gap(id, (1000 * samples) / rate);
    else if (type === "status") this.#note(played, frame, ranDry);
    else this.#finish(type, played);
  }

  #note(played, frame, ranDry) {
    if (this.#stopped) return; // it was under way
    [this.#played, this.#playedAtMs, this.#running] = [played, this.#msAt(frame), !ranDry];
  }

  #finish(type, played) {
    this.#running = false;
    if (type === "drained") this.#played = played;
    this.#node.disconnect();
    this.#node.port.close();
    this.#context.removeEventListener("statechange", this.#onState);
    this.#over();
    this.#on.ended();
  }
}
