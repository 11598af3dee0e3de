// The page's connection: opens it, notices when it is gone, and opens it again.

import { connect } from "/static/talkwire.js";

const KEY = "talkwire-api-key";

/** The API key that was given in this tab, if one was: it is kept until the tab is closed. */
export const apiKey = () => sessionStorage.getItem(KEY) ?? undefined;
export const keepApiKey = (key) => sessionStorage.setItem(KEY, key);

/** What the client is told where there is no key, a wrong one, or one that may not speak. */
const LOCKED = ["unauthorized", "forbidden"];
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

/**
 * `onChange(state, error)`: "connecting", "open", "waiting" (it will be tried again at
 * `retryAtMs`), "resting" (the server closed an idle socket; `use` opens a new one) or "locked"
 * (it takes another API key).
 */
export class Link {
  constructor(url, onChange) {
    this.url = url;
    this.onChange = onChange;
    this.client = null;
    this.failures = 0;
    this.retryAtMs = 0;
    this.attempt = null;
  }

  /** The open client; connects if need be. Throws TalkwireError. */
  async use() {
    if (this.client?.isOpen) return this.client;
    return (this.attempt ??= this.#connect());
  }

  /** Tries now, and again later if it fails. */
  start() {
    this.use().catch(() => {}); // onChange has told
  }

  async #connect() {
    clearTimeout(this.timer);
    this.onChange("connecting", null);
    try {
      const onClose = (error) => this.#onClose(error);
      this.client = await connect(this.url, { apiKey: apiKey(), onClose });
      this.failures = 0;
      this.onChange("open", null);
      return this.client;
    } catch (error) {
      this.#wait(error);
      throw error;
    } finally {
      this.attempt = null;
    }
  }

  #onClose(error) {
    if (error.code === "idle_timeout") this.onChange("resting", null);
    else this.#wait(error);
  }

  #wait(error) {
    if (LOCKED.includes(error.code)) return this.onChange("locked", error);
    const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.failures++);
    const wait = longest * (0.75 + Math.random() / 4); // so that not all pages come at once
    this.retryAtMs = performance.now() + wait;
    this.timer = setTimeout(() => this.start(), wait);
    this.onChange("waiting", error);
  }
}
