// The waveform: what has arrived, pale; what has been played, full.

const PEAK_SAMPLES = 240; // a hundred peaks a second

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.clear(24_000);
  }

  clear(sampleRate) {
    this.sampleRate = sampleRate;
    this.peaks = [];
    this.samples = 0;
    this.draw(0);
  }

  /** Samples arrived. */
  add(samples) {
    for (const sample of samples) {
      const at = Math.floor(this.samples++ / PEAK_SAMPLES);
      this.peaks[at] = Math.max(this.peaks[at] ?? 0, Math.abs(sample));
    }
  }

  /** Draws with the playhead at `played` samples. */
  draw(played) {
    const { canvas } = this;
    const scale = globalThis.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = style.getPropertyValue("--line");
    pen.fillRect(0, height / 2 - 0.5, width, 1);
    const span = Math.max(4 * this.sampleRate, this.samples);
    const columns = Math.floor(width / 3);
    for (let column = 0; column < columns; column++) {
      const peak = this.#peak(column / columns, (column + 1) / columns, span);
      if (peak === null) break;
      const half = Math.max(0.5, (peak * height) / 2);
      const isPlayed = (column / columns) * span < played;
      pen.fillStyle = style.getPropertyValue(isPlayed ? "--accent" : "--pale");
      pen.fillRect(column * 3, height / 2 - half, 2, 2 * half);
    }
    if (played > 0 && played < this.samples) {
      pen.fillStyle = style.getPropertyValue("--text");
      pen.fillRect((played / span) * width, 0, 1, height);
    }
  }

  #peak(from, to, span) {
    const first = Math.floor((from * span) / PEAK_SAMPLES);
    if (first >= this.peaks.length) return null;
    const last = Math.max(first + 1, Math.floor((to * span) / PEAK_SAMPLES));
    return Math.max(...this.peaks.slice(first, last));
  }
}
